"""Every reader of a user's file, on damaged inputs: an error of treeopt's, no other; no hang, and bounded memory.

`make fuzz` runs it; TREEOPT_FUZZ is the number of inputs, over all readers together. Each example of Hypothesis is the
seed of a damaged input, so that a failure can be repeated; its input is kept in TREEOPT_FUZZ_KEPT, if that is set.
"""

import functools
import hashlib
import json
import os
import random
import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from executor.checkpoints import load_drafter, save_drafter
from executor.checkpoints.tensors.find_tensor_files import open_checkpoint, read_saved
from executor.prompts.message_parts import Report
from executor.prompts.prompt_files import encoded, read_prompts
from executor.recording.engine_steps import RequestRecord
from executor.train.token_rows import encode, read_texts
from simulate.model_sizes.hf_config import context_limit
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.engine_times_csv import read_times
from simulate.profiles.profile import load_profile, save_profile
from simulate.runs.server_load import read_requests
from simulate.validation.predictions import _hash, load_predictions
from tests.executor.prompts.test_tools_and_thoughts import QWEN, SPELLINGS, WEATHER, called
from tests.executor.train.test_token_rows import byte_tokenizer
from tests.helpers.command_line import done, small_profile, small_trace
from tests.helpers.drafters import random_drafter
from tests.helpers.fuzzing import (
    STRANGE,
    bounded,
    constants,
    damaged_bytes,
    damaged_text,
    damaged_value,
    read,
    text_bytes,
)
from tests.helpers.models import small_target
from tests.helpers.source_texts import LOG, META, PROMETHEUS, RESPONSE
from treeopt.api.report_files import report_page
from treeopt.cli.options.value_types import STATIC
from treeopt.cost_model import StepShape
from treeopt.errors import TreeoptError, UsageError
from treeopt.plans import load_plan, to_json
from treeopt.replay.static_tree import replay_tree
from treeopt.report.html_page import as_html
from treeopt.results.trace import describe
from treeopt.storage.json_records import RecordError
from treeopt.storage.work_file import WorkFile
from treeopt.traces.importers.source_file import read_numbers
from treeopt.traces.importers.trace_source import ImportedFile, import_trace
from treeopt.traces.resumable_shards import load_file_or_shards
from treeopt.traces.trace_files import save_trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import read_tree

ROOT = Path(__file__).resolve().parents[2]
INPUTS = int(os.environ.get("TREEOPT_FUZZ", "2000"))
KEPT = os.environ.get("TREEOPT_FUZZ_KEPT")
SETTINGS: dict[str, Any] = {  # a seed says nothing about smaller inputs, so none is looked for
    "deadline": None,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}
TESTS = ROOT / "tests" / "treeopt"
RANDOM = random.Random


def text(*paths: str) -> list[str]:
    return [(ROOT / path).read_text("utf-8") for path in paths]


@dataclass(frozen=True)
class Reader:
    """A reader of inputs, and how they are made: `make` returns bytes, `read` gets the path of a file with them."""

    make: Callable[[RANDOM], bytes]
    read: Callable[[Path], Any]
    name: str = "input"


def texts_of(texts: list[str], name: str, reader: Callable[[Path], Any]) -> Reader:
    assert texts
    return Reader(lambda rng: text_bytes(damaged_text(rng, texts)), reader, name)


# --- what is done with what was read


def _use_trace(path: Path) -> None:
    trace = load_file_or_shards(path)
    describe(trace)
    if trace.tree_kept is None and trace.kept is None:
        replay_tree(Tree.chain(1), trace)


def _use_plan(path: Path) -> None:
    plan = load_plan(path)
    json.loads(to_json(plan))


def _use_profile(path: Path) -> None:
    profile = load_profile(path)
    profile.caveats()
    measured = [times.batch for times in profile.batches[:3]]
    for batch in dict.fromkeys([*measured, *(size + 1 for size in measured[:-1])]):
        profile.plain_s(batch=batch)
        for length in (1, 3):
            profile.error(StepShape.of(Tree.chain(length), batch=batch))
            profile.step_s([StepShape.of(Tree.chain(length), batch=batch)])
        profile.parts(batch=batch, tokens=8, depth=2, width=2)


def _use_validation(path: Path) -> None:
    page = report_page([path])
    if page.problems:
        raise UsageError(f"{path}: {page.problems[0].reason}")
    as_html(replace(page, findings=[replace(finding, charts=()) for finding in page.findings]))


def _use_all(*uses: Callable[[], Any]) -> None:
    """Try all, and raise the first refusal."""
    refusals: list[TreeoptError] = []
    for use in uses:
        try:
            use()
        except TreeoptError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def _copies(path: Path, *suffixes: str) -> list[Path]:
    """Return the file under other endings."""
    copies = [path.with_suffix(suffix) for suffix in suffixes]
    for copy in copies:
        copy.write_bytes(path.read_bytes())
    return copies


