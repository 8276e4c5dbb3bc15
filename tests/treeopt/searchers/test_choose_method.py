"""Dynamic and integer programmes against all trees there are that keep the rules, with costs of every kind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.pools import all_trees, pool_of, pools
from tests.helpers.rules import SOURCE, kept, rules
from tests.helpers.slow_params import examples
from tests.helpers.strategies import traces
from treeopt.constraints import (
    Constraint,
    Limits,
    broken,
    chains_only,
    contiguous_ranks,
    depth_at_least,
    depth_at_most,
    joined,
    nodes_at_most,
    ranks_below,
)
from treeopt.cost_model import CostParts
from treeopt.errors import CostError, EngineError, TreeError
from treeopt.searchers.best_first import Frontier, count_prefixes
from treeopt.searchers.choose_method import Fitting, Nodes, fitting, select
from treeopt.searchers.integer_programme import Refined, refine
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


EXACT: dict[str, list[Constraint]] = {
    "none": [],
    "ranks": [ranks_below(2, SOURCE)],
    "nodes": [nodes_at_most(4, SOURCE)],
    "chain": [chains_only(SOURCE)],
    "long chain": [chains_only(SOURCE), depth_at_least(2, SOURCE)],
    "contiguous": [contiguous_ranks(SOURCE)],
}


@pytest.mark.parametrize("family", EXACT)
@given(values=pools(nodes=7, falling=True), nodes=st.integers(1, 7), depth=st.integers(1, 3))
@settings(max_examples=examples(200))
def test_these_families_are_exact(family, values, nodes, depth):
    chosen = EXACT[family]
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


FAMILIES = EXACT | {
    "depth": [depth_at_most(2, SOURCE)],
    "deep enough": [depth_at_least(2, SOURCE)],
    "few ranks, two deep": [depth_at_least(2, SOURCE), ranks_below(3, SOURCE)],
}

seconds = st.integers(1, 40).map(lambda n: n / 8)


@st.composite
def costs(draw, *, rising: bool) -> CostParts:
    """Tables for 9 tokens, 4 levels and 6 fed nodes: stairs or anything, with unknown sizes at either end."""
    steps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.125, 1.0]) | seconds, min_size=9, max_size=9))
    verify = 1 + (np.cumsum(steps) if rising else np.array(steps))
    first, last = draw(st.integers(1, 3)), draw(st.integers(5, 9))
    table = np.full(10, np.inf)
    table[first : last + 1] = verify[first - 1 : last]
    row = st.lists(st.sampled_from([0.0, 0.0, 0.25]) | seconds, min_size=6, max_size=6)
    levels = np.array(draw(st.lists(row, min_size=4, max_size=4)))
    draft = np.zeros((4, 7))
    draft[:, 1:] = np.cumsum(levels, axis=1) if rising else levels
    draft[0, draw(st.integers(2, 7)) :] = np.inf
    draft[2:, draw(st.integers(2, 7)) :] = np.inf
    return CostParts(table, draft)


def rate(tree: Tree, value: float, parts: CostParts) -> float:
    return float((1 + value) / parts.step_s(np.array([tree.nodes + 1]), np.array([tree.fed_widths]))[0])


def check_refined(values: dict[Path, float], chosen: list[Constraint], parts: CostParts) -> Refined | None:
    """The tree found is what it says, and none of the pool is better if it is proved best."""
    pool = pool_of(values)
    due = possible(values, chosen, 7, 4)
    best = max((rate(tree, value, parts) for tree, value in due.items()), default=0.0)
    try:
        found = refine(pool, parts, chosen, nodes=7, depth=4, work=15)
    except (EngineError, CostError):
        assert best == 0
        return None
    value = sum(values.get(path, 0.0) for path in found.tree.paths)
    assert broken(found.tree, chosen) is None
    assert found.tokens == pytest.approx(1 + value, rel=1e-12)
    assert found.rate == pytest.approx(rate(found.tree, value, parts), rel=1e-12)
    assert found.bound >= best * (1 - 1e-12)
    assert found.optimal
    assert found.rate >= best * (1 - 1e-5)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@given(values=pools(nodes=6), data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_no_tree_of_the_family_is_faster(family, values, data):
    check_refined(values, FAMILIES[family], data.draw(costs(rising=data.draw(st.booleans()))))


@given(pools(nodes=7, min_nodes=3, falling=True), rules, costs(rising=True), st.integers(1, 4), st.integers(1, 9))
@settings(max_examples=examples(150), deadline=None)
def test_bounds_hold_for_nodes_that_were_left_out(values, chosen, parts, candidates, limit):
    """Candidates are few and the pool itself was cut off: a bound holds for the trees of all values."""
    due = possible(values, chosen, 6, 4)
    best = max((rate(tree, value, parts) for tree, value in due.items()), default=0.0)
    whole = pool_of(values)
    kept = [i for i in range(len(whole.value)) if i < limit]
    cut = Frontier(whole.value[kept], whole.depth[kept], whole.parent[kept], whole.rank[kept], len(kept))
    try:
        found = refine(cut, parts, chosen, nodes=6, depth=4, candidates=candidates, work=15)
    except (EngineError, CostError):
        return
    assert found.bound >= best * (1 - 1e-9)
    assert found.rate <= found.bound
    assert broken(found.tree, chosen) is None
    assert found.optimal == (found.bound <= found.rate * (1 + 1e-5))


def large(anchors: int = 4000) -> Frontier:
    from tests.benchmarks.bench_search import synthetic_trace

    return count_prefixes(synthetic_trace(anchors), nodes=400, depth=8)


def profile_a(*, stairs: bool) -> CostParts:
    """Profile A of tree_search.md, 3.7: a light head, verification in buckets."""
    tokens = np.arange(65)
    edges, times = np.array([8, 16, 32, 64]), np.array([20.0, 20.3, 21.0, 23.5])
    verify = times[np.searchsorted(edges, tokens)] if stairs else np.interp(tokens, edges, times)
    verify[0] = np.inf
    widths = 2.0 ** np.ceil(np.log2(np.maximum(np.arange(65), 1)))
    draft = np.tile(np.interp(widths, [1, 128], [1.0, 4.2]), (8, 1))
    draft[:, 0] = 0
    return CostParts(verify / 1e3, draft / 1e3)


def test_a_certificate_comes_also_when_the_work_is_cut_short():
    pool, parts = large(), profile_a(stairs=True)
    hurried = refine(pool, parts, [], nodes=63, depth=8, work=1e-9)
    assert not hurried.optimal
    start = fitting(pool, [], nodes=63, depth=8)
    assert hurried.rate == pytest.approx((start.tokens / parts.step_s(start.nodes + 1, start.widths)).max())
    again = [refine(pool, parts, [], nodes=63, depth=8, work=0.1) for _ in range(2)]
    assert again[0] == again[1]  # nothing of it depends on a clock
    assert hurried.bound >= again[0].bound
    longer = refine(pool, parts, [], nodes=63, depth=8, work=10, seed=1)
    assert hurried.bound >= longer.bound >= longer.rate >= hurried.rate
    assert longer.bound / longer.rate < 1.02


def test_costs_that_know_no_widths_leave_nothing_to_refine():
    """Where the most valuable nodes of each size and depth are proved best, so is what is found here."""
    pool = large()
    draft = np.full((8, 65), 2e-3)
    draft[:, 0] = 0
    parts = CostParts(profile_a(stairs=True).verify_s, draft)
    start = fitting(pool, [], nodes=63, depth=8)
    best = (start.tokens / parts.step_s(start.nodes + 1, start.widths)).max()
    found = refine(pool, parts, [], nodes=63, depth=8, work=30)
    assert found.rate == pytest.approx(best, rel=1e-9)
    assert found.bound <= best * 1.01
