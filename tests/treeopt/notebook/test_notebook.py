"""Values in notebooks and files: escaped HTML or lines, charts, also in matplotlib's axes, files read again."""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

import treeopt
from treeopt.charts.marks import Figure
from treeopt.errors import UsageError
from treeopt.notebook import LONGEST, ROWS
from treeopt.registry import load
from treeopt.results.kinds import RESULTS, known
from treeopt.results.tables_and_numbers import Table
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

TRACES = ["data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz"]


@pytest.fixture(scope="module")
def values():
    return {
        "tree": Tree.from_paths([(0, 0), (1,)]),
        "trace": treeopt.load_trace(TRACES[0]),
        "plan": treeopt.search(TRACES[0], batch=(1, 4), max_nodes=4, solver_work=0),
        "profile": treeopt.load_profile("data/profiles/eagle-cpu.json"),
        "validation": treeopt.load_validation("data/validations/medusa-cpu.json"),
        "comparison": treeopt.compare(TRACES, sizes="chain:2"),
        "run": treeopt.simulate(TRACES[0], tree=Tree.chain(1), batch=4),
        "server": treeopt.simulate(TRACES[0], tree=Tree.chain(1), batch=4, arrivals=20, requests=40, replications=2),
    }


class Page(HTMLParser):
    """The text of well-formed HTML, and its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data}|"


def page(value) -> Page:
    return Page(value._repr_html_())


@pytest.mark.parametrize("name", ["trace", "plan", "profile", "validation", "comparison", "run", "server"])
def test_a_value_shows_the_cells_and_warnings_of_its_tables(values, name):
    kind, value = known(values[name])
    shown = page(values[name])
    blocks = [block for block in kind.blocks(value) if not block.detail]
    tables = [block for block in blocks if isinstance(block, Table)]
    assert shown.text.startswith(f"{kind.titled(value)}|")
    assert shown.tags.count("tr") == sum(1 + min(ROWS, len(table.rows)) for table in tables)
    for table in tables:
        for row in table.rows[:ROWS]:
            assert "|".join(cell.text for cell in row.cells if cell.text) in shown.text
    for block in blocks:
        if not isinstance(block, Table) and block.kind != "next":
            assert block.text[: LONGEST - 3] in shown.text
    assert "treeopt export" not in shown.text  # a notebook runs no commands


def test_long_tables_and_sentences_are_shortened():
    validation = treeopt.load_validation("data/validations/medusa-cpu.json")
    assert f"{len(validation['cells']) - ROWS} more rows" in page(validation).text
    record = treeopt.Record({"schema": "x" * 1000})
    assert "x" * (LONGEST - 20) in page(record).text


def test_a_tree_shows_its_size_and_paths():
    shown = page(Tree.from_paths([(0, 0), (1,)]))
    assert "3 nodes, depth 2|" in shown.text
    assert "levels: 2/1|rank paths: [0], [1], [0, 0]|" in shown.text
    assert "table" not in shown.tags
    assert page(EMPTY).text == f"Tree|Tree {EMPTY.id}: 0 nodes, depth 0|"
    assert "and 51 more" in page(Tree.full(width=63, depth=1)).text


def test_names_are_escaped_and_colours_are_those_of_the_notebook():
    hostile = '<script>alert(1)</script>&"'
    trace = Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 4, meta={"target": {"name": hostile}})
    for value in (trace, treeopt.Record(schema=hostile), treeopt.Record({"schema": "treeopt.run/2", hostile: 1})):
        assert "script" not in page(value).tags
        assert hostile in page(value).text
        assert not {"background", "color:", "class="} & set(value._repr_html_().replace("-", " ").split())


def test_a_terminal_shows_the_same_figures_as_lines(values):
    printed = []

    class Printer:
        text = printed.append

    plan = values["plan"]
    plan._repr_pretty_(Printer(), cycle=False)
    lines = printed[0].splitlines()
    assert lines[0].startswith("Plan for batch 1, 4: target stdlib-llama")
    assert {"batch 1", "batch 4"} <= set(lines)
    assert any(plan.entries[1].choice.tree.id in line for line in lines)


@pytest.mark.parametrize("tree", [Tree.chain(3), Tree.from_paths([(0, 1), (2,)])])
def test_a_saved_tree_is_read_again(tree, tmp_path):
    tree.save(tmp_path / "tree.json")
    assert treeopt.load_tree(tmp_path / "tree.json") == tree


def test_a_tree_without_nodes_has_no_file(tmp_path):
    with pytest.raises(treeopt.TreeoptError, match="without nodes has no file"):
        EMPTY.save(tmp_path / "tree.json")
    assert list(tmp_path.iterdir()) == []


def test_a_saved_trace_is_read_again(tmp_path):
    trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0], [1]]), 4, meta={"seed": 1})
    trace.save(str(tmp_path / "trace.npz"))
    found = treeopt.load_trace(tmp_path / "trace.npz")
    assert found.rank.tolist() == trace.rank.tolist()
    assert found.meta == trace.meta


@pytest.mark.parametrize("name", ["plan", "profile", "validation"])
def test_a_saved_value_is_read_again(values, name, tmp_path):
    values[name].save(tmp_path / "value.json")
    assert getattr(treeopt, f"load_{name}")(tmp_path / "value.json") == values[name]


def test_a_saved_comparison_is_a_record(values, tmp_path):
    values["comparison"].save(tmp_path / "compared.json")
    record = treeopt.load_record(tmp_path / "compared.json")
    assert record["schema"] == "treeopt.comparison/2"
    pd.testing.assert_frame_equal(record.frame(), values["comparison"].frame())


def test_a_value_that_cannot_be_written_leaves_no_file(tmp_path):
    trace = Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 4, meta={"schema": "mine"})
    with pytest.raises(treeopt.TreeoptError, match="must not use the key `schema`"):
        trace.save(tmp_path / "trace.npz")
    record = treeopt.Record(schema="treeopt.run/2", configurations=[object()])
    with pytest.raises(TypeError):
        record.save(tmp_path / "record.json")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_record_are_refused_by_name(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(UsageError, match=r"x\.json: cannot be read: No such file"):
        treeopt.load_record(path)
    path.write_text("[]")
    with pytest.raises(UsageError, match=r"x\.json: schema must be .*found 'list'"):
        treeopt.load_record(path)
    record = json.loads(Path("data/validations/medusa-cpu.json").read_text())
    del record["cells"][1]["error"]
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"x\.json: cells\[1\]: .*missing required field `error`"):
        treeopt.load_validation(path)
    with pytest.raises(UsageError, match=r"x\.json: cells\[1\]: .*missing required field `error`"):
        treeopt.load_record(path)


mpl.use("Agg")
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
