"""Integer programmes against all trees there are, for every rule and for costs with stairs, widths and holes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.pools import pool_of, pools
from tests.helpers.rules import SOURCE, rules
from tests.helpers.slow_params import examples
from tests.treeopt.searchers.test_choose_method import possible
from treeopt.constraints import (
    Constraint,
    broken,
    chains_only,
    contiguous_ranks,
    depth_at_least,
    depth_at_most,
    nodes_at_most,
    ranks_below,
)
from treeopt.cost_model import CostParts
from treeopt.errors import CostError, EngineError
from treeopt.searchers.best_first import Frontier, count_prefixes
from treeopt.searchers.choose_method import fitting
from treeopt.searchers.integer_programme import Refined, refine
from treeopt.tree import Path, Tree

FAMILIES: dict[str, list[Constraint]] = {
    "none": [],
    "ranks": [ranks_below(2, SOURCE)],
    "depth": [depth_at_most(2, SOURCE)],
    "deep enough": [depth_at_least(2, SOURCE)],
    "chain": [chains_only(SOURCE)],
    "contiguous": [contiguous_ranks(SOURCE)],
    "nodes": [nodes_at_most(4, SOURCE)],
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


def check(values: dict[Path, float], chosen: list[Constraint], parts: CostParts) -> Refined | None:
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
    check(values, FAMILIES[family], data.draw(costs(rising=data.draw(st.booleans()))))


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
