"""Missing, unusable and hostile input is refused in one line that names the way on, before it is read or run."""

import json
import os
import re
import shutil
import time

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from executor.drafters.medusa.drafter import MEDUSA_FILE
from tests.helpers.command_line import COLLECT, collect, config, done, inputs, refused, run, small_trace
from treeopt.cli import main
from treeopt.cli.commands.profile import profile
from treeopt.cli.options.help_sections import Command
from treeopt.cli.options.value_types import numbers
from treeopt.errors import TraceError, TreeoptError, visible
from treeopt.notebook import html_of, text_of
from treeopt.planning.search_warnings import interval_warnings, reporting_warnings
from treeopt.replay.dynamic_tree import Batches
from treeopt.storage.user_files import read_bytes
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace, save_trace


@pytest.fixture
def alone(tmp_path):
    """A trace of models that no profile was measured for."""
    path = tmp_path / "alone.npz"
    models = {"target": {"name": "other", "weights": "ff"}, "drafter": {"kind": "eagle", "weights": "ee"}}
    save_trace(small_trace(meta=models | {"verification": "greedy", "temperature": 0.0}), path)
    return path


@pytest.mark.parametrize(
    ("engine", "named"), [((), "ENGINE"), (("--for", "vllm"), "vllm"), (("--for", "sglang"), "sglang")]
)
def test_a_search_without_step_times_names_who_makes_them(alone, engine, named):
    message = refused(run("search", "--trace", alone, "--batch", "1", *engine), "no profile of this target and drafter")
    for way in (f"`treeopt profile --engine {named}`", "`treeopt times`", "`treeopt whatif --profiles`", "--profile"):
        assert way in message


def test_batch_sizes_outside_a_profile_name_the_command_that_measures_them(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "8,16")
    message = refused(run(*words), "batch 8, 16 lie outside the profile, which measured batch 1, 4;")
    command = message.partition("`")[2].rpartition("`")[0]
    assert command.startswith("treeopt profile --target TARGET --drafter DRAFTER --prompts PROMPTS ")
    assert command.endswith("--batch 1,4,8,16 --output profile.json")
    assert_parses(command)


def assert_parses(command):
    """Return the batch sizes of a command line of `treeopt profile`."""
    words = command.split()
    assert words[:2] == ["treeopt", "profile"]
    given, rest, _ = profile.make_parser(click.Context(profile)).parse_args(words[2:])
    assert rest == []
    assert all(option.name in given for option in profile.params if option.required)
    return numbers().convert(given["batch"], None, None)


def test_other_ways_on(small_plan, trace_file, profile_file, tmp_path):
    refused(run("export", small_plan, "--format", "sglang", "--batch", "9"), "--batch", "search for it", code=None)
    refused(run("export", small_plan, "--format", "sglang", "--heads", "3"), "omit it; it takes", "--nearest", code=2)
    refused(run("compare", trace_file), "at least 2 traces, got 1: one trace is for `treeopt search`", code=2)
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--max-depth", "9")
    refused(run(*words), "record it with `treeopt trace collect --depth 9`", code=2)
    refused(run("compare", trace_file, trace_file), "is given twice: a drafter is compared with others", code=2)
    words = ("search", "--profile", profile_file, "--batch", "1", "--trace")
    refused(run(*words, tmp_path), "is a folder without manifest.json, not one of `trace collect --parts`: give a .npz")
    refused(run(*words, trace_file, "--compare", "mc_sim_7b_63"), "published tree (medusa/mc_sim_7b_63, ", code=2)
    dear = ("whatif", "--trace", trace_file, "--target", "8b", "--hardware", "h100", "--price", "2.5")
    refused(run(*dear), "'2.5' is not NAME=NUMBER with a name of its own, such as h100=2.5", code=2)
    hardware = ("whatif", "--trace", trace_file, "--target", "8b", "--batch", "1", "--hardware", "h900")
    refused(run(*hardware), "hardware must be one of", "another device needs its --data-sheet")


