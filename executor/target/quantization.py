"""Weights of 8 and 4 bits: which quantisation is asked of transformers, what a model's is called, what it is made of.

Both are weight-only: what a layer computes for a token does not depend on the tokens beside it, so verifying a tree
equals plain decoding of the same quantised model to rounding. (LLM.int8 is not like this: which columns it leaves in
half precision depends on the whole batch.)
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, TorchAoConfig

from treeopt.errors import ExecutorError

KINDS = ("int8", "int4")
GROUP = 32  # weights that share a scale at 4 bits


def quantizer(kind: str, config: Any, *, dtype: torch.dtype, device: str) -> TorchAoConfig:
    """The transformers configuration that stores a model's linear layers, the LM head excepted, in `kind`.

    int8 keeps one scale per output. int4 keeps one per 32 inputs; on CUDA it is packed two to a byte for PyTorch's
    tinygemm kernel, elsewhere each weight still takes a byte (the numbers are those of 4 bits, the memory is not).

    Raises:
        ExecutorError: no such kind, torchao is not installed, or the model's numbers or sizes do not fit it.
    """
    if kind not in KINDS:
        raise ExecutorError(f"quantize must be one of {', '.join(KINDS)}, got {kind}")
    if find_spec("torchao") is None:
        raise ExecutorError(f"{kind} weights need torchao: pip install 'treeopt[quantized]'")
    packed = kind == "int4" and torch.device(device).type == "cuda"
    fitting = (torch.bfloat16,) if packed else (torch.float32, torch.bfloat16, torch.float16)
    if dtype not in fitting:
        names = " or ".join(str(each).removeprefix("torch.") for each in fitting)
        raise ExecutorError(f"{kind} weights on {device} compute in {names}, got {str(dtype).removeprefix('torch.')}")
    if kind == "int4":
        text = config.get_text_config()
        for name in ("hidden_size", "intermediate_size"):
            size = getattr(text, name, None)
            if size is not None and size % GROUP:
                raise ExecutorError(f"int4 weights share a scale by {GROUP}s; the model's {name} is {size}")
    # torchao takes seconds to import.
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

    if kind == "int8":
        return TorchAoConfig(Int8WeightOnlyConfig())
    if packed:
        return TorchAoConfig(Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d"))
    return TorchAoConfig(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP)))  # type: ignore[attr-defined]


def stored(config: Any) -> dict[str, Any] | None:
    """The quantisation that a configuration speaks of, if any."""
    found = getattr(config, "quantization_config", None)
    if found is None or isinstance(found, dict):
        return found
    settings: dict[str, Any] = found.to_dict()
    return settings


def quantization_of(model: PreTrainedModel) -> str | None:
    """What provenance calls the quantisation of a model's weights, such as `int8 (torchao)`; None without one."""
    settings = stored(model.config)
    if settings is None:
        return None
    method = settings.get("quant_method", "unknown")
    method = getattr(method, "value", method)
    kind = re.search(r"[Ii]nt(\d+)", str(settings.get("quant_type") or settings.get("weights")).replace("Intx", ""))
    if kind:
        return f"int{kind[1]} ({method})"
    bits = settings.get("bits") or (settings.get("load_in_4bit") and 4) or (settings.get("load_in_8bit") and 8)
    return f"{bits}-bit ({method})" if bits else str(method)


def plain_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What a weight is made of: itself, or numbers, scales and zero points of a quantised one, by name."""
    # The protocol by which torch.compile looks into tensor subclasses.
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or isinstance(tensor, DTensor):
        yield name, tensor
        return
    for part in sorted(flatten()[0]):
        yield from plain_tensors(f"{name}.{part}", getattr(tensor, part))
