"""The comparison of an engine's steps with replay; `make engines` runs the engines themselves."""

import json
import re

import numpy as np
import pytest

from executor.recording.engine_steps import RequestRecord
from simulate.validation.predictions import load_predictions
from tests.benchmarks import engine_acceptance
from tests.benchmarks.engine_acceptance import CHECKS, KNOWN, compared, key_of, problem, save
from tests.benchmarks.engine_tables import FILE, PAGE, engine_rows, records, tables, validations, written
from tests.benchmarks.engine_times import CASES
from treeopt.storage.user_files import checksum
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

# One request of 6 tokens: from anchor 1 a chain of 2 accepts both; from anchor 4 too, but only 2 tokens are left.
RANK = np.int16([[0, 0], [0, 0], [0, 1], [1, 0], [0, 0], [0, -2]])
TRACE = Trace(np.zeros(6, np.int32), np.arange(6, dtype=np.int32), RANK, 2)
TEXT = [5, 6, 7, 8, 9, 10]


def found(steps, tokens=TEXT):
    return compared(TRACE, [TEXT], [RequestRecord(0, tuple(steps), None, tuple(tokens))], Tree.chain(2))


def test_equal_steps():
    """The prefill's token, a full chain with its bonus, and what is left of a chain at the end."""
    result = found([1, 3, 2])
    assert (result["anchors_shared"], result["anchors_equal"], result["texts_equal"]) == (2, 2, 1)
    assert result["accepted_by_position"] == result["replayed_by_position"] == [2, 1]
    assert result["differing"] == []


def test_a_step_that_differs_is_named():
    result = found([1, 2, 1, 2])
    assert (result["anchors_shared"], result["anchors_equal"]) == (3, 2)
    assert result["differing"] == [{"request": 0, "at": 1, "engine": 2, "replay": 3}]
    assert (result["accepted_by_position"], result["replayed_by_position"]) == ([2, 0], [2, 1])


def test_a_text_that_differs_is_compared_up_to_there():
    result = found([1, 3, 2], [5, 6, 7, 8, 9, 11])
    assert (result["texts_equal"], result["anchors_shared"], result["anchors_equal"]) == (0, 1, 1)


# --- which checks run, and which differences are faults

RECORD = {"engine": "vllm", "method": "eagle", "concurrency": 4, "requests": 2, "texts_equal": 2}


@pytest.mark.parametrize(
    ("anchors", "texts", "known", "message"),
    [
        ((9, 9), 2, False, None),
        ((9, 8), 2, False, "vllm eagle, 4 in flight: texts equal 2 of 2, accepted lengths 8 of 9"),
        ((9, 8), 2, True, None),
        ((9, 9), 2, True, "equal now: remove it from KNOWN"),
        ((9, 9), 1, True, "texts equal 1 of 2, accepted lengths 9 of 9"),
        ((0, 0), 2, False, "accepted lengths 0 of 0"),
    ],
)
def test_a_difference_is_a_problem_unless_it_is_known(monkeypatch, anchors, texts, known, message):
    monkeypatch.setattr(engine_acceptance, "KNOWN", {("vllm", "eagle", 4): "a reason"} if known else {})
    record = RECORD | {"anchors_shared": anchors[0], "anchors_equal": anchors[1], "texts_equal": texts}
    assert (problem(record) or "").endswith(message or "")
    assert (problem(record) is None) == (message is None)


def test_known_differences_are_of_checks_that_run():
    assert set(KNOWN) <= {(check.engine, check.method, number) for check in CHECKS for number in check.concurrencies}
    assert all(reason.endswith(".") for reason in KNOWN.values())


def test_a_record_takes_the_place_of_the_one_before(tmp_path):
    for number in (1, 4, 4):
        save(RECORD | {"concurrency": number, "anchors_equal": number}, tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text("utf-8").count('"engine"') == 2


# --- the shipped results


def test_the_page_has_the_tables_of_the_file():
    page = PAGE.read_text("utf-8")
    assert tables(page) == [list(rows) for rows in engine_rows()]
    assert written(page, engine_rows()) == page


def test_the_shipped_checks_are_all_there_and_differ_only_where_it_is_known():
    shipped = records()
    expected = {(check.engine, check.method, number) for check in CHECKS for number in check.concurrencies}
    assert {key_of(record) for record in shipped} == expected
    assert [problem(record) for record in shipped] == [None] * len(shipped)
    assert min(record["requests"] for record in shipped) >= 24


def test_the_shipped_validations_are_of_predictions_made_before_from_the_shipped_profiles():
    names = [name for name, _ in validations()]
    assert names
    for name, record in validations():
        predictions = load_predictions(FILE.with_name(f"{name}.predictions.json"))
        assert record["meta"]["predictions"]["sha256"] == predictions.sha256
        profile = FILE.with_name(f"{name}.profile.json")
        if name.endswith("-trees"):  # a plan of the profile was validated
            made_from = predictions.plan.meta["cost"]["provenance"]
            assert made_from == json.loads(profile.read_text("utf-8"))["meta"]["provenance"]
            assert len([cell for cell in record["cells"] if cell["grown"]]) >= 3
            continue
        assert predictions.meta["profile"] == checksum(profile)
        lengths = CASES[name].lengths[name == "smollm2-lookup-llama.cpp" :]  # it drops drafts shorter than the match
        expected = {(batch, length) for batch in (1, 4) for length in lengths}
        cells = {(cell["batch"], len(cell["tree"]["paths"])) for cell in record["cells"]}
        assert cells >= expected if len(lengths) == 1 else cells == expected  # a chosen chain may be shorter


def test_shipped_files_of_engines_hold_no_path():
    for file in FILE.parent.iterdir():
        assert not re.search(r'"/|[ =]/\w', file.read_text("utf-8")), file.name
