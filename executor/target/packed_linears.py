"""Packed linear layers: weights laid out by oneDNN for products with few rows on CPU.

A decoding step multiplies a few tokens with every weight. For few rows, torch's own kernels read plain weights at a
third to two thirds of the speed at which oneDNN's packed blocks are read (`make bench` prints the ratio). The plain
weights stay: they are what is saved, hashed and trained. When autograd has counted a change of them, they are used
instead of the packed copy; changes that it does not see (through `.data`, numpy, a cast) leave the packed copy
outdated. A packed model cannot be copied, pickled or cast: `unpack_linears` first.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from executor.device.free_memory import free_bytes

ROWS = 16  # the number of rows that blocks are laid out for; any number can be multiplied
# In fp32 one row times a smaller matrix took longer packed: oneDNN's call costs about 15 us, torch's 4 (AMD EPYC).
SMALLEST = 2**18


def pack_linears(model: nn.Module) -> int:
    """Give the linear layers of a model packed copies of their weights; return the bytes of these copies.

    Unchanged: layers that are quantised, sharded or not on CPU, types that this processor does not multiply natively,
    and small layers that would gain nothing.
    """
    taken = 0
    for module in model.modules():
        if type(module) is nn.Linear and _packable(module.weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), ROWS)
            module.forward = partial(_multiply, module, packed, module.weight, module.weight._version)  # type: ignore[method-assign]
            taken += module.weight.nbytes
    return taken


def pack_where_it_fits(model: nn.Module) -> None:
    """Pack if the copies take less than half of the free memory."""
    device = next(model.parameters()).device
    if packable_bytes(model) < (free_bytes(device) or 0) / 2:
        pack_linears(model)


def packable_bytes(model: nn.Module) -> int:
    """Return the memory that `pack_linears` will take."""
    return sum(m.weight.nbytes for m in model.modules() if type(m) is nn.Linear and _packable(m.weight))


def unpack_linears(model: nn.Module) -> None:
    """Undo `pack_linears`: compilers lay weights out themselves."""
    for module in model.modules():
        if type(module) is nn.Linear and isinstance(vars(module).get("forward"), partial):
            del module.forward


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16 products; False only if oneDNN reports that it has none.

    A processor that lacks them takes longer than in float32: twice for one row, 7 times for 64 (torch 2.13, AVX2).
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _packable(weight: Tensor) -> bool:
    if type(weight) is not nn.Parameter or weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return multiplies_bf16(weight.device)
    return weight.dtype == torch.float32 and weight.numel() >= SMALLEST


def _multiply(layer: nn.Linear, packed: Tensor, weight: Tensor, version: int, features: Tensor) -> Tensor:
    changed = layer.weight is not weight or weight._version != version
    if changed or (torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)):
        return F.linear(features, layer.weight, layer.bias)  # the packed product has no gradient
    product: Tensor = torch.ops.mkldnn._linear_pointwise(features, packed, layer.bias, "none", [], "")
    return product
