"""Predictions and their hash; closed forms from a trace and step times."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.paper_formulas import expected_tau
from simulate.profiles.profile import load_profile
from simulate.profiles.step_tables import Prefill
from simulate.validation.make_predictions import Material, predict
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
from treeopt.errors import PlanError
from treeopt.planning.search_pipeline import search
from treeopt.replay.static_tree import replay_tree
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
