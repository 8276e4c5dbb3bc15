"""Predictions, their hash and closed forms; errors, coverage and regret on records made up by hand."""

import json
import math
from dataclasses import asdict, replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.paper_formulas import expected_tau
from simulate.profiles.profile import load_profile
from simulate.profiles.step_tables import Prefill
from simulate.validation.make_predictions import Material, predict
from simulate.validation.predicted_vs_measured import Comparison, Figures, comparison_record
from simulate.validation.predictions import (
    FormsRecord,
    Predictions,
    Runs,
    acceptance,
    closed_forms,
    draft_s,
    load_predictions,
    save_predictions,
    ways_of,
    whole_runs,
)
from tests.helpers.strategies import drawn_trace
from treeopt.comparison.trees_of_size import parse_sizes, sized_trees
from treeopt.errors import PlanError, UsageError
from treeopt.planning.search_pipeline import search
from treeopt.plans import Choice
from treeopt.replay.static_tree import replay_tree
from treeopt.statistics import CONFIDENCE, Estimate, ratio, share
from treeopt.storage.user_files import shipped
from treeopt.tree import Tree

COST = load_profile(shipped("profiles/medusa-cpu.json"))


def a_trace(requests=30, chance=0.6):
    return drawn_trace([[chance, 0.2, 0.1]], [20] * requests, depth=4, rng=np.random.default_rng(1))


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    trace = a_trace()
    plan = search(trace, COST, batch=(1, 4), compare=sized_trees(parse_sizes("chain:2,best:7"), trace), max_nodes=15)
    forms = closed_forms(plan, trace=trace, cost=COST, weights=(50, 700))
    profile = replace(COST, prefill=Prefill(((8, 0.01),), ((8, 0.02),)))
    whole = whole_runs(plan, trace, profile, Runs({1: (8,), 4: (8,)}, (8,), 20))
    return Predictions(plan, forms, {"trace": "abc"}, whole)


def test_predictions_come_back(predictions, tmp_path):
    path = tmp_path / "p.json"
    save_predictions(predictions, path)
    found = load_predictions(path)
    assert found == predictions
    assert found.sha256 == predictions.sha256 == json.loads(path.read_text())["sha256"]
    # Not how it is laid out, but what it says, is hashed.
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items()))))
    assert load_predictions(path) == predictions


@pytest.mark.parametrize("path", sorted(shipped("validations").glob("*.predictions.json")), ids=lambda path: path.stem)
def test_shipped_predictions_keep_their_hash(path):
    """Though they hold plans of the version before."""
    assert load_predictions(path).sha256 == json.loads(path.read_text())["sha256"]