def _use_configuration(path: Path) -> None:
    _use_all(lambda: Shape.from_config(path), lambda: context_limit(path), lambda: open_checkpoint(path.parent))


@functools.cache
def _template() -> Any:
    return byte_tokenizer(QWEN)


def _use_data(path: Path) -> None:
    report = Report(frozenset({"unreadable"}))
    texts = read_texts([path], report)
    encode(_template(), texts[:20], report)
    report.remarks, report.summary, report.unread_fields  # noqa: B018


def _use_prompts(path: Path) -> None:
    report = Report()
    encoded(_template(), read_prompts(path, report)[:20], report)


def _use_tree(path: Path) -> None:
    _use_all(*(partial(read_tree, other) for other in (path, *_copies(path, ".json", ".yaml", ".py"))))


def _use_words(path: Path) -> None:
    """A tree on the command line; click's refusal is a usage error."""
    import click

    try:
        STATIC.convert(path.read_bytes().decode("utf-8", "replace"), None, None)
    except click.UsageError as error:
        raise UsageError(error.format_message()) from error


def _use_output(path: Path) -> None:
    import_trace(ImportedFile(path, "engine", read_saved), {})


def _use_numbers(path: Path) -> None:
    def use(file: Path, column: str) -> None:
        import_trace(ImportedFile(file, "table", read_saved, requests=3, length=8), {"column": column})

    files = _copies(path, ".csv", ".json")
    _use_all(*(partial(use, file, column) for column in ("rank", "recall") for file in files))


# --- inputs


@functools.cache
def _trace_arrays() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        save_trace(small_trace(requests=3, lengths=6), Path(folder) / "t.npz")
        with np.load(Path(folder) / "t.npz") as arrays:
            return dict(arrays)


def _trace_bytes(rng: RANDOM) -> bytes:
    """A trace whose arrays have other values, types or shapes, or whose bytes are damaged."""
    arrays = dict(_trace_arrays())
    change = rng.random()
    if change < 0.4:
        meta = damaged_value(rng, json.loads(arrays["meta"].tobytes()))
        arrays["meta"] = np.frombuffer(text_bytes(json.dumps(meta)), dtype=np.uint8)
    elif change < 0.8:
        name = rng.choice(sorted(arrays))
        array = arrays[name].copy()
        match rng.randrange(6):
            case 0:
                array.flat[rng.randrange(array.size)] = rng.choice((0, 1, 2, 255 if array.dtype == np.uint8 else -1))
            case 1:
                array = array.astype(rng.choice((np.int64, np.float16, np.int8, np.bool_, np.complex64)))
            case 2:
                array = array[: rng.randrange(len(array) + 1)]
            case 3:
                array = array[..., None]
            case 4:
                array = np.repeat(array, 2, axis=0)
            case _:
                info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(array.dtype)
                array.flat[rng.randrange(array.size)] = rng.choice((info.min, info.max))
        arrays[name] = array
        if rng.random() < 0.1:
            del arrays[rng.choice(sorted(arrays))]
    import io

    file = io.BytesIO()
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(file, **arrays)
    return file.getvalue() if change < 0.9 else damaged_bytes(rng, file.getvalue())


def _npy_bytes(rng: RANDOM) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, np.array([[0.6, 0.2], [0.5, 0.1]]))
    return damaged_bytes(rng, file.getvalue())


@functools.cache
def _small_validation() -> list[str]:
    records = []
    for path in ("medusa-cpu", "medusa-cpu-t1", "eagle-policies-cpu"):
        record = json.loads(*text(f"data/validations/{path}.json"))
        records.append(json.dumps(record | {"cells": record["cells"][:2]}))
    return records


@functools.cache
def _small_predictions() -> dict[str, Any]:
    record = json.loads(*text("data/validations/medusa-cpu.predictions.json"))
    record["plan"]["entries"] = record["plan"]["entries"][:1]
    batch = record["plan"]["entries"][0]["batch"]
    for key in ("closed_forms", "whole_runs"):
        record[key] = [part for part in record[key] if part["batch"] == batch][:3]
    return record


def _predictions_bytes(rng: RANDOM) -> bytes:
    """Predictions whose hash is that of the damaged content: else the hash alone would be tried."""
    record = damaged_value(rng, _small_predictions())
    if isinstance(record, dict) and rng.random() < 0.9:
        record["sha256"] = _hash({key: value for key, value in record.items() if key != "sha256"})
    return json.dumps(record).encode()


