"""Profiles and validations of a tiny model: their structure and arithmetic, never how long anything took."""

import numpy as np
import pytest

from executor.measure import PLAIN, Times, _batch_times, grid, measure_profile
from executor.prompts import Prompt
from executor.record import collect
from executor.validate import checked, compare, comparison_record
from tests.models import random_heads, random_prompts, small_target
from treeopt.cost import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.optimize import search
from treeopt.tree import Tree
from treeopt.walk import replay


@pytest.fixture(scope="module")
def models():
    return small_target(), random_heads()


@pytest.fixture(scope="module")
def profile(models):
    prompts = random_prompts([5] * 8)
    return measure_profile(*models, prompts, batches=(2, 1), max_nodes=15, new_tokens=12, rounds=2, steps=3)


def test_profile_covers_what_was_asked(profile):
    assert [times.batch for times in profile.batches] == [1, 2]
    assert profile.context == (5, 17)
    for batch in (1, 2):
        for tree in (Tree.chain(1), Tree.chain(5), Tree.from_paths([(r,) for r in range(15)])):
            assert profile.step_s([StepShape.of(tree, batch=batch)])[0] > 0
    with pytest.raises(CostError, match="tokens 17 at batch 1: the profile measured tokens 2 to 16"):
        profile.step_s([StepShape.of(Tree.from_paths([(r,) for r in range(16)]), batch=1)])
    assert profile.meta["drafter"] == {
        "kind": "medusa",
        "heads": 5,
        "weights": profile.meta["drafter"]["weights"],
    }


def test_grid_reaches_every_size_and_depth():
    trees = grid(63, 5)
    assert max(tree.nodes for tree in trees) == 63
    assert {tree.depth for tree in trees} >= {1, 2, 3, 4, 5}
    assert len(set(trees)) == len(trees)
    assert max(tree.depth for tree in grid(63, 2)) == 2
    assert max(tree.nodes for tree in grid(7, 5)) == 7


def test_tables_are_medians_by_size_and_depth():
    def times(draft: float, rest: float) -> Times:
        found = Times()
        for shift in (0.0, 5.0, 0.1):  # one outlying block
            found.draft_s.append([draft + shift] * 3)
            found.rest_s.append([rest + shift] * 3)
        return found

    table = _batch_times(
        3,
        {
            PLAIN: times(0.0, 1.0),
            Tree.chain(1): times(0.5, 2.0),
            Tree.chain(2): times(0.7, 3.0),
            Tree.from_paths([(0,), (1,)]): times(0.3, 5.0),
        },
    )
    assert table.batch == 3
    assert table.plain_s == pytest.approx(1.2)
    assert table.draft == ((1, pytest.approx(0.5)), (2, pytest.approx(0.8)))
    assert table.rest == ((2, pytest.approx(2.1)), (3, pytest.approx(4.1)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batches": (0,)}, "batch sizes must be at least 1"),
        ({"batches": ()}, "batch sizes must be at least 1"),
        ({"batches": (9,)}, "batch 9 needs as many prompts, got 8"),
        ({"batches": (1,), "max_nodes": 64}, "max-nodes must be in 1..63"),
        ({"batches": (1,), "rounds": 1}, "at least 2 rounds"),
    ],
)
def test_settings_without_meaning(models, settings, message):
    with pytest.raises(UsageError, match=message):
        measure_profile(*models, random_prompts([5] * 8), **settings)


def test_validation_measures_what_the_plan_names(models, profile):
    target, heads = models
    tokens = random_prompts([6] * 40, seed=4)
    trace = collect(target, heads, [Prompt("x")] * 24, tokens[:24], new_tokens=12, width=12)
    plan = search(trace, profile, batch=(1, 2), max_nodes=15)
    fresh = tokens[24:]
    cells = compare(target, heads, plan, fresh, new_tokens=12, blocks=4)
    assert [cell.batch for cell in cells] == [1, 1, 1, 2, 2, 2] or {c.batch for c in cells} == {1, 2}
    again = collect(target, heads, [Prompt("x")] * 16, fresh, new_tokens=12, width=12)
    for cell in cells:
        counts = replay(cell.tree, again)
        assert cell.measured.tau.value == pytest.approx(counts.tau)  # live tau is the replay of these prompts
        entry = plan.entries[[e.batch for e in plan.entries].index(cell.batch)]
        assert checked(entry)[cell.tree].speedup == cell.predicted.speedup
        assert cell.error == pytest.approx(cell.predicted.speedup.value / cell.measured.speedup.value - 1)
        assert cell.end_to_end > 0
    record = comparison_record(cells)
    errors = [abs(cell.error) for cell in cells]
    assert record["mean_error"] == pytest.approx(np.mean(errors))
    assert record["max_error"] == pytest.approx(max(errors))
    with pytest.raises(UsageError, match="4 blocks at batch 2 need at least 16 prompts, got 15"):
        compare(target, heads, plan, fresh[:15], blocks=4)
