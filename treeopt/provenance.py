"""Where a number or a file comes from: what was installed, which code, which machine, when, which command."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "scipy", "torch", "transformers", "ortools")


def provenance() -> dict[str, Any]:
    """Versions, git commit, processor, date and command of this run; no absolute path, user or host name."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "treeopt": _own_version(),
        "commit": _commit(),
        "software": versions,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(Path(word).name if Path(word).is_absolute() else word for word in sys.argv),
    }


def _own_version() -> str:
    try:
        return metadata.version("treeopt")
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The checkout's commit, with `+` when it has changes; empty outside a checkout."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S603
        dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
