from html.parser import HTMLParser

import numpy as np
import pytest

import treeopt
from treeopt.notebook.html_summary import LONGEST, ROWS, Summary, summary_html
from treeopt.notebook.record_summaries import RECORDS
from treeopt.policies import DynamicTree
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

VOID = {"br"}


class Page(HTMLParser):
    """The text of well-formed HTML, and its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data}|"


def page(value) -> Page:
    return Page(value._repr_html_())


@pytest.fixture(scope="module")
def plan():
    return treeopt.search("data/traces/medusa-t0.npz", batch=(1, 4), max_nodes=4, solver_work=0)


def test_a_tree_shows_its_size_and_paths():
    shown = page(Tree.from_paths([(0, 0), (1,)]))
    assert "3 nodes, depth 2|" in shown.text
    assert "levels: 2/1|rank paths: [0], [1], [0, 0]|" in shown.text
    assert "table" not in shown.tags
    assert page(EMPTY).text == f"Tree {EMPTY.id}: 0 nodes, depth 0|"
    assert "and 51 more" in page(Tree.full(width=63, depth=1)).text


def test_a_trace_shows_the_share_of_true_tokens_among_the_best():
    trace = Trace(np.int32([0, 0, 1]), np.int32([0, 1, 0]), np.int16([[0, 3], [-1, -2], [1, -2]]), 4)
    shown = page(trace)
    assert "Trace: 2 requests, 3 anchors, depth 2|" in shown.text
    assert "1|0.333|0.667|0.667|0.667|2|0.000|0.000|1.000|1.000|" in shown.text


def test_a_plan_shows_its_choices_intervals_and_warnings(plan):
    shown = page(plan)
    choice = plan.entries[0].choice
    assert f"tree {choice.tree.id}|3|1|" in shown.text
    assert f"{choice.speedup.value:.2f} [{choice.speedup.low:.2f}, {choice.speedup.high:.2f}]|" in shown.text
    assert all(f"Warning: {warning}."[: LONGEST - 3] in shown.text for warning in plan.warnings)
    assert shown.tags.count("tr") == 1 + len(plan.entries)


def test_a_profile_shows_the_measured_range():
    profile = treeopt.load_profile("data/profiles/eagle-cpu.json")
    first = profile.batches[0]
    shown = page(profile)
    assert "Profile for batch 1, 4, 16|" in shown.text
    assert f"1|{first.context:.0f}|{1e3 * first.plain_s:.2f}|1 to 8|" in shown.text
    assert shown.tags.count("tr") == 1 + len(profile.batches)


def test_a_validation_shows_predicted_beside_measured():
    validation = treeopt.load_validation("data/validations/medusa-cpu.json")
    shown = page(validation)
    assert "mean 2.6%, largest 6.7%" in shown.text
    assert "intervals that hold: 31 of 31" in shown.text
    assert "1|chosen tree|1.31 [1.20, 1.42]|1.22 [1.17, 1.28]|+6.7%|yes|" in shown.text
    assert f"{len(validation['cells']) - ROWS} more rows" in shown.text


def test_results_of_the_api_show_their_main_figures():
    traces = ["data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz"]
    assert "eagle-t0|2|2.15 [" in page(treeopt.compare(traces, sizes="chain:2")).text
    run = treeopt.simulate(traces[0], tree=Tree.chain(1), batch=4)
    assert "TTFT p50 ms|" in page(run).text
    assert "chain of 1|1.308|769.75 [764.16, 775.34]|" in page(run).text
    served = treeopt.simulate(traces[0], tree=Tree.chain(1), batch=4, arrivals=20, requests=40, replications=2)
    assert "requests/s|" in page(served).text


def test_names_in_values_are_escaped():
    hostile = '<script>alert(1)</script>&"'
    meta = {"target": {"name": hostile}}
    trace = Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 4, meta=meta)
    record = treeopt.Record(schema="treeopt.run/1", ways=[{"name": hostile, "tau": 1.0}], warnings=[hostile])
    for value in (trace, record, treeopt.Record(schema=hostile)):
        assert "script" not in page(value).tags
        assert hostile in page(value).text


def test_a_long_note_is_shortened_and_colours_are_the_page_s():
    html = summary_html(Summary("title", notes=["x" * 1000]))
    assert "x" * (LONGEST - 3) + "..." in html
    assert not {"background", "color:", "class="} & set(html.replace("-", " ").split())
    assert "#" not in html


def test_missing_figures_are_empty_cells():
    record = treeopt.Record(schema="treeopt.capacity/1", ways=[{"name": "a", "requests_s": float("nan"), "over": None}])
    assert page(record).text.startswith("Capacity of a server|configuration|requests/s|over the others|a|")
    assert {"treeopt.capacity/1", "treeopt.comparison/1"} <= set(RECORDS)


def test_a_dynamic_choice_and_a_plain_one_are_named():
    from treeopt.notebook.value_summaries import _configuration
    from treeopt.plans.plan import Choice, Grown
    from treeopt.statistics.clustered_estimate import Estimate

    one = Estimate(1.0, 1.0, 1.0)
    grown = Grown("eagle2", {}, 3.0, 2.0, DynamicTree(nodes=3, depth=2))
    assert _configuration(Choice("a", None, one, 1.0, one)) == "do not speculate"
    assert _configuration(Choice("a", None, one, 1.0, one, grown)) == "dynamic: eagle2"
    assert _configuration(Choice("a", Tree.chain(2), one, 1.0, one)) == "chain of 2"


def test_a_terminal_shows_the_same_figures_as_lines(plan):
    printed = []

    class Printer:
        text = printed.append

    plan._repr_pretty_(Printer(), cycle=False)
    lines = printed[0].splitlines()
    assert lines[0] == "Plan for batch 1, 4"
    assert lines[1].split()[:3] == ["batch", "configuration", "nodes"]
    assert len(lines) == 2 + len(plan.entries)
    assert plan.entries[1].choice.tree.id in lines[3]
