"""Commands that fail or are interrupted leave nothing half-written; one that is killed resumes, with equal results."""

import errno
import os
import signal

import numpy as np
import pytest

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
from treeopt.errors import ExecutorError
from treeopt.traces.trace_files import load_trace


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
