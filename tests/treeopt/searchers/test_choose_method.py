"""Trees under rules against all trees there are that keep them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.pools import all_trees, pool_of, pools
from tests.helpers.rules import SOURCE, rules
from tests.helpers.slow_params import examples
from tests.helpers.strategies import traces
from tests.treeopt.searchers.test_knapsack import completed
from treeopt.constraints import (
    Constraint,
    broken,
    chains_only,
    contiguous_ranks,
    depth_at_least,
    joined,
    nodes_at_most,
    ranks_below,
)
from treeopt.errors import EngineError
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.choose_method import Fitting, fitting
from treeopt.tree import Path, Tree


def possible(values: dict[Path, float], chosen: list[Constraint], nodes: int, depth: int) -> dict[Tree, float]:
    """Every tree of the pool, and of what the rules require beside it, that keeps the rules; with its value."""
    limits = joined(chosen)
    depth = min(depth, limits.depth)
    inside = {path: value for path, value in values.items() if len(path) <= depth and max(path) < limits.ranks}
    trees = [Tree.from_paths(paths) for paths in all_trees(list(completed(inside, limits)), nodes)]
    kept = [tree for tree in trees if tree.nodes and broken(tree, chosen) is None]
    return {tree: sum(values.get(path, 0.0) for path in tree.paths) for tree in kept}


def check(found: Fitting, values: dict[Path, float], due: dict[Tree, float]) -> None:
    """Options are what they say, keep the rules, and where that is claimed none of their size and depth is better.

    Trees with nodes that are worth nothing are left out where no rule asks for them: a smaller tree is as good.
    """
    best: dict[tuple[int, int], float] = {}
    for i in range(len(found.tokens)):
        tree = found.tree(i)
        assert found.nodes[i] == tree.nodes
        assert tuple(found.widths[i].tolist()[: tree.depth]) == tree.fed_widths
        assert not found.widths[i, tree.depth :].any()
        assert found.tokens[i] == pytest.approx(1 + sum(values.get(path, 0.0) for path in tree.paths), rel=1e-12)
        for cap in range(tree.depth, 9):
            best[tree.nodes, cap] = max(best.get((tree.nodes, cap), 0.0), float(found.tokens[i]))
    if found.exact:
        for tree, value in due.items():
            smaller = [best.get((size, tree.depth), 0.0) for size in range(tree.nodes + 1)]
            assert max(smaller) >= 1 + value - 1e-12


@given(pools(nodes=6), rules, st.integers(1, 7), st.integers(1, 4))
@settings(max_examples=examples(600))
def test_no_tree_that_keeps_the_rules_is_better(values, chosen, nodes, depth):
    pool = pool_of(values)
    due = possible(values, chosen, nodes, depth)
    try:
        found = fitting(pool, chosen, nodes=nodes, depth=depth)
    except EngineError as error:
        assert not due
        assert any(f"`{rule.name}`" in str(error) for rule in chosen)  # noqa: PT017
        return
    check(found, values, due)


FAMILIES: dict[str, list[Constraint]] = {
    "none": [],
    "ranks": [ranks_below(2, SOURCE)],
    "nodes": [nodes_at_most(4, SOURCE)],
    "chain": [chains_only(SOURCE)],
    "long chain": [chains_only(SOURCE), depth_at_least(2, SOURCE)],
    "contiguous": [contiguous_ranks(SOURCE)],
}


@pytest.mark.parametrize("family", FAMILIES)
@given(values=pools(nodes=7, falling=True), nodes=st.integers(1, 7), depth=st.integers(1, 3))
@settings(max_examples=examples(200))
def test_these_families_are_exact(family, values, nodes, depth):
    chosen = FAMILIES[family]
    due = possible(values, chosen, nodes, depth)
    limits = joined(chosen)
    if min(nodes, depth) < limits.min_depth:
        with pytest.raises(EngineError):
            fitting(pool_of(values), chosen, nodes=nodes, depth=depth)
        return
    found = fitting(pool_of(values), chosen, nodes=nodes, depth=depth)
    assert found.exact
    check(found, values, due)


@given(traces(length=40, width=5), st.integers(1, 20))
def test_without_rules_it_is_the_most_frequent_prefixes(trace, nodes):
    frontier = count_prefixes(trace, nodes=nodes, depth=trace.depth)
    found = fitting(frontier, [], nodes=nodes, depth=trace.depth)
    assert found.exact
    if len(frontier.value) == 0:
        assert set(found.tokens.tolist()) == {1.0}
        return
    for i in range(len(found.tokens)):
        tree = found.tree(i)
        assert tree == frontier.tree(tree.nodes, tree.depth)
        assert found.tokens[i] == pytest.approx(frontier.tokens(tree.depth)[tree.nodes], rel=1e-12)


# --- refusals


def test_the_rule_that_cannot_be_kept_is_named():
    pool = pool_of({(0,): 0.5, (1,): 0.25})
    rules = [ranks_below(5, "a.py"), depth_at_least(4, "b.py"), contiguous_ranks("c.py")]
    with pytest.raises(EngineError) as caught:
        fitting(pool, rules, nodes=7, depth=3)
    assert str(caught.value) == (
        "no tree of at most 7 nodes and depth 3 keeps the rule `depth at least 4` (b.py) beside `ranks below 5`"
    )


def test_nodes_without_value_reach_the_depth_that_a_rule_requires():
    rules = [chains_only(SOURCE), depth_at_least(3, "a.py")]
    found = fitting(pool_of({(0,): 0.5, (1,): 0.25}), rules, nodes=4, depth=4)
    assert [found.tree(i) for i in range(len(found.tokens))] == [Tree.chain(3)]
    assert (found.tokens.tolist(), found.exact) == ([1.5], True)
