"""Dynamic programmes against all trees there are, against best-first where that is exact too, and by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.pools import all_trees, pool_of, pools
from tests.helpers.rules import kept
from tests.helpers.slow_params import examples
from treeopt.constraints import Limits
from treeopt.errors import TreeError
from treeopt.searchers.choose_method import Nodes, select
from treeopt.tree import Path, Tree

ORDERS = {"any": Limits(), "contiguous": Limits(contiguous=True)}


def completed(values: dict[Path, float], limits: Limits) -> dict[Path, float]:
    """Values with 0 for all paths that the rules can require."""
    every = dict(values)
    for path in values if limits.contiguous else ():
        for length in range(1, len(path) + 1):
            better = [(*path[: length - 1], rank) for rank in range(path[length - 1])]
            every.update({one: 0.0 for one in better if one not in every})
    return every


@pytest.mark.parametrize("order", ORDERS)
@given(values=pools(nodes=6, width=3), size=st.integers(0, 7), depth=st.integers(1, 4))
@settings(max_examples=examples(300))
def test_no_tree_of_any_size_and_depth_is_better(order, values, size, depth):
    limits = ORDERS[order]
    nodes = Nodes.of(pool_of(values), limits, depth=depth)
    value, taken = select(nodes, limits, size=size, depth=depth)
    assert value.shape == (depth, size + 1)
    every = completed(values, limits) if limits != Limits() else values
    best = np.full((depth, size + 1), -np.inf)
    for paths in all_trees(list(every), size):
        tree = Tree.from_paths(paths)
        if kept(limits, tree):
            total = sum(every[path] for path in paths)
            caps = slice(max(tree.depth, 1) - 1, None)
            best[caps, tree.nodes] = np.maximum(best[caps, tree.nodes], total)
    np.testing.assert_array_equal(value, best)  # sixteenths add up exactly
    for cap in range(depth):
        for count in range(size + 1):
            tree = nodes.tree(taken[:, cap, count])
            if np.isfinite(best[cap, count]):
                assert tree.nodes == count
                assert tree.depth <= cap + 1
                assert kept(limits, tree)
                assert sum(every[path] for path in tree.paths) == best[cap, count]
            else:
                assert tree.nodes == 0


# --- nodes


@given(pools(nodes=12), st.sampled_from(list(ORDERS)), st.integers(1, 4), st.integers(1, 12), st.integers(1, 3))
def test_nodes_stand_in_one_order_with_what_they_require(values, order, depth, most, ranks):
    limits = replace(ORDERS[order], ranks=ranks)
    pool = pool_of(values)
    nodes = Nodes.of(pool, limits, depth=depth, most=most)
    every = nodes.tree(np.ones(len(nodes.value), dtype=bool))  # raises unless the order is breadth-first
    assert kept(limits, every)
    assert every.depths == tuple(nodes.depth.tolist())
    assert all(len(path) <= depth for path in every.paths)
    due = [path for path in pool.paths if len(path) <= depth and max(path) < ranks]
    chosen = {path for path, known in zip(every.paths, nodes.known, strict=True) if known}
    assert chosen == set(due[:most])
    for path, value in zip(every.paths, nodes.value, strict=True):
        assert value == (values[path] if path in chosen else 0)
    assert nodes.beyond == max((values[path] for path in due[most:]), default=0)
    for node in range(-1, len(nodes.value)):
        start, end = nodes.first[node + 1 : node + 3]
        assert np.flatnonzero(nodes.parent == node).tolist() == list(range(start, end))


def test_a_pool_that_was_cut_off_says_what_may_be_missing():
    pool = pool_of({(0,): 0.5, (1,): 0.25, (0, 0): 0.125}, limit=2)
    assert Nodes.of(pool, Limits(), depth=2).beyond == 0.25


@given(pools(nodes=9), st.integers(1, 6))
def test_fed_widths_are_those_of_the_trees(values, size):
    nodes = Nodes.of(pool_of(values), Limits(), depth=3)
    taken = select(nodes, Limits(), size=size, depth=3)[1].reshape(len(nodes.value), -1)
    fed = nodes.fed_widths(taken)
    for column, row in zip(taken.T, fed.tolist(), strict=True):
        due = nodes.tree(column).fed_widths
        assert row == [*due, *[0] * (len(row) - len(due))]


def test_a_node_without_its_parent_is_no_tree():
    nodes = Nodes.of(pool_of({(0,): 1.0, (0, 0): 0.5}), Limits(), depth=2)
    with pytest.raises(TreeError):
        nodes.tree(np.array([False, True]))
