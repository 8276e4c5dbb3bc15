"""A kind of result that is defined outside treeopt goes through terminal, page, explore, notebook, frame and schema."""

import json
from types import SimpleNamespace
from typing import Annotated

import altair as alt
import pytest
from jsonschema import Draft202012Validator
from msgspec import Meta

import treeopt
from tests.helpers.printed_results import printed
from tests.helpers.report_files import Parsed
from tests.helpers.write_schemas import document
from treeopt import registry
from treeopt.api.report_files import report_page
from treeopt.errors import UsageError
from treeopt.explore import answer_parts
from treeopt.report.html_page import as_html
from treeopt.results.kinds import RESULTS, ResultKind
from treeopt.results.tables_and_numbers import Column, Line
from treeopt.storage.typed_records import Positive, Record

SCHEMA = "toys.result/1"


class ToyRow(Record, frozen=True):
    """A toy."""

    name: str
    spin_s: Annotated[Positive, Meta(description="seconds that it spins")]
    share: dict[str, float]


class ToyRecord(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """All toys."""

    toys: tuple[ToyRow, ...]
    warnings: tuple[str, ...] = ()


def spins(record):
    """Return the chart of spins."""
    toys = alt.Chart(alt.InlineData(values=record["toys"]), title="Spins")
    return toys.mark_point().encode(x="name:N", y="spin_s:Q")


TOYS = ResultKind(
    name="toys",
    title="Toys",
    question="Which toy spins longest?",
    command="toys",
    schema=SCHEMA,
    record=f"{__name__}:ToyRecord",
    rows=lambda record: record["toys"],
    columns=(
        Column("toy", align="left", key=True, field="name"),
        Column("spin", "ms", meaning="How long it spins.", field="spin_s", digits=1),
        Column("share of the whole", "%", drop=1, field="share", digits=1),
    ),
    answers=lambda record: [f"{max(record['toys'], key=lambda toy: toy['spin_s'])['name']} spins longest."],
    next_lines=lambda record, **_: [Line("next", "Next: wind it up:", "treeopt doctor")],
    charts={"spins": f"{__name__}:spins"},
)
RECORD = {
    "schema": SCHEMA,
    "toys": [
        {"name": "a painted wooden top", "spin_s": 0.25, "share": {"value": 0.25, "low": 0.2, "high": 0.3}},
        {"name": "a gyroscope", "spin_s": 0.75, "share": {"value": 0.75, "low": 0.7, "high": 0.8}},
    ],
    "warnings": ["toys wear out"],
}


@pytest.fixture(autouse=True)
def toys():
    with RESULTS.registered(TOYS):
        yield


def test_the_terminal_shows_what_fits():
    wide = printed(TOYS.blocks(RECORD), 160)
    assert wide[:3] == ["a gyroscope spins longest.", "", "Next: wind it up:"]
    row = next(line for line in wide if line.startswith("a painted wooden top"))
    assert row.split()[4:] == ["250.0", "25.0", "[20.0,", "30.0]"]
    assert wide[-1] == "Warning: toys wear out."
    narrow = printed(TOYS.blocks(RECORD), 40)
    assert "Columns left out: share of the whole" in " ".join(narrow)
    assert max(map(len, narrow)) <= 40


def test_the_page_answers_its_question(tmp_path):
    (tmp_path / "toys.json").write_text(json.dumps(RECORD))
    page = report_page([tmp_path / "toys.json"])
    assert page.problems == []
    shown = Parsed(as_html(page, static=True))
    assert shown.texts["h2"][-1] == "Which toy spins longest?"
    assert "a gyroscope spins longest." in shown.texts["dd"][0]
    assert "75.0 [70.0, 80.0]" in shown.texts["td"]
    assert len(shown.all("figure")) == 1


def test_the_parts_of_explore_show_it():
    kind = RESULTS["toys"]
    assert "25.0 [20.0, 30.0]" in answer_parts.shown(kind.blocks(RECORD)).text
    figure = answer_parts.figures(kind.all_charts(RECORD)).text
    assert "<h3>Spins</h3>" in figure
    assert "a painted wooden top" in figure


def test_a_notebook_and_a_table_show_its_rows(tmp_path):
    (tmp_path / "toys.json").write_text(json.dumps(RECORD))
    record = treeopt.load_record(tmp_path / "toys.json")
    assert "25.0 [20.0, 30.0]" in record._repr_html_()
    frame = record.frame()
    assert list(frame.columns) == ["name", "spin_s", "share", "share_low", "share_high"]
    assert frame["spin_s"].tolist() == [0.25, 0.75]
    assert record.plot().title == "Spins"


def test_its_schema_and_its_reader_refuse_the_same(tmp_path):
    broken = {**RECORD, "toys": [RECORD["toys"][0] | {"spin_s": -1}]}
    validator = Draft202012Validator(document(ToyRecord))
    assert validator.is_valid(RECORD)
    assert not validator.is_valid(broken)
    (tmp_path / "toys.json").write_text(json.dumps(broken))
    with pytest.raises(UsageError, match=r"toys\.json: toys\[0\]\.spin_s: Expected `float` >= 1e-100, found -1"):
        treeopt.load_record(tmp_path / "toys.json")


def test_a_record_of_another_package_is_read(tmp_path, monkeypatch):
    point = SimpleNamespace(name="toys", load=lambda: TOYS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "treeopt.results" else [])
    monkeypatch.delitem(RESULTS._added, "toys")
    (tmp_path / "toys.json").write_text(json.dumps(RECORD))
    assert len(treeopt.load_record(tmp_path / "toys.json").frame()) == 2


def test_a_kind_is_known_by_its_name_alone_while_it_is_registered():
    assert RESULTS["toys"] is TOYS
    assert {"plan", "whatif", "toys"} <= set(RESULTS)
