"""Output files: nothing that is read is written over, nothing is left half-written, and a killed command resumes."""

import errno
import json
import os
import signal
from threading import Thread

import numpy as np
import pandas as pd
import pytest

import treeopt
from executor.decoding.decoder import Decoder
from executor.recording import collect_trace
from executor.target.target_model import Target
from simulate.profiles.profile import load_profile
from simulate.validation.predictions import load_predictions
from tests.helpers.command_line import (
    CHECK,
    COLLECT,
    MEASURE,
    collect,
    done,
    error_of,
    inputs,
    measure,
    read_json,
    refused,
    run,
)
from treeopt.cli.options import output_files
from treeopt.errors import ExecutorError
from treeopt.traces.trace_files import load_trace


def test_what_is_no_file_is_written_to_and_stays(trace_file, profile_file, tmp_path):
    """A pipe takes the plan; a link leads to its file; neither is replaced."""
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output")
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    done(*words, tmp_path / "pipe")
    reader.join(30)
    assert json.loads(read[0])["schema"].startswith("treeopt.plan/")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "there" / "plan.json")
    for _ in range(2):  # nothing is there yet; then it is
        done(*words, tmp_path / "link.json")
        assert (tmp_path / "link.json").is_symlink()
        read_json((tmp_path / "there" / "plan.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_is_read_is_not_written_over(trace_file, profile_file, tmp_path, unchanged):
    (tmp_path / "again.npz").hardlink_to(trace_file)
    unchanged()
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output")
    for path, name in ((trace_file, "trace"), (tmp_path / "again.npz", "trace"), (profile_file, "profile")):
        refused(run(*words, path), f"--output {path}: is read as {name}", code=2)
    refused(run("trace", "merge", trace_file, "--output", trace_file), "is read as", code=2)


TABLE = "batch,drafted,step_ms\n1,0,10\n1,1,12\n1,3,14\n"


@pytest.fixture
def writing(trace_file, tmp_path):
    """Commands without their output, by what they write."""
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "ranks.csv").write_text("0.62,0.12\n")
    return {
        "merged.npz": ("trace", "merge", trace_file),
        "imported.npz": ("trace", "import", tmp_path / "ranks.csv", "--format", "table", "--column", "rank"),
        "times.json": ("times", tmp_path / "t.csv", "--device", "x", "--context", "8k"),
        "page.html": ("report", trace_file, "--no-plots"),
    }


def test_files_are_replaced_only_with_force(writing, tmp_path):
    for name, words in writing.items():
        output = tmp_path / name
        output.write_text("precious")
        refused(run(*words, "--output", output), f"--output {output}: exists: give --force", code=2)
        assert output.read_text() == "precious"
        done(*words, "--output", output, "--force")
        assert output.read_bytes() != b"precious"


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
def test_a_terminal_is_asked(writing, tmp_path, monkeypatch, answer, code):
    monkeypatch.setattr(output_files, "on_terminal", lambda: True)
    output = tmp_path / "times.json"
    output.write_text("precious")
    result = run(*writing["times.json"], "--output", output, stdin=answer)
    assert result.exit_code == code
    assert f"{output} exists. Overwrite it?" in result.stderr
    assert (output.read_text() == "precious") == (code == 2)


TRACES = ("data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz")


def same(path, frame):
    """Assert that a CSV file holds the frame."""
    pd.testing.assert_frame_equal(pd.read_csv(path).convert_dtypes(), frame.convert_dtypes(), check_exact=True)


def test_search_writes_its_plan_as_a_table(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1")
    plan = tmp_path / "plan.json"
    done(*words, "--output", plan, "--table", tmp_path / "plan.csv")
    frame = treeopt.load_plan(plan).frame()
    same(tmp_path / "plan.csv", frame)
    done(*words, "--json", "--table", tmp_path / "plan.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "plan.parquet"), frame)


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--trace", TRACES[0], "--tree", "1", "--batch", "4"),
        ("compare", *TRACES, "--shapes", "chain:2"),
    ],
    ids=lambda words: words[0],
)
def test_records_are_written_as_tables(words, tmp_path):
    done(*words, "--output", tmp_path / "record.json", "--table", tmp_path / "record.csv")
    frame = treeopt.load_record(tmp_path / "record.json").frame()
    assert len(frame) > 0
    same(tmp_path / "record.csv", frame)


def test_a_table_that_cannot_be_written_is_refused_before_any_work(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1")
    refused(run(*words, "--table", tmp_path / "t.json"), "a table's file ends in .csv or .parquet", code=2)
    refused(run(*words, "--table", tmp_path / "no" / "t.csv"), "--table", code=2)
    copy = tmp_path / "trace.csv"
    copy.write_bytes(trace_file.read_bytes())
    refused(run(*words[:2], copy, *words[3:], "--table", copy), "is read as trace", code=2)
    assert copy.read_bytes() == trace_file.read_bytes()


@pytest.fixture
def writers(tiny, made, plan_file, trace_file, profile_file, tmp_path):
    """Every command that writes a file: name -> words."""
    output = tmp_path / "output"
    output.write_text("old")
    ends = ("--output", output)
    return {
        "search": ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", *ends),
        "export": ("export", plan_file, "--format", "medusa", "--heads", "9", "--nearest", "chain", *ends),
        "collect": ("trace", "collect", *inputs(tiny), *COLLECT, *ends),
        "profile": ("profile", *inputs(tiny), *MEASURE, *ends),
        "validate": ("validate", *inputs(tiny), *CHECK, "--plan", plan_file, *ends),
    }


WRITERS = ["search", "export", "collect", "profile", "validate"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("name", "failure", "word"),
    [
        *((name, FULL, "No space left") for name in WRITERS),
        ("search", KeyboardInterrupt(), "interrupted"),
        ("collect", KeyboardInterrupt(), "interrupted"),
        ("validate", ExecutorError("out of luck"), "out of luck"),
    ],
)
def test_a_write_that_fails_keeps_the_old_file(writers, tmp_path, unchanged, monkeypatch, name, failure, word):
    unchanged()
    calls = []

    def fail(handle):
        calls.append(handle)
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    result = run(*writers[name], "--quiet")
    assert len(calls) == 1
    assert result.exit_code in (1, 2)
    assert word in error_of(result)
    if failure is FULL:
        assert str(tmp_path / "output") in error_of(result)


@pytest.mark.parametrize("name", ["collect", "profile"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ExecutorError("out of luck")], ids=["interrupted", "refused"])
def test_a_model_that_fails_in_the_middle_leaves_nothing(writers, unchanged, monkeypatch, name, failure):
    unchanged()
    result = failed_in_the_middle(writers[name], monkeypatch, failure)
    assert ("interrupted" if isinstance(failure, KeyboardInterrupt) else "out of luck") in error_of(result)


def test_a_validation_that_fails_in_the_middle_leaves_its_predictions(writers, tmp_path, monkeypatch):
    """They were fixed before; the old output stays."""
    result = failed_in_the_middle(writers["validate"], monkeypatch, ExecutorError("out of luck"))
    assert result.stderr.splitlines()[-1] == "Error: out of luck"
    assert (tmp_path / "output").read_text() == "old"
    assert load_predictions(tmp_path / "output.predictions.json").plan.entries


def failed_in_the_middle(words, monkeypatch, failure):
    """A command during whose fourth forward something fails."""
    calls, verify = [], Target.verify

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) > 3:
            raise failure
        return verify(*args, **kwargs)

    monkeypatch.setattr(Target, "verify", fail)
    result = run(*words)
    assert len(calls) == 4
    assert result.exit_code == 1
    assert result.stdout == ""
    return result


def test_prompts_and_settings_are_checked_before_the_model_decodes(tiny, tmp_path, monkeypatch):
    def decode(*args, **kwargs):
        raise AssertionError("decoded")

    monkeypatch.setattr(Decoder, "steps", decode)
    (tmp_path / "short.jsonl").write_text('{"text": "abc"}\n{"text": "a"}\n')
    refused(collect(tiny, tmp_path / "o", prompts=tmp_path / "short.jsonl"), "token", code=2)
    refused(collect(tiny, tmp_path / "o", "--depth", "9"), "depth")
    refused(measure(tiny, tmp_path / "o", "--batch", "1,99"), "99", code=2)


VERIFY = Target.verify


def killed(words, monkeypatch, *, after):
    """Run a command in a process that is killed at a forward of the target; return what it had kept."""
    child = os.fork()
    if child == 0:
        calls = []

        def kill(*args, **more):
            calls.append(1)
            if len(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return VERIFY(*args, **more)

        monkeypatch.setattr(Target, "verify", kill)
        try:
            run(*words)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def arrays(path):
    if path.suffix == ".npz":
        trace = load_trace(path)
        return trace.rank.tolist(), trace.meta["text_sha256"]
    if "profile" in path.name:
        return [(times.batch, [n for n, _ in times.rest]) for times in load_profile(path).batches]
    cells = read_json(path.read_text())["cells"]
    return [(cell["batch"], cell["tree"]["id"], cell["measured"]["tau"]) for cell in cells]


@pytest.mark.parametrize(("command", "after"), [("collect", 50), ("profile", 60), ("validate", 120)])
def test_a_killed_command_resumes(tiny, plan_file, tmp_path, monkeypatch, command, after):
    words = {
        "collect": ("trace", "collect", *inputs(tiny), *COLLECT, "--batch", "1", "--new-tokens", "12"),
        "profile": ("profile", *inputs(tiny), *MEASURE),
        "validate": ("validate", *inputs(tiny), *CHECK, "--plan", plan_file),
    }[command]
    monkeypatch.setattr(collect_trace, "SHARD", 2)
    name = "t.npz" if command == "collect" else f"{command}.json"
    whole, output = tmp_path / f"whole-{name}", tmp_path / name
    calls = []
    monkeypatch.setattr(Target, "verify", lambda *args, **more: calls.append(1) or VERIFY(*args, **more))
    done(*words, "--output", whole)
    made = len(calls)
    killed((*words, "--output", output), monkeypatch, after=after)
    work = tmp_path / f"{name}.work"
    assert work.exists()
    assert not output.exists()
    kept = len(list(work.iterdir())) if work.is_dir() else len(work.read_text("utf-8").splitlines())
    assert kept > 1
    monkeypatch.setattr(Target, "verify", lambda *args, **more: calls.append(1) or VERIFY(*args, **more))
    done(*words, "--output", output)
    assert 0 < len(calls) - made < made
    np.testing.assert_equal(arrays(output), arrays(whole))
    assert not work.exists()
