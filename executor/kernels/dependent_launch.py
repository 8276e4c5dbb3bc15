"""Dependent launches: a kernel's programs start while the kernel before it still runs, and wait for its end.

CUDA calls this programmatic dependent launch; it needs compute capability 9.0. In its first lines a kernel lets the
next one start, and waits for the one before. What it reads before it waits must be constant, as weights are.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_SHARED = 264  # outputs whose programs count their arrivals


@cache
def launch_options(device: torch.device) -> dict[str, Any]:
    """Return the options with which kernels are launched on a device; `DEPENDENT` is handed to the kernel itself."""
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device) < (9, 0):
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}


def arrivals(device: torch.device) -> Tensor:
    """Return counters of the programs that have arrived at an output; all are zero between kernels of a stream.

    Each stream has its own. Graphs captured on one stream share them: replay one after the other.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _arrivals(device, stream)


@cache
def _arrivals(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(MOST_SHARED, dtype=torch.int32, device=device)


@triton.jit
def prefetch(pointers, bytes_each):
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
