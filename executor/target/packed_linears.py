"""Linear layers: weights laid out by oneDNN for products with few rows on CPU, or quantised to 8 and 4 bits.

A decoding step multiplies a few tokens with every weight. For few rows, torch's own kernels read plain weights on some
processors at a third to two thirds of the speed at which oneDNN's packed blocks are read (`make bench` prints the
ratio). On others they are quicker for one row. So `pack_where_it_fits` times each shape of layer both ways, and chooses
from how many rows on it is multiplied packed. The two add in another order and differ in the last bits: recorded files
name the choice, and `repack` makes it again.

The plain weights stay: they are what is saved, hashed and trained. When autograd has counted a change of them, they are
used instead of the packed copy; changes that it does not see (through `.data`, numpy, a cast) leave the packed copy
outdated. A packed model cannot be copied, pickled or cast: `unpack_linears` first.

Both quantisations are weight-only: the result of a layer for a token does not depend on the other tokens, so verifying
a tree equals plain decoding of the same quantised model to rounding. (LLM.int8 is different: the whole batch decides
which columns stay in half precision.)
"""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import PreTrainedModel, TorchAoConfig

from executor.device import free_bytes
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


ROWS = 16  # the number of rows that blocks are laid out for; any number can be multiplied
# In fp32 one row times a smaller matrix took longer packed: oneDNN's call costs about 15 us, torch's 4 (AMD EPYC).
SMALLEST = 2**18

TIMED_ROWS = (1, 8)  # a plain step, and one of a small tree
TIMED_BYTES = 2**26  # of weights of one shape that are read in turn: more than caches hold, as in a step
BUDGET_S = 0.3  # for all shapes of a model
GAIN = 0.97  # packed only below this share of the plain time, so that noise rarely changes the choice

Shape = tuple[int, int]  # outputs, inputs
Choice = dict[Shape, int]  # the rows from which on layers of this shape are multiplied packed


def pack_linears(model: nn.Module, choice: Mapping[Shape, int] | None = None) -> int:
    """Give linear layers packed copies of their weights, by a choice or all of them; return the bytes of these copies.

    Unchanged: layers that are quantised, sharded or not on CPU, types that this processor does not multiply natively,
    and small layers that would gain nothing.
    """
    taken = 0
    for layer in _packable_layers(model):
        least = 1 if choice is None else choice.get(_shape(layer))
        if least is not None:
            multiply = partial(_multiply, layer, _packed(layer), layer.weight, layer.weight._version, least)
            layer.forward = multiply  # type: ignore[method-assign]
            taken += layer.weight.nbytes
    return taken


def pack_where_it_fits(model: nn.Module) -> None:
    """Pack where this makes layers quicker, if copies of all take less than half of the free memory."""
    needed = packable_bytes(model)
    if needed and needed < (free_bytes(next(model.parameters()).device) or 0) / 2:
        pack_linears(model, quicker_choice(model))


def quicker_choice(model: nn.Module, *, budget_s: float = BUDGET_S) -> Choice:
    """Time each shape of layer plain and packed, in turn, in `budget_s` for all; choose what takes less time.

    Each shape has two rounds even if they take longer.
    """
    layers, choice = layers_by_shape(model), Choice()
    for shape, alike in layers.items():
        ratios = packed_over_plain(alike, budget_s / len(layers))
        quicker = [rows for rows, ratio in ratios.items() if ratio < GAIN]
        if quicker:  # numbers of rows between those that were timed are taken to be as the larger
            choice[shape] = min(2, quicker[0])
    return choice


def layers_by_shape(model: nn.Module) -> dict[Shape, list[nn.Linear]]:
    """Return the layers that can be packed, by their shape."""
    layers: dict[Shape, list[nn.Linear]] = {}
    for layer in _packable_layers(model):
        layers.setdefault(_shape(layer), []).append(layer)
    return layers


def packed_over_plain(layers: Sequence[nn.Linear], budget_s: float) -> dict[int, float]:
    """Return the time of packed products of layers of one shape over that of plain ones, for each of `TIMED_ROWS`.

    They are ratios of minima over rounds.
    """
    part = layers[: max(1, TIMED_BYTES // layers[0].weight.nbytes)]
    copies = [_packed(layer) for layer in part]
    best: dict[tuple[int, bool], float] = {}
    began, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - began < budget_s:
        for rows in TIMED_ROWS:
            features = layers[0].weight.detach().new_ones(rows, layers[0].in_features)
            for packed in (False, True):
                took_s = _products_s(features, part, copies if packed else None)
                best[rows, packed] = min(took_s, best.get((rows, packed), math.inf))
        rounds += 1
    return {rows: best[rows, True] / best[rows, False] for rows in TIMED_ROWS}


def _products_s(features: Tensor, layers: Sequence[nn.Linear], copies: Sequence[Tensor] | None) -> float:
    """Return the seconds of one product with each layer, or with the packed copies of their weights.

    They are those in which this thread ran, so that other programs take no part of them.
    """
    started = time.thread_time()
    with torch.no_grad():
        for place, layer in enumerate(layers):
            if copies is None:
                F.linear(features, layer.weight, layer.bias)
            else:
                _product(features, copies[place], layer.bias)
    return time.thread_time() - started


def repack(model: nn.Module, choice: Mapping[Shape, int]) -> None:
    """Pack by exactly this choice, as far as this processor can."""
    if packed_choice(model) != choice:
        unpack_linears(model)
        pack_linears(model, choice)


def packed_choice(model: nn.Module) -> Choice:
    """Return the choice by which a model is packed, in increasing order of shapes; empty for a plain model."""
    packed = [layer for layer in model.modules() if type(layer) is nn.Linear and _is_packed(layer)]
    return dict(sorted((_shape(layer), vars(layer)["forward"].args[-1]) for layer in packed))


def packable_bytes(model: nn.Module) -> int:
    """Return the memory that `pack_linears` takes at most."""
    return sum(layer.weight.nbytes for layer in _packable_layers(model))


def unpack_linears(model: nn.Module) -> None:
    """Undo `pack_linears`: compilers lay weights out themselves."""
    for layer in model.modules():
        if type(layer) is nn.Linear and _is_packed(layer):
            del layer.forward


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16 products; False only if oneDNN reports that it has none.

    A processor that lacks them takes longer than in float32: twice for one row, 7 times for 64 (torch 2.13, AVX2).
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _packable_layers(model: nn.Module) -> list[nn.Linear]:
    return [layer for layer in model.modules() if type(layer) is nn.Linear and _packable(layer.weight)]


def _packable(weight: Tensor) -> bool:
    if type(weight) is not nn.Parameter or weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return multiplies_bf16(weight.device)
    return weight.dtype == torch.float32 and weight.numel() >= SMALLEST


def _is_packed(layer: nn.Linear) -> bool:
    return isinstance(vars(layer).get("forward"), partial)


def _shape(layer: nn.Linear) -> Shape:
    return layer.out_features, layer.in_features


def _packed(layer: nn.Linear) -> Tensor:
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)
    return copy


def _multiply(layer: nn.Linear, packed: Tensor, weight: Tensor, version: int, least: int, features: Tensor) -> Tensor:
    if features.numel() < least * features.shape[-1]:
        return F.linear(features, layer.weight, layer.bias)
    changed = layer.weight is not weight or weight._version != version
    if changed or (torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)):
        return F.linear(features, layer.weight, layer.bias)  # the packed product has no gradient
    return _product(features, packed, layer.bias)


def _product(features: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(features, packed, bias, "none", [], "")
    return product
