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
    """Every node sees its sequence's committed tokens, its ancestors and itself; (batch, 1, fed, view).

    Args:
        lengths: int64 (batch,), committed tokens in the cache; node n lies in column `lengths + n`.
        ancestors: bool (b, fed, count), row is below or equal to column; b is 1 or batch.
        view: columns of the cache that are looked at.
        dtype: type of the mask.
    """
    batch, (_, fed, count) = len(lengths), ancestors.shape
    node = torch.arange(view, device=lengths.device) - lengths[:, None]
    inside = (node >= 0) & (node < count)
    seen = ancestors.expand(batch, -1, -1).gather(2, node.clamp(0, count - 1)[:, None].expand(-1, fed, -1))
    return additive((seen & inside[:, None]) | (node < 0)[:, None], dtype)[:, None]
