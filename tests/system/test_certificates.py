"""What searches claim against all trees there are, those with nodes that are worth nothing among them."""

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.pools import all_trees, pool_of, pools
from tests.helpers.rules import rules
from tests.helpers.slow_params import examples
from tests.treeopt.searchers.test_integer_programme import FAMILIES, costs
from treeopt.constraints import Constraint, broken
from treeopt.cost_model import CostParts
from treeopt.errors import CostError, EngineError
from treeopt.searchers.choose_method import fitting
from treeopt.searchers.integer_programme import refine
from treeopt.tree import Path, Tree

WIDTH, DEPTH, NODES = 3, 3, 5


@cache
def every_tree() -> tuple[Tree, ...]:
    """All of at most 3 ranks, 3 levels and 5 nodes."""
    paths = [path for length in range(1, DEPTH + 1) for path in product(range(WIDTH), repeat=length)]
    return tuple(Tree.from_paths(held) for held in all_trees(paths, NODES) if held)


@cache
def shapes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes, fed widths, and as paths of 0 and 1, which nodes each tree holds."""
    trees = every_tree()
    paths = [path for length in range(1, DEPTH + 1) for path in product(range(WIDTH), repeat=length)]
    place = {path: i for i, path in enumerate(paths)}
    widths = np.zeros((len(trees), DEPTH), dtype=np.int64)
    holds = np.zeros((len(trees), len(paths)))
    for i, tree in enumerate(trees):
        widths[i, : tree.depth] = tree.fed_widths
        holds[i, [place[path] for path in tree.paths]] = 1
    return np.array([tree.nodes for tree in trees]), widths, holds


def worth(values: dict[Path, float]) -> np.ndarray:
    """Tokens of every tree."""
    paths = [path for length in range(1, DEPTH + 1) for path in product(range(WIDTH), repeat=length)]
    return 1 + shapes()[2] @ np.array([values.get(path, 0.0) for path in paths])


@cache
def _keeps(rule: Constraint) -> np.ndarray:
    return np.array([rule.check(tree) is None for tree in every_tree()])


def kept(chosen: Sequence[Constraint]) -> np.ndarray:
    """Which of all trees keep the rules."""
    return np.logical_and.reduce([_keeps(rule) for rule in chosen], axis=0) & np.ones(len(every_tree()), dtype=bool)


def check_fitting(values: dict[Path, float], chosen: Sequence[Constraint]) -> bool:
    """Feasible if there is any tree, `exact` only if none is better; returns whether it was."""
    sizes, widths, _ = shapes()
    keep, tokens, depth = kept(chosen), worth(values), (widths > 0).sum(axis=1)
    pool = pool_of(values)
    if not keep.any():
        with pytest.raises(EngineError):
            fitting(pool, chosen, nodes=NODES, depth=DEPTH, width=WIDTH)
        return False
    found = fitting(pool, chosen, nodes=NODES, depth=DEPTH, width=WIDTH)
    place = {tree: i for i, tree in enumerate(every_tree())}
    best = np.zeros((NODES + 1, DEPTH + 1))
    for i in range(len(found.tokens)):
        at = place[found.tree(i)]
        assert keep[at]
        assert found.tokens[i] == pytest.approx(tokens[at], rel=1e-12)
        assert found.nodes[i] == sizes[at]
        assert found.widths[i].tolist() + [0] * (DEPTH - found.widths.shape[1]) == widths[at].tolist()
        held = best[sizes[at] :, depth[at] :]
        held[:] = np.maximum(held, tokens[at])
    if found.exact:
        assert (best[sizes[keep], depth[keep]] >= tokens[keep] - 1e-9).all()
    return found.exact


def check_refined(values: dict[Path, float], chosen: Sequence[Constraint], parts: CostParts) -> bool | None:
    """The bound holds for all trees, and what is called optimal is; returns whether it was called so."""
    sizes, widths, _ = shapes()
    keep, tokens = kept(chosen), worth(values)
    rates = np.where(keep, tokens / parts.step_s(sizes + 1, widths), 0.0)
    pool = pool_of(values)
    words = {"nodes": NODES, "depth": DEPTH, "width": WIDTH, "work": 15.0}
    if not rates.any():
        with pytest.raises(CostError if keep.any() else EngineError):
            refine(pool, parts, chosen, **words)
        return None
    try:
        found = refine(pool, parts, chosen, **words)
    except CostError:  # no tree of a known cost was found: nothing is claimed
        return None
    assert broken(found.tree, chosen) is None
    at = every_tree().index(found.tree)
    assert found.rate == pytest.approx(rates[at], rel=1e-9)
    assert found.bound >= rates.max() * (1 - 1e-9)
    assert found.optimal == (found.bound <= found.rate * (1 + 1e-5))
    if found.optimal:
        assert found.rate >= rates.max() * (1 - 2e-5)
    return found.optimal


any_rules = st.sampled_from(list(FAMILIES.values())) | rules
values_of = pools(nodes=5, width=WIDTH, depth=DEPTH, falling=True) | pools(nodes=5, width=WIDTH, depth=DEPTH)


@given(values_of, any_rules)
@settings(max_examples=examples(400))
def test_trees_are_found_where_there_are_any_and_exact_only_if_none_is_better(values, chosen):
    check_fitting(values, chosen)


@pytest.mark.parametrize("rising", [True, False])
@given(values=values_of, chosen=any_rules, data=st.data())
@settings(max_examples=examples(120))
def test_bounds_hold_for_every_tree_within_the_ranks(rising, values, chosen, data):
    check_refined(values, chosen, data.draw(costs(rising=rising)))


@pytest.mark.slow
@given(values_of, any_rules, costs(rising=True) | costs(rising=False))
@settings(max_examples=4000)
def test_nothing_claimed_is_false(values, chosen, parts):
    check_fitting(values, chosen)
    check_refined(values, chosen, parts)


def test_a_dip_is_reached_by_nodes_without_value():
    """One node of value 0.5; five verified tokens take half as long as any other number."""
    verify = np.array([np.inf, 2.0, 2.0, 2.0, 2.0, 1.0, 2.0])
    parts = CostParts(verify, np.array([[0.0, *[0.125] * 5], [0.0, *[1.0] * 5]]))
    found = refine(pool_of({(0,): 0.5}), parts, [], nodes=5, depth=2)
    assert found.tree.level_widths == (4,)
    assert (found.tokens, found.seconds, found.optimal) == (1.5, 1.125, True)
