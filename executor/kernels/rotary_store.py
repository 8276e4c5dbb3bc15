"""Rotary positions and the cache: a layer's fused projection becomes queries, and keys and values in their places."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from executor.kernels.dependent_launch import launch_options

Norm = tuple[Tensor, float]  # weight and epsilon


@triton.jit
def _rotary_store_kernel(
    projected,
    cos,
    sin,
    slots,
    q_norm,
    k_norm,
    q,
    keys,
    values,
    tokens,
    position_stride,
    key_stride,
    value_stride,
    eps,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    NORM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)  # of batch * tokens; query, key and value heads
    sequence, token = row // tokens, row % tokens
    half: tl.constexpr = WIDTH // 2
    low = tl.arange(0, BLOCK_HALF)
    ok = low < half
    source = projected + (row * (HEADS + 2 * SHARED) + head) * WIDTH + low
    left = tl.load(source, mask=ok, other=0.0)
    right = tl.load(source + half, mask=ok, other=0.0)
    if head >= HEADS + SHARED:
        slot = tl.load(slots + row)
        goal = values + (sequence * SHARED + head - HEADS - SHARED) * value_stride + slot * WIDTH + low
    else:
        first, second = left.to(tl.float32), right.to(tl.float32)
        if NORM:
            weight = q_norm if head < HEADS else k_norm
            scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / WIDTH + eps)
            first = first * scale * tl.load(weight + low, mask=ok, other=0.0).to(tl.float32)
            second = second * scale * tl.load(weight + half + low, mask=ok, other=0.0).to(tl.float32)
        angle = sequence * position_stride + token * WIDTH + low
        cos_low = tl.load(cos + angle, mask=ok, other=0.0).to(tl.float32)
        cos_high = tl.load(cos + angle + half, mask=ok, other=0.0).to(tl.float32)
        sin_low = tl.load(sin + angle, mask=ok, other=0.0).to(tl.float32)
        sin_high = tl.load(sin + angle + half, mask=ok, other=0.0).to(tl.float32)
        left = (first * cos_low - second * sin_low).to(left.dtype)
        right = (second * cos_high + first * sin_high).to(left.dtype)
        if head < HEADS:
            goal = q + (row * HEADS + head) * WIDTH + low
        else:
            slot = tl.load(slots + row)
            goal = keys + (sequence * SHARED + head - HEADS) * key_stride + slot * WIDTH + low
    tl.store(goal, left, mask=ok)
    tl.store(goal + half, right, mask=ok)


def rotate_and_store(
    projected: Tensor,
    positions: tuple[Tensor, Tensor],
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Rotate queries and keys, write keys and values at `slots`; return the queries, (batch, tokens, heads, width).

    Args:
        projected: (batch, tokens, (heads + 2 * shared heads) * width), contiguous: queries, keys, values.
        positions: cosines and sines, (1 or batch, tokens, width), contiguous.
        slots: int64 (batch, tokens), contiguous, columns of the cache.
        keys, values: (batch, shared heads, capacity, width), the layer's part of the cache.
        norms: weights of the norms of queries and keys over a head, (width,), and their epsilon; None: no norms.
    """
    batch, tokens, _ = projected.shape
    shared, width = keys.shape[1], keys.shape[3]
    heads = projected.shape[2] // width - 2 * shared
    cos, sin = positions
    q = torch.empty(batch, tokens, heads, width, dtype=projected.dtype, device=projected.device)
    q_norm, k_norm, eps = (projected, projected, 0.0) if norms is None else norms
    _rotary_store_kernel[batch * tokens, heads + 2 * shared](
        projected,
        cos,
        sin,
        slots,
        q_norm,
        k_norm,
        q,
        keys,
        values,
        tokens,
        0 if len(cos) == 1 else tokens * width,
        keys.stride(1),
        values.stride(1),
        eps,
        HEADS=heads,
        SHARED=shared,
        WIDTH=width,
        BLOCK_HALF=triton.next_power_of_2(width // 2),
        NORM=norms is not None,
        num_warps=1,
        **launch_options(projected.device),
    )
    return q
