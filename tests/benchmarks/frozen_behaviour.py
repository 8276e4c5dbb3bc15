"""Freeze what treeopt reads and computes, and compare it with another state of the source.

    python -m tests.benchmarks.frozen_behaviour --inputs FOLDER --write FILE.json
    python -m tests.benchmarks.frozen_behaviour --inputs FOLDER --compare FILE.json [--only 'tree/*']

Every reader reads every input of FOLDER, if there is one, of `../shared/cases` if it is there, and the shipped files;
the command line searches, exports and decodes with the shipped ones. FOLDER/KIND/HASH/ holds `files/` and `call.json`:
the file's name, arguments of the reader, and the test or fuzzer that it comes from. A row is an input; it holds hashes
of the arrays and values, or the error's class and message. `--compare` prints each row that differs and exits with 1 if
one of them is not listed in docs/development/no_longer_read.md: below `## Rows`, the first column holds patterns of
rows (`fnmatch`) in backticks; `wording:PATTERN` allows other messages.

To record a commit from its own source, with this program and the present inputs:

    git worktree add ../before COMMIT && cp tests/benchmarks/frozen_behaviour.py ../before/tests/benchmarks/
    cd ../before && PYTHONPATH=$PWD python -m tests.benchmarks.frozen_behaviour --inputs FOLDER --write FILE.json
"""

import argparse
import csv
import fnmatch
import hashlib
import importlib
import io
import json
import logging
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import treeopt
from treeopt.errors import TreeoptError

ROOT = Path(treeopt.__file__).resolve().parents[1]
LISTED = ROOT / "docs" / "development" / "no_longer_read.md"
CASES = ROOT.parent / "shared" / "cases"
MODELS = ROOT / "data" / "models"
PROMPTS = ROOT / "data" / "prompts" / "stdlib.jsonl"

# Names that are no part of the API: where each is now, and where it was before.
INNER = {
    "tree word": ("treeopt.cli.options.value_types:Static",),
    "predictions": ("simulate.validation.predictions:load_predictions",),
    "shape": ("simulate.model_sizes.model_shape:Shape",),
    "context limit": ("simulate.model_sizes.hf_config:context_limit",),
    "quantization": ("simulate.model_sizes.hf_config:quant_method",),
    "drafter shape": ("simulate.model_sizes.drafter_kinds:drafter_shape",),
    "hardware": ("simulate.roofline.data_sheets:load_hardware",),
    "requests": ("simulate.runs.server_load:read_requests",),
    "report": ("treeopt.api.report_files:read_files",),
    "prompts": ("executor.prompts.prompt_files:read_prompts",),
    "encoded": ("executor.prompts.prompt_files:encoded",),
    "prompt": ("executor.prompts.prompt_files:Prompt",),
    "texts": ("executor.train.text_files:read_texts",),
    "rows": ("executor.train.token_rows:encode",),
    "reading report": ("executor.prompts.message_parts:Report",),
    "drafter": ("executor.checkpoints:load_drafter",),
    "target": ("executor.target.load_hf_model:load_target",),
    "collect": ("executor.recording.collect_trace:collect",),
    "assumptions": ("executor.checkpoints:assumptions_of",),
}
# Engine -> what its export of a plan needs.
EXPORTS = {
    "llama.cpp": ("--method", "draft-eagle3", "--model", "d.gguf"),
    "lmdeploy": ("--method", "eagle3", "--model", "d"),
    "medusa": ("--heads", "5"),
    "openvino": ("--method", "eagle3", "--model", "d"),
    "sglang": ("--method", "EAGLE3", "--model", "d"),
    "tensorrt-llm": ("--method", "Eagle3", "--model", "d"),
    "transformers": ("--method", "assistant", "--model", "d"),
    "vllm": ("--method", "eagle3", "--model", "d"),
}
# Keys whose values differ from run to run or from machine to machine.
PASSING = {"provenance", "command", "date", "commit", "processor", "software", "cores", "treeopt", "sha256", "seconds"}
PASSING |= {"shapes", "drain", "fixed_shape", "lock_step", "hysteresis"}  # settings that are gone

Row = dict[str, Any]


@cache
def inner(name: str) -> Any:
    """Import a name that is no part of the API."""
    for place in INNER[name]:
        module, _, word = place.partition(":")
        try:
            return getattr(importlib.import_module(module), word)
        except (ImportError, AttributeError) as error:
            missing = error
    raise LookupError(f"INNER[{name!r}] of {__file__} must say where it is now: {missing}")


