"""How much memory is left: the device's, the machine's, and what containers and batch systems allow of it."""

from collections.abc import Iterator
from pathlib import Path

import torch

# Of version 2 and 1: where groups lie, then in a group its limit, what it uses, and what of that can be given back.
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
    """Memory that can still be allocated on the device; None where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    meminfo = Path("/proc/meminfo")
    if device.type != "cpu" or not meminfo.is_file():
        return None
    sizes = dict(line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
    return min([int(sizes["MemAvailable"].split()[0]) * 1024, *allowed(Path("/proc/self/cgroup"))])


def allowed(own: Path) -> Iterator[int]:
    """Bytes that each control group around a process still allows.

    Args:
        own: says in which groups the process is, as /proc/self/cgroup.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text("utf-8").splitlines()]
    except OSError:
        return
    for _, kind, path in lines:
        if kind not in GROUPS:
            continue
        root, most, now, idle = GROUPS[kind]
        place = root / path.strip("/")
        while place != root.parent:
            try:
                used = int((place / now).read_text("ascii"))
                stats = dict(line.split() for line in (place / "memory.stat").read_text("ascii").splitlines())
                yield max(0, int((place / most).read_text("ascii")) - used + int(stats.get(idle, 0)))
            except (OSError, ValueError):  # not there, or `max`
                pass
            place = place.parent