def test_names_are_read_in_any_case_and_marks(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--json")
    for name, said in (("vllm", "vLLM"), ("llama.cpp", "llamacpp"), ("tensorrt-llm", "TensorRT_LLM")):
        one, other = (json.loads(done(*words, "--for", each).stdout) for each in (name, said))
        assert one["entries"] == other["entries"]
        assert other["meta"]["search"]["engine"] == name
    refused(run(*words, "--for", "trt"), "'trt' is not one of 'llama.cpp', 'lmdeploy'", code=2)


def test_a_limit_that_nothing_keeps_and_one_that_the_only_batch_size_keeps(trace_file, profile_file):
    words = ("whatif", "--acceptance", "0.75", "--target", "8b", "--kind", "eagle3", "--hardware", "l4")
    found = done(*words, "--batch", "1,4", "--max-tpot-ms", "20", "--max-nodes", "4")
    least = min(map(float, re.findall(r"  (\d\d\.\d\d)  +\d\.\d\d \[", found.stdout)))
    said = f"Context 512: nothing takes at most 20 ms per token: the least is {least} ms, on L4 at batch 1."
    assert found.stdout.splitlines()[0] == said
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--max-tpot-ms", "99")
    assert "\nMost tokens per second below 99 ms per token: batch 1, " in done(*words).stdout


def copy_of(tiny, tmp_path, part, change):
    """A folder like the tiny target or drafter, but for a change."""
    folder = tmp_path / part
    shutil.copytree(tiny / part, folder)
    change(folder)
    return folder


def weights(change, name="model.safetensors"):
    """Change the tensors of a folder: `change` returns the new ones."""

    def changed(folder):
        save_file(change(load_file(folder / name)), folder / name, metadata={"format": "pt"})

    return changed


FIRST = "model.layers.0.self_attn.q_proj.weight"


def test_code_in_a_model_folder_is_not_run(tiny, tmp_path, unchanged):
    """Nor does anything ask for it: a question on stdout is no result, and stdin may say yes to all."""
    folder = copy_of(tiny, tmp_path, "target", config('{"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}'))
    (folder / "own.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).write_text('ran')")
    unchanged()
    words = ("trace", "collect", *inputs(tiny, target=folder), *COLLECT, "--output", str(tmp_path / "trace.npz"))
    refused(CliRunner().invoke(main, words, input="y\ny\ny\n"), str(folder))


HEAD = "1.0.linear.weight"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("part", "name", "key"), [("target", "model.safetensors", FIRST), ("drafter", MEDUSA_FILE, HEAD)]
)
def test_weights_that_are_no_numbers_are_refused(tiny, tmp_path, unchanged, part, name, key, value):
    """NaN scores compare with nothing, so that every true token would seem to stand first: a perfect drafter."""
    change = weights(lambda tensors: tensors | {key: torch.full((32, 32), value)}, name)
    folder = copy_of(tiny, tmp_path, part, change)
    unchanged()
    message = refused(collect(tiny, tmp_path / "trace.npz", **{part: folder}), part)
    assert re.search("NaN|nan|finite|inf", message), message


CONTROL = "\x1b]0;PWNED\x07\x9b2J\u202e\r"


def controls(text):
    return [letter for letter in text if visible(letter, lines=True) != letter]


@pytest.fixture
def hostile(tmp_path):
    """A trace whose name and metadata hold control sequences."""
    path = tmp_path / f"a{CONTROL}.npz"
    names = {"verification": CONTROL, "target": {"name": CONTROL}, "drafter": {"kind": CONTROL, "name": CONTROL}}
    meta = names | {"assumed": [CONTROL], "device": CONTROL}
    anchors = 40
    request, position = np.repeat(np.arange(4, dtype=np.int32), 10), np.tile(np.arange(10, dtype=np.int32), 4)
    rank = np.where(np.arange(anchors)[:, None] % 3 == 0, -1, 0) * np.ones((1, 2), dtype=np.int64)
    rank[position == 9, 1] = -2
    save_trace(Trace(request, position, rank.astype(np.int16), 2, meta), path)
    return path


