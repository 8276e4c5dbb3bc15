"""Dependent launches: a kernel's programs start while the kernel before it still runs, and wait for its end.

CUDA calls this programmatic dependent launch; it needs compute capability 9.0. In its first lines a kernel lets the
next one start, and waits for the one before. What it reads before it waits must be constant, as weights are.
"""

from functools import cache
from typing import Any

import torch


@cache
def launch_options(device: torch.device) -> dict[str, Any]:
    """Return the options with which kernels are launched on a device; `DEPENDENT` is handed to the kernel itself."""
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device) < (9, 0):
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}
