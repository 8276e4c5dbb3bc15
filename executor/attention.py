"""Attention masks, additive and in the model's type: causal, and a tree behind a ragged prefix."""

import torch
from torch import Tensor


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `seen`, the lowest finite number elsewhere; same shape, `dtype`."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)


def causal_mask(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Every token sees itself and what stands before it; (1, 1, count, count)."""
    return additive(torch.ones(count, count, dtype=torch.bool, device=device).tril(), dtype)[None, None]


def tree_mask(lengths: Tensor, ancestors: Tensor, view: int, dtype: torch.dtype) -> Tensor:
    """Every node sees its sequence's committed tokens, its ancestors and itself; (batch, 1, count, view).

    Args:
        lengths: int64 (batch,), committed tokens in the cache; node n lies in column `lengths + n`.
        ancestors: bool (count, count), row is a descendant of or equal to column.
        view: columns of the cache that are looked at.
        dtype: type of the mask.
    """
    count = ancestors.shape[0]
    node = torch.arange(view, device=lengths.device) - lengths[:, None]
    inside = (node >= 0) & (node < count)
    tree = ancestors[:, node.clamp(0, count - 1)].permute(1, 0, 2) & inside[:, None]
    return additive(tree | (node < 0)[:, None], dtype)[:, None]
