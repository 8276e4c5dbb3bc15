"""Steps priced along a walk: a step that proposes nothing is a plain step, a shorter proposal a shorter chain."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from simulate.profiles.profile import BatchTimes, Profile
from simulate.runs.batch_record import run
from treeopt.defaults import HELD_OUT
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.replay.many_trees import Replayer
from treeopt.replay.static_tree import plain_share, replay_tree, step_seconds, upper_levels, visit
from treeopt.results.trace import ENTRY as TRACE
from treeopt.results.trace import describe
from treeopt.terminal import print_blocks
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

DEPTH, REQUESTS, LENGTH = 3, 12, 30
CHAIN_S = {0: 1.0, 1: 1.25, 2: 1.5, 3: 1.75}  # a step of a chain of that length, at batch 1


def profile(batches=(1, 4)):
    times = [
        BatchTimes(batch, 1.0 * batch, ((1, 0.125), (3, 0.375)), ((2, 1.125 * batch), (4, 1.375 * batch)))
        for batch in batches
    ]
    return Profile(tuple(times), (0, 100), 0.02)


def trace(seed=0):
    """A drafter that proposes 0 to 3 tokens, 0 at half of the anchors."""
    rng = np.random.default_rng(seed)
    anchors = REQUESTS * LENGTH
    position = np.tile(np.arange(LENGTH, dtype=np.int32), REQUESTS)
    drafted = np.where(rng.random(anchors) < 0.5, 0, rng.integers(1, DEPTH + 1, anchors)).astype(np.int16)
    rank = np.where(rng.random((anchors, DEPTH)) < 0.7, 0, -1).astype(np.int16)
    rank[np.arange(DEPTH) >= drafted[:, None]] = -1
    rank[position[:, None] + np.arange(DEPTH) >= LENGTH] = -2
    request = np.repeat(np.arange(REQUESTS, dtype=np.int32), LENGTH)
    return Trace(request, position, rank, 2, drafted=drafted)


def slow_mean(tree, recorded):
    """The mean over the walk's steps, one by one."""
    walk = visit(tree, recorded)
    lengths = np.minimum(recorded.drafted[walk.anchors], tree.depth)
    return float(np.mean([CHAIN_S[length] for length in lengths.tolist()]))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_sequence_takes_the_mean_of_its_steps(depth):
    recorded, chain = trace(), Tree.chain(depth)
    counts = replay_tree(chain, recorded)
    assert counts.drafted_counts.sum() == counts.steps.sum()
    found = step_seconds(chain, profile(), batch=1, drafted=counts.drafted_counts)
    assert found == pytest.approx(slow_mean(chain, recorded), rel=1e-12)
    assert found < step_seconds(chain, profile(), batch=1)


def test_a_batch_is_interpolated_at_the_mean_proposal():
    chain, cost, drafted = Tree.chain(3), profile(), np.array([4, 0, 0, 6])
    one, two = (step_seconds(Tree.chain(k), cost, batch=4) for k in (1, 2))
    assert step_seconds(chain, cost, batch=4, drafted=drafted) == pytest.approx(0.2 * one + 0.8 * two)
    assert step_seconds(chain, cost, batch=4, drafted=np.array([5, 0, 0, 0])) == cost.plain_s(batch=4)
    whole = step_seconds(chain, cost, batch=4, drafted=np.array([0, 0, 0, 5]))
    assert whole == step_seconds(chain, cost, batch=4)


def test_always_drafting_all_costs_what_no_record_costs():
    recorded = trace()
    rank = np.where(recorded.rank == -2, -2, 0).astype(np.int16)
    always = replace(recorded, rank=rank, drafted=np.full(recorded.anchors, DEPTH, dtype=np.int16))
    plans = [search(part, profile(), batch=(1, 4)) for part in (always, replace(always, drafted=None))]
    assert plans[0].entries == plans[1].entries
    assert len(plans[0].warnings) == len(plans[1].warnings) + 1


def test_the_counts_do_not_depend_on_how_walks_are_replayed():
    recorded, chain = trace(), Tree.chain(2)
    fast, slow = Replayer(recorded, Tree.chain(3)).replay(chain), replay_tree(chain, recorded)
    for name in ("steps", "committed", "accepted_counts", "drafted_counts"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name))
    assert replay_tree(chain, replace(recorded, drafted=None)).drafted_counts is None
    assert plain_share(None) == 0
    assert plain_share(slow.drafted_counts) == np.mean(recorded.drafted[visit(chain, recorded).anchors] == 0)


def test_a_tree_is_cut_to_its_upper_levels():
    tree = Tree.from_paths([(0, 1), (2, 0), (2, 1)])
    assert upper_levels(tree, 1) == Tree.from_paths([(0,), (2,)])
    assert upper_levels(tree, 2) == tree


def test_search_and_a_run_agree():
    """Plan and simulated run price the same walk."""
    recorded, cost = trace(), profile()
    plan = search(recorded, cost, batch=1, near=0.0)
    (entry,) = plan.entries
    tree = entry.choice.tree
    fit, held = hold_out(recorded, held_out=HELD_OUT, seed=0)
    assert entry.choice.step_s == pytest.approx(slow_mean(tree, fit), rel=1e-12)
    share = np.mean(held.drafted[visit(tree, held).anchors] == 0)
    assert f"batch 1: nothing is drafted in {share:.1%} of the steps of the chosen tree" in " ".join(plan.warnings)
    for batch in (1, 4):
        timeline = run(recorded, Tree.chain(3), profile((1, 2, 3, 4)), batch=batch, fixed_shape=True)
        counts = replay_tree(Tree.chain(3), recorded)
        step_s = step_seconds(Tree.chain(3), cost, batch=batch, drafted=counts.drafted_counts)
        total_s = float(timeline.step_s.sum())
        assert total_s == pytest.approx(len(timeline.step_s) * step_s, rel=1e-9)


def test_trace_info_prints_how_often_nothing_is_proposed(capsys):
    recorded = trace()
    facts, walk = describe(recorded)["drafted"], visit(Tree.chain(3), recorded)
    assert facts == {
        "mean": round(float(recorded.drafted.mean()), 4),
        "nothing": round(float((recorded.drafted == 0).mean()), 4),
        "nothing_in_steps": round(float((recorded.drafted[walk.anchors] == 0).mean()), 4),
    }
    print_blocks(TRACE.blocks(recorded), Console(width=200), verbose=True)
    assert f"none at {facts['nothing']:.1%} of positions" in capsys.readouterr().out
    assert "drafted" not in describe(replace(recorded, drafted=None))