def test_texts_of_files_and_their_names_are_shown_escaped(hostile, tmp_path):
    trace, page = load_trace(hostile), tmp_path / "page.html"
    for words in (
        ["trace", "info", hostile],
        ["trace", "info", f"{hostile}x"],
        ["search", "--trace", hostile, "--batch", "1"],
    ):
        result = run(*words)
        assert "PWNED" in result.output, words
        assert not controls(result.output), words
    result = run("report", hostile, "--output", page)
    assert result.exit_code == 0, result.output
    assert "PWNED" in page.read_text("utf-8")
    assert not controls(page.read_text("utf-8"))
    assert not controls(html_of(trace) + text_of(trace) + str(TreeoptError(CONTROL)))


def test_sizes_of_arrays_are_checked_before_they_are_read(tmp_path, monkeypatch):
    good = {"request": np.int32([0]), "position": np.int32([0]), "rank": np.int16([[0]]), "meta": np.zeros(9, np.uint8)}
    monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **settings: pytest.fail("was read"))
    for name, array in good.items():
        size = 2**25 if name == "meta" else 2**21
        np.savez_compressed(tmp_path / "t.npz", **good | {name: np.zeros((size, *array.shape[1:]), array.dtype)})
        with pytest.raises(TraceError, match=rf"`{name}` must have at most .*{size}"):
            load_trace(tmp_path / "t.npz")


def test_report_reads_no_file_that_is_too_large(tmp_path):
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(2**42)
    start = time.process_time()
    result = run("report", tmp_path / "sparse.json", "--output", tmp_path / "r.html")
    assert "larger than" in result.output
    assert time.process_time() - start < 5  # hashing 4 TB takes hours


def test_a_link_to_itself_and_a_file_that_waits_end_in_one_line(tmp_path, monkeypatch):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    shipped = "data/traces/medusa-t0.npz"
    for words in (
        ["search", "--trace", shipped, "--batch", "1", "--max-nodes", "2", "--output", loop],
        ["compare", shipped, loop],
        ["report", loop, "--output", tmp_path / "r.html"],
        ["trace", "merge", shipped, "--output", loop],
    ):
        result = run(*words)
        assert "Too many levels of symbolic links" in result.stderr, words
        assert loop.is_symlink()
    reading, writing = os.pipe()
    monkeypatch.setattr("os.open", lambda *args: os.dup(reading))
    monkeypatch.setattr("stat.S_ISREG", lambda mode: True)
    os.set_blocking(reading, False)
    with pytest.raises(OSError, match="no file that ends"):
        read_bytes("waits")
    os.close(writing)


def test_every_command_can_be_quiet(hostile, tmp_path):
    def commands(group):
        for name in group.list_commands(None):
            command = group.get_command(None, name)
            yield from commands(command) if hasattr(command, "list_commands") else [command]

    from treeopt.cli import main

    for command in commands(main):
        assert isinstance(command, Command)
        assert [param for param in command.params if param.name == "quiet"], command.name
    result = run("trace", "split", hostile, "--output", tmp_path / "a.npz", "--rest", tmp_path / "b.npz", "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_dealing_requests_to_queues_takes_linear_time():
    def seconds(requests):
        one = np.zeros(requests, dtype=np.int32)
        trace = Trace(np.arange(requests, dtype=np.int32), one, np.zeros((requests, 1), dtype=np.int16), 1)
        start = time.process_time()
        Batches(trace, batch=1)
        return time.process_time() - start

    assert seconds(160_000) < 8 * seconds(40_000)  # 4 times as many; 16 times as long where each queue looks at all


def test_rare_easy_requests_are_seen_in_the_other_part_too():
    def part(easy):
        requests, length = 50, 64
        hits = np.random.default_rng(0).random((requests * length, 5)) < 0.35
        hits[: easy * length] = True
        rank = np.where(hits, 0, -1).astype(np.int16)
        position = np.tile(np.arange(length, dtype=np.int32), requests)
        rank[np.arange(5) >= (length - position)[:, None]] = -2
        return Trace(np.repeat(np.arange(requests, dtype=np.int32), length), position, rank, 1)

    assert not interval_warnings(part(0))
    (warning,) = reporting_warnings(part(0), part(1))
    assert warning.startswith("in the requests used to choose trees, the spread")
    assert not reporting_warnings(part(0), part(0))