@functools.cache
def _small_plans() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        save_trace(small_trace(), Path(folder) / "t.npz")
        save_profile(small_profile(), Path(folder) / "p.json")
        words = ("search", "--trace", f"{folder}/t.npz", "--profile", f"{folder}/p.json", "--json", "--batch", "1")
        return [done(*words, "--max-nodes", "4").stdout, done(*words, "--max-nodes", "3", "--max-depth", "2").stdout]


@functools.cache
def _small_profiles() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        save_profile(small_profile(), Path(folder) / "p.json")
        made = [(Path(folder) / "p.json").read_text()]
    for name in ("eagle-policies-cpu", "medusa-cpu"):
        record = json.loads(*text(f"data/profiles/{name}.json"))
        made.append(json.dumps(record | {"batches": record["batches"][:1]}))
    return made


CONFIGURATIONS = [
    *text("data/models/stdlib-llama/config.json", "data/models/stdlib-eagle3/config.json"),
    """
    {"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "head_dim": 4,
    "num_key_value_heads": 2, "intermediate_size": 16, "moe_intermediate_size": 8, "num_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 32, "max_position_embeddings": 64, "sliding_window": 16,
    "use_sliding_window": true, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0},
    "quantization_config": {"quant_method": "fp8"}, "layer_types": ["full_attention", "sliding_attention"]}
    """,
]
DATA = [
    *(json.dumps(called(spelling) | {"tools": [WEATHER], "system": "s"}) for spelling in SPELLINGS.values()),
    '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "id": 1}',
    '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}]},'
    '{"role": "assistant", "content": "a", "reasoning_content": "b", "weight": 0}]}',
    '{"question_id": 1, "category": "c", "turns": ["a", "b"]}',
    '{"body": {"messages": [], "tools": []}}',
    '{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "ai", "content": "b"}]}',
    '{"text": "a b", "prompt": "a", "cut": true, "tokenizer": "x", "sequences": '
    '[{"tokens": [1, 2], "learnt": [[0, 1]]}]}\n{"text": "b"}',
    '[{"text": "b"}, {"turns": ["a"]}]',
]
TREES = [
    "[[0], [0, 0], [1]]",
    "mc_sim = [(0,), (0, 0), (1,)]\nother = [(0,)]",
    '{"Successors": [[1, 2], [], []], "size": 3}',
    "speculative_config:\n  eagle_choices: [[0], [0, 0]]\n  max_draft_len: 2\n",
    '--medusa_choices="[[0], [0, 0]]"',
    "5",
    '-sc \'{"speculative_token_tree": "[(0,), (0, 0)]"}\'',
    "config.medusa_choices = [[0], [1]]",
    "f(medusa_choices=[[0], [0, 1]])",
    "a: &x [[0], [1]]\nb: *x\n",
    *constants(*(TESTS / "tree_files").glob("*.py")),
]
OUTPUTS = constants(
    *(TESTS / "traces" / "importers" / "sources").glob("*.py"), ROOT / "tests/helpers/source_texts.py", shortest=30
)
OUTPUTS += [LOG, META, PROMETHEUS, RESPONSE]
OUTPUTS += ['{"accept_lengths": [[1, 2, 3], [2, 2]]}\n' * 2]
OUTPUTS += ["slot update_slots: id  3 | task 0 | accepted  1/ 5 draft tokens\n" * 3]
TIMES = [
    "batch,drafted,step_ms\n1,0,10\n1,1,11\n1,2,12.5\n4,0,20\n4,1,21\n",
    "batch, drafted, tokens_per_s, tau\n1,0,100,1\n1,1,150,1.6\n",
]
REQUESTS = [
    '{"prompt_tokens": 5, "tokens": 7, "arrived_s": 0.5}\n{"prompt_tokens": 6, "tokens": 8, "arrived_s": 1}\n',
    '{"prompt_tokens": 5, "tokens": 7}\n',
]
RUN = [
    '{"schema": "treeopt.work/1", "settings": {}}\n'
    '{"request": {"request": 0, "committed": [1, 2], "drafted": [0, 2], "tokens": [1, 2, 3]}}\n'
]
NUMBERS = [
    "0.6,0.2,0.1\n0.5,0.2,0.1\n",
    "[[0.6, 0.2], [0.5, 0.1]]",
    "[0.5, 0.3, 0.1, 0.1]",
    "0.62\n",
    "# a\n0.5, 0.2\n",
]


