"""Attention of a tree's nodes over the cache, split over its columns, on CUDA.

A node sees the committed text and its ancestors. The query heads that share a key head are rows of one tile, so keys
and values are read once. Long texts are split: each program reads some columns and writes its weighted values with the
logarithm of their weight, and a second kernel adds them up (FlashDecoding, Dao et al. 2023). No mask is stored: the
length tells committed columns, `ancestors` the nodes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from executor.kernels.dependent_launch import launch_options


@triton.jit
def _fold(query, scale, best, total, acc, keys, values, column, seen, inside, WIDTH, width, width_ok, PRECISION):
    """Add a tile of columns to the softmax so far: the highest score, the sum of weights, the weighted values."""
    key = tl.load(keys + column[None, :] * WIDTH + width[:, None], mask=inside[None, :] & width_ok[:, None], other=0.0)
    score = tl.dot(query, key, input_precision=PRECISION) * scale
    score = tl.where(seen, score, -float("inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    safe = tl.where(higher == -float("inf"), 0.0, higher)
    weight = tl.exp2(score - safe[:, None])
    factor = tl.exp2(best - safe)
    value = tl.load(
        values + column[:, None] * WIDTH + width[None, :], mask=inside[:, None] & width_ok[None, :], other=0.0
    )
    acc = tl.dot(weight.to(value.dtype), value, acc * factor[:, None], input_precision=PRECISION)
    return higher, total * factor + tl.sum(weight, 1), acc


@triton.jit
def _split_kernel(
    q,
    keys,
    values,
    lengths,
    ancestors,
    partial,
    weights,
    out,
    tokens,
    count,
    ancestor_stride,
    key_stride,
    value_stride,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    WHOLE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    place, split, splits = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    sequence, head = place // HEADS, place % HEADS
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = row // GROUP
    row_ok = token < tokens
    width, offset = tl.arange(0, BLOCK_WIDTH), tl.arange(0, BLOCK_COLUMNS)
    width_ok = width < WIDTH
    # (sequence, token, query head, width)
    at = (sequence * tokens + token) * (HEADS * GROUP) + head * GROUP + row % GROUP
    query = tl.load(q + at[:, None] * WIDTH + width[None, :], mask=row_ok[:, None] & width_ok[None, :], other=0.0)
    scale *= 1.4426950408889634  # scores to the base of 2
    length = tl.load(lengths + sequence).to(tl.int32)
    columns = tl.cdiv(tl.cdiv(length + count, splits), BLOCK_COLUMNS) * BLOCK_COLUMNS  # of a split
    first = split * columns
    last = tl.minimum(first + columns, length + count)
    committed = tl.maximum(first, tl.minimum(last, length) // BLOCK_COLUMNS * BLOCK_COLUMNS)
    keys += place.to(tl.int64) * key_stride
    values += place.to(tl.int64) * value_stride
    best = tl.full((BLOCK_ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    acc = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
    all_columns = offset >= 0
    everything = tl.full((BLOCK_ROWS, BLOCK_COLUMNS), 1, tl.int1)
    for start in tl.range(first, committed, BLOCK_COLUMNS, num_stages=STAGES):  # seen by all nodes
        best, total, acc = _fold(
            query,
            scale,
            best,
            total,
            acc,
            keys,
            values,
            start + offset,
            everything,
            all_columns,
            WIDTH,
            width,
            width_ok,
            PRECISION,
        )
    for start in range(committed, last, BLOCK_COLUMNS):
        column = start + offset
        inside, node = column < last, column - length
        known = tl.load(
            ancestors + sequence * ancestor_stride + token[:, None] * count + node[None, :],
            mask=row_ok[:, None] & (node >= 0)[None, :] & inside[None, :],
            other=0,
        )
        seen = ((node < 0) & inside)[None, :] | (known != 0)
        best, total, acc = _fold(
            query, scale, best, total, acc, keys, values, column, seen, inside, WIDTH, width, width_ok, PRECISION
        )
    ok = row_ok[:, None] & width_ok[None, :]
    some = tl.where(total > 0, total, 1.0)
    if WHOLE:
        tl.store(out + at[:, None] * WIDTH + width[None, :], (acc / some[:, None]).to(out.dtype.element_ty), mask=ok)
    else:
        to = at * splits + split
        tl.store(partial + to[:, None] * WIDTH + width[None, :], acc / some[:, None], mask=ok)
        tl.store(weights + to, tl.where(total > 0, best + tl.log2(some), -float("inf")), mask=row_ok)


@triton.jit
def _sum_kernel(
    partial,
    weights,
    out,
    splits,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0).to(tl.int64)
    split, width = tl.arange(0, BLOCK), tl.arange(0, BLOCK_WIDTH)
    weight = tl.load(weights + at * splits + split, mask=split < splits, other=-float("inf"))
    share = tl.exp2(weight - tl.max(weight, 0))
    share = share / tl.sum(share, 0)
    part = tl.load(
        partial + (at * splits + split[:, None]) * WIDTH + width[None, :],
        mask=(split < splits)[:, None] & (width < WIDTH)[None, :],
        other=0.0,
    )
    total = tl.sum(part * share[:, None], 0)
    tl.store(out + at * WIDTH + width, total.to(out.dtype.element_ty), mask=width < WIDTH)


TILE_BYTES = 16 * 1024  # of queries and of keys: 64 rows of a head of 128 bfloat16 numbers
MOST_COLUMNS = 128  # of a tile: scores of narrow heads would not fit the shared memory
LONG = 1024  # columns of all sequences from which on tiles of queries are twice as large
PROGRAMS = 132  # wanted, as many as an H100 has multiprocessors; twice as many of small tiles
MOST_SPLITS, STAGES = 64, 3


def splits_of(view: int, block: int, wanted: int) -> int:
    """Return the number of splits, at most `wanted`, of which each has a multiple of `block` columns.

    >>> splits_of(512, 64, wanted=3)
    3
    """
    splits = max(1, min(wanted, MOST_SPLITS, -(-view // block)))
    return -(-view // (-(-view // (splits * block)) * block))


def tile_of(rows: int, row_bytes: int, *, long: bool) -> tuple[int, int]:
    """Return the rows of queries and the columns of a tile; `row_bytes` are those of a head.

    >>> tile_of(1024, 256, long=True)
    (128, 64)
    """
    columns = min(MOST_COLUMNS, max(16, TILE_BYTES // row_bytes))
    most_rows = columns * (2 if long else 1)
    return max(16, min(most_rows, triton.next_power_of_2(rows))), columns


def attend_to_tree(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, ancestors: Tensor, view: int, scale: float
) -> Tensor:
    """Return the attention's output, (batch, tokens, heads, width).

    Args:
        q: (batch, tokens, heads, width), contiguous.
        keys, values: (batch, shared heads, capacity, width), views of a cache whose last two dimensions are contiguous.
        lengths: int64 (batch,), committed tokens; node n lies in column `lengths + n`.
        ancestors: bool (1 or batch, tokens, count), contiguous; row is below or equal to column.
        view: no sequence, its nodes included, is longer.
        scale: of the scores.
    """
    batch, tokens, heads, width = q.shape
    shared = keys.shape[1]
    group, count = heads // shared, ancestors.shape[2]
    block_width = max(16, triton.next_power_of_2(width))
    block_rows, block_columns = tile_of(group * tokens, block_width * q.element_size(), long=batch * view > LONG)
    tiles = triton.cdiv(group * tokens, block_rows)
    wanted = PROGRAMS * (1 if block_rows >= block_columns else 2)
    splits = splits_of(view, block_columns, wanted // (batch * shared * tiles))
    out = torch.empty_like(q)
    if splits > 1:
        partial = torch.empty(batch, tokens, heads, splits, width, dtype=torch.float32, device=q.device)
        weights = torch.empty(batch, tokens, heads, splits, dtype=torch.float32, device=q.device)
    else:
        partial = weights = out
    options = launch_options(q.device) | {"WIDTH": width, "BLOCK_WIDTH": block_width}
    _split_kernel[batch * shared, tiles, splits](
        q,
        keys,
        values,
        lengths,
        ancestors.view(torch.uint8),
        partial,
        weights,
        out,
        tokens,
        count,
        0 if len(ancestors) == 1 else tokens * count,
        keys.stride(1),
        values.stride(1),
        scale,
        HEADS=shared,
        GROUP=group,
        BLOCK_ROWS=block_rows,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        WHOLE=splits == 1,
        BLOCK_COLUMNS=block_columns,
        STAGES=STAGES,
        num_warps=8 if block_rows > block_columns else 4,
        **options,
    )
    if splits > 1:
        _sum_kernel[batch * tokens * heads,](
            partial, weights, out, splits, BLOCK=max(2, triton.next_power_of_2(splits)), num_warps=1, **options
        )
    return out
