"""Where a number or a file comes from: what was installed, which code, which machine, when, which command."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

# How tokens were chosen while measuring, where profiles and validations do not tell.
GREEDY = {"verification": "greedy", "temperature": 0.0}
PACKAGES = ("numpy", "scipy", "torch", "transformers", "ortools")


def this_run() -> dict[str, Any]:
    """Versions, git commit, processor, date and command of this run; no absolute path, user or host name."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "treeopt": own_version(),
        "commit": _commit(),
        "software": versions,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(_without_folder(word) for word in sys.argv),
    }


def own_version() -> str:
    """Of treeopt, as it was installed."""
    try:
        return metadata.version("treeopt")
    except metadata.PackageNotFoundError:
        return "not installed"


def look(meta: Any, *keys: str) -> Any:
    """A value deep in provenance, which is JSON of any shape; None where it is not found.

    >>> look({"target": {"name": "llama"}}, "target", "name")
    'llama'
    """
    for key in keys:
        meta = meta.get(key) if isinstance(meta, Mapping) else None
    return meta


def same_model(one: Any, other: Any) -> bool:
    """Whether provenance tells of the same weights and settings; files from before settings were kept do not tell.

    >>> same_model({"weights": "1", "settings": "a"}, {"weights": "1"})
    True
    """
    settings = {look(each, "settings") for each in (one, other)} - {None}
    return look(one, "weights") == look(other, "weights") and len(settings) < 2


def rule_in(meta: Any) -> str:
    """How tokens were chosen, in words, from provenance that tells it; empty where it does not.

    >>> rule_in({"verification": "sample-and-match", "temperature": 0.7, "top_p": 0.9})
    'sample-and-match at temperature 0.7, top-p 0.9'
    >>> rule_in({"verification": "greedy", "temperature": 0.0})
    'greedy'
    """
    name, temperature = look(meta, "verification"), look(meta, "temperature")
    if not temperature or not isinstance(temperature, int | float):
        return str(name or "")
    told = {"top-k": look(meta, "top_k"), "top-p": look(meta, "top_p")}
    warp = "".join(f", {what} {value}" for what, value in told.items() if value is not None)
    return f"{name} at temperature {temperature:g}{warp}"


def same_choosing(one: Any, other: Any) -> bool:
    """Whether choosing tokens is the same work: by one rule, both with top-k and top-p or without.

    Provenance that does not tell its rule is taken for the same.

    >>> greedy, sampled = {"verification": "greedy"}, {"verification": "sample-and-match", "temperature": 1.0}
    >>> same_choosing(greedy, sampled), same_choosing(sampled, sampled | {"temperature": 0.7})
    (False, True)
    """
    rules, *warps = ([look(meta, name) for meta in (one, other)] for name in ("verification", "top_k", "top_p"))
    return None in rules or (rules[0] == rules[1] and all((a is None) == (b is None) for a, b in warps))


def assumed_in(meta: Any) -> list[str]:
    """What an imported trace had to assume, in sentences, from its provenance.

    >>> assumed_in({"assumed": ["depths are independent of each other"]})
    ['depths are independent of each other']
    """
    found = look(meta, "assumed")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _without_folder(word: str) -> str:
    """A word of the command line, absolute paths cut to their last part."""
    option, equals, value = word.partition("=")
    if equals and Path(value).is_absolute():
        return f"{option}={Path(value).name}"
    return Path(word).name if Path(word).is_absolute() else word


def _commit() -> str:
    """The checkout's commit, with `+` when its code has changes; empty outside a checkout."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        head, changes = (
            _git(root, *words) for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changes else "")


def _git(root: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