# Every reader, by name; its inputs are made when it is tried.
READERS: dict[str, Callable[[], Reader]] = {
    "trace": lambda: Reader(_trace_bytes, _use_trace, "t.npz"),
    "plan": lambda: texts_of(_small_plans(), "p.json", _use_plan),
    "profile": lambda: texts_of(_small_profiles(), "p.json", _use_profile),
    "validation": lambda: texts_of(_small_validation(), "v.json", _use_validation),
    "predictions": lambda: Reader(_predictions_bytes, load_predictions, "p.json"),
    "configuration": lambda: texts_of(CONFIGURATIONS, "config.json", _use_configuration),
    "data": lambda: texts_of(DATA, "d.jsonl", _use_data),
    "data list": lambda: texts_of(DATA, "d.json", _use_data),
    "prompts": lambda: texts_of(DATA, "p.jsonl", _use_prompts),
    "text": lambda: texts_of(DATA + TREES, "d.txt", _use_data),
    "tree": lambda: texts_of(TREES, "tree.txt", _use_tree),
    "tree word": lambda: texts_of(TREES, "word", _use_words),
    "engine output": lambda: texts_of(OUTPUTS, "output", _use_output),
    "numbers": lambda: texts_of(NUMBERS, "n", _use_numbers),
    "npy": lambda: Reader(_npy_bytes, lambda path: read_numbers(path, read_saved), "n.npy"),
    "times": lambda: texts_of(TIMES, "t.csv", lambda path: read_times(path, device="d", context=(1, 100))),
    "requests": lambda: texts_of(REQUESTS, "r.jsonl", read_requests),
    "engine run": lambda: texts_of(RUN, "run", lambda path: WorkFile(path, {}).pieces("request", RequestRecord)),
}


def _try(reader: Reader, seed: int, folder: Path) -> None:
    content = reader.make(random.Random(seed))
    path = folder / reader.name
    path.write_bytes(content)
    fault = read(reader.read, path)
    if fault is not None and KEPT:
        Path(KEPT).mkdir(parents=True, exist_ok=True)
        (Path(KEPT) / f"{hashlib.sha256(content).hexdigest()[:12]}-{reader.name}").write_bytes(content)
    assert fault is None, f"seed {seed}: {fault}; input {content[:300]!r}"


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_damaged_files_raises_only_treeopt_s_errors(name, tmp_path):
    reader = READERS[name]()
    tried = 0

    @settings(max_examples=max(1, INPUTS // len(READERS)), **SETTINGS)
    @given(seed=st.integers(0, 2**63 - 1))
    def attempt(seed: int) -> None:
        nonlocal tried
        tried += 1
        _try(reader, seed, tmp_path)

    reader.make(random.Random(0))
    with bounded():
        attempt()
    print(f"{name}: {tried} inputs, at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")


@functools.cache
def _drafter_folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    for name in ("eagle3", "eagle", "hydra++", "medusa"):
        save_drafter(folder / name, random_drafter(name, small_target()), dtype="float32", meta={})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("part", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("name", ["eagle3", "eagle", "hydra++", "medusa"])
def test_a_damaged_checkpoint_is_refused(name, part, tmp_path):
    whole = {path.name: path.read_bytes() for path in (_drafter_folder() / name).iterdir()}
    damaged = part if part in whole else next(file for file in whole if file.endswith(Path(part).suffix))
    target = small_target()

    def make(rng: RANDOM) -> bytes:
        content = whole[damaged]
        if damaged.endswith(".json"):
            return text_bytes(damaged_text(rng, [content.decode()]))
        return damaged_bytes(rng, content)

    for file, content in whole.items():
        (tmp_path / file).write_bytes(content)
    reader = Reader(make, lambda path: load_drafter(path.parent, target), damaged)

    @settings(max_examples=max(1, INPUTS // 100), **SETTINGS)
    @given(seed=st.integers(0, 2**63 - 1))
    def attempt(seed: int) -> None:
        _try(reader, seed, tmp_path)

    with bounded():
        attempt()


def test_faults_are_noticed(tmp_path):
    """The tests above can fail."""

    def raises(error: Exception) -> Callable[[Any], None]:
        def reader(content: Any) -> None:
            raise error

        return reader

    assert read(raises(TreeoptError("x")), None) is None
    assert read(raises(RecordError("x")), None) is None
    assert "KeyError" in (read(raises(KeyError("x")), None) or "")
    assert "5000 characters" in (read(raises(TreeoptError("a word " * 714 + "xx")), None) or "")
    with bounded():
        assert "RuntimeWarning" in (read(lambda _: np.float64(1e308) * 10, None) or "")
        assert "MemoryError" in (read(lambda _: bytearray(2**31), None) or "")


def test_damaged_inputs_differ_and_are_repeated():
    texts = [*TREES, *DATA]
    found = [damaged_text(random.Random(seed), texts) for seed in range(200)]
    assert found == [damaged_text(random.Random(seed), texts) for seed in range(200)]
    assert len(set(found)) > 150
    assert not set(found) <= set(texts)
    assert len(STRANGE) > 30
