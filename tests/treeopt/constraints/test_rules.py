"""Each rule against a statement of it that shares no code with it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.rules import kept, rules
from treeopt.constraints import (
    Constraint,
    branching,
    broken,
    chains_only,
    contiguous_ranks,
    depth_at_least,
    depth_at_most,
    joined,
    nodes_at_most,
    pool,
    ranks_below,
)
from treeopt.tree import Tree

SOURCE = "engine/file.py"

# Random paths, and the regular trees that they seldom make.
trees = (
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=14).map(Tree.from_paths)
    | st.lists(st.integers(1, 3), max_size=3).map(Tree.cartesian)
    | st.integers(0, 5).map(Tree.chain)
)


def siblings(tree: Tree) -> dict[tuple[int, ...], list[int]]:
    """Ranks of the children of each node that has some, the root's under ()."""
    found: dict[tuple[int, ...], list[int]] = {}
    for path in tree.paths:
        found.setdefault(path[:-1], []).append(path[-1])
    return found


def first_ranks(ranks: list[int]) -> bool:
    return ranks == list(range(len(ranks)))


STATEMENTS: dict[Constraint, Callable[[Tree], bool]] = {
    nodes_at_most(5, SOURCE): lambda tree: len(tree.paths) <= 5,
    depth_at_least(2, SOURCE): lambda tree: tree.nodes == 0 or any(len(path) >= 2 for path in tree.paths),
    depth_at_most(2, SOURCE): lambda tree: max(map(len, tree.paths), default=0) <= 2,
    ranks_below(2, SOURCE): lambda tree: all(rank < 2 for path in tree.paths for rank in path),
    chains_only(SOURCE): lambda tree: tree == Tree.chain(tree.nodes),
    contiguous_ranks(SOURCE): lambda tree: all(map(first_ranks, siblings(tree).values())),
}
NAMES = [rule.name for rule in STATEMENTS]


@pytest.mark.parametrize("rule", STATEMENTS, ids=NAMES)
@given(tree=trees)
def test_a_rule_refuses_just_what_breaks_it_and_names_where_it_is_first_broken(rule: Constraint, tree: Tree) -> None:
    """Without the named path and all that come after it the tree breaks the rule no more."""
    reason = rule.check(tree)
    assert (reason is None) == STATEMENTS[rule](tree)
    if reason is not None:
        assert offender(reason) in tree.paths
    if reason is None or rule.limits.min_depth:
        return
    before = tree.paths[: tree.paths.index(offender(reason))]
    assert rule.check(Tree.from_paths(before)) is None


@given(trees, rules)
def test_limits_say_what_the_rules_say(tree: Tree, chosen: list[Constraint]) -> None:
    assert kept(joined(chosen), tree) == (broken(tree, chosen) is None)


@given(rules)
def test_no_rule_keeps_an_engine_from_drafting_nothing(chosen: list[Constraint]) -> None:
    assert broken(Tree.chain(0), chosen) is None
    assert all(rule.name and rule.source == SOURCE for rule in chosen)


def test_widest_node() -> None:
    tree = Tree.from_paths([(0, 0), (0, 1), (0, 5), (1,)])
    assert branching(tree) == max(Counter(tree.parents).values()) == 3


def offender(reason: str) -> tuple[int, ...]:
    """The path that a reason names."""
    return tuple(int(rank) for rank in reason.split("[")[1].split("]")[0].split(","))


def candidates(depth: int, width: int) -> list[tuple[int, int]]:
    """(level, index) of what an EAGLE-2 draft scores: K at first, then K children of each of the best K."""
    scored = [(1, child) for child in range(width)] if depth else []
    for level in range(2, depth + 1):
        scored += [(level, parent * width + child) for parent in range(width) for child in range(width)]
    return scored


@pytest.mark.parametrize(("width", "depth"), [(1, 4), (1, 5), (2, 2), (4, 5), (10, 8)])
def test_pool_counts_candidates(width: int, depth: int) -> None:
    assert pool(depth=depth, width=width) == len(candidates(depth, width))


@pytest.mark.parametrize(("width", "depth", "largest"), [(2, 2, 6), (1, 4, 4)])
def test_pool_ends_where_sglang_fails(width: int, depth: int, largest: int) -> None:
    """SGLang 0.5.23 was run: `organize_draft_results` selects this many and fails with one more."""
    assert pool(depth=depth, width=width) == largest


def test_broken_reports_the_first_rule_and_its_source() -> None:
    rules = (depth_at_most(2, source="depth.py"), ranks_below(2, source="rank.py"))
    assert broken(Tree.from_paths([(1, 1)]), rules) is None
    assert broken(Tree.from_paths([(2,)]), rules) == "path [2] takes rank 2, ranks must be below 2 (rank.py)"
    both = broken(Tree.from_paths([(2, 0, 0)]), rules)
    assert both == "path [2, 0, 0] has depth 3, at most 2 can be drafted (depth.py)"


def test_rules_are_values() -> None:
    rule = ranks_below(10, source=SOURCE)
    assert rule == ranks_below(10, source=SOURCE)
    assert len({rule, ranks_below(10, source=SOURCE), ranks_below(9, source=SOURCE)}) == 2
    with pytest.raises(FrozenInstanceError):
        rule.source = "other"  # type: ignore[misc]
