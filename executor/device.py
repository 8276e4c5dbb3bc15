"""The device that models run on: its clock, its free memory within the limits of containers, uploads to it."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treeopt.errors import ExecutorError

Mark = float | torch.cuda.Event


class Clock:
    """Makes timestamps of a device; on CUDA a timestamp is an event on a stream, and making it does not wait.

    Attributes:
        queued: True if the device runs behind the host, so that work of the host meanwhile takes none of its time.
    """

    def __init__(self, device: torch.device) -> None:
        """Take the device's current stream."""
        self.queued = device.type == "cuda"
        self._stream = torch.cuda.current_stream(device) if self.queued else None

    def mark(self) -> Mark:
        """Return the host's time; on CUDA an event that is reached when all work submitted so far is done."""
        if not self.queued:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
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


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's garbage collector from running: one pass over all objects takes as long as many steps."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def fits_device(advice: str) -> Iterator[None]:
    """Raise ExecutorError with advice where the device is too small for what runs inside."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ not in ("OutOfMemoryError", "OutOfResources"):  # torch's, Triton's
            raise
        raise ExecutorError(f"{str(error).split('. GPU')[0]}: {advice}") from error


# Control groups, version 2 and 1: their folder; files with the limit and the use; the part of it that can be reclaimed.
GROUPS = {
    "": (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    "memory": (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on the device; None if the system does not report it."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    meminfo = Path("/proc/meminfo")
    if device.type != "cpu" or not meminfo.is_file():
        return None
    sizes = dict(line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
    return min([int(sizes["MemAvailable"].split()[0]) * 1024, *group_limits(Path("/proc/self/cgroup"))])


def group_limits(groups: Path) -> Iterator[int]:
    """Yield the bytes that each control group in a file such as /proc/self/cgroup still allows."""
    try:
        lines = [line.split(":", 2) for line in groups.read_text("utf-8").splitlines()]
    except OSError:
        return
    for _, kind, path in lines:
        if kind not in GROUPS:
            continue
        root, limit_file, usage_file, idle = GROUPS[kind]
        place = root / path.strip("/")
        while place != root.parent:
            try:
                used = int((place / usage_file).read_text("ascii"))
                stats = dict(line.split() for line in (place / "memory.stat").read_text("ascii").splitlines())
                yield max(0, int((place / limit_file).read_text("ascii")) - used + int(stats.get(idle, 0)))
            except (OSError, ValueError):  # no such file, or `max`
                pass
            place = place.parent


def to_device(values: Any, device: torch.device) -> Tensor:
    """Return nested lists of equally long rows as a tensor on the device.

    On CUDA the copy goes through pinned memory, which torch does not reuse before the copy is done: from other memory
    the host would wait until the device has finished all work submitted before.
    """
    if device.type != "cuda":
        return torch.tensor(values, device=device)
    return torch.tensor(values, pin_memory=True).to(device, non_blocking=True)
