"""What time it is where the work is done: on the host, or on a CUDA device that works through a queue behind it."""

import time
from dataclasses import dataclass

import torch

Mark = float | torch.cuda.Event


@dataclass(frozen=True)
class Clock:
    """Marks on the time line of a device; a mark on CUDA is one of its queue, and nobody waits for it to be passed."""

    device: torch.device

    @property
    def queued(self) -> bool:
        """Whether the device runs behind the host, so that what the host does meanwhile takes no time of its."""
        return self.device.type == "cuda"

    def mark(self) -> Mark:
        """Now, on the host's clock; on CUDA when all that it was given so far is done."""
        if not self.queued:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


def elapsed_s(start: Mark, end: Mark) -> float:
    """Seconds from mark to mark of one clock; on CUDA both must have been passed.

    >>> elapsed_s(1.0, 3.5)
    2.5
    """
    if isinstance(start, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        return float(start.elapsed_time(end)) / 1e3
    assert isinstance(end, float)
    return end - start
