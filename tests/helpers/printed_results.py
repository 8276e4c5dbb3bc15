"""Results of every command that prints tables, small ones, as blocks and as the JSON that the same run prints."""

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from simulate.profiles.profile import save_profile
from tests.helpers.command_line import done, small_profile, small_trace
from treeopt.plans import load_plan
from treeopt.results.kinds import RESULTS as KINDS
from treeopt.results.tables_and_numbers import Blocks
from treeopt.terminal import print_blocks
from treeopt.traces.trace_files import load_trace, save_trace

ROOT = Path(__file__).resolve().parent.parent.parent
VALIDATION = ROOT / "data/validations/medusa-cpu.json"
PACKAGES = [
    {"name": "numpy", "version": "2.4.6", "extra": "", "trouble": ""},
    {"name": "peft", "version": None, "extra": "train", "trouble": ""},
    {"name": "rich", "version": "1.0.0", "extra": "", "trouble": "needs rich>=13: pip install -U rich"},
]
HEALTH = {
    "provenance": {"treeopt": "0.1.0", "commit": "", "software": {"python": "3.11.7"}, "processor": "CPU", "cores": 2},
    "packages": PACKAGES,
    "device": {"name": "cpu, 1 threads", "free_bytes": 2**34, "bf16_products": False},
    "trials": [{"name": "fp32", "holds": True, "detail": "0 of 4 texts differ"}],
}
TRAINED = {
    "recipe": "medusa1",
    "steps": 1200,
    "train_s": 34.5,
    "tops": [1, 2, 4, 8],
    "depths": [{"anchors": 1000, "hits": [300, 400, 500, 600], "hits_before": [10, 20, 30, 40]}],
}

CODES = re.compile(r"\x1b\[[\d;]*m")


@cache
def folder() -> Path:
    """Return a folder with two small traces and a profile."""
    path = Path(mkdtemp(prefix="treeopt-printed-"))
    save_trace(small_trace(requests=12), path / "first.npz")
    save_trace(small_trace(requests=12, lengths=24), path / "second.npz")
    save_profile(small_profile(), path / "profile.json")
    return path


def words(name: str) -> tuple[str, ...]:
    """Return the words of a command."""
    first, second, profile = (str(folder() / file) for file in ("first.npz", "second.npz", "profile.json"))
    priced = ("--trace", first, "--profile", profile)
    simulated = ("simulate", *priced, "--tree", "1", "--batch", "4", "--prefill-s", "0.01")
    server = ("--requests", "20", "--replications", "2", "--ttft-s", "0.5")
    target = ("--target", str(ROOT / "data/models/stdlib-llama"))
    price, two_profiles = ("--price", "h100=2.5,l40s=0.9"), ("--profile", profile) * 2
    return {
        "search": ("search", *priced, "--batch", "1,4"),
        "whatif": ("whatif", "--trace", first, "--hardware", "h100,l40s", *target, "--batch", "1-4", *price),
        "compare": ("compare", first, second, "--shapes", "chain:1,best:3", "--batch", "1", *two_profiles),
        "run": simulated,
        "server": (*simulated, "--arrivals", "20", *server),
        "capacity": (*simulated, "--capacity", "0.9", *server),
        "info": ("trace", "info", first, "--learning-curve", "--nodes", "2"),
    }[name]


@cache
def record(name: str) -> Mapping[str, Any]:
    """Return the JSON that a command prints; of `validate`, the shipped file."""
    text = VALIDATION.read_text("utf-8") if name == "validate" else done(*words(name), "--json").stdout
    value: Mapping[str, Any] = json.loads(text)
    return value


def _plan() -> Blocks:
    path = folder() / "plan.json"
    plan = dict(record("search"))
    plan["meta"] = plan["meta"] | {"search": plan["meta"]["search"] | {"engine": "sglang"}}
    path.write_text(json.dumps(plan), "utf-8")
    return KINDS["plan"].blocks(load_plan(path), file="plan.json")


RESULTS: dict[str, Callable[[], Blocks]] = {
    "search": _plan,
    "validate": lambda: KINDS["validation"].blocks(record("validate")),
    "whatif": lambda: KINDS["whatif"].blocks(record("whatif")),
    "compare": lambda: KINDS["comparison"].blocks(record("compare"), files={"second": "second.npz"}),
    "run": lambda: KINDS["run"].blocks(record("run"), trace="first.npz"),
    "server": lambda: KINDS["serving"].blocks(record("server"), plan="plan.json"),
    "capacity": lambda: KINDS["capacity"].blocks(record("capacity")),
    "info": lambda: KINDS["trace"].blocks(
        load_trace(folder() / "first.npz"), file="first.npz", beware=("texts repeat",)
    ),
    "doctor": lambda: KINDS["health"].blocks(HEALTH),
    "train": lambda: KINDS["training"].blocks(TRAINED),
}


class Terminal(TextIOWrapper):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def printed(blocks: Blocks, width: int, **settings: Any) -> list[str]:
    """Return the lines that a terminal of this width shows, without codes; see `sent`."""
    return [CODES.sub("", line) for line in sent(blocks, width, **settings)]


def sent(
    blocks: Blocks,
    width: int,
    *,
    verbose: bool = True,
    encoding: str = "utf-8",
    colour: bool = False,
    term: str = "xterm-256color",
) -> list[str]:
    """Return the lines that a terminal of this width gets, with codes for colours and bold letters."""
    terminal = Terminal(BytesIO(), encoding=encoding, newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", term)
        for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        if not colour:
            patch.setenv("NO_COLOR", "1")
        print_blocks(blocks, verbose=verbose)
        terminal.flush()
        return terminal.buffer.getvalue().decode(encoding).splitlines()
