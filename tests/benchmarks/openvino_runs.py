"""Small runs of the OpenVINO driver: made with the real engine, and repeated against recordings of it.

Recording them again needs OpenVINO GenAI and the exported models, see `models`:

    python -m tests.benchmarks.openvino_runs
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.worker_exchanges import recorder
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep
from treeopt.engines.openvino.driver import OpenVino
from treeopt.errors import EngineError
from treeopt.policies import DynamicTree
from treeopt.storage.provenance import this_run

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / ".engines"
PYTHON = ENGINES / "openvino" / "bin" / "python"
EXPORT_PYTHON = ENGINES / "openvino-export" / "bin" / "python"
MODELS = ENGINES / "models" / "openvino"
RECORDINGS = ROOT / "tests" / "treeopt" / "engines" / "recordings"
TARGET, DRAFTER, EAGLE3 = "stdlib-llama", "stdlib-llama-3-layers", "stdlib-eagle3"
TREE = DynamicTree(nodes=6, depth=3, beam=2)

# fp32 throughout: the engine's cache has 8 bits otherwise, and texts of different batches need not be equal
EXACT = "INFERENCE_PRECISION_HINT=f32 KV_CACHE_PRECISION=f32 INFERENCE_NUM_THREADS=1"


def models() -> Path:
    """Return the folder of the target, its first three layers and EAGLE-3, which are exported if they are missing.

    Raises:
        FileNotFoundError: there is no environment to export with; names what is missing.
    """
    from executor.checkpoints.convert import rewrite

    target = ROOT / "data" / "models" / TARGET
    for name in (TARGET, DRAFTER, EAGLE3):
        if (MODELS / name / "openvino_model.xml").exists():
            continue
        if not EXPORT_PYTHON.exists():
            raise FileNotFoundError(f"{EXPORT_PYTHON.relative_to(ROOT)} to export {name}")
        with tempfile.TemporaryDirectory() as scratch:
            source = first_layers(target, Path(scratch), 3) if name == DRAFTER else target.with_name(name)
            settings = {"dtype": "float32", "engine_python": str(EXPORT_PYTHON)}
            rewrite(source, target, MODELS / name, layout="openvino", **settings)
    return MODELS


def first_layers(source: Path, folder: Path, layers: int) -> Path:
    """Write a copy of a Llama that has only its first layers."""
    from safetensors.torch import load_file, save_file

    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    config = json.loads((source / "config.json").read_text("utf-8")) | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    tensors = load_file(source / "model.safetensors")
    gone = tuple(f"model.layers.{layer}." for layer in range(layers, 100))
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(gone)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def prompts(count: int, tokens: int) -> list[tuple[int, ...]]:
    """Return the first tokens of the shipped prompts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ROOT / "data" / "models" / TARGET / "tokenizer.json"))
    with (ROOT / "data" / "prompts" / "stdlib.jsonl").open(encoding="utf-8") as lines:
        texts = [json.loads(next(lines))["text"] for _ in range(count)]
    return [tuple(tokenizer.encode(text).ids[:tokens]) for text in texts]


@dataclass
class Text:
    """The steps of one request."""

    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    steps: list[EngineStep] = field(default_factory=list)


def texts(engine: OpenVino, asked: list[EngineRequest], draft: Draft, concurrency: int) -> list[Text]:
    """Decode, and sort the steps by request."""
    sorted_ = [Text() for _ in asked]
    for step in engine.decode(asked, draft=draft, concurrency=concurrency):
        text = sorted_[step.request]
        text.tokens += step.tokens
        text.committed.append(step.committed)
        text.steps.append(step)
    return sorted_


@dataclass(frozen=True)
class Run:
    """A run that is recorded: the driver's options and what it is asked."""

    options: dict[str, Any]
    ask: Callable[[OpenVino], list[list[Text]]]


def asked(new_tokens: int = 12) -> list[EngineRequest]:
    """Return the requests of the recorded runs."""
    return [EngineRequest(tokens, new_tokens, ignore_stop=True) for tokens in prompts(3, 24)]


def chains(engine: OpenVino) -> list[list[Text]]:
    """Plain decoding, a chain one request at a time, and a chain two at a time; the last is cut short."""
    done = [texts(engine, asked(), draft, concurrency) for draft, concurrency in ((0, 1), (3, 1), (3, 2))]
    steps = engine.decode(asked(64), draft=2, concurrency=3)
    next(steps)
    steps.close()
    return done


def trees(engine: OpenVino) -> list[list[Text]]:
    """Plain decoding, a chain two requests at a time, and a dynamic tree one at a time."""
    return [texts(engine, asked(), draft, concurrency) for draft, concurrency in ((0, 1), (3, 2), (TREE, 1))]


def no_model(engine: OpenVino) -> list[list[Text]]:
    """Fail."""
    try:
        texts(engine, asked(), 0, 1)
    except EngineError:
        return []
    raise AssertionError("a folder without a model was loaded")


RUNS = {
    "openvino-lookup": Run({"method": "prompt-lookup:3", "arguments": EXACT}, chains),
    "openvino-draft-model": Run({"drafter": DRAFTER, "arguments": EXACT}, chains),
    "openvino-eagle3": Run({"drafter": EAGLE3, "arguments": EXACT}, trees),
    "openvino-no-model": Run({}, no_model),
}


def settings(python: Path, target: str, **options: Any) -> DriverSettings:
    """Return the settings of the driver."""
    return DriverSettings("openvino", target, python=python, **options)


def recorded(name: str, python: Path) -> list[list[Text]]:
    """Make a run; the current folder is that of the models, which a driver names as it is given them."""
    run = RUNS[name]
    with OpenVino(settings(python, "." if run.ask is no_model else TARGET, **run.options)) as engine:
        return run.ask(engine)


def main() -> None:
    """Record every run."""
    folder = models()
    RECORDINGS.mkdir(exist_ok=True)
    for name in RUNS:
        path = RECORDINGS / f"{name}.jsonl"
        note = f"{TARGET}, its first 3 layers ({DRAFTER}) and {EAGLE3}, exported by optimum-intel 2.2.0 as fp32"
        provenance = {**this_run(), "models": note, "prompts": "data/prompts/stdlib.jsonl, the first 24 tokens of 3"}
        path.write_text(json.dumps({"provenance": provenance}) + "\n", "utf-8")
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(folder)
            recorded(name, recorder(Path(scratch), path, PYTHON))


if __name__ == "__main__":
    main()
