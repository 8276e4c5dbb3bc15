"""Quantisation of weights to 8 and 4 bits: the settings for transformers, its name in provenance, its tensors.

Both are weight-only: the result of a layer for a token does not depend on the other tokens, so verifying a tree equals
plain decoding of the same quantised model to rounding. (LLM.int8 is different: the whole batch decides which columns
stay in half precision.)
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, TorchAoConfig

from executor.target import QUANTIZED
from treeopt.errors import ExecutorError

GROUP = 32  # weights that share a scale at 4 bits


def quantizer(kind: str, config: Any, *, dtype: torch.dtype, device: str) -> TorchAoConfig:
    """Return the transformers configuration that stores a model's linear layers, except the LM head, as `kind`.

    int8 keeps one scale per output. int4 keeps one per 32 inputs; on CUDA it is packed two to a byte for PyTorch's
    tinygemm kernel, elsewhere each weight still takes a byte (values of 4 bits in memory of 8).

    Raises:
        ExecutorError: no such kind, torchao is not installed, or the model's number type or sizes do not fit.
    """
    if kind not in QUANTIZED:
        raise ExecutorError(f"quantize must be one of {', '.join(QUANTIZED)}, got {kind}")
    if find_spec("torchao") is None:
        raise ExecutorError(f"{kind} weights need torchao: pip install 'treeopt[quantized]'")
    packed = kind == "int4" and torch.device(device).type == "cuda"
    fitting = (torch.bfloat16,) if packed else (torch.float32, torch.bfloat16, torch.float16)
    if dtype not in fitting:
        names = " or ".join(str(number).removeprefix("torch.") for number in fitting)
        raise ExecutorError(f"{kind} weights on {device} compute in {names}, got {str(dtype).removeprefix('torch.')}")
    if kind == "int4":
        text = config.get_text_config()
        for name in ("hidden_size", "intermediate_size"):
            size = getattr(text, name, None)
            if size is not None and size % GROUP:
                raise ExecutorError(f"int4 needs sizes that are multiples of {GROUP}; the model's {name} is {size}")
    # torchao takes seconds to import.
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

    if kind == "int8":
        return TorchAoConfig(Int8WeightOnlyConfig())
    if packed:
        return TorchAoConfig(Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d"))
    return TorchAoConfig(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP)))  # type: ignore[attr-defined]


def stored_quantization(config: Any) -> dict[str, Any] | None:
    """Return the quantisation settings in a model's configuration, None without any."""
    quantization = getattr(config, "quantization_config", None)
    if quantization is None or isinstance(quantization, dict):
        return quantization
    settings: dict[str, Any] = quantization.to_dict()
    return settings


def quantization_of(model: PreTrainedModel) -> str | None:
    """Return the name of a model's quantisation in provenance, such as `int8 (torchao)`; None without one."""
    settings = stored_quantization(model.config)
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
    """Yield the plain tensors of a weight by name: itself, or the values, scales and zero points of a quantised one."""
    # The protocol by which torch.compile reads tensor subclasses.
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or isinstance(tensor, DTensor):
        yield name, tensor
        return
    for part in sorted(flatten()[0]):
        yield from plain_tensors(f"{name}.{part}", getattr(tensor, part))
