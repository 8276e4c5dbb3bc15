"""Models: fingerprints of target, drafter, texts and device, by which files are matched; models with random weights.

The time of a forward depends only on the shape, so random weights are enough to measure it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, PretrainedConfig

from executor.drafters.base.drafter import Drafter
from executor.target import fused_verification
from executor.target.architectures import context_limit, model_class
from executor.target.fused_verification import fuse
from executor.target.load_hf_model import dtype_name, read_verifiable_config
from executor.target.packed_linears import pack_where_it_fits, packed_choice, plain_tensors, quantization_of, repack
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes, whole
from simulate.drafter_kinds import DRAFTERS
from simulate.model_sizes.hf_config import SHAPES, shape_fields, shape_name
from treeopt.errors import ExecutorError, UsageError
from treeopt.registry import load
from treeopt.storage.hub_models import folder_name, hub_hint
from treeopt.storage.provenance import look, this_run


def identity(target: Target, drafter: Drafter | None) -> dict[str, Any]:
    """Return the names, number types and hashes by which traces, profiles and validations are matched.

    Quantisation is named too. If several processes share the target, all must call.
    """
    kind = quantization_of(target.model)
    record: dict[str, Any] = {
        "target": {
            "name": target.name,
            "weights": weights_hash(target.model),
            "settings": settings_hash({"config": target.model.config}),
            "dtype": dtype_name(target.dtype),
            **({} if kind is None else {"quantization": kind}),
        },
    }
    if drafter is not None:
        hashes = {"weights": weights_hash(drafter), "settings": settings_hash(drafter.settings)}
        name = getattr(drafter, "name", None)  # of its folder, see `load_drafter`
        record["drafter"] = {
            "kind": drafter.kind,
            **({} if name is None else {"name": name}),
            **getattr(drafter, "facts", {}),
            **({} if (positions := drafter_positions(target, drafter)) is None else {"positions": positions}),
            **hashes,
        }
    return record


def drafter_positions(target: Target, drafter: Drafter | None) -> int | None:
    """Return the positions of a drafter with a layer, where the target takes longer texts; None without a limit."""
    config = getattr(drafter, "config", None)
    limit = None if config is None else context_limit(config)
    return limit if limit and limit < (target.context_limit or limit + 1) else None


def run_provenance(target: Target, drafter: Drafter | None) -> dict[str, Any]:
    """Return `this_run`, and what adds in another order than the models do: packed layers and fused kernels, if any.

    Packed layers are lists of outputs, inputs, and the rows from which on they are multiplied packed (see
    `packed_linears`). `fused` names the models that verify by fused kernels.
    """
    packed = {
        name: [[*shape, rows] for shape, rows in packed_choice(model).items()]
        for name, model in _modules(target, drafter).items()
    }
    fused = [name for name, model in _targets(target, drafter).items() if model.fused is not None]
    return (
        this_run() | ({"packed_linears": packed} if any(packed.values()) else {}) | ({"fused": fused} if fused else {})
    )


def compute_as_recorded(target: Target, drafter: Drafter | None, provenance: Any) -> None:
    """Pack layers and use fused kernels as in the run with this provenance, so that the last bits are the same.

    Raises:
        ExecutorError: that run used fused kernels, and this one cannot, though it is on CUDA too.
    """
    for name, model in _modules(target, drafter).items():
        layers = look(provenance, "packed_linears", name)
        usable = filter(_is_choice, layers if isinstance(layers, list) else [])
        repack(model, {(outputs, inputs): rows for outputs, inputs, rows in usable})
    fused = look(provenance, "fused")
    for name, verifier in _targets(target, drafter).items():
        if not isinstance(fused, list) or name not in fused:
            verifier.fused, verifier.fused_reason = None, "the run that is resumed did not use them"
        elif verifier.fused is None and verifier.device.type == fused_verification.DEVICE:
            reason = verifier.fused_reason or "they were switched off"
            raise ExecutorError(
                f"the {name} of the run that is resumed verified by fused kernels, here it cannot ({reason}): begin a "
                "new output, since texts could differ"
            )


def _is_choice(recorded: Any) -> bool:
    return isinstance(recorded, list) and len(recorded) == 3 and all(isinstance(number, int) for number in recorded)


def _targets(target: Target, drafter: Drafter | None) -> dict[str, Target]:
    models = {"target": target, "drafter": getattr(drafter, "target", None)}
    return {name: model for name, model in models.items() if isinstance(model, Target)}


def _modules(target: Target, drafter: Drafter | None) -> dict[str, nn.Module]:
    models = {"target": target.model, "drafter": drafter}
    return {name: model for name, model in models.items() if isinstance(model, nn.Module)}


# Parts of the names of configuration fields that change no output.
_HARMLESS = re.compile(
    r"^_|architectures|version|dtype|use_cache|token_id|dropout|initializer|output_|return_dict|chunk_size|label"
    r"|problem_type|quantization_config|path"
)


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return 16 hex digits of the SHA-256 over settings that change a model's output beside its weights.

    Of a Hugging Face configuration its text part counts.
    """
    plain = {name: _fields(value) if isinstance(value, PretrainedConfig) else value for name, value in settings.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _fields(config: PretrainedConfig) -> dict[str, Any]:
    fields = config.get_text_config().to_dict()
    return {name: value for name, value in fields.items() if value is not None and not _HARMLESS.search(name)}


def weights_hash(module: Any) -> str:
    """Return 16 hex digits of the SHA-256 over names, types and values of a module's weights, sharded or not."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        for part, tensor in plain_tensors(name, value):
            digest.update(f"{part} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(whole(tensor.detach()).contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def tokens_hash(texts: Sequence[Sequence[int]]) -> str:
    """Return 16 hex digits of the SHA-256 over texts as token ids.

    >>> tokens_hash([[1, 2], [3]])
    '192f318fa6690229'
    """
    return hashlib.sha256(json.dumps([list(text) for text in texts]).encode()).hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """Return the accelerator's name, or cpu with its threads; with the number of processes that share the model."""
    name = f"{device.type}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return name if processes() == 1 else f"{processes()} x {name}"


def clock_mhz(device: torch.device) -> float | None:
    """Return the processor's current clock in MHz, the mean of all cores; None if the system does not report it."""
    try:
        if device.type == "cuda":
            return float(torch.cuda.clock_rate(device))
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except Exception:  # noqa: BLE001 - NVML has errors of its own, and a profile is worth having without
        return None
    clocks = [float(line.split(":", 1)[1]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else None


DIGITS = 6  # of the number of a random drafter


def shape_config(shape: str) -> LlamaConfig:
    """Return a Llama configuration of a shape, one of `SHAPES`, without tokens that end a text."""
    return LlamaConfig(
        **{name: size for name, size in shape_fields(shape).items() if name != "model_type"},
        max_position_embeddings=40960,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def random_target(
    source: Path | str, *, dtype: torch.dtype = torch.float32, device: str = "cpu", packed: bool = False
) -> Target:
    """Return a target with random weights, the same ones each time, of one of `SHAPES` or a folder with a config.json.

    Raises:
        ExecutorError: neither a shape nor a folder, or an architecture that cannot verify trees.
    """
    if (shape := shape_name(source)) is not None:
        return make_target(shape_config(shape), f"random-{shape}", dtype, device, packed)
    if not (Path(source) / "config.json").is_file():
        known = f"neither a shape ({', '.join(SHAPES)}) nor a folder with a config.json"
        raise ExecutorError(f"{source}: {known}{hub_hint(source)}")
    return make_target(read_verifiable_config(source), f"random-{folder_name(source)}", dtype, device, packed)


def random_drafter(source: str, target: Target, *, packed: bool = False) -> Drafter:
    """Return a drafter for the target with random weights, in its number type and on its device.

    The source is `medusa:K`, `layers:N` or `eagle`; see `DrafterKind.random`.

    Raises:
        UsageError: unknown source.
    """
    known = {kind.random.option.partition(":")[0]: kind.random for kind in DRAFTERS.values() if kind.random}
    word, colon, number = source.partition(":")
    option = known.get(word)
    count = int(number) if number.isdecimal() and len(number) <= DIGITS else 0
    if option is None or not (1 <= count <= option.most or (option.most == 0 and not colon)):
        *first, last = map(str, known.values())
        raise UsageError(f"a drafter of random weights must be {', '.join(first)} or {last}, got {source!r}")
    torch.manual_seed(1)
    made: Drafter = load(option.make)(target, count, packed)
    return made.to(target.device, target.dtype).eval().requires_grad_(False) if isinstance(made, nn.Module) else made


def make_target(config: PretrainedConfig, name: str, dtype: torch.dtype, device: str, packed: bool) -> Target:
    """Return a target of this configuration with random weights, the same ones each time; see `random_target`."""
    torch.manual_seed(0)
    with torch.device(device):
        model = model_class(config).from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    if packed:
        pack_where_it_fits(model)
    target = Target(model, name=name)
    if packed:
        fuse(target)
    return target
