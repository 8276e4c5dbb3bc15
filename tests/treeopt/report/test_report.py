"""The page of results: every figure of the library, whole and escaped, nothing to fetch; formulas of the sliders."""

import builtins
import json
import os
import re
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest

from simulate.profiles.profile import load_profile
from tests.helpers.command_line import done, refused, run
from tests.helpers.report_files import TRACES, Parsed, written_results
from tests.helpers.slider_formulas import Setting, chain_tokens, recompute
from tests.helpers.strategies import drawn_trace
from treeopt.api.report_files import report_page
from treeopt.charts.trace_charts import tau_of
from treeopt.cost_model import StepShape
from treeopt.replay.static_tree import replay_tree, step_seconds
from treeopt.report.html_page import Page, _vega, as_html
from treeopt.report.slider_model import Drafted, conditional_rates, slider_data
from treeopt.results.kinds import RESULTS
from treeopt.results.tables_and_numbers import Line, Table
from treeopt.results.words import interval
from treeopt.statistics import Estimate, ratio
from treeopt.storage.user_files import LIMIT, shipped
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import Tree

EVIL = "<script>alert(1)</script>&"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return written_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def whole(results):
    """The page of all kinds, as values and as HTML."""
    page = report_page(results.values(), title=EVIL)
    return page, as_html(page)


def page_of(folder, *files, more=()):
    done("report", *files, *more, "--output", folder / "page.html", "--force")
    return (folder / "page.html").read_text("utf-8")


def test_every_kind_of_file_answers_its_question(whole, results):
    page, html = whole
    assert page.problems == []
    assert [finding.kind.name for finding in page.findings] == list(results)
    asked = sorted((kind for kind in RESULTS.values() if kind.question), key=lambda kind: kind.place)
    assert set(results) == {kind.name for kind in asked} - {
        "acceptance",
        "tuning",
    }  # the page of the latter: tests/treeopt/cli/test_engine_commands.py
    headings = Parsed(html).texts["h2"]
    assert headings[2:] == [kind.question for kind in asked if kind.name in results]


def test_every_figure_of_tables_and_sentences_is_on_the_page(whole):
    page, html = whole
    found = Parsed(html)
    cells, body = set(found.texts["td"]) | set(found.texts["th"]), found.texts["body"][0]
    counted = 0
    for finding in page.findings:
        for block in finding.blocks:
            if isinstance(block, Table):
                assert {cell.text for row in block.rows for cell in row.cells} <= cells
                counted += sum(len(row.cells) for row in block.rows)
            elif isinstance(block, Line):
                assert block.text in body
    assert counted > 500


def test_the_summary_says_what_to_do_and_what_was_measured(whole):
    answer = re.search(
        r"Batch 4: a tree of 2 nodes, 1\.\d\d \[1\.\d\d, 1\.\d\d\] times, checked: 1\.\d\d\.",
        whole[0].findings[1].answers[1],
    )
    assert answer
    summary = next(text for text in Parsed(whole[1]).texts["section"] if "Summary" in text)
    assert answer[0] in summary


def test_answers_left_out_of_the_summary_are_counted(whole):
    page, _ = whole
    many = replace(page.findings[1], answers=tuple(f"Answer {number}." for number in range(6)))
    html = as_html(replace(page, findings=[replace(many, charts=())]))
    summary = next(text for text in Parsed(html).texts["section"] if "Summary" in text)
    assert "Answer 3." in summary
    assert "Answer 4." not in summary
    assert "(2 more below)" in summary
    (condition, *_) = [line.text for line in many.blocks if isinstance(line, Line) and line.kind == "condition"]
    assert Parsed(html).texts["article"][0].count(condition) == 1


def test_the_page_needs_no_other_file(whole):
    found = Parsed(whole[1])
    assert len(whole[1].encode()) < 1_250_000
    for element in found.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert (element.attributes.get(name) or "#").startswith(("#", "data:,")), element
    style = "".join(found.texts["style"])
    assert "@import" not in style
    assert "url(" not in style
    assert not re.search(r"https?:", found.texts["main"][0])


