"""Replay against a walker written anew, step by step, and against closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, traces, trees, with_lengths
from treeopt.errors import TraceError
from treeopt.replay.static_tree import accepted_lengths, replay_tree, visit
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


def slow_accepted(tree: Tree, trace: Trace, anchor: int) -> int:
    """Length of the longest node of the tree that the ranks at an anchor start with."""
    ranks = trace.rank[anchor].tolist()
    return max((len(path) for path in tree.paths if list(path) == ranks[: len(path)]), default=0)


def slow_walk(tree: Tree, trace: Trace) -> list[list[tuple[int, int, int]]]:
    """Of each request its steps: (anchor, accepted, tokens emitted), the last one cut where the text ends."""
    found, first = [], 0
    for number in sorted(set(trace.request.tolist())):
        length = trace.request.tolist().count(number)
        steps, here = [], 0
        while here < length:
            accepted = slow_accepted(tree, trace, first + here)
            steps.append((first + here, accepted, min(accepted + 1, length - here)))
            here += accepted + 1
        found.append(steps)
        first += length
    return found


@st.composite
def trees_on_traces(draw):
    """A trace and a tree that it can judge."""
    trace = draw(traces())
    return draw(trees(width=trace.width, depth=trace.depth)), trace


@given(trees_on_traces())
@settings(max_examples=examples(400))
def test_replay_equals_the_slow_walker(case):
    tree, trace = case
    requests = slow_walk(tree, trace)
    steps = [(anchor, accepted, r) for r, each in enumerate(requests) for anchor, accepted, _ in each]

    found = visit(tree, trace)
    triples = zip(found.anchors.tolist(), found.accepted.tolist(), found.request.tolist(), strict=True)
    assert list(triples) == steps

    counts = replay_tree(tree, trace)
    assert counts.steps.tolist() == [len(each) for each in requests]
    assert counts.committed.tolist() == [sum(tokens for *_, tokens in each) for each in requests]
    due = [sum(kept == accepted for _, kept, _ in steps) for accepted in range(tree.depth + 1)]
    assert counts.accepted_counts.tolist() == due
    assert accepted_lengths(tree, trace).tolist() == [slow_accepted(tree, trace, i) for i in range(trace.anchors)]
    assert counts.tau == pytest.approx(trace.anchors / len(steps), rel=1e-15)


@given(trees(width=6, depth=6, min_nodes=1), traces())
def test_trees_that_the_trace_cannot_judge_are_refused(tree, trace):
    if tree.depth > trace.depth:
        message = f"the tree has depth {tree.depth}, the trace records depth {trace.depth}"
    elif max(tree.ranks) >= trace.width:
        message = f"the tree uses rank {max(tree.ranks)}, the trace records ranks below {trace.width}"
    else:
        assert replay_tree(tree, trace).steps.min() >= 1
        return
    for judge in (replay_tree, visit, accepted_lengths):
        with pytest.raises(TraceError, match=message):
            judge(tree, trace)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 1023, 1024, 1025])
def test_lengths_around_powers_of_two(length):
    # The walk is found by doubling: one round too few shows here.
    trace = with_lengths(np.full((length + 3, 1), -1), [length, 3], width=1)
    assert visit(Tree.chain(1), trace).anchors.tolist() == list(range(length + 3))


def test_a_request_of_50_000_anchors():
    trace = drawn_trace([[0.6, 0.2]], [50_000], depth=3, rng=np.random.default_rng(20240607))
    tree = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0)])
    nodes, ranks = set(tree.paths), trace.rank.tolist()
    here, anchors = 0, []
    while here < trace.anchors:
        anchors.append(here)
        here += 1 + max((k for k in range(1, 4) if tuple(ranks[here][:k]) in nodes), default=0)
    assert visit(tree, trace).anchors.tolist() == anchors
    missing = with_lengths(np.full((50_000, 1), -1), [50_000], width=1)
    assert replay_tree(Tree.chain(1), missing).steps.tolist() == [50_000]


@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 2), (0.8, 4), (0.9, 6)])
def test_independent_acceptance_gives_leviathans_tau(alpha, gamma):
    # Ranks at a visited anchor are independent of the walk so far, so steps are independent and tau is
    # (1 - a^(g+1)) / (1 - a) (Leviathan et al. 2023, eq. 1). Tolerance five standard errors: false-alarm
    # probability 6e-7, with a fixed seed.
    trace = drawn_trace([[alpha]], [60_000], depth=gamma, rng=np.random.default_rng(1))
    steps = visit(Tree.chain(gamma), trace)
    error = steps.accepted.std() / math.sqrt(len(steps.accepted))
    assert replay_tree(Tree.chain(gamma), trace).tau == pytest.approx(
        (1 - alpha ** (gamma + 1)) / (1 - alpha), abs=5 * error
    )
