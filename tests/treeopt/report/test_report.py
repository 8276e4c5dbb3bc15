"""The page of results: what the commands print, whole and escaped, and nothing that must be fetched."""

import builtins
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.helpers.command_line import done, refused, run
from tests.helpers.strategies import drawn_trace
from treeopt.report.page_sections import RECORDS
from treeopt.storage.atomic_files import shipped
from treeopt.traces.trace import load_trace, save_trace

TRACES = shipped("traces")
EVIL = "<script>alert(1)</script>&"


class Parsed(HTMLParser):
    """Tags that were opened, what they refer to, and the text of preformatted parts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.references, self.printed, self._open = [], [], [], []
        self.feed(page)
        self.close()
        assert self._open == [], "every tag is closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]
        if tag not in ("meta",):
            self._open.append(tag)
        if tag == "pre":
            self.printed.append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "pre" in self._open:
            self.printed[-1] += data


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A file of every kind, as the commands write them, and what these printed."""
    folder = tmp_path_factory.mktemp("results")
    medusa, hydra = TRACES / "medusa-t0.npz", TRACES / "hydra-t0.npz"
    told = {
        "plan": done("search", "--trace", medusa, "--batch", "1,4", "--output", folder / "plan.json"),
        "comparison": done("compare", medusa, hydra, "--batch", "4", "--output", folder / "comparison.json"),
        "run": done("simulate", "--trace", medusa, "--tree", "2", "--batch", "4", "--output", folder / "run.json"),
    }
    words = ("--tree", "2", "--batch", "4", "--arrivals", "5", "--requests", "50", "--output", folder / "serving.json")
    told["serving"] = done("simulate", "--trace", medusa, *words)
    words = ("--tree", "2", "--batch", "4", "--capacity", "0.9", "--tpot-s", "0.05", "--requests", "50")
    told["capacity"] = done("simulate", "--trace", medusa, *words, "--output", folder / "capacity.json")
    where = ("--target", shipped("models/stdlib-llama"), "--hardware", "h100", "--batch", "1,4")
    told["whatif"] = done("whatif", "--trace", medusa, *where, "--output", folder / "whatif.json")
    return folder, {name: result.stdout for name, result in told.items()}


def page_of(folder, *files, more=()):
    done("report", *files, *more, "--output", folder / "page.html", "--force")
    return (folder / "page.html").read_text("utf-8")


def words(text):
    return re.sub(r"\s+", " ", text)


def test_every_result_is_on_the_page_as_it_was_printed(results, tmp_path):
    folder, printed = results
    validation = shipped("validations/medusa-cpu.json")
    files = [TRACES / "medusa-t0.npz", *(folder / f"{name}.json" for name in printed), validation]
    page = page_of(tmp_path, *files, more=("--title", EVIL))
    found = Parsed(page)
    assert len(found.printed) == len(files) == 8
    for text, name in zip(found.printed[1:], printed, strict=False):
        due = printed[name]
        due = due[: due.index("Steps are priced")] if "Steps are priced" in due else due
        for line in due.splitlines():  # tables are as wide as their titles on a terminal
            assert words(line).strip(" │┃") in words(text), (name, line)
    assert found.tags.count("svg") == 5  # a run and servers have no plot
    assert all(reference.startswith("#") for reference in found.references)
    assert "<script" not in page
    assert unescape(page[page.index("<h1>") + 4 : page.index("</h1>")]) == EVIL
    assert {record["schema"] for record in map(read, files[1:])} == {*RECORDS, "treeopt.plan/3"}


def read(path):
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", sorted(shipped("validations").glob("*.json")), ids=lambda path: path.stem)
def test_every_shipped_validation_can_be_shown(path, tmp_path):
    if ".predictions" in path.name:
        refused(run("report", path, "--output", tmp_path / "p.html"), path.name, "schema must be", code=2)
    else:
        assert Parsed(page_of(tmp_path, path)).tags.count("svg") == 1