def test_the_page_can_be_read_by_all(whole):
    html, found = whole[1], Parsed(whole[1])
    assert found.all("html")[0].attributes["lang"] == "en"
    named = {element.attributes.get("name"): element.attributes["content"] for element in found.all("meta")[1:]}
    assert named["viewport"].startswith("width=device-width")
    assert whole[0].findings[0].title in named["description"]
    levels = [int(element.tag[1]) for element in found.elements if re.fullmatch(r"h[1-6]", element.tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    plots = [element for element in found.all("div") if element.attributes.get("role") == "img"]
    assert len(plots) == len(found.all("figure")) == sum(len(finding.charts) for finding in whole[0].findings)
    assert all(len(plot.attributes["aria-label"]) > 20 for plot in plots)
    assert all("div" in element.around for element in found.all("table"))
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    named = {element.attributes.get("for") for element in found.all("label")} - {None}
    ranges = {e.attributes["id"] for e in found.all("input") if e.attributes["type"] == "range"}
    assert named == ranges


def test_charts_are_pictures_without_scripts_and_live_with_them(whole, results, tmp_path):
    found = Parsed(whole[1])
    specs = found.embedded("specs")
    assert len(specs) == len(found.all("figure"))
    assert all(spec["width"] == "container" for spec in specs.values())
    page = page_of(tmp_path, results["plan"], results["trace"], more=("--static",))
    static = Parsed(page)
    assert static.all("script") == []
    assert "What if?" not in page
    pictures = [element for element in static.all("svg") if "li" not in element.around]
    assert len(static.all("figure")) == len(pictures) > 4


def test_what_a_title_says_is_no_markup(whole):
    assert EVIL not in whole[1]
    assert Parsed(whole[1]).texts["h1"] == [EVIL]


def test_what_a_file_says_is_no_markup(tmp_path):
    trace = drawn_trace([[0.6, 0.2]], [20] * 8, depth=2, rng=np.random.default_rng(0))
    meta = {"target": {"name": EVIL}, "drafter": {"kind": EVIL}, "verification": "greedy", "temperature": 0.0}
    save_trace(replace(trace, meta=meta), tmp_path / "t.npz")
    page = page_of(tmp_path, tmp_path / "t.npz")
    assert EVIL not in page
    assert EVIL in Parsed(page).texts["main"][0]


def read(path):
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", sorted(shipped("validations").glob("*-typical.json")), ids=lambda path: path.stem)
def test_validations_of_other_rules_can_be_shown(path, tmp_path):
    assert len(Parsed(page_of(tmp_path, path, more=("--static",))).all("figure")) == 1


def test_engine_checks_can_be_shown(tmp_path):
    checks = read(shipped("engines/acceptance.json"))
    page = Parsed(page_of(tmp_path, shipped("engines/acceptance.json"), more=("--no-plots",)))
    assert len(page.all("tr")) == len(checks) + 1
    total = sum(check["anchors_equal"] for check in checks)
    assert f"{total:,}" in page.texts["main"][0]


def test_several_of_a_kind_stand_side_by_side(results, tmp_path):
    (tmp_path / "again.json").write_bytes(results["plan"].read_bytes())
    page = Parsed(page_of(tmp_path, results["plan"], tmp_path / "again.json", more=("--no-plots",)))
    assert len(page.all("article")) == 2
    beside = [e for e in page.all("div") if e.attributes.get("class", "").split() == ["findings", "beside"]]
    assert len(beside) == 1


def test_the_page_is_the_same_for_the_same_files(results, tmp_path):
    files = (results["plan"], results["comparison"])
    assert page_of(tmp_path, *files) == page_of(tmp_path, *files)


def test_rules_that_draw_or_keep_several_have_no_curve_of_ranks(tmp_path):
    """Their ranks do not say what they keep of any tree: drawn ones of rules that take trees do."""
    trace = drawn_trace([[0.6, 0.2]], [20] * 8, depth=2, rng=np.random.default_rng(0))
    kept = np.zeros((trace.anchors, 2, 2), dtype=np.float16)
    for rule, charts in (("leviathan", 1), ("specinfer", 3)):
        save_trace(replace(trace, kept=kept, meta={"verification": rule}), tmp_path / "t.npz")
        assert len(report_page([tmp_path / "t.npz"]).findings[0].charts) == charts
    assert load_trace(TRACES / "medusa-typical.npz").tree_kept is not None
    assert len(report_page([TRACES / "medusa-typical.npz"]).findings[0].charts) == 1


@pytest.mark.parametrize("name", ["capacity", "comparison", "run", "serving", "whatif", "validation"])
def test_a_record_that_lacks_something_is_refused(results, tmp_path, name):
    record = read(results[name])
    key = {"comparison": "contests", "whatif": "cells", "validation": "cells"}.get(name, "configurations")
    for broken in ({k: v for k, v in record.items() if k != key}, record | {key: 5}):
        (tmp_path / "r.json").write_text(json.dumps(broken))
        told = ("r.json", "no whole result of `", key, "missing" if key not in broken else "found 5")
        refused(run("report", tmp_path / "r.json", "--output", tmp_path / "p.html"), *told, code=2)
        assert not (tmp_path / "p.html").exists()


def test_a_file_that_cannot_be_read_is_listed_and_the_others_are_shown(results, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    result = run("report", results["plan"], tmp_path / "broken.json", "--no-plots", "--output", tmp_path / "p.html")
    assert result.exit_code == 1
    told = "broken.json: damaged JSON, at line 1, column 2: write the file again"
    assert result.stderr.splitlines() == [f"1 result written to {tmp_path / 'p.html'}", f"Error: {told}"]
    page = Parsed((tmp_path / "p.html").read_text("utf-8"))
    assert told in page.texts["section"][0]
    assert len(page.all("article")) == 1


NEITHER = "neither a trace (.npz) nor JSON: give what a command wrote"
UNREAD = {
    "empty.json": (b"", "empty"),
    "table.csv": (b"batch,name,speedup_low\n1,chain,1.2\n", "a table of results (CSV): give the .json that"),
    "table.parquet": (b"PAR1\x15\x04", "a table of results (Parquet): give the .json that"),
    "texts.jsonl": (b'{"prompt": "a"}\n{"prompt": "b"}\n', NEITHER),
    "weights.bin": (b"\x00\xff\xfe", NEITHER),
    "old.json": (b'{"schema": "treeopt.run/0"}', "another version of treeopt (treeopt.run/0): run `treeopt simulate`"),
    "texts.json": (b'{"schema": "treeopt.decode/1"}', "a file of another kind (treeopt.decode/1), which a page"),
    "deep.json": (b"[" * 200_000, NEITHER),
    "list.json": (b"[1]", "no result of treeopt: it names no schema"),
}


def test_each_file_that_cannot_be_read_has_a_line_in_plain_words(results, tmp_path):
    for name, (data, _) in UNREAD.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "cut.npz").write_bytes((TRACES / "medusa-t0.npz").read_bytes()[:5000])
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(LIMIT + 1)  # takes no room on the disk
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder").mkdir()
    reasons = {name: reason for name, (_, reason) in UNREAD.items()} | {
        "cut.npz": "an archive that is not complete, such as a trace that was cut",
        "large.json": "cannot be read: larger than",
        "pipe.json": "cannot be read: not a regular file",
        "folder": "a folder without parts of a trace",
        "gone.json": "there is no such file",
    }
    output = tmp_path / "out.html"
    result = run("report", results["plan"], *(tmp_path / name for name in reasons), "--no-plots", "--output", output)
    written, *lines, last = result.stderr.splitlines()
    assert result.exit_code == 1
    assert written == f"1 result written to {output}"
    assert last.startswith(f"Error: {len(reasons)} files could not be read. A page shows traces")
    shown = Parsed(output.read_text("utf-8")).texts["li"]
    for line, (name, reason) in zip(lines, reasons.items(), strict=True):
        assert line.startswith(f"{name}: "), line
        assert reason in line
        assert len(line) < 140
        assert line in shown


def test_the_summary_of_a_trace_says_what_the_drafter_gets_right(whole):
    right, replayed = whole[0].findings[0].answers
    assert re.search(r"candidate is right at \d+% of positions at depth 1, \d+% at depth 5\.$", right)
    trace = load_trace(TRACES / "medusa-t0.npz")
    assert f"{interval(tau_of(Tree.chain(5), trace))} with a chain of 5" in replayed
    typical = report_page([TRACES / "medusa-typical.npz"]).findings[0]
    assert len(typical.answers) == 1  # ranks do not say what its rule keeps


@pytest.mark.parametrize("name", ["page.pdf", "page", "page.json", "page.html.gz"])
def test_another_ending_than_a_page_s_is_refused_before_any_work(tmp_path, name):
    result = run("report", tmp_path / "gone.json", "--output", tmp_path / name)
    refused(result, f"--output {tmp_path / name}: a page ends in .html or .htm", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_given_twice_is_shown_once(results, tmp_path):
    (tmp_path / "again.json").symlink_to(results["plan"])
    files = (results["plan"], results["trace"], tmp_path / "again.json", results["plan"], results["trace"])
    result = done("report", *files, "--no-plots", "--output", tmp_path / "p.htm")
    notes = ["plan.json was given 3 times and is shown once.", "medusa-t0.npz was given twice and is shown once."]
    assert result.stderr.splitlines() == [f"2 results written to {tmp_path / 'p.htm'}", *notes]
    page = Parsed((tmp_path / "p.htm").read_text("utf-8"))
    assert len(page.all("article")) == 2
    assert all(note in page.texts["section"][0] for note in notes)


def test_files_of_one_name_are_told_apart_by_their_folders(results, tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "plan.json").write_bytes(results["plan"].read_bytes())
    files = [tmp_path / "first/plan.json", tmp_path / "second/plan.json"]
    sources = [finding.source.partition(",")[0] for finding in report_page(files).findings]
    assert sources == [str(path) for path in files]


def test_the_next_command_names_the_engine_that_the_plan_was_made_for(trace_file, profile_file, tmp_path):
    words = ("--trace", trace_file, "--profile", profile_file, "--batch", "1", "--for", "sglang")
    printed = done("search", *words, "--output", tmp_path / "a, b.json").stdout
    assert json.loads((tmp_path / "a, b.json").read_text())["meta"]["search"]["engine"] == "sglang"
    (command,) = [
        text
        for text in Parsed(page_of(tmp_path, tmp_path / "a, b.json", more=("--no-plots",))).texts["code"]
        if " export " in text
    ]
    assert command == "treeopt export 'a, b.json' --format sglang"
    assert command.replace("a, b.json", str(tmp_path / "a, b.json")) in printed


def test_without_the_packages_of_the_page_their_extra_is_named(results, tmp_path, monkeypatch):
    real, absent = builtins.__import__, []

    def without(name, *args, **how):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {absent[0]!r}", name=absent[0])
        return real(name, *args, **how)

    _vega.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    for absent[:] in (["altair"], ["vl_convert"], ["jinja2"]):
        refused(run("report", results["plan"], "--output", tmp_path / "p.html"), "pip install 'treeopt[report]'")
    absent[:] = ["altair", "vl_convert"]
    assert Parsed(page_of(tmp_path, results["plan"], more=("--no-plots",))).all("figure") == []


def test_a_page_of_nothing_says_so():
    assert "None of the files could be read." in as_html(Page("nothing", []))


@pytest.fixture(scope="module")
def inputs():
    trace = load_trace(shipped("traces/medusa-t0.npz"))
    profile = load_profile(shipped("profiles/medusa-cpu.json"))
    return trace, profile, slider_data(trace, profile, name="t.npz")


def drafted_of(record):
    parts = {**record, "tau": Estimate(**record["tau"]), "rates": tuple(record["rates"])}
    return Drafted(**parts)


def test_untouched_sliders_show_the_library_s_figures(inputs):
    trace, profile, data = inputs
    chains = [drafted_of(record) for record in data["trees"] if record["shape"] == "chain"]
    assert [chain.nodes for chain in chains] == list(range(1, trace.depth + 1))
    for chain in chains:
        counts = replay_tree(Tree.chain(chain.nodes), trace)
        tau = ratio(counts.committed, counts.steps, trace.domain)
        for batch, step_s in chain.step_s.items():
            plain_s = data["plain_s"][str(batch)]
            outcome = recompute(chain, plain_s, Setting(batch, price=3.0))
            assert outcome.tau == tau
            assert outcome.step_s == pytest.approx(step_s)
            assert step_s == step_seconds(Tree.chain(chain.nodes), profile, batch=batch, committed=counts.tau)
            error = profile.error(StepShape.of(Tree.chain(chain.nodes), batch=batch))
            expected = tau.times(profile.plain_s(batch=batch) / step_s, relative_error=error)
            assert outcome.speedup.value == pytest.approx(expected.value)
            assert outcome.speedup.low == pytest.approx(expected.low)
            assert outcome.million * outcome.tokens_s * 3600 == pytest.approx(3.0e6)
            assert outcome.tokens_s * outcome.tpot_s == pytest.approx(batch)


def test_best_trees_beat_chains_of_their_size_in_tau(inputs):
    trees = {record["nodes"]: record["tau"]["value"] for record in inputs[2]["trees"] if record["shape"] == "tree"}
    chains = {record["nodes"]: record["tau"]["value"] for record in inputs[2]["trees"] if record["shape"] == "chain"}
    assert len(trees) > 5
    assert all(trees[nodes] >= chains[nodes] for nodes in trees if nodes in chains)


def test_scales_move_what_they_say():
    tree = Drafted("a chain of 2", "chain", 2, 2, Estimate(1.75, 1.7, 1.8), (0.5, 0.5), {1: 0.02}, {1: 0.0})
    double = recompute(tree, 0.01, Setting(1, acceptance=2.0))
    assert double.tau.value == pytest.approx(3.0)
    free = recompute(tree, 0.01, Setting(1, cost=0.0))
    assert free.step_s == pytest.approx(0.01)
    assert free.speedup.value == pytest.approx(1.75)
    assert recompute(tree, 0.01, Setting(1, cost=2.0)).step_s == pytest.approx(0.03)


def test_chain_tokens_is_the_sum_of_products():
    rates = np.random.default_rng(0).random(7)
    for scale in (0.5, 1.0, 1.7):
        clipped = np.minimum(1.0, scale * rates).tolist()
        assert chain_tokens(rates.tolist(), scale) == pytest.approx(1 + sum(accumulate(clipped, lambda a, b: a * b)))


def test_rates_of_steps_that_never_went_deeper_are_zero():
    assert conditional_rates([3, 0, 0]) == (0.0, 0.0)
    assert conditional_rates([5]) == ()
