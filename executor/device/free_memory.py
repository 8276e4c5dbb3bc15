"""Free memory of the device or the machine, within the limits of containers and batch systems."""

from collections.abc import Iterator
from pathlib import Path

import torch

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
    """Yield the bytes that each control group around a process still allows.

    Args:
        groups: the file that lists the groups of the process, such as /proc/self/cgroup.
    """
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
