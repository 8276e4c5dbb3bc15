"""Trees under rules against all trees there are that keep them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.pools import all_trees, pool_of, pools
from tests.helpers.rules import SOURCE, rules
from tests.helpers.slow_params import examples
from tests.helpers.strategies import traces
from tests.treeopt.searchers.constrained_trees.test_knapsack import completed
from treeopt.constraints import (
    ChainOnly,
    ChildrenAtMost,
    Constraint,
    ContiguousRanks,
    DepthAtLeast,
    ExpandPrefix,
    FullTree,
    LevelsAtMost,
    RanksBelow,
    SizesAmong,
    UniformBranching,
    broken,
    joined,
)
from treeopt.errors import EngineError, UsageError
from treeopt.searchers.constrained_trees.choose_method import Fitting, fitting
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.tree import Path, Tree


def possible(values: dict[Path, float], chosen: list[Constraint], nodes: int, depth: int) -> dict[Tree, float]:
    """Every tree of the pool, and of what the rules require beside it, that keeps the rules; with its value."""
    limits = joined(chosen)
    depth = min(depth, limits.depth)
    if limits.uniform:
        widest = 1 + max(max(path) for path in values)
        shapes = [shape for length in range(1, depth + 1) for shape in product(range(1, widest + 1), repeat=length)]
        trees = [Tree.cartesian(shape) for shape in shapes if sum(np.cumprod(shape)) <= nodes]
        if max(map(len, values)) < depth:
            trees = [tree for tree in trees if tree.depth <= max(map(len, values))]
    else:
        ranks = min(limits.ranks, limits.children) if limits.contiguous else limits.ranks
        inside = {path: value for path, value in values.items() if len(path) <= depth and max(path) < ranks}
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
        assert found.branching[i] == max(np.bincount(np.array(tree.parents) + 1))
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
    "ranks": [RanksBelow(2, SOURCE)],
    "chain": [ChainOnly(SOURCE)],
    "contiguous": [ContiguousRanks(SOURCE)],
    "hydra": [RanksBelow(2, SOURCE), ContiguousRanks(SOURCE), ExpandPrefix(SOURCE)],
    "few children, contiguous": [ChildrenAtMost(2, SOURCE), ContiguousRanks(SOURCE)],
    "sizes": [SizesAmong((1, 3, 6), SOURCE)],
    "deep enough": [DepthAtLeast(2, SOURCE)],
    "uniform": [UniformBranching(SOURCE)],
    "uniform of captured sizes": [UniformBranching(SOURCE), SizesAmong((2, 5, 6), SOURCE)],
    "full": [FullTree(SOURCE)],
}


@pytest.mark.parametrize("family", FAMILIES)
@given(values=pools(nodes=7, falling=True), nodes=st.integers(1, 7), depth=st.integers(1, 3))
@settings(max_examples=examples(200))
def test_these_families_are_exact(family, values, nodes, depth):
    chosen = FAMILIES[family]
    due = possible(values, chosen, nodes, depth)
    limits = joined(chosen)
    if nodes < min(limits.sizes or {1}) or min(nodes, depth) < limits.min_depth:
        with pytest.raises(EngineError):
            fitting(pool_of(values), chosen, nodes=nodes, depth=depth)
        return
    found = fitting(pool_of(values), chosen, nodes=nodes, depth=depth)
    assert found.exact or limits.min_depth > 1  # a path may be made longer by nodes that are worth nothing
    check(found, values, due)


@pytest.mark.parametrize(
    "rule", [LevelsAtMost((2, 2, 1), SOURCE), ChildrenAtMost(1, SOURCE)], ids=lambda rule: rule.name
)
def test_what_growing_under_caps_loses_is_small(rule):
    """Of 100 pools: grown trees of 5 nodes against the best, one at a time and in the mean."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(100):
        values: dict[Path, float] = {}
        for path in (path for length in (1, 2, 3) for path in product(range(2), repeat=length)):
            values[path] = values.get(path[:-1], 1.0) * rng.random()
        due = possible(values, [rule], 5, 3)
        found = fitting(pool_of(values), [rule], nodes=5, depth=3)
        nodes = int(found.nodes.max())
        best = max(1 + value for tree, value in due.items() if tree.nodes == nodes)
        shares.append(found.tokens[found.nodes == nodes].max() / best)
    assert min(shares) > 0.7
    assert np.mean(shares) > 0.97


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
    rules = [RanksBelow(5, "a.py"), DepthAtLeast(4, "b.py"), ContiguousRanks("c.py")]
    with pytest.raises(EngineError) as caught:
        fitting(pool, rules, nodes=7, depth=3)
    assert str(caught.value) == (
        "no tree of at most 7 nodes and depth 3 keeps the rule `depth at least 4` (b.py) beside `ranks below 5`"
    )
    with pytest.raises(EngineError, match=r"keeps the rule `4 or 8 nodes` \(graphs\)$"):
        fitting(pool, [SizesAmong((4, 8), "graphs")], nodes=3, depth=3)
    with pytest.raises(EngineError, match="`4 or 8 nodes`"):
        fitting(pool, [SizesAmong((4, 8), "graphs")], nodes=63, depth=1, width=3)
    with pytest.raises(UsageError, match="width"):
        fitting(pool, [], nodes=3, depth=3, width=0)


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [(SizesAmong((3,), "graphs"), {3}), (DepthAtLeast(3, "a.py"), {3, 4})],
    ids=lambda rule: str(rule),
)
def test_nodes_without_value_fill_up_what_a_rule_requires(rule, sizes):
    found = fitting(pool_of({(0,): 0.5, (1,): 0.25}), [rule], nodes=4, depth=3)
    assert set(found.nodes.tolist()) == sizes
    assert found.tokens.max() == 1.75


@pytest.mark.parametrize(("nodes", "depth"), [(0, 1), (1, 0)])
def test_sizes_without_meaning_are_refused(nodes, depth):
    with pytest.raises(UsageError, match=f"got {nodes} and {depth}"):
        fitting(pool_of({(0,): 0.5}), [], nodes=nodes, depth=depth)
