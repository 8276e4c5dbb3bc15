"""Small runs of the drivers of vLLM, SGLang and llama.cpp: made with real servers, and repeated against recordings.

Recording them again needs the engines below `.engines`:

    python -m tests.benchmarks.server_runs [NAME ...]
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.openvino_runs import RECORDINGS, prompts
from tests.helpers.engine_setups import ENGINES as PLACES
from tests.helpers.engine_setups import ENVIRONMENT, ROOT, SETUPS
from tests.helpers.server_exchanges import program
from treeopt.engines import ENGINES
from treeopt.engines.driver import Driver, DriverSettings, EngineRequest, EngineStep
from treeopt.engines.llama_cpp.driver import llama_server
from treeopt.storage.provenance import this_run

MODELS = PLACES / "models" / "servers"
TARGET, EAGLE3 = "stdlib-llama", "stdlib-eagle3"
LENGTH = 3
NEW_TOKENS = 10
PLAIN, CHAIN = (0, 1), (LENGTH, 2)  # draft length, requests in flight


@dataclass(frozen=True)
class Run:
    """A run that is recorded.

    Attributes:
        engine: its name.
        method: how it drafts.
        target: the target in the folder of the models.
        drafter: the drafter there; None: prompt lookup.
        lookup: the prompt lookup; None: a drafter.
        settings: draft lengths and requests in flight, of each part of the run.
    """

    engine: str
    method: str
    target: str
    drafter: str | None = None
    lookup: str | None = None
    settings: tuple[tuple[int, int], ...] = (PLAIN, CHAIN)


RUNS = {
    "vllm-eagle3": Run("vllm", "eagle3", TARGET, f"{EAGLE3}-vllm"),
    "vllm-ngram": Run("vllm", "ngram", TARGET, lookup="prompt-lookup:vllm:1-3", settings=(CHAIN,)),
    "sglang-eagle3": Run("sglang", "EAGLE3", TARGET, f"{EAGLE3}-sglang"),
    "llama-server-eagle3": Run("llama.cpp", "draft-eagle3", f"{TARGET}.gguf", f"{EAGLE3}.gguf"),
    "llama-server-ngram": Run(
        "llama.cpp", "ngram-simple", f"{TARGET}.gguf", lookup="prompt-lookup:llama.cpp:1-3", settings=(CHAIN,)
    ),
}


def models() -> Path:
    """Return the folder of the models, which are converted if they are missing."""
    from executor.checkpoints.convert import rewrite

    data = ROOT / "data" / "models"
    MODELS.mkdir(parents=True, exist_ok=True)
    if not (MODELS / TARGET).exists():
        (MODELS / TARGET).symlink_to(data / TARGET)
    for name, layout, file in (
        (TARGET, "gguf", f"{TARGET}.gguf"),
        (EAGLE3, "gguf", f"{EAGLE3}.gguf"),
        (EAGLE3, "eagle3-vllm", f"{EAGLE3}-vllm"),
        (EAGLE3, "eagle3-specforge", f"{EAGLE3}-sglang"),
    ):
        if not (MODELS / file).exists():
            output = MODELS / "scratch" if layout == "gguf" else MODELS / file
            rewrite(data / name, data / TARGET, output, layout=layout, dtype="float32")
            if layout == "gguf":
                (output / "model.gguf").rename(MODELS / file)
                output.rmdir()
    return MODELS


def asked() -> list[EngineRequest]:
    """Return the requests of the recorded runs."""
    return [EngineRequest(tokens, NEW_TOKENS, ignore_stop=True) for tokens in prompts(3, 24)]


def engine(run: Run, python: Path) -> Driver:
    """Return the driver; models are named as the current folder has them."""
    return ENGINES[run.engine].start(
        DriverSettings(
            run.engine,
            run.target,
            drafter=run.drafter,
            method=run.method,
            lookup=run.lookup,
            python=python,
            arguments=SETUPS[run.engine].arguments,
            servers=1,
            concurrency=2,
        )
    )


def decoded(run: Run, python: Path) -> list[list[list[EngineStep]]]:
    """Return the steps of each request, for each of its settings."""
    found = []
    with engine(run, python) as driver:
        for draft, concurrency in run.settings:
            rows: list[list[EngineStep]] = [[] for _ in asked()]
            for step in driver.decode(asked(), draft=draft, concurrency=concurrency):
                rows[step.request].append(step)
            found.append(rows)
    return found


def in_place_of(run: Run, folder: Path, *words: str) -> Path:
    """Write a program in the place of an engine's; return what a driver is given as its interpreter."""
    written = program(folder, *words)
    if run.engine == "llama.cpp":
        written.rename(folder / "llama-server")
    return written


def real(run: Run) -> Path:
    """Return the engine's own program."""
    python = PLACES / SETUPS[run.engine].python
    return llama_server(python) if run.engine == "llama.cpp" else python


def main(names: list[str]) -> None:
    """Record the runs."""
    os.environ |= ENVIRONMENT
    folder = models()
    note = f"data/models/{TARGET} and {EAGLE3} in float32; {{}} {{}}"
    for name in names or RUNS:
        run = RUNS[name]
        path = RECORDINGS / f"{name}.jsonl"
        provenance = {
            **this_run(),
            "models": note.format(run.engine, run.method),
            "prompts": "data/prompts/stdlib.jsonl, the first 24 tokens of 3",
        }
        path.write_text(json.dumps({"provenance": provenance}) + "\n", "utf-8")
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(folder)
            decoded(run, in_place_of(run, Path(scratch), "record", str(path), str(real(run))))


if __name__ == "__main__":
    main(sys.argv[1:])
