"""Trees of given sizes: the best one against every tree of that size."""

from itertools import combinations, product
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import traces
from treeopt.comparison.trees_of_size import USUAL, Size, parse_sizes, sized_trees
from treeopt.errors import UsageError
from treeopt.replay.static_tree import accepted_lengths
from treeopt.tree import Tree


def test_usual_sizes():
    assert parse_sizes("chain:2,chain:4,best:7,best:15,best:31,best:63") == USUAL
    assert [size.nodes for size in USUAL] == [2, 4, 7, 15, 31, 63]
    assert parse_sizes("best:3, best:3") == (Size("best", 3),)


@pytest.mark.parametrize("text", ["", "chain", "chain:0", "tree:3", "chain:2,,best:3", "chain:²"])
def test_sizes_without_meaning(text):
    with pytest.raises(UsageError, match="chain:N or best:N"):
        parse_sizes(text)


def trees_of_size(nodes: int, width: int, depth: int):
    paths = [path for d in range(1, depth + 1) for path in product(range(width), repeat=d)]
    for chosen in combinations(paths, nodes):
        if all(path[:-1] in chosen for path in chosen if len(path) > 1):
            yield Tree.from_paths(chosen)


@settings(max_examples=40, deadline=None)
@given(traces(requests=(1, 8), length=1, depth=2, width=3), st.data())
def test_at_one_position_the_best_tree_keeps_most(trace, data):
    """Where each request is one position there is no walk, and all trees can be tried; counts are not shrunk."""
    nodes = data.draw(st.integers(1, trace.width))
    with mock.patch("treeopt.comparison.trees_of_size.fit_strength", return_value=0.0):
        tree = sized_trees([Size("best", nodes)], trace)[f"best tree of {nodes}"]
    every = trees_of_size(nodes, trace.width, trace.depth)
    most = max(int(accepted_lengths(other, trace).sum()) for other in every)
    assert int(accepted_lengths(tree, trace).sum()) == most


@settings(max_examples=25, deadline=None)
@given(traces(length=8, depth=3), st.integers(2, 6))
def test_only_covered_trees_are_taken_where_there_are_any(trace, nodes):
    found = sized_trees([Size("best", nodes), Size("chain", 2)], trace, covered=lambda tree: tree.depth <= 1)
    assert list(found) == [f"best tree of {nodes}", "chain of 2"]
    assert found["chain of 2"] == Tree.chain(2)
    assert found[f"best tree of {nodes}"].depth == 1
    assert found[f"best tree of {nodes}"].nodes <= nodes
    none = sized_trees([Size("best", nodes)], trace, covered=lambda tree: False)
    assert none == sized_trees([Size("best", nodes)], trace)
