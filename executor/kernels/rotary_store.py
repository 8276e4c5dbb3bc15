"""Rotary positions and the cache: a layer's fused projection becomes queries, and keys and values in their places."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from executor.kernels.dependent_launch import launch_options


@dataclass(frozen=True)
class Rotation:
    """The angles of rotary positions.

    Attributes:
        frequencies: (width / 2,), of which products with positions are fp32.
        scaling: factor of cosines and sines.
        limit: positions from this one on are taken for the one before it; None: there is no limit.
    """

    frequencies: Tensor
    scaling: float
    limit: int | None = None


@dataclass(frozen=True)
class Nodes:
    """Where the nodes of trees stand: node n of a sequence in column `length + first + n`.

    Attributes:
        lengths: int64 (batch,), contiguous, committed tokens.
        depths: int64 (1 or batch, tokens), contiguous, 0 for the root.
        first: nodes before these that are in the cache already.
    """

    lengths: Tensor
    depths: Tensor
    first: int = 0


@triton.jit
def _rotary_store_kernel(
    projected,
    lengths,
    depths,
    frequencies,
    q_norm,
    k_norm,
    q,
    keys,
    values,
    tokens,
    first_node,
    capacity,
    limit,
    depth_stride,
    key_stride,
    value_stride,
    scaling,
    eps,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    NORM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)  # of batch * tokens; query, key and value heads
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    sequence, token = row // tokens, row % tokens
    half: tl.constexpr = WIDTH // 2
    low = tl.arange(0, BLOCK_HALF)
    ok = low < half
    length = tl.load(lengths + sequence)
    slot = length + first_node + token
    stored = ok
    source = projected + (row * (HEADS + 2 * SHARED) + head) * WIDTH + low
    left = tl.load(source, mask=ok, other=0.0)
    right = tl.load(source + half, mask=ok, other=0.0)
    if head >= HEADS + SHARED:
        stored = ok & (slot < capacity)
        goal = values + (sequence * SHARED + head - HEADS - SHARED) * value_stride + slot * WIDTH + low
    else:
        first, second = left.to(tl.float32), right.to(tl.float32)
        if NORM:
            weight = q_norm if head < HEADS else k_norm
            scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / WIDTH + eps)
            first = first * scale * tl.load(weight + low, mask=ok, other=0.0).to(tl.float32)
            second = second * scale * tl.load(weight + half + low, mask=ok, other=0.0).to(tl.float32)
        position = tl.minimum(length + tl.load(depths + sequence * depth_stride + token), limit - 1)
        angle = position.to(tl.float32) * tl.load(frequencies + low, mask=ok, other=0.0).to(tl.float32)
        cos = (tl.cos(angle) * scaling).to(left.dtype).to(tl.float32)  # rounded as the model's table is
        sin = (tl.sin(angle) * scaling).to(left.dtype).to(tl.float32)
        left = (first * cos - second * sin).to(left.dtype)
        right = (second * cos + first * sin).to(left.dtype)
        if head < HEADS:
            goal = q + (row * HEADS + head) * WIDTH + low
        else:
            stored = ok & (slot < capacity)
            goal = keys + (sequence * SHARED + head - HEADS) * key_stride + slot * WIDTH + low
    tl.store(goal, left, mask=stored)
    tl.store(goal + half, right, mask=stored)


def rotate_and_store(
    projected: Tensor,
    rotation: Rotation,
    nodes: Nodes,
    keys: Tensor,
    values: Tensor,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Rotate queries and keys, write keys and values of nodes; return the queries, (batch, tokens, heads, width).

    Args:
        projected: (batch, tokens, (heads + 2 * shared heads) * width), contiguous: queries, keys, values.
        rotation: the angles.
        nodes: where they stand; what would stand beyond the capacity is not written.
        keys, values: (batch, shared heads, capacity, width), the layer's part of the cache.
        norms: weights of the norms of queries and keys over a head, (width,), and their epsilon; None: no norms.
    """
    batch, tokens, _ = projected.shape
    shared, capacity, width = keys.shape[1:]
    heads = projected.shape[2] // width - 2 * shared
    q = torch.empty(batch, tokens, heads, width, dtype=projected.dtype, device=projected.device)
    q_norm, k_norm, eps = (projected, projected, 0.0) if norms is None else norms
    _rotary_store_kernel[batch * tokens, heads + 2 * shared](
        projected,
        nodes.lengths,
        nodes.depths,
        rotation.frequencies,
        q_norm,
        k_norm,
        q,
        keys,
        values,
        tokens,
        nodes.first,
        capacity,
        rotation.limit or 1 << 30,
        0 if len(nodes.depths) == 1 else tokens,
        keys.stride(1),
        values.stride(1),
        rotation.scaling,
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
