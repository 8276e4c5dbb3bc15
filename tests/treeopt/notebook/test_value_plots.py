"""`plot`: the charts of the report, drawn into given axes or new ones."""

import sys

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

import treeopt
from treeopt.errors import UsageError
from treeopt.registry import load
from treeopt.results.kinds import RESULTS, known
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

TRACE = "data/traces/medusa-t0.npz"


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def values():
    return {
        "tree": Tree.from_paths([(0, 0), (1,)]),
        "trace": treeopt.load_trace(TRACE),
        "plan": treeopt.search(TRACE, batch=(1, 4), max_nodes=4, solver_work=0),
        "profile": treeopt.load_profile("data/profiles/eagle-cpu.json"),
        "validation": treeopt.load_validation("data/validations/medusa-cpu.json"),
        "comparison": treeopt.compare([TRACE, "data/traces/eagle-t0.npz"], sizes="chain:2"),
        "run": treeopt.simulate(TRACE, tree=Tree.chain(1), batch=4),
    }


@pytest.mark.parametrize("name", ["tree", "trace", "plan", "profile", "validation", "comparison", "run"])
def test_every_value_draws_its_first_chart_into_new_axes(values, name):
    axes = values[name].plot()
    kind, value = known(values[name])
    chart = kind.drawn(value)
    assert axes.get_title(loc="left") == chart.title
    assert axes.get_xlabel() == chart.x.title
    assert axes.has_data()


def test_a_chart_is_drawn_into_the_axes_that_are_given(values):
    _, (left, right) = plt.subplots(1, 2)
    assert values["plan"].plot(left) is left
    assert values["plan"].plot(right, chart="latency") is right
    assert left.get_title(loc="left") == ""
    assert left.get_xlabel() == "batch"
    assert right.get_xlabel() != "batch"
    assert len(plt.get_fignums()) == 1


def test_drawn_values_are_the_plan_s(values):
    """The line of the chosen configurations goes through the speedups of the table."""
    axes = values["plan"].plot()
    frame = values["plan"].frame().query("chosen")
    drawn = [line.get_ydata() for line in axes.get_lines()]
    assert any(np.allclose(ys, frame["speedup"]) for ys in drawn if len(ys) == len(frame))


def test_a_trace_has_charts_by_depth_and_domain(values):
    assert values["trace"].plot(chart="acceptance").get_xlabel()
    assert values["trace"].plot(chart="domains").has_data()


def test_a_trace_whose_rule_accepts_several_siblings_shows_acceptance(values):
    trace = treeopt.load_trace("data/traces/medusa-typical.npz")
    assert trace.plot().get_title(loc="left") == RESULTS["trace"].drawn(values["trace"], "acceptance").title
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
    assert plt.get_fignums() == []


def test_without_matplotlib_the_extra_is_named(values, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r"plots need matplotlib: pip install 'treeopt\[report\]'"):
        values["tree"].plot()


def test_every_chart_that_a_kind_names_is_there():
    names = [chart for kind in RESULTS.values() for chart in (*kind.charts.values(), kind.page_charts) if chart]
    assert all(callable(load(chart)) for chart in names)