def numbers_in(value, path=()):
    """Where the numbers of a JSON value stand."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(part, (*path, key))
    elif isinstance(value, float):
        yield path


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_changed_number_is_noticed(predictions, tmp_path_factory, data):
    record = {**json.loads(json.dumps(predictions.record)), "sha256": predictions.sha256}
    *above, last = data.draw(st.sampled_from(list(numbers_in(record))))
    place = record
    for key in above:
        place = place[key]
    place[last] = float(np.nextafter(place[last], np.inf))
    path = tmp_path_factory.mktemp("changed") / "p.json"
    path.write_text(json.dumps(record))
    with pytest.raises(PlanError, match=r"p\.json: was changed after it was written: its `sha256` is"):
        load_predictions(path)


def test_broken_files_are_refused(predictions, tmp_path):
    whole = {**json.loads(json.dumps(predictions.record)), "sha256": predictions.sha256}
    for record, message in (
        (whole | {"more": 1}, "was changed"),
        ({key: value for key, value in whole.items() if key != "sha256"}, "missing required field `sha256`"),
        (whole | {"schema": "treeopt.plan/1"}, "schema must be"),
    ):
        (tmp_path / "p.json").write_text(json.dumps(record))
        with pytest.raises(PlanError, match=message):
            load_predictions(tmp_path / "p.json")


def test_whole_runs_of_a_file_are_compared_with_the_same_runs_alone(predictions):
    runs = Runs({1: (8,), 4: (8,)}, (8,), 20)
    for meta, kept in (({}, {}), ({"runs": runs.record}, predictions.whole)):
        found, _, notes = predict(Material(None, 0, fixed=replace(predictions, meta=meta)), 16, lambda plan: runs)
        assert found.whole == kept
        assert bool(notes) == (not kept)


def test_every_tree_has_one_name_and_forms(predictions):
    for entry in predictions.plan.entries:
        trees = ways_of(entry)
        assert next(iter(trees)) == entry.choice.tree
        assert {choice.name for choice in (entry.choice, *entry.compared) if choice.tree} == {
            name for choice in trees.values() for name in choice.name.split(", ")
        }
        for tree, choice in trees.items():
            form = predictions.forms[entry.batch, tree.id]
            # Eq. 6 by hand: a forward reads 50 of 700.
            assert form.coral == pytest.approx(choice.tau.value / (tree.depth * 50 / 700 + 1))
            assert form.leviathan > 0


def test_acceptance_of_a_chain_is_the_chance_of_its_tokens():
    """With independent tokens Leviathan's tau is the replayed one; the tolerance is five standard errors."""
    trace = a_trace(requests=600, chance=0.7)
    counts = replay_tree(Tree.chain(4), trace)
    alpha = acceptance(counts)
    assert alpha == pytest.approx(0.7, abs=0.05)
    assert expected_tau(alpha=alpha, gamma=4) == pytest.approx(counts.tau, rel=0.05)
    assert acceptance(replay_tree(Tree.chain(1), a_trace(chance=0.0))) == 0


def test_leviathan_s_cost_ratio_is_the_share_of_drafting():
    batch, tree = 2, Tree.chain(3)
    plain = COST.plain_s(batch=batch)
    plan = search(a_trace(), COST, batch=batch, compare={"chain of 3": tree})
    form = closed_forms(plan, trace=a_trace(), cost=COST)[batch, tree.id]
    tau = expected_tau(alpha=acceptance(replay_tree(tree, a_trace())), gamma=3)
    assert form.leviathan == pytest.approx(tau / (1 + draft_s(tree, COST, batch) / plain))
    assert form.coral is None
    assert closed_forms(plan)[batch, tree.id] == FormsRecord(None, None)


TREES = [Tree.chain(n) for n in range(1, 30)]


def figures(speedup: float, half: float) -> Figures:
    return Figures(Estimate(2.0, 1.9, 2.1), 0.01, Estimate(speedup, speedup - half, speedup + half))


def cell(predicted, measured, *, half=0.1, own=0.0, batch=1, number=0, forms=None) -> Comparison:
    return Comparison(
        batch, f"tree {number}", TREES[number], figures(predicted, half), figures(measured, own), 1.0, *(forms or [])
    )


def at_least(successes: int, trials: int, p: float) -> float:
    """P(as many or more)."""
    return math.fsum(comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(successes, trials + 1))


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_of_a_share_is_the_exact_one(counts):
    """Its ends are where the binomial tails hold half of what is left out."""
    successes, trials = counts
    found, tail = share(successes, trials), (1 - CONFIDENCE) / 2
    assert found.value == successes / trials
    assert found.low <= found.value <= found.high
    if successes:
        assert at_least(successes, trials, found.low) == pytest.approx(tail, rel=1e-6)
    else:
        assert found.low == 0
    if successes < trials:
        assert 1 - at_least(successes + 1, trials, found.high) == pytest.approx(tail, rel=1e-6)
    else:
        assert found.high == 1


@pytest.mark.parametrize("counts", [(0, 0), (-1, 3), (4, 3)])
def test_no_share_of_impossible_counts(counts):
    with pytest.raises(UsageError, match="successes"):
        share(*counts)


