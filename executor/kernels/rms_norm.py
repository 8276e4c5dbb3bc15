"""Root-mean-square norm (Zhang and Sennrich 2019, arXiv 1910.07467) of rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

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
