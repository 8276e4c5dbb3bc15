"""Predicted against measured speedups in engines: a profile of the engine, predictions with a hash, then measurements.

Run as `python -m tests.benchmarks.engine_times` on a machine that nothing else uses. For each case below `CASES` it
calls `treeopt profile --engine` and `treeopt validate --engine` and keeps the profile, the predictions that were
written before anything was measured, and the validation. Chains of 1 to 5 at one and at four requests in flight;
greedy, float32, prompts that are in no shipped trace.
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
from treeopt.storage.atomic_files import shipped

PROMPTS, SKIP = "data/prompts/stdlib.jsonl", 1000  # prompts before these are in traces
CHAINS = ",".join(f"chain:{length}" for length in range(1, 6))


@dataclass(frozen=True)
class Case:
    """A drafter in an engine.

    Attributes:
        engine: key of `SETUPS`.
        layout: layout of target and drafter for the engine; empty: its own folders.
        drafter_layout: layout of the drafter.
        method: `--method`; None: the engine needs none.
        arguments: of the launch, beside those of the engine.
        servers: servers that may be alive at a time.
    """

    engine: str
    layout: str
    drafter_layout: str
    method: str | None
    arguments: str = ""
    servers: int = 1


# vLLM's default executor has workers that poll; six idle servers of it would take a core. Its other executor waits.
CASES = {
    "eagle3-vllm": Case("vllm", "", "eagle3-vllm", "eagle3", "--distributed-executor-backend uni", 6),
    "eagle3-llama.cpp": Case("llama.cpp", "gguf", "gguf", "draft-eagle3", "", 6),
    "eagle3-openvino": Case("openvino", "openvino", "openvino", None),
}
TARGET, DRAFTER, TRACE = "data/models/stdlib-llama", "data/models/stdlib-eagle3", "data/traces/eagle3-t0.npz"


def converted(model: str, layout: str, folder: Path, engine: str) -> Path:
    """Return a shipped model in a layout, in float32, written into `folder` unless it is there; a file for GGUF."""
    source = shipped(model.removeprefix("data/"))
    if not layout:
        return source
    output = folder / f"{Path(model).name}-{layout}"
    if not output.exists():
        exporter = SETUPS[engine].exporter
        python = str(ENGINES / exporter) if exporter else None
        rewrite(
            source, shipped(TARGET.removeprefix("data/")), output, layout=layout, dtype="float32", engine_python=python
        )
    return output / "model.gguf" if layout == "gguf" else output


def common(case: Case, folder: Path) -> list[str]:
    """Return the options that `profile` and `validate` share."""
    setup = SETUPS[case.engine]
    target = converted(TARGET, case.layout, folder, case.engine)
    drafter = converted(DRAFTER, case.drafter_layout, folder, case.engine)
    options = ["--engine", case.engine, "--engine-python", str(ENGINES / setup.python), "--servers", str(case.servers)]
    options += ["--engine-args", f"{setup.arguments} {case.arguments}".strip()]
    options += ["--target", TARGET, "--engine-target", str(target), "--engine-drafter", str(drafter)]
    options += ["--prompts", PROMPTS, "--skip", str(SKIP), "--batch", "1,4"]
    return options + (["--method", case.method] if case.method else [])


def run_case(name: str, output: Path, folder: Path, *, requests: int, new_tokens: int, rounds: int) -> None:
    """Measure a profile, predict, measure; three files below `output`.

    Raises:
        CalledProcessError: a command failed.
    """
    shared = [*common(CASES[name], folder), "--new-tokens", str(new_tokens)]
    profile, check = output / f"{name}.profile.json", output / f"{name}.validation.json"
    treeopt(["profile", *shared, "--requests", "64", "--max-depth", "5", "--rounds", str(rounds), "--output", profile])
    predicted = ["--trace", TRACE, "--profile", profile, "--predictions", output / f"{name}.predictions.json"]
    sizes = ["--requests", str(requests), "--blocks", str(rounds), "--shapes", CHAINS]
    treeopt(["validate", *shared, "--drafter", DRAFTER, *predicted, *sizes, "--output", check])


def treeopt(arguments: Sequence[str | Path]) -> None:
    """Run a command of treeopt in a process of its own."""
    command = [sys.executable, "-m", "treeopt", *map(str, arguments)]
    click.echo(" ".join(command[1:]), err=True)
    subprocess.run(command, check=True, cwd=ROOT)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--requests", default=64, show_default=True)
@click.option("--new-tokens", default=48, show_default=True, help="Waves overlap long enough to be timed.")
@click.option("--rounds", default=8, show_default=True, help="Rounds of the profile, and of the validation.")
@click.option("--models", type=click.Path(path_type=Path), default=ENGINES / "models", help="Converted models.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "data" / "engines", show_default=False)
def main(names: Sequence[str], requests: int, new_tokens: int, rounds: int, models: Path, output: Path) -> None:
    """Check predictions of NAMES, by default of all cases whose engine is set up."""
    os.environ |= ENVIRONMENT
    names = names or [name for name, case in CASES.items() if (ENGINES / SETUPS[case.engine].python).exists()]
    for name in names:
        run_case(name, output, models.absolute(), requests=requests, new_tokens=new_tokens, rounds=rounds)


if __name__ == "__main__":
    main()
