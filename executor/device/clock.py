"""Timestamps where the work is done: on the host, or on a CUDA stream that runs behind the host."""

import time
from dataclasses import dataclass

import torch

Mark = float | torch.cuda.Event


@dataclass(frozen=True)
class Clock:
    """Makes timestamps of a device; on CUDA a timestamp is an event on the stream, and making it does not wait."""

    device: torch.device

    @property
    def queued(self) -> bool:
        """True if the device runs behind the host, so that work of the host meanwhile takes none of its time."""
        return self.device.type == "cuda"

    def mark(self) -> Mark:
        """Return the host's time; on CUDA an event that is reached when all work submitted so far is done."""
        if not self.queued:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


def elapsed_s(start: Mark, end: Mark) -> float:
    """Return the seconds between two marks of one clock; on CUDA both must have been reached.

    >>> elapsed_s(1.0, 3.5)
    2.5
    """
    if isinstance(start, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        return float(start.elapsed_time(end)) / 1e3
    assert isinstance(end, float)
    return end - start
