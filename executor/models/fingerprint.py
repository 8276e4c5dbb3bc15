"""Who a target and a drafter are: names, number types, weights and devices, as files record them to be matched by."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from executor.drafters.drafter import Drafter
from executor.target.load_hf_model import dtype_name
from executor.target.quantization import plain_tensors, quantization_of
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes, whole


def identity(target: Target, drafter: Drafter | None) -> dict[str, Any]:
    """Who they are, by name, number type, weights and settings: what traces, profiles and validations are matched by.

    Quantised weights are named too. Where several processes share the target, all must ask.
    """
    kind = quantization_of(target.model)
    found: dict[str, Any] = {
        "target": {
            "name": target.name,
            "weights": weights_hash(target.model),
            "settings": settings_hash({"config": target.model.config}),
            "dtype": dtype_name(target.dtype),
            **({} if kind is None else {"quantization": kind}),
        },
    }
    if drafter is not None:
        heads = {"heads": drafter.max_depth} if drafter.kind == "medusa" else {}
        who = {"weights": weights_hash(drafter), "settings": settings_hash(drafter.settings)}
        found["drafter"] = {"kind": drafter.kind, **heads, **who}
    return found


# Words in the names of what a configuration says that changes no output.
_HARMLESS = re.compile(
    r"^_|architectures|version|dtype|use_cache|token_id|dropout|initializer|output_|return_dict|chunk_size|label"
    r"|problem_type|quantization_config|path"
)


def settings_hash(settings: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 over what changes a model's output beside its weights.

    Args:
        settings: by name; of a Hugging Face configuration what its text part says counts.
    """
    found = {name: _said(value) if isinstance(value, PretrainedConfig) else value for name, value in settings.items()}
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _said(config: PretrainedConfig) -> dict[str, Any]:
    told = config.get_text_config().to_dict()
    return {name: value for name, value in told.items() if value is not None and not _HARMLESS.search(name)}


def weights_hash(module: Any) -> str:
    """16 hex digits of the SHA-256 over names, types and values of a module's weights, shared out or not."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        for part, tensor in plain_tensors(name, value):
            digest.update(f"{part} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(whole(tensor.detach()).contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def tokens_hash(texts: Sequence[Sequence[int]]) -> str:
    """16 hex digits of the SHA-256 over texts as token ids.

    >>> tokens_hash([[1, 2], [3]])
    '192f318fa6690229'
    """
    return hashlib.sha256(json.dumps([list(text) for text in texts]).encode()).hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """What the device is called: the accelerator's name, or cpu with its threads; and how many share the model."""
    name = f"{device.type}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return name if processes() == 1 else f"{processes()} x {name}"


def clock_mhz(device: torch.device) -> float | None:
    """The processors' clock at this moment, in MHz, the mean of all cores; None where nobody says."""
    try:
        if device.type == "cuda":
            return float(torch.cuda.clock_rate(device))
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except Exception:  # noqa: BLE001 - NVML has errors of its own, and a profile is worth having without
        return None
    clocks = [float(line.split(":", 1)[1]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else None
