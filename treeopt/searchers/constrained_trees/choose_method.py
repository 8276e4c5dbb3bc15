"""Trees that keep rules, for every size and depth cap, fast; what an engine offers to choose from.

Proves: for rules that leave out ranks, depths or sizes, for rules on the order of siblings, and for uniform trees,
the tree of each size and depth is the most valuable one of the pool. For level caps and caps of children, for
siblings continued in order without contiguous ranks, and for a least depth beside an order of siblings, trees grow
by the most valuable required set a node, and nothing is proved. `Fitting.exact` says which it was. Where rules ask for
sizes or depths that the pool does not fill, nodes without value do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Constraint, Limits, branching, joined, pool
from treeopt.errors import EngineError, UsageError
from treeopt.searchers.constrained_trees.filler_nodes import filled
from treeopt.searchers.constrained_trees.greedy import grow
from treeopt.searchers.constrained_trees.knapsack import select
from treeopt.searchers.constrained_trees.node_pool import Nodes
from treeopt.searchers.constrained_trees.uniform_trees import branchings
from treeopt.searchers.static_trees.best_first import Frontier
from treeopt.tree import EMPTY, Path, Tree

TRIED = 4
"""Trees that are filled up for each size and depth, besides the empty one."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """Trees that keep the rules, of at least one node.

    Attributes:
        tokens: float64 (n,), expected tokens a step averaged over anchors, bonus counted.
        nodes: int64 (n,), sizes.
        widths: int64 (n, levels), as `Tree.fed_widths`, 0 below a tree's deepest level.
        branching: int64 (n,), children of the node that has most of them.
        exact: whether no tree that keeps the rules, within the asked size, depth and ranks, has more tokens than the
            best of these that is neither larger nor deeper. Nodes outside the pool count as worth nothing.
        tree: the i-th topology.
    """

    tokens: NDArray[np.float64]
    nodes: NDArray[np.int64]
    widths: NDArray[np.int64]
    branching: NDArray[np.int64]
    exact: bool
    tree: Callable[[int], Tree]


def fitting(
    frontier: Frontier, rules: Sequence[Constraint], *, nodes: int, depth: int, width: int | None = None
) -> Fitting:
    """Good trees of a pool that keep the rules: one of each size and depth that has any.

    Nodes of no value fill up what allowed sizes and the least depth require; without such rules only if there is no
    other tree.

    Args:
        frontier: the pool of nodes to choose from; others are worth nothing here.
        rules: all of which must be kept.
        nodes: largest size wanted.
        depth: deepest level wanted.
        width: ranks that the drafter has, 0 to `width` − 1; None for any that the rules allow.

    Raises:
        UsageError: a size, depth or width below 1.
        EngineError: no tree keeps the rules; names the one that cannot be kept with those before it.
    """
    if nodes < 1 or depth < 1:
        raise UsageError(f"nodes and depth must be at least 1, got {nodes} and {depth}")
    found = within(frontier, offered(joined(rules), width), nodes=nodes, depth=depth)
    if len(found.tokens):
        return found
    sizes = f"of at most {nodes} nodes and depth {depth}"
    for last, rule in enumerate(rules):
        limits = offered(joined(rules[: last + 1]), width)
        if len(within(frontier, limits, nodes=nodes, depth=depth).tokens) == 0:
            before = " and ".join(f"`{other.name}`" for other in rules[:last])
            beside = f" beside {before}" if before else ""
            raise EngineError(f"no tree {sizes} keeps the rule `{rule.name}` ({rule.source}){beside}")
    raise AssertionError("one node keeps all rules if there are none")


def offered(limits: Limits, width: int | None) -> Limits:
    """The limits of a drafter that has so many ranks; None for any number.

    Raises:
        UsageError: a width below 1.
    """
    if width is None:
        return limits
    if width < 1:
        raise UsageError(f"width must be at least 1, got {width}")
    return replace(limits, ranks=min(limits.ranks, width))


def within(frontier: Frontier, limits: Limits, *, nodes: int, depth: int, padded: bool = False) -> Fitting:
    """As `fitting`, for limits; none where there is none. `padded` as `branchings` has it."""
    size = min(nodes, limits.nodes)
    if limits.sizes is not None:
        size = min(size, max(limits.sizes, default=0))
    deepest = min(depth, limits.depth, size)
    if limits.uniform:
        found = _filtered(_uniform(frontier, limits, size, deepest, padded), limits)
        if padded or len(found.tokens):
            return found
        return _filtered(_uniform(frontier, limits, size, deepest, True), limits)
    depth = min(deepest, int(frontier.depth.max(initial=0)))
    candidates = Nodes.of(frontier, limits, depth=depth)
    if limits.contiguous or limits.contiguous_root or not candidates.falling:
        solved = limits if limits.contiguous else replace(limits, expand_prefix=False)
        taken = select(candidates, solved, size=size, depth=depth).taken
    else:
        taken = _most_valuable(candidates, size=size, depth=depth, least=limits.min_depth)
    kept = _kept(candidates, limits, taken)
    exact = bool(kept.all())
    if not exact:
        taken = np.where(kept, taken, grow(candidates, limits, size=size, depth=depth))
    flat = _flat(taken)
    widths = candidates.fed_widths(flat)
    caps = np.repeat(np.arange(1, depth + 1), size + 1)
    new = np.flatnonzero((widths > 0).sum(axis=1) == caps)  # trees that do not reach their cap are found at a lower one
    flat = flat[:, new]
    pool_trees = Fitting(
        1 + candidates.value @ flat,
        flat.sum(axis=0),
        widths[new],
        candidates.branching(flat),
        exact,
        lambda i: candidates.tree(flat[:, i]),
    )
    found = _filtered(pool_trees, limits)
    if len(found.tokens) and limits.sizes is None and limits.min_depth <= 1:
        return found
    return _completed(frontier, limits, pool_trees, found, size, deepest)


def _flat(taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """One column a tree."""
    return taken.reshape(len(taken), taken.shape[1] * taken.shape[2])


def _kept(nodes: Nodes, limits: Limits, taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which trees keep the limits that were left aside, and where the cap is the least depth reach it: bool."""
    flat = _flat(taken)
    kept = nodes.branching(flat) <= limits.children
    levels = nodes.level_widths(flat)
    for level, width in enumerate(levels.T, 1):
        kept &= width <= limits.level(level)
    if limits.expand_prefix:
        expanded = nodes.expanded(flat)
        after = np.flatnonzero(nodes.rank > 0)
        kept &= ~(expanded[after] & ~expanded[after - 1]).any(axis=0)
    by_cap = kept.reshape(taken.shape[1], taken.shape[2])
    if 1 < limits.min_depth <= len(by_cap) and limits.min_depth <= levels.shape[1]:
        reached = (levels[:, limits.min_depth - 1] > 0).reshape(*by_cap.shape)[limits.min_depth - 1, :]
        too_few = np.arange(by_cap.shape[1]) < limits.min_depth
        by_cap[limits.min_depth - 1] &= reached | too_few | ~taken[:, limits.min_depth - 1].any(axis=0)
    return by_cap