def test_coverage_counts_what_the_intervals_hold():
    """19 of 20 hold what was measured; what else measuring leaves open is not asked."""
    inside = [cell(2.0, 2.0 + 0.01 * (i - 9), number=i) for i in range(18)]
    edge = cell(1.5, 1.6, half=0.1 + 1e-9, number=18)
    outside = cell(2.0, 2.3, half=0.2, own=0.25, number=19)
    coverage = comparison_record([*inside, edge, outside])["coverage"]
    assert (coverage["nominal"], coverage["cells"]) == (0.95, 20)
    assert (coverage["covered"]["cells"], coverage["covered"]["value"]) == (19, 0.95)
    assert (coverage["covered"]["low"], coverage["covered"]["high"]) == (share(19, 20).low, share(19, 20).high)
    assert [c["covered"] for c in comparison_record([inside[0], outside])["cells"]] == [True, False]


def test_a_run_of_few_requests_strays_as_their_mean_does():
    """The interval made of some requests holds 95 % of runs of others of the same law, whatever their number."""
    rng = np.random.default_rng(0)
    for judged, requests in ((60, 20), (40, 160)):
        held = []
        for _ in range(2000):
            seen, run = rng.gamma(9.0, 0.25, judged), rng.gamma(9.0, 0.25, requests)
            tau = ratio(seen, np.ones(judged))
            choice = Choice("best", TREES[0], tau, 0.01, tau.times(0.5, relative_error=0.03))
            found = Figures.of_run(choice, judged=judged, requests=requests)
            assert found.tau.value == tau.value
            assert found.step_s == 0.01
            held.append(found.tau.low <= run.mean() <= found.tau.high)
            assert found.speedup.relative == pytest.approx(math.hypot(found.tau.relative, 0.03))
        assert np.mean(held) == pytest.approx(0.95, abs=0.015)  # 3 standard errors
    alone = Figures.of_run(choice, judged=0, requests=9)
    assert (alone.tau, alone.step_s) == (choice.tau, 0.01)
    assert asdict(alone.speedup) == pytest.approx(asdict(choice.speedup))


def test_errors_and_those_of_closed_forms():
    cells = [
        cell(2.0, 1.6, forms=[FormsRecord(3.2, None)]),
        cell(0.9, 1.0, number=1, forms=[FormsRecord(1.5, 0.5)]),
    ]
    record = comparison_record(cells)
    assert record["mean_error"] == pytest.approx((0.25 + 0.1) / 2)
    assert record["max_error"] == pytest.approx(0.25)
    assert record["closed_forms"]["leviathan"] == pytest.approx({"cells": 2, "mean_error": 0.75, "max_error": 1.0})
    assert record["closed_forms"]["coral"] == pytest.approx({"cells": 1, "mean_error": 0.5, "max_error": 0.5})
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert comparison_record([cell(1.0, 1.0)])["closed_forms"] == {"leviathan": None, "coral": None}


def test_whole_runs_are_judged_where_they_were_predicted():
    whole = [Estimate(1.5, 1.4, 1.6), Estimate(1.1, 1.0, 1.2)]
    cells = [replace(cell(2.0, 1.6, number=i), end_to_end=1.25, whole=due) for i, due in enumerate([*whole, None])]
    record = comparison_record(cells)
    due = {"cells": 2, "mean_error": (0.2 + 0.12) / 2, "max_error": 0.2, "covered": 0}
    assert record["end_to_end"] == pytest.approx(due)
    assert [c["end_to_end_predicted"] for c in record["cells"]] == [*map(asdict, whole), None]
    held = replace(cells[0], whole=Estimate(1.3, 1.25, 1.35))
    assert comparison_record([held])["end_to_end"]["covered"] == 1
    assert comparison_record(cells[2:])["end_to_end"] is None


def test_the_predicted_best_may_lie_two_percent_behind():
    cells = [
        *(cell(p, m, batch=2, number=i) for i, (p, m) in enumerate([(1.5, 1.4), (1.6, 1.99), (1.4, 2.0)])),
        *(cell(p, m, batch=8, number=i) for i, (p, m) in enumerate([(1.5, 1.4), (1.6, 1.5), (1.4, 1.6)])),
    ]
    first, second = comparison_record(cells)["best"]
    assert (first["batch"], first["predicted"], first["measured"], first["within"]) == (2, "tree 1", "tree 2", True)
    assert first["behind"] == pytest.approx(0.005)
    assert (second["batch"], second["within"]) == (8, False)
    assert second["behind"] == pytest.approx(1 - 1.5 / 1.6)
