"""Predicted against measured speedups in engines: a profile of the engine, predictions with a hash, then measurements.

Run as `python -m tests.benchmarks.engine_times` on a machine that nothing else uses. For each case below `CASES` it
calls `treeopt profile --engine` and `treeopt validate --engine` and keeps the profile, the predictions that were
written before anything was measured, and the validation. Chains at one and at four requests in flight, or dynamic trees
at one; greedy, float32, prompts that are in no shipped trace.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from executor.checkpoints.convert import rewrite
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, ROOT, SETUPS
from treeopt.storage.user_files import shipped

PROMPTS, SKIP = "data/prompts/stdlib.jsonl", 1000  # prompts before these are in traces
SHIPPED = shipped("models/stdlib-llama")
SMOLLM2 = ENGINES / "models" / "smollm2"  # made by `python -m tests.benchmarks.real_models`
BEAM, WIDTH = 16, 4  # nodes continued per level of recorded candidates, and children of each
NEW_TOKENS = "48"  # waves overlap long enough to be timed
RECORDED = ("--prompts", PROMPTS, "--new-tokens", NEW_TOKENS)


@dataclass(frozen=True)
class Case:
    """A drafter in an engine.

    Attributes:
        engine: key of `SETUPS`.
        target: folder of the target.
        layout: layout of the target for the engine; empty: its own folder; a file: that file.
        drafter: folder of the drafter, `dflash:SLOTS:FOLDER`, or a name of prompt lookup.
        drafter_layout: layout of the drafter for the engine; None: the engine reads no drafter.
        method: `--method`; None: the engine needs none.
        arguments: of the launch, beside those of the engine.
        servers: servers that may be alive at a time; None: treeopt steps the engine.
        trees: dynamic trees, measured beside the best chain and the best tree; none: chains.
        lengths: of the chains that are predicted and measured.
        python: interpreter below `.engines`; "": the engine's.
    """

    engine: str
    target: Path
    layout: str | Path
    drafter: Path | str
    drafter_layout: str | None
    method: str | None
    arguments: str = ""
    servers: int | None = 1
    trees: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5)
    python: str = ""

    @property
    def folder(self) -> Path:
        """The folder of the drafter."""
        return Path(str(self.drafter).rpartition(":")[2])

    @property
    def trace(self) -> str:
        """The name of the drafter's trace: that of its folder, after the slots where they are named."""
        return "-".join([*str(self.drafter).split(":")[1:-1], self.folder.name])


EAGLE3 = shipped("models/stdlib-eagle3")
TREES = ("nodes=6,depth=4,beam=2,width=2", "nodes=10,depth=4,beam=3,width=3", "nodes=14,depth=5,beam=4,width=4")
# vLLM's default executor has workers that poll; six idle servers of it would take a core. Its other executor waits.
UNI = "--distributed-executor-backend uni"
PARALLEL = '{"method": "eagle3", "parallel_drafting": true}'
OWN_TEXT = '{"method": "suffix", "suffix_decoding_max_cached_requests": 0}'
WITH_SUFFIX = "vllm-suffix/bin/python"


def dflash(length: int) -> Case:
    """Return the case of chains of one length: vLLM's block of DFlash has a slot more."""
    name = f"dflash:{length + 1}:data/models/stdlib-dflash"
    return Case("vllm", SHIPPED, "", name, "", "dflash", servers=None, lengths=(length,))


def suffix(length: int) -> Case:
    """Return the case of suffix decoding of at most `length` tokens, which decides what it proposes."""
    name = f"suffix:{length}"
    return Case("vllm", SHIPPED, "", name, None, OWN_TEXT, servers=None, lengths=(length,), python=WITH_SUFFIX)