def _most_valuable(nodes: Nodes, *, size: int, depth: int, least: int) -> NDArray[np.bool_]:
    """The most valuable nodes of each cap and size, bool (n, caps, size + 1); at cap `least` it is reached."""
    taken = np.zeros((len(nodes.value), depth, size + 1), dtype=np.bool_)
    sizes = np.arange(size + 1)
    for cap in range(1, depth + 1):
        order = np.flatnonzero(nodes.depth <= cap)
        order = order[np.argsort(-nodes.value[order], kind="stable")]
        taken[order, cap - 1] = (np.arange(len(order))[:, None] < sizes) & (sizes <= len(order))
        if cap == least > 1:
            for count in range(least, min(size, len(order)) + 1):
                if nodes.depth[order[:count]].max() == cap:
                    break
                taken[:, cap - 1, count] = False
                taken[_reaching(nodes, order, cap, count), cap - 1, count] = True
    return taken


def _reaching(nodes: Nodes, order: NDArray[np.int64], depth: int, count: int) -> NDArray[np.int64]:
    """The best `count` nodes of an order that hold one of this depth: its path, and the best of the others."""
    best, most = np.empty(0, np.int64), -1.0
    for last in np.flatnonzero(nodes.depth == depth).tolist():
        path = [last]
        while nodes.parent[path[-1]] >= 0:
            path.append(int(nodes.parent[path[-1]]))
        first = order[:count]
        chosen = np.append(path, first[~np.isin(first, path)][: count - depth])
        if nodes.value[chosen].sum() > most:
            best, most = chosen, float(nodes.value[chosen].sum())
    return best


def _uniform(frontier: Frontier, limits: Limits, size: int, depth: int, padded: bool) -> Fitting:
    shapes, tokens = branchings(frontier, limits, size=size, depth=depth, padded=padded)
    table = np.zeros((len(shapes), depth), dtype=np.int64)
    for i, shape in enumerate(shapes):
        table[i, : len(shape)] = shape
    levels = np.cumprod(table, axis=1)
    widths = np.concatenate([np.ones((len(shapes), 1), dtype=np.int64), levels], axis=1)[:, :depth] * (table > 0)
    return Fitting(
        tokens, levels.sum(axis=1), widths, table.max(axis=1, initial=0), True, lambda i: Tree.cartesian(shapes[i])
    )


