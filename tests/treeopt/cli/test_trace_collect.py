"""`treeopt trace collect`: what it records, and what it refuses."""

import os
import shutil

import numpy as np

from executor.drafters.medusa.drafter import MEDUSA_FILE
from tests.helpers.command_line import HEADS, collect
from treeopt.traces.trace_files import load_trace


def test_collect_records_what_was_asked_for(made, tiny, tmp_path):
    trace = load_trace(made / "trace.npz")
    assert (trace.requests, trace.anchors, trace.depth, trace.width) == (8, 48, HEADS, 4)
    assert trace.domain_names == ("letters",)
    assert trace.meta["target"]["name"] == "target"
    assert trace.meta["drafter"]["heads"] == HEADS
    words = ("--depth", "2", "--requests", "3", "--skip", "2", "--temperature", "0.7", "--dtype", "float64")
    assert collect(tiny, tmp_path / "trace.npz", *words).exit_code == 0
    other = load_trace(tmp_path / "trace.npz")
    assert (other.requests, other.depth, other.meta["temperature"]) == (3, 2, 0.7)
    assert other.meta["target"]["dtype"] == "float64"
    assert os.listdir(tmp_path) == ["trace.npz"]


def test_collect_repeats_itself_whatever_the_batch(made, tiny, tmp_path):
    again = tmp_path / "trace.npz"
    assert collect(tiny, again, "--batch", "3").exit_code == 0
    first, second = load_trace(made / "trace.npz"), load_trace(again)
    np.testing.assert_array_equal(first.rank, second.rank)
    assert first.meta["text_sha256"] == second.meta["text_sha256"]


def test_a_drafter_that_was_made_for_another_target_is_warned_of(tiny, tmp_path):
    """By name, which is all that it says of it: random weights of the same shapes, or a target that lies below it."""
    shutil.copytree(tiny / "target", tmp_path / "other")
    shutil.copytree(tiny / "drafter", tmp_path / "drafter")
    shutil.copytree(tiny / "target", tmp_path / "drafter" / "own")
    for target, warned in (("other", True), ("drafter/own", False)):
        for drafter in (tmp_path / "drafter", tmp_path / "drafter" / MEDUSA_FILE):
            result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / target, drafter=drafter)
            assert result.exit_code == 0, result.stderr
            lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
            assert lines == [f"Warning: {drafter} was made for the target target, this one is other."] * warned
    assert "Warning" not in collect(tiny, tmp_path / "trace.npz").stderr
