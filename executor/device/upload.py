"""Uploads: copy numbers from the host to a device without waiting for the copy."""

from typing import Any

import torch
from torch import Tensor


def to_device(values: Any, device: torch.device) -> Tensor:
    """Return nested lists of equally long rows as a tensor on the device.

    On CUDA the copy goes through pinned memory, which torch does not reuse before the copy is done: from other memory
    the host would wait until the device has finished all work submitted before.
    """
    if device.type != "cuda":
        return torch.tensor(values, device=device)
    return torch.tensor(values, pin_memory=True).to(device, non_blocking=True)
