"""Make the shipped traces: one of each drafter in `data/models`, all on the same text.

Usage: `python -m data.make.make_traces data [NAME...]`.

The target's text does not depend on the drafter, so it is written once for all drafters of a target.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.make.make_models import NAME
from executor.checkpoints import load_drafter
from executor.prompts.prompt_files import encode, read_prompts
from executor.recording.collect_trace import collect
from executor.target.load_hf_model import load_target
from executor.target.tokenizer import load_tokenizer
from treeopt.errors import UsageError
from treeopt.policies import DynamicTree
from treeopt.traces.trace_files import save_trace

# The name of a drafter's traces, and its folder below data/models or its name.
DRAFTERS = {
    "prompt-lookup": "prompt-lookup",
    "unigram": "stdlib-unigram",
    "bigram": "stdlib-bigram",
    "medusa": "stdlib-medusa",
    "medusa2": "stdlib-medusa2",
    "hydra": "stdlib-hydra",
    "hydra-plus": "stdlib-hydra-plus",
    "eagle": "stdlib-eagle",
    "hass": "stdlib-hass",
    "coral": "stdlib-coral",
    "coral-router": "stdlib-coral-router",
    "eagle3": "stdlib-eagle3",
    "mtp": "stdlib-mtp",
    "p-eagle": "stdlib-p-eagle",
    "dflash": "stdlib-dflash",
}
OWN_TARGET = {"medusa2": "stdlib-medusa2/target"}
SETTINGS: dict[str, dict[str, Any]] = {
    "t0": {"requests": 1000, "new_tokens": 32},
    "t1": {"requests": 600, "new_tokens": 64, "temperature": 1.0, "seed": 1},
}
# With whole candidate trees, for dynamic policies; they take about 100 times the space of ranks.
CANDIDATES: dict[str, dict[str, Any]] = {
    "candidates-t0": {
        "requests": 200,
        "new_tokens": 32,
        "depth": 6,
        "candidates": DynamicTree(nodes=1, depth=6, beam=8, width=5),
    },
}
WITH_CANDIDATES = ("eagle",)


def place_of(data: Path, name: str) -> Path | str:
    """Return the drafter of this name, as `load_drafter` takes it."""
    folder = data / "models" / DRAFTERS[name]
    return folder if folder.is_dir() else DRAFTERS[name]


def target_of(data: Path, name: str) -> Path:
    """Return the folder of the target that it drafts for."""
    return data / "models" / OWN_TARGET.get(name, NAME)


def kinds_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the traces of a drafter, with their settings."""
    return SETTINGS | (CANDIDATES if name in WITH_CANDIDATES else {})


def _names(drafter: str, kind: str) -> set[str]:
    """Return the names by which a trace of a drafter can be asked for."""
    return {drafter, kind, f"{drafter}-{kind}"}


def record(data: Path, names: Sequence[str] = tuple(DRAFTERS)) -> None:
    """Write `data/traces/NAME-t0.npz` (greedy) and `NAME-t1.npz` (sampled, for sample-and-match) of each drafter.

    Some get `NAME-candidates-t0.npz` too: fewer requests, with whole candidate trees. `names` may hold drafters
    ("eagle"), traces ("eagle-t1"), or kinds of traces ("t1": that trace of every drafter).

    Raises:
        UsageError: there is no such drafter or trace.
    """
    known = {name for drafter in DRAFTERS for kind in kinds_of(drafter) for name in _names(drafter, kind)}
    if set(names) - known:
        raise UsageError(f"the name must be one of {', '.join(sorted(known))}, got {min(set(names) - known)}")
    prompts = read_prompts(data / "prompts" / "stdlib.jsonl")
    written: dict[tuple[Path, str], dict[int, list[list[int]]]] = {}
    for name in DRAFTERS:
        kinds = [kind for kind in kinds_of(name) if _names(name, kind) & set(names)]
        if not kinds:
            continue
        folder = target_of(data, name)
        target = load_target(folder, packed=True)
        drafter = load_drafter(place_of(data, name), target, packed=True)
        tokens = encode(load_tokenizer(folder, vocabulary=target.vocabulary), prompts)
        for kind in kinds:
            settings = dict(kinds_of(name)[kind])
            count = settings.pop("requests")
            texts = written.setdefault((folder, kind), {})
            settings |= {"written": texts, "width": 16, "stop": [0]}
            trace = collect(target, drafter, prompts[:count], tokens[:count], **settings)
            save_trace(trace, data / "traces" / f"{name}-{kind}.npz")
            print(f"{name}-{kind}: {trace.anchors} anchors", file=sys.stderr)


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2:] or tuple(DRAFTERS))
