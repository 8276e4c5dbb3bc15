"""Closed parts of a pool against all parts, and what nodes save against its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.helpers.strategies import traces, trees
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import LATENCY, THROUGHPUT
from treeopt.replay.static_tree import accepted_lengths, visit
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.renewal_local_search import ClosedParts, Saved
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


def all_parts(pool: Tree) -> np.ndarray:
    """Every closed part of a small pool, bool (n, C)."""
    parts = (np.arange(2**pool.nodes)[:, None] >> np.arange(pool.nodes)) % 2 == 1
    above = np.array(pool.parents, dtype=int)
    closed = ~parts | np.concatenate([parts, np.ones((len(parts), 1), bool)], axis=1)[:, above]
    return parts[closed.all(axis=1)]


@st.composite
def valued(draw):
    """A pool of at most 12 nodes and whole numbers for values, so that ties occur and sums are exact."""
    pool = draw(trees(width=3, depth=4, paths=5).filter(lambda tree: tree.nodes <= 12))
    value = st.integers(-5, 9).map(float)
    rows = draw(st.lists(st.lists(value, min_size=pool.nodes, max_size=pool.nodes), min_size=1, max_size=3))
    return pool, np.array(rows).reshape(len(rows), pool.nodes)


# --- closed parts


@given(valued(), st.integers(0, 13))
@settings(max_examples=examples(500))
def test_the_part_is_the_most_valuable_of_all(case, nodes):
    pool, values = case
    parts = all_parts(pool)
    parts = parts[parts.sum(axis=1) <= nodes]
    found = ClosedParts(pool).fill(values, nodes=nodes)
    for row, part in zip(values, found, strict=True):
        assert (parts == part).all(axis=1).any()
        assert part @ row == (parts @ row).max()


@given(traces(length=15), st.integers(0, 8))
def test_frequencies_give_the_most_frequent_prefixes(trace, nodes):
    frontier = count_prefixes(trace, nodes=20, depth=trace.depth)
    pool = frontier.tree(20, trace.depth)
    times = Replayer(trace, pool).times()
    ranks = trace.rank.tolist()
    assert times.tolist() == [sum(row[: len(path)] == list(path) for row in ranks) for path in pool.paths]
    part = ClosedParts(pool).fill(times[None].astype(float), nodes=nodes)[0]
    assert 1 + part @ times / trace.anchors == pytest.approx(frontier.tokens(trace.depth)[: nodes + 1][-1])


def test_values_that_bar_nodes():
    pool = Tree.from_paths([(0, 0), (1,)])
    found = ClosedParts(pool).fill(np.array([[-np.inf, 1.0, 9.0]]), nodes=3)
    assert found.tolist() == [[False, True, False]]


# --- what nodes save


def slow_saved(trace: Trace, pool: Tree, tree: Tree, price: np.ndarray) -> np.ndarray:
    """Σ over visited anchors whose text starts with the node, of price · (V(t + d) − V(t + d + 1)); and over all."""
    accepted, stops = accepted_lengths(tree, trace), trace.stops[trace.request_index]

    def left(anchor: int, stop: int) -> int:
        return 0 if anchor >= stop else 1 + left(anchor + int(accepted[anchor]) + 1, stop)

    visited = set(visit(tree, trace).anchors.tolist())
    found = np.zeros((2, pool.nodes))
    for node, path in enumerate(pool.paths):
        for t in range(trace.anchors):
            if tuple(trace.rank[t, : len(path)].tolist()) == path:
                saved = left(t + len(path), stops[t]) - left(t + len(path) + 1, stops[t])
                found[:, node] += price[trace.request_index[t]] * saved * np.array([t in visited, 1])
    return found


@given(traces(length=12), st.data())
@settings(max_examples=examples(150))
def test_saved_steps_are_those_of_the_definition(trace, data):
    pool = data.draw(trees(width=trace.width, depth=trace.depth, paths=8, min_nodes=1))
    tree = data.draw(st.sets(st.sampled_from(pool.paths)).map(Tree.from_paths))
    objective = data.draw(st.sampled_from([THROUGHPUT, LATENCY]))
    replayer = Replayer(trace, pool)
    prices = objective.prices(trace)
    saved = Saved(replayer, prices, replayer.replay(tree).steps)
    here, anywhere = saved.under(replayer.chosen(tree))
    due, due_anywhere = slow_saved(trace, pool, tree, prices[0])
    assert here.sum(axis=0) == pytest.approx(due, abs=1e-12)
    share = replayer.replay(tree).steps.sum() / trace.anchors
    assert anywhere.sum(axis=0) == pytest.approx(share * due_anywhere, abs=1e-12)


@given(traces(length=12, requests=(2, 6)), st.data())
def test_groups_have_the_steps_a_token_of_their_requests(trace, data):
    tree = data.draw(trees(width=trace.width, depth=trace.depth))
    replayer = Replayer(trace, tree)
    steps = replayer.replay(tree).steps
    saved = Saved(replayer, THROUGHPUT.prices(trace), steps)
    pace = steps / trace.lengths
    assert len(saved.row) == len(saved.steps_per_token) <= 4
    assert pace.min() - 1e-12 <= saved.steps_per_token.min() <= saved.steps_per_token.max() <= pace.max() + 1e-12
    assert (saved.row == 0).all()
