"""Provenance of a number or a file: installed versions, git commit, processor, date and command.

Also reads stored provenance: nested keys, model identity and names, acceptance rule, assumptions.
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from treeopt.errors import visible
from treeopt.storage.user_files import shipped_json

# The acceptance rule of profiles and validations that do not record theirs.
GREEDY = {"verification": "greedy", "temperature": 0.0}
PACKAGES = ("numpy", "scipy", "torch", "transformers", "ortools")
SHIPPED = "model_names.json"  # hash of float32 weights -> name; tests/system/test_shipped_data.py computes it


def this_run() -> dict[str, Any]:
    """Return versions, git commit, processor, date and command of this run; no absolute path, user or host name."""
    return {
        "treeopt": own_version(),
        "commit": _commit(),
        "software": dict(_versions()),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": visible(" ".join(_without_folder(word) for word in sys.argv), lines=True),
    }


@cache
def own_version() -> str:
    """Return the installed version of treeopt."""
    try:
        return metadata.version("treeopt")
    except metadata.PackageNotFoundError:
        return "not installed"


def look(meta: Any, *keys: str) -> Any:
    """Look up a nested value in provenance, which is JSON of any shape; None if it is absent.

    >>> look({"target": {"name": "llama"}}, "target", "name")
    'llama'
    """
    for key in keys:
        meta = meta.get(key) if isinstance(meta, Mapping) else None
    return meta


def same_model(one: Any, other: Any) -> bool:
    """Return True if two models have the same weights and settings.

    Old files do not record settings; then only the weights are compared.

    >>> same_model({"weights": "1", "settings": "a"}, {"weights": "1"})
    True
    """
    settings = {look(model, "settings") for model in (one, other)} - {None}
    return look(one, "weights") == look(other, "weights") and len(settings) < 2


def rule_in(meta: Any) -> str:
    """Describe the acceptance rule and temperature that provenance records; empty if it records none.

    >>> rule_in({"verification": "sample-and-match", "temperature": 0.7, "top_p": 0.9})
    'sample-and-match at temperature 0.7, top-p 0.9'
    >>> rule_in({"verification": "greedy", "temperature": 0.0})
    'greedy'
    """
    name, temperature = look(meta, "verification"), look(meta, "temperature")
    if not temperature or not isinstance(temperature, int | float):
        return str(name or "")
    limits = {"top-k": look(meta, "top_k"), "top-p": look(meta, "top_p")}
    warp = "".join(f", {limit} {value}" for limit, value in limits.items() if value is not None)
    return f"{name} at temperature {temperature:g}{warp}"


def same_choosing(one: Any, other: Any) -> bool:
    """Return True if choosing tokens takes the same work: the same rule, and both or neither with top-k and top-p.

    Provenance without a rule counts as the same.

    >>> greedy, sampled = {"verification": "greedy"}, {"verification": "sample-and-match", "temperature": 1.0}
    >>> same_choosing(greedy, sampled), same_choosing(sampled, sampled | {"temperature": 0.7})
    (False, True)
    """
    rules, *warps = ([look(meta, name) for meta in (one, other)] for name in ("verification", "top_k", "top_p"))
    return None in rules or (rules[0] == rules[1] and all((a is None) == (b is None) for a, b in warps))


def assumed_in(meta: Any) -> list[str]:
    """Return the assumptions that an imported trace records in its provenance, as sentences.

    >>> assumed_in({"assumed": ["depths are independent of each other"]})
    ['depths are independent of each other']
    """
    assumed = look(meta, "assumed")
    return [sentence for sentence in assumed if isinstance(sentence, str)] if isinstance(assumed, list) else []


def assumption(meta: Any) -> tuple[str, ...]:
    """Return the warning, one sentence, about what a trace assumes; none if it assumes nothing.

    >>> assumption({"assumed": ["only rank 0 was counted", "steps are independent of each other"]})
    ('assumed: only rank 0 was counted (and 1 more: `treeopt trace info`)',)
    """
    first, *more = assumed_in(meta) or [""]
    return (f"assumed: {first}" + (f" (and {len(more)} more: `treeopt trace info`)" if more else ""),) if first else ()


def from_figure(meta: Any) -> str:
    """Return the option that gives the figure of acceptance that a trace was invented from; empty for other traces.

    >>> from_figure({"imported": {"format": "acceptance", "accepted_length": "3.2@5"}}), from_figure({})
    ('--accepted-length 3.2@5', '')
    """
    source = look(meta, "imported")
    if look(source, "format") != "acceptance":
        return ""
    name = "acceptance" if look(source, "acceptance") is not None else "accepted_length"
    return f"--{name.replace('_', '-')} {shlex.quote(str(look(source, name)))}"


def _without_folder(word: str) -> str:
    """Return a word of the command line with an absolute path cut to its last part."""
    option, equals, value = word.partition("=")
    if equals and Path(value).is_absolute():
        return f"{option}={Path(value).name}"
    return Path(word).name if Path(word).is_absolute() else word


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions of Python and of the installed packages that compute."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@cache
def _commit() -> str:
    """Return the checkout's commit at the first call, with `+` if its code has changes; empty outside a checkout."""
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


@cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def target_name(meta: Any) -> str | None:
    """Return the name of the target; None if neither name nor weights are known.

    >>> target_name({"target": {"name": "target", "weights": "73b602c94121bd88"}})
    'stdlib-medusa2/target'
    """
    return _name(look(meta, "target"))


def drafter_name(meta: Any) -> str | None:
    """Return the name of the drafter, unless it is its kind; None if it is not known.

    >>> drafter_name({"drafter": {"kind": "eagle", "weights": "4a04083bdee5ae42"}})
    'stdlib-hass'
    >>> drafter_name({"drafter": {"kind": "eagle", "name": "my-eagle"}})
    """
    name, kind = _name(look(meta, "drafter")), look(meta, "drafter", "kind")
    return None if name is None or name.endswith(str(kind)) else name


def _name(model: Any) -> str | None:
    name = shipped_json(SHIPPED).get(str(look(model, "weights"))) or look(model, "name")
    return name if isinstance(name, str) and name else None
