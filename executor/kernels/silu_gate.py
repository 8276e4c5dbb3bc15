"""The gate of an MLP, SiLU(gate) * up (Shazeer 2020, arXiv 2002.05202), for rows that hold both."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from executor.kernels.dependent_launch import launch_options

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
