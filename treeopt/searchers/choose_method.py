"""The best trees of every size and depth that keep an engine's rules, by the fastest method that the rules allow.

Proves: for rules that exclude ranks, depths or sizes, for siblings in order, and for chains, the tree of each size and
depth is the most valuable one. A node outside the pool is worth at most `Frontier.floor`: where a tree with such nodes
could be better, nothing is proved, and `Fitting.closed` says that a larger pool may help. For a minimum depth of trees
that branch, nothing is proved. `Fitting.exact` records which case applied. Chains reach a minimum depth by nodes
without value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Constraint, Limits, joined
from treeopt.errors import EngineError
from treeopt.searchers.best_first import Frontier
from treeopt.searchers.node_pool import Nodes, select
from treeopt.tree import Tree

ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Fitting:
    """Trees of at least one node that keep the rules.

    Attributes:
        tokens: float64 (n,), expected tokens per step averaged over anchors, bonus counted.
        nodes: int64 (n,), sizes.
        widths: int64 (n, levels), as `Tree.fed_widths`, 0 below a tree's deepest level.
        exact: True if no tree within the rules, size, depth and ranks has more tokens than the best of these that is
            neither larger nor deeper.
        closed: False if a larger pool may prove more: a tree with nodes outside it may have more tokens than these.
        tree: the i-th topology.
    """

    tokens: NDArray[np.float64]
    nodes: NDArray[np.int64]
    widths: NDArray[np.int64]
    exact: bool
    closed: bool
    tree: Callable[[int], Tree]


def fitting(
    frontier: Frontier, rules: Sequence[Constraint], *, nodes: int, depth: int, width: int | None = None
) -> Fitting:
    """Return good trees of a pool that keep the rules: one for each size and depth that has any.

    Args:
        frontier: the pool of nodes to choose from; other nodes are worth nothing here, in a proof its floor.
        rules: rules, all of which must be kept.
        nodes: largest size wanted.
        depth: deepest level wanted.
        width: number of ranks that the drafter has, 0 to `width` − 1; None for any that the rules allow.

    Raises:
        EngineError: no tree keeps the rules; names the first rule that cannot be kept together with those before it.
    """
    trees = within(frontier, ranks_within(joined(rules), width), nodes=nodes, depth=depth)
    if len(trees.tokens):
        return trees
    sizes = f"of at most {nodes} nodes and depth {depth}"
    for last, rule in enumerate(rules):
        limits = ranks_within(joined(rules[: last + 1]), width)
        if len(within(frontier, limits, nodes=nodes, depth=depth).tokens) == 0:
            before = " and ".join(f"`{other.name}`" for other in rules[:last])
            beside = f" beside {before}" if before else ""
            raise EngineError(f"no tree {sizes} keeps the rule `{rule.name}` ({rule.source}){beside}")
    raise AssertionError("one node keeps all rules if there are none")


def ranks_within(limits: Limits, width: int | None) -> Limits:
    """Return the limits for a drafter that has `width` ranks; None for any number."""
    return limits if width is None else replace(limits, ranks=min(limits.ranks, width))


def within(frontier: Frontier, limits: Limits, *, nodes: int, depth: int) -> Fitting:
    """Return what `fitting` returns, but for limits, and empty if there is no tree."""
    size = min(nodes, limits.nodes)
    deepest = min(depth, limits.depth, size)
    if limits.ranks == 1:
        return _chains(frontier, limits, deepest)
    depth = min(deepest, int(frontier.depth.max(initial=0)))
    candidates = Nodes.of(frontier, limits, depth=depth)
    if limits.contiguous or not candidates.falling:
        selected = select(candidates, limits, size=size, depth=depth)
        taken, hopeful = selected.taken, selected.value
        if candidates.beyond > 0 and not candidates.known.all():
            hopeful = select(_hopeful(candidates), limits, size=size, depth=depth).value
    else:
        taken = _most_valuable(candidates, size=size, depth=depth)
        hopeful = _largest_sums(_hopeful(candidates), size=size, depth=depth)
    flat = taken.reshape(len(taken), depth * (size + 1))
    ideal = (candidates.value @ flat).reshape(depth, size + 1)
    widths = candidates.fed_widths(flat)
    depths = (widths > 0).sum(axis=1)
    # Shallower trees are found at a lower cap.
    new = np.flatnonzero((depths == np.repeat(np.arange(1, depth + 1), size + 1)) & (depths >= limits.min_depth))
    flat = flat[:, new]
    trees = Fitting(
        1 + candidates.value @ flat, flat.sum(axis=0), widths[new], True, True, lambda i: candidates.tree(flat[:, i])
    )
    if limits.min_depth > 1:
        return _together(trees, _chains(frontier, limits, deepest))
    if len(trees.tokens) == 0:
        return _chains(frontier, limits, deepest)
    bound = _bound(ideal, hopeful, frontier.floors(deepest))
    closed = candidates.beyond == 0 or bool((_best(trees, size, deepest) >= bound - ROUNDING)[1:, 1:].all())
    return replace(trees, exact=closed, closed=closed)


def _chains(frontier: Frontier, limits: Limits, deepest: int) -> Fitting:
    """Return the chains of the pool; where it ends too early, nodes without value reach the minimum depth."""
    known = dict(zip(frontier.paths, frontier.value.tolist(), strict=True))
    values = [known[path] for path in ((0,) * length for length in range(1, deepest + 1)) if path in known]
    longest = max(len(values), min(max(limits.min_depth, 1), deepest))
    lengths = np.arange(max(limits.min_depth, 1), longest + 1)
    sums = np.cumsum([1.0, *values, *[0.0] * (longest - len(values))])
    widths = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    closed = frontier.floor == 0 or len(values) == deepest
    return Fitting(sums[lengths], lengths, widths, closed, closed, lambda i: Tree.chain(int(lengths[i])))


def _together(trees: Fitting, chains: Fitting) -> Fitting:
    """Return trees and chains as one, of which nothing is proved."""
    widths = np.zeros((len(trees.tokens) + len(chains.tokens), max(trees.widths.shape[1], chains.widths.shape[1])))
    widths[: len(trees.tokens), : trees.widths.shape[1]] = trees.widths
    widths[len(trees.tokens) :, : chains.widths.shape[1]] = chains.widths
    return Fitting(
        np.append(trees.tokens, chains.tokens),
        np.append(trees.nodes, chains.nodes),
        widths.astype(np.int64),
        False,
        True,
        lambda i: trees.tree(i) if i < len(trees.tokens) else chains.tree(i - len(trees.tokens)),
    )


def _hopeful(nodes: Nodes) -> Nodes:
    """Return the nodes with the largest value that each may have where it was not counted."""
    return replace(nodes, value=np.where(nodes.known, nodes.value, nodes.beyond))


def _largest_sums(nodes: Nodes, *, size: int, depth: int) -> NDArray[np.float64]:
    """Return the largest sums of values by cap and number, float64 (depth, size + 1); minus infinity beyond all."""
    sums = np.full((depth, size + 1), -np.inf)
    for cap, row in enumerate(sums, 1):
        total = np.append(0.0, np.cumsum(-np.sort(-nodes.value[nodes.depth <= cap])[:size]))
        row[: len(total)] = total
    return sums


def _bound(
    ideal: NDArray[np.float64], hopeful: NDArray[np.float64], floors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return an upper bound on the tokens of trees no larger and no deeper, float64 (size + 1, depth + 1).

    A tree consists of candidates and of other nodes.

    Args:
        ideal: float64 (caps, size + 1), values of the best trees of candidates.
        hopeful: the same with the largest values that candidates may have.
        floors: float64 (depth,), largest value of a node that is no candidate, by cap; of more caps than `ideal` where
            no candidate is that deep.
    """
    depth, sizes = len(floors), ideal.shape[1]
    missing = bool(floors.any())
    best = np.zeros((depth, sizes))
    best[: len(ideal)] = np.maximum(ideal, hopeful) if missing else ideal
    best[len(ideal) :] = best[len(ideal) - 1] if len(ideal) else 0.0
    alone = best.copy()
    for count in range(1, sizes if missing else 1):
        np.maximum(best[:, count:], alone[:, :-count] + count * floors[:, None], out=best[:, count:])
    bound = np.ones((sizes, depth + 1))
    bound[:, 1:] = 1 + best.T
    return np.asarray(np.maximum.accumulate(np.maximum.accumulate(bound, axis=0), axis=1))


def _most_valuable(nodes: Nodes, *, size: int, depth: int) -> NDArray[np.bool_]:
    """Return the most valuable nodes of each cap and size, bool (n, caps, size + 1)."""
    taken = np.zeros((len(nodes.value), depth, size + 1), dtype=np.bool_)
    sizes = np.arange(size + 1)
    for cap in range(1, depth + 1):
        order = np.flatnonzero(nodes.depth <= cap)
        order = order[np.argsort(-nodes.value[order], kind="stable")]
        taken[order, cap - 1] = (np.arange(len(order))[:, None] < sizes) & (sizes <= len(order))
    return taken


def _best(trees: Fitting, size: int, depth: int) -> NDArray[np.float64]:
    """Return the most tokens of trees no larger and no deeper, float64 (size + 1, depth + 1); 0 if there are none."""
    best = np.zeros((size + 1, depth + 1))
    np.maximum.at(best, (trees.nodes, (trees.widths > 0).sum(axis=1)), trees.tokens)
    return np.maximum.accumulate(np.maximum.accumulate(best, axis=0), axis=1)
