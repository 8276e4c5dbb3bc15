"""`treeopt trace info`: what it prints of data, few or many, of folders, and of learning curves."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.command_line import done, read_json, refused, run
from tests.helpers.strategies import drawn_trace
from treeopt.planning.learning_curve import learning_curves
from treeopt.planning.search_warnings import advice
from treeopt.traces.resumable_shards import Shards, note
from treeopt.traces.trace_files import load_trace, save_trace


@pytest.fixture
def trace_file(tmp_path):
    """Forty requests of two kinds."""
    path = tmp_path / "trace.npz"
    laws = [[0.6, 0.2, 0.1], [0.3, 0.4, 0.1]]
    save_trace(drawn_trace(laws, [25] * 40, depth=3, rng=np.random.default_rng(3)), path)
    return path


def test_curves_are_the_library_s(trace_file):
    """Printed numbers are compared with the JSON elsewhere, for all commands."""
    words = ("trace", "info", trace_file, "--learning-curve", "--nodes", "2,5", "--seed", "4")
    record = read_json(done(*words, "--json").stdout)
    curves = learning_curves(load_trace(trace_file), nodes=(2, 5), depth=3, seed=4)
    assert [told["nodes"] for told in record["learning_curves"]] == [2, 5]
    for curve, told in zip(curves, record["learning_curves"], strict=True):
        assert told["flat_from"] == (curve.flat and curve.flat.requests)
        for point, values in zip(curve.points, told["points"], strict=True):
            assert (values["requests"], values["anchors"]) == (point.requests, point.anchors)
            assert [tuple(path) for path in values["tree"]] == list(point.tree.paths)
            assert values["fitted"] == point.fitted
            for name in ("held_out", "loss"):
                estimate = getattr(point, name)
                assert list(values[name].values()) == [estimate.value, estimate.low, estimate.high]


def test_advice_is_printed_and_told(trace_file, tmp_path):
    trace = load_trace(trace_file)
    due = advice(trace, 63)
    assert len(due) == 1
    assert f"Warning: {due[0]}." in done("trace", "info", trace_file).stdout
    assert read_json(done("trace", "info", trace_file, "--json").stdout)["advice"] == list(due)
    assert "Warning" not in done("trace", "info", trace_file, "--nodes", "20").stdout
    save_trace(trace.select(np.arange(2)), tmp_path / "few.npz")
    few = done("trace", "info", tmp_path / "few.npz").stdout
    assert "Warning: a trace needs at least 4 requests" in few
    refused(run("trace", "info", tmp_path / "few.npz", "--learning-curve"), "at least 4 requests")
    refused(run("trace", "info", trace_file, "--nodes", "4,x"), "tree sizes", "'4,x'", code=2)
    refused(run("trace", "info", trace_file, "--nodes", "0"), "tree sizes, whole numbers in 1..", "'0'", code=2)


def test_a_folder_of_shards_is_a_trace(trace_file, tmp_path):
    trace = load_trace(trace_file)
    shards = Shards.begin(tmp_path / "parts", {"repeated_4grams": {"prompts": 0.0}}, {}, trace.requests)
    for number, part in enumerate(np.split(np.arange(trace.requests), [7, 20])):
        piece = trace.select(part)
        entropy = np.zeros(piece.anchors, dtype=np.float16)
        shards.add(replace(piece, meta=note([str(number)], 10, 1), target_entropy=entropy))
    one = read_json(done("trace", "info", trace_file, "--json", "--learning-curve").stdout)
    parts = read_json(done("trace", "info", tmp_path / "parts", "--json", "--learning-curve").stdout)
    assert parts["meta"]["repeated_4grams"] == {"written": 0.1, "prompts": 0.0}
    assert parts["optional"] == ["target_entropy"]
    assert one | {"meta": {}} == parts | {"meta": {}, "optional": []}


def test_a_search_that_would_be_refused_is_not_the_next_command(tmp_path):
    for requests, command in ((3, False), (4, True)):
        file = tmp_path / f"{requests}.npz"
        save_trace(drawn_trace([[0.6]], [90] * requests, depth=2, rng=np.random.default_rng(0)), file)
        assert ("treeopt search" in done("trace", "info", file).stdout) == command
    shown = done("trace", "info", tmp_path / "3.npz", "--nodes", "1").stdout
    assert "at least 4 requests" in shown
