"""Values in notebooks: the sentences and tables of the terminal, as well-formed and escaped HTML or as lines."""

from html.parser import HTMLParser

import numpy as np
import pytest

import treeopt
from treeopt.notebook import LONGEST, ROWS
from treeopt.results.blocks import Table
from treeopt.results.kinds import known
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree


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
