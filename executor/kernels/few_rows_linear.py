"""Linear layers for few rows: a decoding step multiplies 1 to 128 tokens with every weight.

Such a product takes as long as reading the weight, so kernels are laid out to read. One row is multiplied without
matrix units, each program adding up some outputs; more rows stream tiles of the weight to the matrix units through
tensor maps (Hopper and later). What stands around the product in a decoder layer is done on the way: the norm of the
input, bias, gate, residual.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from executor.kernels.dependent_launch import launch_options


@triton.jit
def _rms_norm_kernel(x, weight, out, inner, eps, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offset = tl.arange(0, BLOCK)
    ok = offset < inner
    factor = tl.load(weight + offset, mask=ok, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    part = tl.load(x + row * inner + offset, mask=ok, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(part * part, 0) / inner + eps)
    tl.store(out + row * inner + offset, (part * scale * factor).to(out.dtype.element_ty), mask=ok)


def rms_norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the rows of `x` (..., inner), contiguous, over their root mean square, times `weight` (inner,)."""
    out, inner = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(inner)
    _rms_norm_kernel[x.numel() // inner,](
        x, weight, out, inner, eps, BLOCK=block, num_warps=8, **launch_options(x.device)
    )
    return out


BLOCK = 1024


@triton.jit
def _silu_gate_kernel(x, out, inner, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = offset < inner
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    gate = tl.load(x + row * 2 * inner + offset, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * inner + inner + offset, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * inner + offset, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=ok)


def gate(x: Tensor) -> Tensor:
    """Return SiLU(gate) * up, (rows, inner), of `x` (rows, 2 * inner), contiguous, with all of gate before up."""
    rows, inner = len(x), x.shape[1] // 2
    out = torch.empty(rows, inner, dtype=x.dtype, device=x.device)
    grid = rows, triton.cdiv(inner, BLOCK)
    _silu_gate_kernel[grid](x, out, inner, BLOCK=BLOCK, num_warps=4, **launch_options(x.device))
    return out


MOST_ROWS = 128  # that are streamed
# Chosen on an H200 with the layers of an 8B model; docs/results/gpu.md has what they take.
ROW_COLUMNS, ROW_TILE = 4, {"BLOCK_INNER": 1024, "STAGES": 3, "num_warps": 2}
STREAM_COLUMNS, STREAM_INNER, STREAM_BYTES = 64, 128, 200 * 1024
STREAM_AHEAD = 512  # columns of each row of a weight that go to the cache while the kernel before runs
WANTED, MOST_SPLITS = 132, 2  # programs: a product that makes half as many is split over the inner width
SLOW_ROWS = range(7, 32)  # cuBLAS multiplies them in fp32 up to 2.4 times as long as 32 rows
COUNTERS = 1024  # more than a product that is split has outputs
BUSY = 3  # streamed only if there is a program for every third multiprocessor; cuBLAS splits smaller products

Norm = tuple[Tensor, float]  # weight and epsilon


@dataclass(frozen=True)
class Scaled:
    """Rows that their producer has prepared for a norm: the product is linear in each row's factor, so it comes last.

    Attributes:
        norm: the norm.
        values: the rows times its weight.
        squares: fp32 (parts, rows), sums of squares over parts of the rows.
    """

    norm: Norm
    values: Tensor
    squares: Tensor


@dataclass(frozen=True)
class Around:
    """The operations around a product in a decoder layer.

    Attributes:
        norm: of the input.
        bias: (columns,); not of a gated product.
        residual: (rows, columns), added last.
        gated: the weight holds the gate's rows and then as many of `up`; the output is SiLU(gate) * up.
    """

    norm: Norm | Scaled | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None
    gated: bool = False


BARE = Around()


def linear(x: Tensor, weight: Tensor, around: Around = BARE) -> Tensor:
    """Return `x` (rows, inner) times `weight` (columns, inner), with what stands around it: (rows, columns)."""
    return linear_before(x, weight, around, None)[0]


def linear_before(
    x: Tensor, weight: Tensor, around: Around, following: Norm | None
) -> tuple[Tensor, Norm | Scaled | None]:
    """Return `linear`, and the norm that follows as the next product takes it: prepared if the rows are streamed."""
    norm = around.norm
    if len(x) == 1:
        return row_linear(x, weight, around), following
    if _streams(x, weight, around):
        if norm is not None and not isinstance(norm, Scaled):
            x, around = rms_norm_rows(x, *norm), replace(around, norm=None)
        return stream_linear(x, weight, around, following)
    if norm is not None:
        x = rms_norm_rows(x, *(norm.norm if isinstance(norm, Scaled) else norm))
    rows = len(x)
    if x.dtype == torch.float32 and rows in SLOW_ROWS:
        x = torch.cat([x, x.new_empty(SLOW_ROWS.stop - rows, x.shape[1])])
    if around.residual is not None and around.bias is None and not around.gated and len(x) == rows:
        return torch.addmm(around.residual, x, weight.T), following
    out = F.linear(x, weight, around.bias)[:rows]
    out = gate(out) if around.gated else out
    return out if around.residual is None else out + around.residual, following


def _columns(weight: Tensor, around: Around) -> int:
    return len(weight) // 2 if around.gated else len(weight)


def _streams(x: Tensor, weight: Tensor, around: Around) -> bool:
    if len(x) > MOST_ROWS or x.dtype == torch.float32 or x.shape[1] % 8:
        return False
    programs = triton.cdiv(_columns(weight, around), STREAM_COLUMNS)
    return _has_tensor_maps(x.device) and programs * BUSY >= _multiprocessors(x.device)


@cache
def _has_tensor_maps(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _row_kernel(
    x,
    weight,
    norm,
    bias,
    residual,
    out,
    columns,
    inner,
    eps,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    column = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    offset = tl.arange(0, BLOCK_INNER)
    read = tl.minimum(column, columns - 1).to(tl.int64)  # past the end the last is read again, and not written
    weights = weight + read[:, None] * inner + offset[None, :]
    ups = weights + columns.to(tl.int64) * inner
    inside = offset < inner
    # The first tiles come before the wait: weights do not depend on the kernel before.
    tile = tl.load(weights, mask=inside[None, :], other=0.0)
    up_tile = tile
    if GATED:
        up_tile = tl.load(ups, mask=inside[None, :], other=0.0)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    part = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    squares = part * part
    if NORM:
        part *= tl.load(norm + offset, mask=inside, other=0.0).to(tl.float32)
    sums = tile.to(tl.float32) * part[None, :]
    up_sums = up_tile.to(tl.float32) * part[None, :]
    for start in tl.range(BLOCK_INNER, inner, BLOCK_INNER, num_stages=STAGES):
        inside = start + offset < inner
        part = tl.load(x + start + offset, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            squares += part * part
            part *= tl.load(norm + start + offset, mask=inside, other=0.0).to(tl.float32)
        sums += tl.load(weights + start, mask=inside[None, :], other=0.0).to(tl.float32) * part[None, :]
        if GATED:
            up_sums += tl.load(ups + start, mask=inside[None, :], other=0.0).to(tl.float32) * part[None, :]
    total, up = tl.sum(sums, 1), tl.sum(up_sums, 1)
    if NORM:  # a factor of the whole row: the product is linear in it
        scale = tl.rsqrt(tl.sum(squares) / inner + eps)
        total, up = total * scale, up * scale
    ok = column < columns
    if BIAS:
        total += tl.load(bias + column, mask=ok, other=0.0).to(tl.float32)
    if GATED:
        total = total * tl.sigmoid(total) * up
    if RESIDUAL:
        total += tl.load(residual + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + column, total.to(out.dtype.element_ty), mask=ok)


def row_linear(x: Tensor, weight: Tensor, around: Around = BARE) -> Tensor:
    """Return `linear` of one row."""
    columns = _columns(weight, around)
    out = torch.empty(1, columns, dtype=x.dtype, device=x.device)
    assert not isinstance(around.norm, Scaled)
    norm, eps = (x, 0.0) if around.norm is None else around.norm
    block_columns = ROW_COLUMNS // (2 if around.gated else 1)
    _row_kernel[triton.cdiv(columns, block_columns),](
        x,
        weight,
        norm,
        x if around.bias is None else around.bias,
        x if around.residual is None else around.residual,
        out,
        columns,
        x.shape[1],
        eps,
        NORM=around.norm is not None,
        BIAS=around.bias is not None,
        RESIDUAL=around.residual is not None,
        GATED=around.gated,
        BLOCK_COLUMNS=block_columns,
        **ROW_TILE,
        **launch_options(x.device),
    )
    return out


@triton.jit
def _stream_kernel(
    x,
    weight,
    addresses,
    squares,
    bias,
    residual,
    out,
    factors,
    scaled,
    out_squares,
    sums_of_splits,
    arrived,
    rows,
    columns,
    inner,
    inner_per_split,
    parts,
    eps,
    BLOCK_PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    FOLLOWED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    place, split = tl.program_id(0), tl.program_id(1)
    first, begin = place * BLOCK_COLUMNS, split * inner_per_split
    end = tl.minimum(begin + inner_per_split, inner)
    if DEPENDENT:
        gdc_launch_dependents()
        # Weights do not depend on the kernel before: their first bytes go to the cache while it still runs.
        known = tl.minimum(first + tl.arange(0, BLOCK_COLUMNS), columns - 1).to(tl.int64)[:, None]
        half = begin + tl.arange(0, 2)[None, :] * (AHEAD // 2)
        ahead = tl.minimum(tl.maximum(end - half, 0), AHEAD // 2) * 2
        _prefetch(addresses + known * inner + half, ahead)
        if GATED:
            _prefetch(addresses + (columns + known) * inner + half, ahead)
        gdc_wait()
    row = tl.arange(0, BLOCK_ROWS)
    if BLOCK_PARTS > 0:  # used last, so that they arrive meanwhile
        part_of = tl.arange(0, BLOCK_PARTS)
        known_squares = (part_of < parts)[:, None] & (row < rows)[None, :]
        square = tl.load(squares + part_of[:, None] * rows + row[None, :], mask=known_squares, other=0.0)
    # Columns stand where matrix units want 64 rows, so that 16 tokens suffice.
    sums = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    up_sums = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    for start in tl.range(begin, end, BLOCK_INNER, num_stages=STAGES):
        part = x.load([0, start]).T  # zeros beyond the rows and the inner width
        sums = tl.dot(weight.load([first, start]), part, sums)
        if GATED:
            up_sums = tl.dot(weight.load([columns + first, start]), part, up_sums)
    column = first + tl.arange(0, BLOCK_COLUMNS)
    at = row[None, :] * columns + column[:, None]
    ok = (row < rows)[None, :] & (column < columns)[:, None]
    last = True
    if SPLITS > 1:
        tl.store(sums_of_splits + split * rows * columns + at, sums, mask=ok)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + place, 1) == SPLITS - 1
    if last:
        if SPLITS > 1:
            tl.store(arrived + place, 0)
            sums = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
            for other in range(SPLITS):  # in one order, so that sums are the same each time
                sums += tl.load(sums_of_splits + other * rows * columns + at, mask=ok, other=0.0, cache_modifier=".cg")
        if BLOCK_PARTS > 0:
            factor = tl.rsqrt(tl.sum(square, 0) / inner + eps)[None, :]
            sums *= factor
            up_sums *= factor
        if BIAS:
            sums += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[:, None]
        if GATED:
            sums = sums * tl.sigmoid(sums) * up_sums
        if RESIDUAL:
            sums += tl.load(residual + at, mask=ok, other=0.0).to(tl.float32)
        rounded = sums.to(out.dtype.element_ty)
        tl.store(out + at, rounded, mask=ok)
        if FOLLOWED:
            sums = tl.where(ok, rounded.to(tl.float32), 0.0)
            weight_after = tl.load(factors + column, mask=column < columns, other=0.0).to(tl.float32)
            tl.store(scaled + at, (sums * weight_after[:, None]).to(out.dtype.element_ty), mask=ok)
            tl.store(out_squares + place * rows + row, tl.sum(sums * sums, 0), mask=row < rows)


@triton.jit
def _prefetch(pointers, bytes_each):
    """Ask for so many bytes, 0 or multiples of 16, from each aligned pointer on, to come to the device's cache."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        setp.gt.s32 some, $2, 0;
        @some cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [pointers.to(tl.uint64), bytes_each],
        tl.int32,
        is_pure=False,
        pack=1,
    )


def _arrivals(device: torch.device) -> Tensor:
    """Return counters of the programs that have arrived at an output; all are zero between kernels of a stream.

    Each stream has its own. Graphs captured on one stream share them: replay one after the other.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _counters(device, stream)


@cache
def _counters(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def stream_linear(
    x: Tensor, weight: Tensor, around: Around = BARE, following: Norm | None = None
) -> tuple[Tensor, Scaled | None]:
    """Return `linear_before` of at most `MOST_ROWS` rows; of norms it takes those that are prepared."""
    ready = around.norm if isinstance(around.norm, Scaled) else None
    x = x if ready is None else ready.values
    rows, columns, inner = len(x), _columns(weight, around), x.shape[1]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    programs = triton.cdiv(columns, STREAM_COLUMNS)
    splits = 1 if around.gated else max(1, min(MOST_SPLITS, WANTED // programs))
    partial = out if splits == 1 else torch.empty(splits, rows, columns, dtype=torch.float32, device=x.device)
    after = None
    if following is not None:
        squares = torch.empty(programs, rows, dtype=torch.float32, device=x.device)
        after = Scaled(following, torch.empty_like(out), squares)
    block_rows = max(16, triton.next_power_of_2(rows))
    stage = (block_rows + STREAM_COLUMNS * (2 if around.gated else 1)) * STREAM_INNER * x.element_size()
    _stream_kernel[programs, splits](
        TensorDescriptor.from_tensor(x, [block_rows, STREAM_INNER]),
        TensorDescriptor.from_tensor(weight, [STREAM_COLUMNS, STREAM_INNER]),
        weight,
        partial if ready is None else ready.squares,
        x if around.bias is None else around.bias,
        x if around.residual is None else around.residual,
        out,
        x if after is None else after.norm[0],
        out if after is None else after.values,
        partial if after is None else after.squares,
        partial,
        _arrivals(x.device),
        rows,
        columns,
        inner,
        triton.cdiv(inner, splits * STREAM_INNER) * STREAM_INNER,
        0 if ready is None else len(ready.squares),
        0.0 if ready is None else ready.norm[1],
        BLOCK_PARTS=0 if ready is None else triton.next_power_of_2(len(ready.squares)),
        BIAS=around.bias is not None,
        RESIDUAL=around.residual is not None,
        GATED=around.gated,
        FOLLOWED=after is not None,
        SPLITS=splits,
        AHEAD=STREAM_AHEAD,
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=STREAM_COLUMNS,
        BLOCK_INNER=STREAM_INNER,
        STAGES=min(8, STREAM_BYTES // stage),
        num_warps=4,
        **launch_options(x.device),
    )
    return out, after