def test_names_are_no_formulas_nor_hidden(results, tmp_path):
    """A dollar begins a formula in matplotlib, and what begins with an underscore is left out of legends."""
    names = ("_a$x_{b$", "a" * 60)
    for name in names:
        (tmp_path / f"{name}.npz").write_bytes((TRACES / "medusa-t0.npz").read_bytes())
    files = [tmp_path / f"{name}.npz" for name in names]
    done("compare", *files, "--shapes", "chain:1", "--output", tmp_path / "c.json")
    done("compare", *files[::-1], "--shapes", "chain:1", "--output", tmp_path / "d.json")
    found = Parsed(page_of(tmp_path, tmp_path / "c.json", tmp_path / "d.json"))
    assert names[0] in found.printed[0]
    assert found.printed[0].replace("\n", "").count("a") > 60  # folded, not cut


def test_the_page_is_the_same_for_the_same_files(results, tmp_path):
    folder, _ = results
    files = (folder / "plan.json", folder / "comparison.json")
    assert page_of(tmp_path, *files) == page_of(tmp_path, *files)


def test_what_a_file_says_is_no_markup(tmp_path):
    trace = drawn_trace([[0.6, 0.2]], [20] * 8, depth=2, rng=np.random.default_rng(0))
    meta = {"target": {"name": EVIL}, "drafter": {"kind": EVIL}, "verification": "greedy", "temperature": 0.0}
    save_trace(replace(trace, meta=meta), tmp_path / "t.npz")
    page = page_of(tmp_path, tmp_path / "t.npz")
    assert "<script" not in page
    assert EVIL in Parsed(page).printed[0]


def test_rules_that_draw_or_keep_several_have_no_curve_of_ranks(tmp_path):
    """Their ranks do not say what they keep of any tree: drawn ones of rules that take trees do."""
    trace = drawn_trace([[0.6, 0.2]], [20] * 8, depth=2, rng=np.random.default_rng(0))
    kept = np.zeros((trace.anchors, 2, 2), dtype=np.float16)
    for rule, plots in (("leviathan", 0), ("specinfer", 1)):
        save_trace(replace(trace, kept=kept, meta={"verification": rule}), tmp_path / "t.npz")
        assert Parsed(page_of(tmp_path, tmp_path / "t.npz")).tags.count("svg") == plots
    assert load_trace(TRACES / "medusa-typical.npz").tree_kept is not None
    assert Parsed(page_of(tmp_path, TRACES / "medusa-typical.npz")).tags.count("svg") == 0


@pytest.mark.parametrize("name", ["capacity", "comparison", "run", "serving", "whatif"])
def test_a_record_that_lacks_something_is_refused(results, tmp_path, name):
    record = read(results[0] / f"{name}.json")
    key = {"comparison": "contests", "whatif": "cells"}.get(name, "ways")
    for broken in ({k: v for k, v in record.items() if k != key}, record | {key: 5}):
        (tmp_path / "r.json").write_text(json.dumps(broken))
        refused(run("report", tmp_path / "r.json", "--output", tmp_path / "p.html"), "r.json", "no whole", code=2)
        assert not (tmp_path / "p.html").exists()


def test_what_is_no_result_is_refused(results, tmp_path):
    (tmp_path / "d.json").write_text('{"schema": ["x"]}')
    refused(run("report", tmp_path / "d.json", "--output", tmp_path / "p.html"), "d.json", "schema must be", code=2)
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"schema": "treeopt.profile/2"}')
    for name, why in (
        ("a.json", "neither a trace (.npz) nor JSON"),
        ("b.json", "schema must be treeopt.plan/3"),
        ("c.json", "cannot be read"),
    ):
        refused(run("report", tmp_path / name, "--output", tmp_path / "p.html"), name, why, code=2)
    plan = results[0] / "plan.json"
    refused(run("report", plan, "--output", plan), "is read as", code=2)


def test_without_matplotlib_tables_can_be_had(results, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **how):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **how)

    monkeypatch.setattr(builtins, "__import__", without)
    plan = results[0] / "plan.json"
    refused(run("report", plan, "--output", tmp_path / "p.html"), "pip install 'treeopt[report]'")
    assert Parsed(page_of(tmp_path, plan, more=("--no-plots",))).tags.count("svg") == 0
