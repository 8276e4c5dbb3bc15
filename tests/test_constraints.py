"""Each rule against a statement of it that shares no code with it."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.constraints import ChainOnly, DepthAtMost, FitsPool, RanksBelow, branching, broken, pool
from treeopt.tree import Tree

SOURCE = "engine/file.py"

trees = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=14).map(Tree.from_paths)


def offender(reason: str) -> tuple[int, ...]:
    """The path that a reason names."""
    return tuple(int(rank) for rank in reason.split("[")[1].split("]")[0].split(","))


def candidates(depth: int, width: int) -> list[tuple[int, int]]:
    """(level, index) of what an EAGLE-2 draft scores: K at first, then K children of each of the best K."""
    scored = [(1, child) for child in range(width)] if depth else []
    for level in range(2, depth + 1):
        scored += [(level, parent * width + child) for parent in range(width) for child in range(width)]
    return scored


@given(trees)
def test_chain_only_accepts_just_the_chains(tree: Tree) -> None:
    reason = ChainOnly(source=SOURCE).check(tree)
    assert (reason is None) == (tree == Tree.chain(tree.nodes))
    if reason is not None:
        assert offender(reason) == next(path for path in tree.paths if any(path))


@given(trees, st.integers(1, 4))
def test_ranks_below(tree: Tree, limit: int) -> None:
    reason = RanksBelow(limit, source=SOURCE).check(tree)
    assert (reason is None) == all(rank < limit for path in tree.paths for rank in path)
    if reason is not None:
        assert offender(reason) == next(path for path in tree.paths if max(path) >= limit)


@given(trees, st.integers(1, 4))
def test_depth_at_most(tree: Tree, limit: int) -> None:
    reason = DepthAtMost(limit, source=SOURCE).check(tree)
    assert (reason is None) == (max(map(len, tree.paths), default=0) <= limit)
    if reason is not None:
        assert offender(reason) in tree.paths
        assert len(offender(reason)) == limit + 1


@given(trees)
def test_pool_holds_as_many_nodes_as_a_draft_scores(tree: Tree) -> None:
    children = [sum(parent == node for parent in tree.parents) for node in range(-1, tree.nodes)]
    assert branching(tree) == max(children)
    offered = candidates(tree.depth, max(children))
    reason = FitsPool(source=SOURCE).check(tree)
    assert (reason is None) == (tree.nodes <= len(offered))
    if reason is not None:
        assert tree.paths.index(offender(reason)) == len(offered)


@pytest.mark.parametrize(("width", "depth"), [(1, 4), (1, 5), (2, 2), (4, 5), (10, 8)])
def test_pool_counts_candidates(width: int, depth: int) -> None:
    assert pool(depth=depth, width=width) == len(candidates(depth, width))


@pytest.mark.parametrize(("width", "depth", "largest"), [(2, 2, 6), (1, 4, 4)])
def test_pool_ends_where_sglang_fails(width: int, depth: int, largest: int) -> None:
    """SGLang 0.5.23 was run: `organize_draft_results` selects this many and fails with one more."""
    assert pool(depth=depth, width=width) == largest


def test_full_trees_outgrow_the_pool() -> None:
    rule = FitsPool(source=SOURCE)
    assert rule.check(Tree.full(3, 2)) is None
    assert rule.check(Tree.full(2, 3)) == (
        "path [1, 0, 0] is node 11 of 14, depth 3 and branching 2 offer 10 candidates"
    )


def test_broken_reports_the_first_rule_and_its_source() -> None:
    rules = (DepthAtMost(2, source="depth.py"), RanksBelow(2, source="rank.py"))
    assert broken(Tree.from_paths([(1, 1)]), rules) is None
    assert broken(Tree.from_paths([(2,)]), rules) == "path [2] takes rank 2, ranks must be below 2 (rank.py)"
    both = broken(Tree.from_paths([(2, 0, 0)]), rules)
    assert both == "path [2, 0, 0] has depth 3, at most 2 can be drafted (depth.py)"


def test_rules_are_values() -> None:
    rule = RanksBelow(10, source=SOURCE)
    assert rule == RanksBelow(10, source=SOURCE)
    assert len({rule, RanksBelow(10, source=SOURCE), RanksBelow(9, source=SOURCE)}) == 2
    with pytest.raises(FrozenInstanceError):
        rule.limit = 11  # type: ignore[misc]