CASES = {
    "eagle3-vllm": Case("vllm", SHIPPED, "", EAGLE3, "eagle3-vllm", "eagle3", UNI, 6),
    "p-eagle-vllm": Case("vllm", SHIPPED, "", shipped("models/stdlib-p-eagle"), "", PARALLEL, UNI, 6),
    "dflash-3-vllm": dflash(3),
    "dflash-7-vllm": dflash(7),
    "suffix-3-vllm": suffix(3),
    "suffix-8-vllm": suffix(8),
    # treeopt train --recipe eagle3 --set depths=4 --length 64 --batch 4 --steps 150 --learning-rate 2e-3 --seed 7
    # --held-out 0.005 --target data/models/stdlib-llama --data data/prompts/stdlib.jsonl --output DIR
    "eagle3-other-vllm": Case(
        "vllm", SHIPPED, "", ENGINES / "models" / "eagle3-other", "eagle3-vllm", "eagle3", servers=None
    ),
    "eagle3-llama.cpp": Case("llama.cpp", SHIPPED, "gguf", EAGLE3, "gguf", "draft-eagle3", "", 6),
    "eagle3-openvino": Case("openvino", SHIPPED, "openvino", EAGLE3, "openvino", None),
    "eagle3-openvino-trees": Case("openvino", SHIPPED, "openvino", EAGLE3, "openvino", None, trees=TREES),
    "smollm2-lookup-vllm": Case("vllm", SMOLLM2, "", "prompt-lookup:vllm:2-4", None, "ngram", UNI, 6),
    "smollm2-lookup-llama.cpp": Case(
        "llama.cpp",
        SMOLLM2,
        ENGINES / "models/smollm2-gguf/model.gguf",
        "prompt-lookup:llama.cpp:2-5",
        None,
        "ngram-simple",
        "",
        6,
    ),
    "smollm2-lookup-openvino": Case("openvino", SMOLLM2, "openvino", "prompt-lookup:vllm:1-3", None, "prompt-lookup"),
}


def converted(model: Path, layout: str | Path, folder: Path, case: Case) -> Path:
    """Return a model in a layout, in float32, written into `folder` unless it is there; a file for GGUF."""
    if not layout or isinstance(layout, Path):
        return layout if isinstance(layout, Path) else model
    output = folder / f"{model.name}-{layout}"
    if not output.exists():
        exporter = SETUPS[case.engine].exporter
        python = str(ENGINES / exporter) if exporter else None
        rewrite(model, case.target, output, layout=layout, dtype="float32", engine_python=python)
    return output / "model.gguf" if layout == "gguf" else output


def common(case: Case, folder: Path) -> list[str]:
    """Return the options that the commands share."""
    setup = SETUPS[case.engine]
    options = ["--engine", case.engine, "--engine-python", str(ENGINES / (case.python or setup.python))]
    options += [] if case.servers is None else ["--servers", str(case.servers)]
    options += ["--engine-args", f"{setup.arguments} {case.arguments}".strip(), "--target", str(case.target)]
    options += ["--engine-target", str(converted(case.target, case.layout, folder, case))]
    if case.drafter_layout is not None:
        options += ["--engine-drafter", str(converted(case.folder, case.drafter_layout, folder, case))]
    options += ["--chat"] if case.target == SMOLLM2 else []
    return options + (["--method", case.method] if case.method else [])


def recorded(name: str, case: Case, folder: Path) -> Path:
    """Return a trace of texts as long as those that are measured, recorded unless it is there.

    A drafter that treeopt has is recorded in its own loop, once for all engines; a rule of an engine in that engine.
    """
    if case.trees:
        trace, options = folder / f"{case.trace}-candidates.npz", ["--target", str(case.target)]
        options += ["--requests", "300", "--candidates", f"depth=5,beam={BEAM},width={WIDTH}", "--threads", "1"]
    elif case.drafter_layout is not None:
        trace, options = folder / f"{case.trace}.npz", ["--target", str(case.target), "--requests", "600"]
    else:
        trace, options = folder / f"{name}.npz", [*common(case, folder), "--requests", "160"]
    if not trace.exists():
        options += ["--drafter", str(case.drafter), "--depth", str(max(case.lengths))]
        treeopt(["trace", "collect", *options, *RECORDED, "--output", trace])
    return trace