# --- values as hashes


def plain(value: Any) -> Any:
    """Return a value as JSON: arrays and tensors by their hash, numbers of 12 digits, without what differs by run."""
    if isinstance(value, Mapping):
        return {str(key): plain(inside) for key, inside in value.items() if key not in PASSING}
    if isinstance(value, list | tuple):
        return [plain(inside) for inside in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.12g}") if np.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if hasattr(value, "dequantize") and type(value).__name__ != "Parameter" and type(value).__module__ != "torch":
        value = value.dequantize()
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    if isinstance(value, np.ndarray):
        return [
            str(value.dtype),
            list(value.shape),
            hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16],
        ]
    return str(value)


def digest(value: Any) -> str:
    """Return a short hash of a value."""
    text = json.dumps(plain(value), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shown(value: Any) -> Any:
    """Return a value itself if it is short, else its hash and beginning."""
    text = json.dumps(plain(value), sort_keys=True, ensure_ascii=True)
    return json.loads(text) if len(text) < 200 else f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {text[:120]}"


class Notes(logging.Handler):
    """The messages of API functions."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def row_of(read: Callable[[], Mapping[str, Any]], *folders: Path) -> Row:
    """Return what a reader says: its values, or its error."""
    notes, logger = Notes(), logging.getLogger("treeopt")
    logger.addHandler(notes)
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            row: Row = {part: shown(value) for part, value in read().items()}
    except LookupError as error:
        if str(error).startswith("INNER"):
            raise
        row = _error(error)
    except Exception as error:  # noqa: BLE001 - any error is an outcome
        row = _error(error)
    finally:
        logger.removeHandler(notes)
        logger.setLevel(level)
        logger.propagate = True
    if notes.lines:
        row["notes"] = notes.lines
    text = json.dumps(row)
    for folder in (*folders, ROOT, CASES):
        text = text.replace(json.dumps(str(folder))[1:-1], "<>")
    return json.loads(re.sub(r"/tmp/[\w./-]*?(?=[\w.-]*(?:[\"\\: ,)]|$))", "<>/", text))


def _error(error: BaseException) -> Row:
    if isinstance(error, TreeoptError):
        return {"error": type(error).__name__, "message": str(error)}
    if type(error).__module__.startswith("click"):
        return {"error": "usage", "message": str(error)}
    return {"error": f"FAULT {type(error).__name__}", "message": str(error)[:300]}


# --- readers: file, arguments of the gathered call -> parts


def saved(value: Any, name: str) -> Path:
    """Save a value of the API in a file that is removed at the end."""
    path = scratch() / name
    path.unlink(missing_ok=True)
    save = {".npz": treeopt.save_trace}.get(path.suffix) or {"plan": treeopt.save_plan}.get(
        path.stem, treeopt.save_profile
    )
    save(value, path)
    return path


@cache
def scratch() -> Path:
    """Return a folder for files of this run."""
    return Path(tempfile.mkdtemp(prefix="frozen-"))


def read_tree(path: Path, call: Row) -> Row:
    tree = treeopt.load_tree(path, name=call.get("name"))
    return {"paths": tree.paths}


def read_word(path: Path, call: Row) -> Row:
    word = path.read_bytes().decode("utf-8", "surrogatepass")
    return {"paths": inner("tree word")().convert(word, None, None).paths}


def trace_parts(trace: Any) -> Row:
    with np.load(saved(trace, "trace.npz")) as arrays:
        parts: Row = {name: arrays[name] for name in arrays.files if name != "meta"}
    return {"arrays": parts, "meta": trace.meta}


def import_trace(path: Path, call: Row) -> Row:
    settings = {name: value for name, value in call.get("settings", {}).items() if value is not None}
    more = {name: call[name] for name in ("requests", "length") if call.get(name) is not None}
    if call.get("kind", "engine") in ("engine", "counters", "responses", "log", "medusa-accuracy"):
        more.pop("length", None)
    trace = treeopt.import_trace(path, kind=call.get("kind", "engine"), seed=call.get("seed", 0), **more, **settings)
    return trace_parts(trace)


def read_trace(path: Path, call: Row) -> Row:
    trace = treeopt.load_trace(path)
    parts = trace_parts(trace)
    return parts | {"replay": [treeopt.replay_tree(treeopt.Tree.chain(n), trace).tau for n in (1, 2)]}


def plan_parts(plan: Any) -> Row:
    record = json.loads(saved(plan, "plan.json").read_text("utf-8"))
    record.pop("schema")
    return {f"record {key}": value for key, value in record.items()} | {"frame": plan.frame().to_csv()}


def read_plan(path: Path, call: Row) -> Row:
    return plan_parts(treeopt.load_plan(path))


def profile_parts(profile: Any) -> Row:
    from treeopt.cost_model import StepShape

    batches = [times.batch for times in profile.batches[:3]]
    costs = []
    for batch in batches:
        for length in (1, 3):
            shape = StepShape.of(treeopt.Tree.chain(length), batch=batch)
            costs.append(_tried(lambda: [profile.step_s([shape]).tolist(), profile.error(shape)]))  # noqa: B023
        costs.append(_tried(lambda: profile.plain_s(batch=batch)))  # noqa: B023
    record = json.loads(saved(profile, "profile.json").read_text("utf-8"))
    record.pop("schema")
    return {
        "costs": costs,
        "caveats": _tried(profile.caveats),
        "frame": _tried(lambda: profile.frame().to_csv()),
        "record": record,
    }


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TreeoptError as error:
        return {"error": type(error).__name__, "message": str(error)}


def read_profile(path: Path, call: Row) -> Row:
    return profile_parts(treeopt.load_profile(path))


def read_predictions(path: Path, call: Row) -> Row:
    predictions = inner("predictions")(path)
    return {"hash": predictions.sha256, **plan_parts(predictions.plan)}


def read_record(path: Path, call: Row) -> Row:
    record = treeopt.load_record(path)
    return {"record": record, "frame": record.frame().to_csv()}


def read_report(path: Path, call: Row) -> Row:
    inputs = inner("report")([path])
    return {
        "problems": [problem.reason for problem in inputs.problems],
        "read": len(inputs.read),
        "notes_": list(inputs.notes),
    }


def read_times(path: Path, call: Row) -> Row:
    made = scratch() / "times.json"
    made.unlink(missing_ok=True)
    context = call.get("context")
    words = ["--context", "-".join(map(str, context))] if context else []
    command("times", path.name, "--device", call.get("device", "d"), *words, "--output", str(made))
    return profile_parts(treeopt.load_profile(made))


def read_config(path: Path, call: Row) -> Row:
    return {
        "shape": _tried(lambda: vars_of(inner("shape").from_config(path))),
        "context": _tried(lambda: inner("context limit")(path)),
        "quantization": _tried(lambda: inner("quantization")(path)),
    }


def vars_of(value: Any) -> Any:
    """Return the fields of a dataclass by name."""
    from dataclasses import asdict, is_dataclass

    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def read_drafter_config(path: Path, call: Row) -> Row:
    target = call.get("target")
    target = None if target is None else inner("shape")(**target)
    return {"shape": vars_of(inner("drafter shape")(path, kind=call["kind"], target=target))}


def read_hardware(path: Path, call: Row) -> Row:
    return {"devices": {name: vars_of(device) for name, device in inner("hardware")(path).items()}}


def read_requests(path: Path, call: Row) -> Row:
    return {"requests": vars_of(inner("requests")(path))}


TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
    "{% if m.get('reasoning_content') %}(thought {{ m['reasoning_content'] }}){% endif %}"
    "{% if m.get('tool_calls') %}(call {{ m['tool_calls'] | tojson }}){% endif %}<end>{% endfor %}"
    "{% if tools %}(tools {{ tools | tojson }}){% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@cache
def tokenizer() -> Any:
    """Return the shipped tokenizer, with a chat template that shows everything."""
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(MODELS / "stdlib-llama")
    made.chat_template = TEMPLATE
    return made


def _report(call: Row) -> Any:
    return inner("reading report")(frozenset(call.get("leave_out", ())))


def _said(report: Any) -> Row:
    return {"summary": report.summary, "remarks": report.remarks, "unread": report.unread_fields}


def read_prompts(path: Path, call: Row) -> Row:
    report = _report(call)
    prompts = inner("prompts")(path, report)
    values = [(p.text, p.domain, p.turns, p.extras) for p in prompts]
    tokens = _tried(lambda: [tokens for _, tokens in inner("encoded")(tokenizer(), prompts[:20], report)])
    return {"prompts": values, "tokens": tokens, **_said(report)}


def read_data(path: Path, call: Row) -> Row:
    report = _report(call)
    texts = inner("texts")([path], report)
    values = [(t.turns, t.text, t.prompt, t.cut, t.written, t.tokenizer, t.extras) for t in texts]
    rows = _tried(lambda: inner("rows")(tokenizer(), texts[:20], report))
    return {"texts": values, "rows": rows, **_said(report)}


@cache
def target_of(path: Path) -> Any:
    """Load a target."""
    import torch

    torch.set_num_threads(1)
    return inner("target")(path)


def drafts(target: Any, drafter: Any) -> Row:
    """Record what a drafter drafts on two made-up prompts."""
    rng = np.random.default_rng(0)
    size = min(int(target.model.get_input_embeddings().weight.shape[0]), 256)
    tokens = [rng.integers(0, size, length).tolist() for length in (9, 5)]
    prompts = [inner("prompt")("x") for _ in tokens]
    depth = min(3, drafter.max_depth)
    trace = inner("collect")(
        target, drafter, prompts, tokens, new_tokens=6, width=3, depth=depth, batch=2, probabilities=True
    )
    with np.load(saved(trace, "trace.npz")) as arrays:
        held = {
            name: np.round(arrays[name], 3) if arrays[name].dtype.kind == "f" else arrays[name] for name in arrays.files
        }
    held.pop("meta")
    return held


def read_drafter(path: Path, call: Row) -> Row:
    target = target_of(Path(call["target_folder"]))
    drafter = inner("drafter")(path, target)
    weights = sorted(json.dumps(plain(tensor)) for tensor in getattr(drafter, "state_dict", dict)().values())
    parts = {"kind": drafter.kind, "weights": weights, "assumptions": inner("assumptions")(drafter)}
    return parts | {"max_depth": drafter.max_depth, "drafts": _tried(lambda: drafts(target, drafter))}


def read_target(path: Path, call: Row) -> Row:
    import torch

    target = inner("target")(path, drafter=call.get("drafter", False))
    weights = sorted(json.dumps(plain(tensor)) for tensor in target.model.state_dict().values())
    with torch.no_grad():
        logits = target.model(torch.tensor([[1, 2, 3, 4, 5]])).logits.float().numpy().round(3)
    return {"weights": weights, "warnings": list(target.warnings), "logits": logits}


READERS: dict[str, Callable[[Path, Row], Row]] = {
    "tree": read_tree,
    "tree-word": read_word,
    "import": import_trace,
    "trace": read_trace,
    "plan": read_plan,
    "profile": read_profile,
    "predictions": read_predictions,
    "record": read_record,
    "report": read_report,
    "times": read_times,
    "config": read_config,
    "drafter-config": read_drafter_config,
    "hardware": read_hardware,
    "requests": read_requests,
    "prompts": read_prompts,
    "data": read_data,
    "target": read_target,
    "drafter": read_drafter,
}


# --- inputs


def command(*words: str) -> Row:
    """Run a command in this process; return stdout and stderr; an exit code raises an error."""
    from treeopt.cli import main

    result = CliRunner().invoke(main, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise TreeoptError(f"exit code {result.exit_code}: {result.stderr}")
    return {"stdout": result.stdout, "stderr": result.stderr}


def command_json(*words: str) -> Row:
    """Run a command that prints JSON."""
    printed = command(*words)
    parts = {f"json {key}": value for key, value in json.loads(printed["stdout"]).items()}
    return parts | {"stderr": printed["stderr"]}


Job = tuple[str, Callable[[], Mapping[str, Any]], Path]


def gathered(folder: Path) -> Iterator[Job]:
    """Yield the gathered inputs."""
    for kind, reader in READERS.items():
        for place in sorted((folder / kind).glob("*")):
            call = json.loads((place / "call.json").read_text("utf-8"))
            if kind == "drafter":
                call["target_folder"] = str(folder / "targets" / call["target"])
            files = place / "files"
            test = re.sub(r"[^\w.:/() -]", "_", call["test"].replace("[", "(").replace("]", ")"))[-120:]
            yield f"{kind}/{place.name} {test}", _in(files, reader, Path(call["file"]), call), files


def _in(folder: Path, reader: Callable[[Path, Row], Row], path: Path, call: Row) -> Callable[[], Row]:
    """Read in the folder, so that no message holds its name."""

    def read() -> Row:
        with chdir(folder):
            return dict(reader(path, call))

    return read


def cases() -> Iterator[Job]:
    """Yield the files of the cases, each to the readers that it may be meant for."""
    readers: dict[str, Sequence[str]] = {"14": ("tree",), "17": ("times", "import"), "24": ("times",)}
    readers |= {"25": ("import", "times"), **dict.fromkeys(("05", "08", "20", "22"), ("import",))}
    readers |= dict.fromkeys(("06", "07", "23"), ("prompts", "data"))
    for path in sorted(CASES.glob("*/*")):
        kinds = readers.get(path.parent.name[:2], ())
        if path.is_file() and path.suffix not in (".py", ".sh", "") and path.stat().st_size < 2_000_000:
            for kind in kinds:
                calls: list[Row] = [{"context": [512, 2048]} if kind == "times" else {}]
                if kind == "import":
                    calls += [{"settings": {"steps": 2000}}]
                    calls += [{"kind": "table", "settings": {"column": "rank"}}] * (path.suffix == ".csv")
                for number, call in enumerate(calls):
                    name = f"case-{kind}/{path.parent.name}/{path.name}{f' {number}' if number else ''}"
                    yield name, _in(path.parent, READERS[kind], Path(path.name), call), path.parent
    for path in sorted(CASES.glob("20_*/targets/*/config.json")):
        yield f"case-config/{path.parent.name}", _in(path.parent, read_config, Path(path.name), {}), path.parent


def shipped() -> Iterator[Job]:
    """Yield the shipped files."""
    kinds = {
        "trace": "data/traces/*.npz",
        "profile": "data/*/*[!s].json",
        "predictions": "data/*/*.predictions.json",
        "record": "data/*/*.json",
        "report": "data/*/*.json",
        "hardware": "data/hardware.json",
        "tree": "data/published/trees.json",
        "config": "**/config.json",
        "prompts": "data/prompts/*.jsonl",
        "data": "data/prompts/*.jsonl",
        "import": "docs/examples/*.txt",
    }
    for kind, pattern in kinds.items():
        folders = (ROOT / "data", ROOT / "docs" / "examples") if pattern.startswith("**") else (ROOT,)
        for path in sorted(place for folder in folders for place in folder.glob(pattern)):
            if kind in ("profile", "record", "predictions") and path.parent.name not in (
                "profiles",
                "engines",
                "gpu",
                "validations",
            ):
                continue
            if kind == "profile" and not (path.parent.name == "profiles" or ".profile." in path.name):
                continue
            if kind == "record" and not (path.parent.name == "validations" or ".validation." in path.name):
                continue
            if (kind == "record" and ".predictions." in path.name) or (
                kind == "report" and path.parent.name == "benchmarks"
            ):
                continue
            yield (
                f"shipped-{kind}/{path.relative_to(ROOT)}",
                _in(path.parent, READERS[kind], Path(path.name), {}),
                path.parent,
            )
    for path in sorted(MODELS.glob("*")):
        call = {"target_folder": str(path / "target" if (path / "target").is_dir() else MODELS / "stdlib-llama")}
        yield f"shipped-drafter/{path.name}", _in(MODELS, read_drafter, Path(path.name), call), MODELS


def commands() -> Iterator[Job]:
    """Yield the commands on the shipped files: demo, search, whatif, simulate, compare, replays, exports, texts."""
    data = ROOT / "data"
    traces = {path.stem: str(path) for path in sorted((data / "traces").glob("*.npz"))}
    yield "demo", _called(command, "search", "--trace", traces["medusa-t0"], "--batch", "4"), data
    small = ("--batch", "1,4", "--max-nodes", "8", "--max-depth", "3", "--json")
    for name, trace in traces.items():
        yield f"info/{name}", _called(command, "trace", "info", trace), data
        yield f"replay/{name}", _called(_replayed, trace), data
    for name in ("medusa-t0", "medusa-typical", "eagle-t1", "smollm2-eagle-t0", "prompt-lookup-t0"):
        yield f"search/{name}", _called(command_json, "search", "--trace", traces[name], *small), data
    policies, engine = ("--policy", "eagle2"), ("--engine", "sglang")
    for more in (policies, engine, ("--max-tpot-ms", "20"), ("--context", "64")):
        words = ("search", "--trace", traces["eagle-candidates-t0"], *small, *more)
        yield f"search {' '.join(more)}", _called(command_json, *words), data
    target = ("--target", str(MODELS / "stdlib-llama"))
    whatif = (
        "whatif",
        "--trace",
        traces["eagle-t0"],
        "--kind",
        "eagle",
        "--batch",
        "1,8",
        "--max-nodes",
        "12",
        "--json",
    )
    yield "whatif stdlib-llama", _called(command_json, *whatif, *target, "--hardware", "h100"), data
    yield "whatif 8b", _called(command_json, *whatif, "--target", "8b", "--hardware", "h200"), data
    yield (
        "compare",
        _called(command_json, "compare", *(traces[f"{name}-t0"] for name in ("medusa", "eagle")), "--json"),
        data,
    )
    for name in ("medusa-t0", "eagle-candidates-t0"):
        yield f"simulate {name}", _called(_simulated, traces[name]), data
        for engine, words in EXPORTS.items():
            for more in (
                (),
                ("--nearest", "chain"),
                ("--nearest", "triple", "--batch", "4"),
                ("--nearest", "chain", "--batch", "4", "--launch"),
            ):
                case = f"export {name} {engine} {' '.join(more)}".strip()
                yield case, _called(_exported, traces[name], engine, *words, *more), data
    texts = (
        "--prompts",
        str(PROMPTS),
        "--requests",
        "3",
        "--skip",
        "1000",
        "--new-tokens",
        "12",
        "--threads",
        "1",
        "--json",
    )
    yield "decode plain", _called(_decoded, *target, *texts), data
    drafters = sorted(
        path.name for path in MODELS.glob("stdlib-*") if path.name not in ("stdlib-llama", "stdlib-medusa2")
    )
    tree = ("--tree", "[[0],[1],[0,0]]", "--batch", "2")
    for drafter in drafters:
        yield f"decode {drafter}", _called(_decoded, *target, "--drafter", str(MODELS / drafter), *tree, *texts), data
    for drafter in ("prompt-lookup", "prompt-lookup:vllm:2-4"):
        yield f"decode {drafter}", _called(_decoded, *target, "--drafter", drafter, "--tree", "3", *texts), data
    drafter = ("--drafter", str(MODELS / "stdlib-eagle3"))
    for rule in ("sample-and-match", "leviathan", "block", "specinfer", "typical"):
        more = ("--tree", "3", "--rule", rule, "--temperature", "0.8", "--seed", "3")
        yield f"decode rule {rule}", _called(_decoded, *target, *drafter, *more, *texts), data
    for dynamic in ("nodes=8,depth=4", "nodes=8,depth=4,threshold=0.1"):
        yield f"decode dynamic {dynamic}", _called(_decoded, *target, *drafter, "--dynamic", dynamic, *texts), data


def _called(function: Callable[..., Mapping[str, Any]], *words: str) -> Callable[[], Mapping[str, Any]]:
    """Call a function with words in the root, and with paths from there."""

    def call() -> Mapping[str, Any]:
        with chdir(ROOT):
            return function(*(word.replace(f"{ROOT}/", "") for word in words))

    return call


def _replayed(trace: str) -> Row:
    loaded = treeopt.load_trace(trace)
    trees = [treeopt.Tree.chain(n) for n in range(1, loaded.depth + 1)]
    trees += [treeopt.Tree.from_paths([(0,), (1,), (0, 0)][: 2 + (loaded.depth > 1)])]
    return {"tau": [_tried(lambda: vars_of(treeopt.replay_tree(tree, loaded).tau)) for tree in trees]}  # noqa: B023


@cache
def _plan_file(trace: str) -> Path:
    path = scratch() / f"{Path(trace).stem}.json"
    policy = ("--policy", "eagle2") if "candidates" in trace else ()
    command("search", "--trace", trace, "--batch", "1,4", "--max-nodes", "16", *policy, "--output", str(path))
    return path


def _exported(trace: str, engine: str, *words: str) -> Row:
    return command_json("export", str(_plan_file(trace)), "--format", engine, *words, "--json")


def _simulated(trace: str) -> Row:
    return command_json("simulate", "--trace", trace, "--plan", str(_plan_file(trace)), "--batch", "4", "--json")


def _decoded(*words: str) -> Row:
    record = json.loads(command("decode", *words)["stdout"])
    return {
        "requests": [
            {key: value for key, value in request.items() if not key.endswith("_s")} for request in record["requests"]
        ]
    }


# --- comparison


def listed() -> list[str]:
    """Return the patterns in the table of rows that may differ."""
    _, _, table = (LISTED.read_text("utf-8") if LISTED.is_file() else "").partition("\n## Rows")
    cells = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    return [word.strip("` ") for cell in cells for word in re.findall(r"`[^`]+`", cell)]


def difference(before: Row, now: Row) -> tuple[str, str] | None:
    """Return how two rows differ: a kind of difference, and in what; None if they are equal."""
    if before == now:
        return None
    if "error" in now and "error" not in before:
        return "no longer read", f"{now['error']}: {now['message'][:300]}"
    if "error" in before and "error" not in now:
        return "read now", f"was {before['error']}: {before['message'][:200]}"
    if "error" in now:
        kind = "wording" if before["error"] == now["error"] else "error"
        return kind, f"{before['error']}: {before['message'][:250]!r} -> {now['error']}: {now['message'][:250]!r}"
    parts = sorted(part for part in before.keys() | now.keys() if before.get(part) != now.get(part))
    first = parts[0]
    kind = (
        "wording"
        if set(parts) <= {"notes", "remarks", "summary", "unread", "stderr", "warnings", "caveats"}
        else "value"
    )
    return kind, f"{', '.join(parts)}: {str(before.get(first))[:200]!r} -> {str(now.get(first))[:200]!r}"


def compare(before: Mapping[str, Row], now: Mapping[str, Row], only: str) -> int:
    """Print the rows that differ; return 1 if one of them is not listed."""
    patterns, counts, status = listed(), Counter[str](), 0
    for name in sorted(before.keys() | now.keys()):
        if not fnmatch.fnmatch(name, only):
            continue
        if name not in now or name not in before:
            found: tuple[str, str] | None = ("row", "only before" if name in before else "only now")
        else:
            found = difference(before[name], now[name])
        if found is None:
            counts["equal"] += 1
            continue
        kind, text = found
        words = [
            pattern.removeprefix("wording:")
            for pattern in patterns
            if kind == "wording" or not pattern.startswith("wording:")
        ]
        if any(fnmatch.fnmatch(name, word) for word in words):
            counts["listed"] += 1
            continue
        counts[f"{kind} ({name.partition('/')[0].partition(' ')[0]})"] += 1
        status = 1
        print(f"{kind.upper()} | {name} | {text}".replace("\n", "\\n"))
    print(", ".join(f"{kind} {count}" for kind, count in counts.most_common()), file=sys.stderr)
    return status


def main() -> int:
    """Read everything; write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=Path, default=Path("build/frozen_inputs"))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--only", default="*", help="pattern of rows")
    parser.add_argument("--times", action="store_true", help="print the seconds of each kind")
    asked = parser.parse_args()
    jobs: Iterable[Job] = (
        job for jobs in (gathered(asked.inputs.resolve()), cases(), shipped(), commands()) for job in jobs
    )
    rows: dict[str, Row] = {}
    seconds = Counter[str]()
    for name, read, folder in jobs:
        if fnmatch.fnmatch(name, asked.only):
            start = time.process_time()
            rows[name] = row_of(read, folder)
            seconds[name.partition("/")[0].partition(" ")[0]] += time.process_time() - start
    if asked.times:
        print(csv_of(seconds), file=sys.stderr)
    if asked.write:
        asked.write.write_text(json.dumps(rows, indent=0, sort_keys=True) + "\n", "utf-8")
        print(f"{len(rows)} rows, {sum('error' in row for row in rows.values())} of them errors", file=sys.stderr)
    return compare(json.loads(asked.compare.read_text("utf-8")), rows, asked.only) if asked.compare else 0


def csv_of(seconds: Mapping[str, float]) -> str:
    """Return seconds by kind as lines."""
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows((kind, f"{count:.1f}") for kind, count in seconds.items())
    return lines.getvalue()


if __name__ == "__main__":
    sys.exit(main())
