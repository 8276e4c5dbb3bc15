"""`plot`: the charts of the report, or speedup and tau drawn into matplotlib's axes."""

import sys

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

import treeopt
from treeopt.charts.marks import Figure
from treeopt.errors import UsageError
from treeopt.registry import load
from treeopt.results.kinds import RESULTS
from treeopt.traces.trace import Trace

TITLES = {
    "tree": "Tree of 3 nodes", "trace": "Tokens per step by tree size", "plan": "Predicted speedup by batch size",
    "profile": "Step time by verified tokens", "validation": "Predicted and measured speedup",
    "comparison": "Drafters side by side", "run": "Latencies",
}  # fmt: skip


@pytest.mark.parametrize("name", TITLES)
def test_every_value_has_its_first_chart(values, name):
    assert Figure.of(values[name].plot()).title == TITLES[name]


def test_speedup_and_tau_are_drawn_into_the_axes_that_are_given(values):
    figure, (left, right) = plt.subplots(1, 2)
    assert values["plan"].plot(left) is left
    assert values["trace"].plot(right, chart="tau") is right
    assert (left.get_xlabel(), right.get_xlabel()) == ("batch", "nodes")
    frame = values["plan"].frame().query("chosen")
    drawn = [line.get_ydata() for line in left.get_lines()]
    assert any(np.allclose(ys, frame["speedup"]) for ys in drawn if len(ys) == len(frame))
    with pytest.raises(UsageError, match="only the charts speedup and tau are drawn into axes"):
        values["plan"].plot(left, chart="latency")
    plt.close(figure)


def test_a_trace_whose_rule_accepts_several_siblings_shows_acceptance():
    trace = treeopt.load_trace("data/traces/medusa-typical.npz")
    assert Figure.of(trace.plot()).title == "Acceptance by depth and rank"
    with pytest.raises(UsageError, match="does not hold what the chart 'tau' shows"):
        trace.plot(chart="tau")


def test_unknown_charts_are_refused_with_those_that_there_are(values):
    with pytest.raises(UsageError, match="a plan has no chart 'pie': choose one of speedup, latency"):
        values["plan"].plot(chart="pie")
    with pytest.raises(UsageError, match="ax must be matplotlib's axes, got 'nope': name a chart as chart="):
        values["plan"].plot("nope")
    bare = Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 4)
    with pytest.raises(UsageError, match="does not hold what the chart 'domains' shows"):
        bare.plot(chart="domains")
    with pytest.raises(UsageError, match="no kind of result has the schema"):
        treeopt.Record(schema="treeopt.other/1").plot()


def test_without_altair_the_way_on_is_named(values, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ModuleNotFoundError, match=r"charts need altair: pip install 'treeopt\[report\]'"):
        values["tree"].plot()


def test_every_chart_that_a_kind_names_is_there():
    names = [chart for kind in RESULTS.values() for chart in (*kind.charts.values(), kind.page_charts) if chart]
    assert all(callable(load(chart)) for chart in names)
