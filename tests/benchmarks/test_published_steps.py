"""Published speedups of engines against predictions from data sheets: what the page says, and what holds of it."""

from dataclasses import replace

import numpy as np
import pytest

from simulate.roofline.host_overhead import PLAIN_ERRORS
from tests.benchmarks.published_steps import (
    PAGE,
    in_plain_steps,
    left_out,
    page,
    plain_steps,
    predict,
    published_rows,
    refitted,
)

ROWS = published_rows()
FIT = tuple(row for row in ROWS if row.study.use == "fit")


@pytest.fixture(scope="module")
def predicted():
    return predict(ROWS)


def of(predicted, use, engine=""):
    return [one for one in predicted if one.row.study.use == use and one.row.study.engine.startswith(engine)]


@pytest.mark.parametrize(
    ("use", "engine", "rows", "mean", "inside", "width"),
    [("fit", "", 228, 6, 0.98, 17), ("judge", "vllm", 24, 6, 0.9, 15), ("judge", "sglang", 6, 21, 0.8, 23)],
)
def test_speedups_are_met_by_intervals_that_are_not_wide(predicted, use, engine, rows, mean, inside, width):
    found = of(predicted, use, engine)
    assert len(found) == rows
    assert 100 * np.mean(np.abs([one.error for one in found])) <= mean
    assert np.mean([one.inside for one in found]) >= inside
    assert 100 * np.mean([one.stated for one in found]) <= width


def test_mixtures_of_experts_are_met_better_than_by_uniform_bytes(predicted):
    """The reference study's errors (E6c): 15.6 % for Qwen3-30B-A3B, 22.7 % for 235B-A22B."""
    for target, most in (("Qwen/Qwen3-30B-A3B", 7), ("Qwen/Qwen3-235B-A22B", 7)):
        errors = [abs(one.error) for one in of(predicted, "experts") if one.row.study.target == target]
        assert 100 * np.mean(errors) <= most


@pytest.mark.slow
def test_a_task_left_out_errs_no_more_than_in_the_reference_study(predicted):
    """E6d: 6.9 % for Qwen3-30B-A3B, 4.4 % for 235B-A22B."""
    found = in_plain_steps([one.row for one in of(predicted, "experts") if "spec_bundle" in one.row.study.source])
    for target, rows, most in (("Qwen/Qwen3-30B-A3B", 35, 6.9), ("Qwen/Qwen3-235B-A22B", 70, 4.4)):
        errors = [abs(one.error) for one in found if one.row.study.target == target]
        assert len(errors) == rows
        assert round(100 * np.mean(errors), 1) <= most


@pytest.mark.slow
def test_nine_tenths_are_inside_if_their_study_is_left_out():
    found = left_out(FIT, lambda row: row.study.source, refitted)
    assert np.mean([one.inside for one in found]) >= 0.9
    assert 100 * np.mean([abs(one.error) for one in found]) <= 12
    assert 100 * np.mean([one.stated for one in found]) <= 20


@pytest.mark.slow
def test_an_engine_left_out_is_inside_its_wide_intervals():
    found = left_out(FIT, lambda row: row.study.engine, refitted)
    for engine in {row.study.engine for row in FIT}:
        assert np.mean([one.inside for one in found if one.row.study.engine == engine]) >= 0.9


def test_no_speedup_that_is_left_out_enters_its_prediction():
    rows = [row for row in FIT if row.study.engine == "vllm"]
    spoilt = [replace(row, speedup=3 * row.speedup) if row.study.version == "0.9" else row for row in rows]
    before, after = (left_out(each, lambda row: row.study.source, refitted) for each in (rows, spoilt))
    held = [i for i, row in enumerate(rows) if row.study.version == "0.9"]
    assert len(held) == 12
    assert all(before[i].speedup == after[i].speedup for i in held)


def test_plain_steps_are_off_as_whatif_says():
    errors: dict[str, list[float]] = {}
    for (kind, *_), (due, found) in plain_steps(ROWS).items():
        errors.setdefault(kind, []).append(found / due - 1)
    stated = {kind: (round(min(each), 2), round(max(each), 2), len(each)) for kind, each in errors.items()}
    assert stated == PLAIN_ERRORS


@pytest.mark.slow
def test_the_page_is_that_of_these_files():
    """Figures are printed to a tenth of a percent: run `make published-steps` after a change of the model."""
    assert PAGE.read_text("utf-8") == page()