def run_case(name: str, output: Path, folder: Path, *, requests: int, rounds: int) -> None:
    """Measure a profile, predict, measure; three files below `output`.

    Raises:
        CalledProcessError: a command failed.
    """
    case = CASES[name]
    if case.trees:
        run_trees(name, case, output, folder, requests=requests, rounds=rounds)
        return
    shared, drafter = common(case, folder), ["--drafter", str(case.drafter)]
    trace = recorded(name, case, folder)
    profile, check = output / f"{name}.profile.json", output / f"{name}.validation.json"
    shared += ["--prompts", PROMPTS, "--skip", str(SKIP), "--batch", "1,4", "--new-tokens", NEW_TOKENS]
    lookup = drafter if case.drafter_layout is None else []
    measured = ["--requests", "64", "--max-depth", str(max(case.lengths)), "--rounds", str(rounds)]
    treeopt(["profile", *shared, *lookup, *measured, "--output", profile])
    predicted = ["--trace", trace, "--profile", profile, "--predictions", output / f"{name}.predictions.json"]
    shapes = ",".join(f"chain:{length}" for length in case.lengths)
    sizes = ["--requests", str(requests), "--blocks", str(rounds), "--shapes", shapes]
    treeopt(["validate", *shared, *drafter, *predicted, *sizes, "--output", check])


def run_trees(name: str, case: Case, output: Path, folder: Path, *, requests: int, rounds: int) -> None:
    """Measure a profile with dynamic trees, predict those of the case, which it does not hold, and measure them."""
    shared, trace = common(case, folder), recorded(name, case, folder)
    shared += ["--prompts", PROMPTS, "--skip", str(SKIP), "--new-tokens", NEW_TOKENS]
    profile, plan = output / f"{name}.profile.json", folder / f"{name}.plan.json"
    limits = ["--requests", "64", "--batch", "1", "--max-depth", "5", "--max-nodes", "16"]
    treeopt(["profile", *shared, *limits, "--policies", "--rounds", str(rounds), "--output", profile])
    judged = [word for tree in case.trees for word in ("--dynamic", tree)]
    chosen = ["--batch", "1", "--for", case.engine, "--policy", "eagle2", *judged, "--output", plan]
    treeopt(["search", "--trace", trace, "--profile", profile, *chosen])
    files = ["--predictions", output / f"{name}.predictions.json", "--output", output / f"{name}.validation.json"]
    sizes = ["--drafter", str(case.drafter), "--requests", str(requests), "--blocks", str(rounds)]
    treeopt(["validate", *shared, *sizes, "--plan", plan, *files])


def treeopt(arguments: Sequence[str | Path]) -> None:
    """Run a command of treeopt in a process of its own."""
    command = [sys.executable, "-m", "treeopt", *map(str, arguments)]
    click.echo(" ".join(command[1:]), err=True)
    subprocess.run(command, check=True, cwd=ROOT)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--requests", default=64, show_default=True)
@click.option("--rounds", default=8, show_default=True, help="Rounds of the profile, and of the validation.")
@click.option("--models", type=click.Path(path_type=Path), default=ENGINES / "models", help="Converted models.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "data" / "engines", show_default=False)
def main(names: Sequence[str], requests: int, rounds: int, models: Path, output: Path) -> None:
    """Check predictions of NAMES, by default of all cases whose engine is set up."""
    os.environ |= ENVIRONMENT
    names = names or [
        name for name, case in CASES.items() if (ENGINES / (case.python or SETUPS[case.engine].python)).exists()
    ]
    for name in names:
        run_case(name, output, models.absolute(), requests=requests, rounds=rounds)


if __name__ == "__main__":
    main()
