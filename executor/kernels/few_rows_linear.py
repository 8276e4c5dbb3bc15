"""Linear layers for few rows: a decoding step multiplies 1 to 64 tokens with every weight.

Such a product takes as long as reading the weight, so kernels are laid out to read. One row is multiplied without
matrix units, each program adding up some outputs; more rows stream tiles of the weight to the matrix units through
tensor maps (Hopper and later). What stands around the product in a decoder layer is done on the way: the norm of the
input (one row only), bias, gate, residual.
"""

from dataclasses import dataclass
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


MOST_ROWS = 64  # that are streamed
# Chosen on an H200 with the layers of an 8B model; docs/results/gpu.md has what they take.
ROW_COLUMNS, ROW_TILE = 4, {"BLOCK_INNER": 1024, "STAGES": 3, "num_warps": 2}
STREAM_COLUMNS, STREAM_INNER, STREAM_BYTES = 64, 128, 200 * 1024
STREAM_AHEAD = 512  # columns of each row of a weight that go to the cache while the kernel before runs
WANTED, MOST_SPLITS = 132, 2  # programs: a product that makes half as many is split over the inner width
BUSY = 3  # streamed only if there is a program for every third multiprocessor; cuBLAS splits smaller products

Norm = tuple[Tensor, float]  # weight and epsilon


@dataclass(frozen=True)
class Around:
    """The operations around a product in a decoder layer.

    Attributes:
        norm: of the input.
        bias: (columns,); not of a gated product.
        residual: (rows, columns), added last.
        gated: the weight holds the gate's rows and then as many of `up`; the output is SiLU(gate) * up.
    """

    norm: Norm | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None
    gated: bool = False


BARE = Around()


def linear(x: Tensor, weight: Tensor, around: Around = BARE) -> Tensor:
    """Return `x` (rows, inner) times `weight` (columns, inner), with what stands around it: (rows, columns)."""
    if len(x) == 1:
        return row_linear(x, weight, around)
    if around.norm is not None:
        x = rms_norm_rows(x, *around.norm)
    if _streams(x, weight, around):
        return stream_linear(x, weight, around)
    if around.residual is not None and around.bias is None and not around.gated:
        return torch.addmm(around.residual, x, weight.T)
    out = F.linear(x, weight, around.bias)
    out = gate(out) if around.gated else out
    return out if around.residual is None else out + around.residual


def _columns(weight: Tensor, around: Around) -> int:
    return len(weight) // 2 if around.gated else len(weight)


def _streams(x: Tensor, weight: Tensor, around: Around) -> bool:
    if len(x) > MOST_ROWS or x.dtype == torch.float32 or x.shape[1] % 8 or around.bias is not None:
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
    residual,
    out,
    sums_of_splits,
    arrived,
    rows,
    columns,
    inner,
    inner_per_split,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    LINE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    place, split = tl.program_id(0), tl.program_id(1)
    first, begin = place * BLOCK_COLUMNS, split * inner_per_split
    end = tl.minimum(begin + inner_per_split, inner)
    if DEPENDENT:
        gdc_launch_dependents()
        # Weights do not depend on the kernel before: their first lines go to the cache while it still runs.
        line = tl.minimum(begin + tl.arange(0, AHEAD // LINE) * LINE, inner - 1)
        known = tl.minimum(first + tl.arange(0, BLOCK_COLUMNS), columns - 1).to(tl.int64)
        _prefetch(addresses + known[:, None] * inner + line[None, :])
        if GATED:
            _prefetch(addresses + (columns + known)[:, None] * inner + line[None, :])
        gdc_wait()
    # Columns stand where matrix units want 64 rows, so that 16 tokens suffice.
    sums = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    up_sums = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    for start in tl.range(begin, end, BLOCK_INNER, num_stages=STAGES):
        part = x.load([0, start]).T  # zeros beyond the rows and the inner width
        sums = tl.dot(weight.load([first, start]), part, sums)
        if GATED:
            up_sums = tl.dot(weight.load([columns + first, start]), part, up_sums)
    row = tl.arange(0, BLOCK_ROWS)
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
        if GATED:
            sums = sums * tl.sigmoid(sums) * up_sums
        if RESIDUAL:
            sums += tl.load(residual + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(out + at, sums.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _prefetch(pointers):
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.uint64)], tl.int32, is_pure=False, pack=1
    )


@cache
def _arrivals(device: torch.device) -> Tensor:
    """Return counters of the programs that have arrived at an output; all are zero between kernels of a stream."""
    return torch.zeros(WANTED, dtype=torch.int32, device=device)


def stream_linear(x: Tensor, weight: Tensor, around: Around = BARE) -> Tensor:
    """Return `linear` of at most `MOST_ROWS` rows, without norm and bias."""
    rows, columns, inner = len(x), _columns(weight, around), x.shape[1]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    programs = triton.cdiv(columns, STREAM_COLUMNS)
    splits = 1 if around.gated else max(1, min(MOST_SPLITS, WANTED // programs))
    partial = out if splits == 1 else torch.empty(splits, rows, columns, dtype=torch.float32, device=x.device)
    block_rows = max(16, triton.next_power_of_2(rows))
    stage = (block_rows + STREAM_COLUMNS * (2 if around.gated else 1)) * STREAM_INNER * x.element_size()
    _stream_kernel[programs, splits](
        TensorDescriptor.from_tensor(x, [block_rows, STREAM_INNER]),
        TensorDescriptor.from_tensor(weight, [STREAM_COLUMNS, STREAM_INNER]),
        weight,
        x if around.residual is None else around.residual,
        out,
        partial,
        _arrivals(x.device),
        rows,
        columns,
        inner,
        triton.cdiv(inner, splits * STREAM_INNER) * STREAM_INNER,
        RESIDUAL=around.residual is not None,
        GATED=around.gated,
        SPLITS=splits,
        AHEAD=STREAM_AHEAD,
        LINE=128 // x.element_size(),
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=STREAM_COLUMNS,
        BLOCK_INNER=STREAM_INNER,
        STAGES=min(8, STREAM_BYTES // stage),
        num_warps=4,
        **launch_options(x.device),
    )
    return out