def _completed(
    frontier: Frontier, limits: Limits, pool_trees: Fitting, found: Fitting, size: int, depth: int
) -> Fitting:
    """Trees that keep all limits, with such as nodes without value fill up where that is better or the only way.

    Of a size and depth no tree has more tokens than the best of the pool that is neither larger nor deeper: whatever
    reaches that is proved.
    """
    most, have = np.maximum(_best(pool_trees, size, depth), 1.0), _best(found, size, depth)
    depths = (pool_trees.widths > 0).sum(axis=1)
    value: dict[Path, float] = dict(zip(frontier.paths, frontier.value.tolist(), strict=True))
    added: dict[Tree, float] = {}
    exact = pool_trees.exact
    for cap in range(max(limits.min_depth, 1), depth + 1):
        for count in range(1, size + 1) if limits.sizes is None else sorted(limits.sizes):
            if count > size or have[count, cap] >= most[count, cap]:
                continue
            inside = np.flatnonzero((pool_trees.nodes <= count) & (depths <= cap))
            first = inside[np.argsort(-pool_trees.tokens[inside], kind="stable")[:TRIED]].tolist()
            bases = [*(pool_trees.tree(i) for i in first), EMPTY]
            filled_up = [_fill(base, limits, count, cap) for base in bases]
            worth = {tree: 1 + sum(value.get(path, 0.0) for path in tree.paths) for tree in filled_up if tree}
            best = max(worth, key=lambda tree: worth[tree], default=None)
            if best is not None and worth[best] > have[count, cap]:
                added[best] = worth[best]
                have[count:, cap:] = np.maximum(have[count:, cap:], worth[best])
            exact = exact and (best is None or have[count, cap] >= most[count, cap] - 1e-12)
            exact = exact and not (best is None and limits.pool)
    if not added:
        return replace(found, exact=exact)
    trees = list(added)
    widths = np.zeros((len(trees), depth), dtype=np.int64)
    for row, tree in zip(widths, trees, strict=True):
        row[: tree.depth] = tree.fed_widths
    known = np.zeros((len(found.tokens), depth), dtype=np.int64)
    known[:, : found.widths.shape[1]] = found.widths[:, :depth]
    return Fitting(
        np.append(found.tokens, list(added.values())),
        np.append(found.nodes, [tree.nodes for tree in trees]),
        np.concatenate([known, widths]),
        np.append(found.branching, [branching(tree) for tree in trees]),
        exact,
        lambda i: found.tree(i) if i < len(found.tokens) else trees[i - len(found.tokens)],
    )


def _best(found: Fitting, size: int, depth: int) -> NDArray[np.float64]:
    """Most tokens of trees no larger and no deeper, float64 (size + 1, depth + 1); 0 where there are none."""
    best = np.zeros((size + 1, depth + 1))
    np.maximum.at(best, (found.nodes, (found.widths > 0).sum(axis=1)), found.tokens)
    return np.maximum.accumulate(np.maximum.accumulate(best, axis=0), axis=1)


def _fill(tree: Tree, limits: Limits, nodes: int, depth: int) -> Tree | None:
    """The tree filled up within all limits, made deeper where the pool of candidates asks for it."""
    for reached in range(max(limits.min_depth, 1), (depth if limits.pool else max(limits.min_depth, 1)) + 1):
        found = filled(tree, replace(limits, min_depth=reached), nodes=nodes, depth=depth)
        if found and not (limits.pool and found.nodes > pool(depth=found.depth, width=branching(found))):
            return found
    return None


def _filtered(found: Fitting, limits: Limits) -> Fitting:
    """The trees whose size, depth and branching are allowed."""
    depth = (found.widths > 0).sum(axis=1)
    allowed = (depth >= limits.min_depth) & (found.nodes > 0)
    if limits.sizes is not None:
        allowed &= np.isin(found.nodes, list(limits.sizes))
    exact = found.exact
    if limits.pool:
        offered = np.array(
            [pool(depth=d, width=w) for d, w in zip(depth.tolist(), found.branching.tolist(), strict=True)]
        )
        fits = found.nodes <= offered
        exact = exact and (limits.uniform or bool(fits[allowed].all()))  # wider ones may fit where the best does not
        allowed &= fits
    kept = np.flatnonzero(allowed)
    return Fitting(
        found.tokens[kept],
        found.nodes[kept],
        found.widths[kept],
        found.branching[kept],
        exact,
        lambda i: found.tree(int(kept[i])),
    )
