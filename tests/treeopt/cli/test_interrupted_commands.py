"""Commands that fail or are interrupted leave nothing half-written."""

import errno
import os

import pytest

from executor.decoding.decoder import Decoder
from executor.target.target_model import Target
from simulate.validation.predictions import load_predictions
from tests.helpers.command_line import CHECK, COLLECT, MEASURE, collect, error_of, inputs, measure, refused, run
from treeopt.errors import ExecutorError


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
