"""The best trees of every size and depth that keep an engine's rules, by the fastest method that the rules allow.

Proves: for rules that exclude ranks, depths or sizes, for rules on the order of siblings, and for uniform trees, the
tree of each size and depth is the most valuable one. A node outside the pool is worth at most `Frontier.floor`: where a
tree with such nodes could be better, nothing is proved, and `Fitting.closed` says that a larger pool may help. For caps
on levels or children, for siblings continued in order without contiguous ranks, and for a minimum depth together with
an order of siblings, trees grow greedily by the value per node of each required set, and nothing is proved.
`Fitting.exact` records which case applied. Where rules require sizes or depths that the pool cannot fill, nodes without
value are added.
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

ROUNDING = 1e-12
TRIED = 4
"""Number of trees that are filled up for each size and depth, besides the empty one."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """Trees of at least one node that keep the rules.

    Attributes:
        tokens: float64 (n,), expected tokens per step averaged over anchors, bonus counted.
        nodes: int64 (n,), sizes.
        widths: int64 (n, levels), as `Tree.fed_widths`, 0 below a tree's deepest level.
        branching: int64 (n,), largest number of children of a node.
        exact: True if no tree within the rules, size, depth and ranks has more tokens than the best of these that is
            neither larger nor deeper.
        closed: False if a larger pool may prove more: a tree with nodes outside it may have more tokens than these.
        tree: the i-th topology.
    """

    tokens: NDArray[np.float64]
    nodes: NDArray[np.int64]
    widths: NDArray[np.int64]
    branching: NDArray[np.int64]
    exact: bool
    closed: bool
    tree: Callable[[int], Tree]


def fitting(
    frontier: Frontier, rules: Sequence[Constraint], *, nodes: int, depth: int, width: int | None = None
) -> Fitting:
    """Return good trees of a pool that keep the rules: one for each size and depth that has any.

    Nodes without value fill trees up to allowed sizes and the minimum depth; without such rules only if there is no
    other tree.

    Args:
        frontier: the pool of nodes to choose from; other nodes are worth nothing here, in a proof its floor.
        rules: rules, all of which must be kept.
        nodes: largest size wanted.
        depth: deepest level wanted.
        width: number of ranks that the drafter has, 0 to `width` − 1; None for any that the rules allow.

    Raises:
        UsageError: a size, depth or width below 1.
        EngineError: no tree keeps the rules; names the first rule that cannot be kept together with those before it.
    """
    if nodes < 1 or depth < 1:
        raise UsageError(f"nodes and depth must be at least 1, got {nodes} and {depth}")
    trees = within(frontier, offered(joined(rules), width), nodes=nodes, depth=depth)
    if len(trees.tokens):
        return trees
    sizes = f"of at most {nodes} nodes and depth {depth}"
    for last, rule in enumerate(rules):
        limits = offered(joined(rules[: last + 1]), width)
        if len(within(frontier, limits, nodes=nodes, depth=depth).tokens) == 0:
            before = " and ".join(f"`{other.name}`" for other in rules[:last])
            beside = f" beside {before}" if before else ""
            raise EngineError(f"no tree {sizes} keeps the rule `{rule.name}` ({rule.source}){beside}")
    raise AssertionError("one node keeps all rules if there are none")


def offered(limits: Limits, width: int | None) -> Limits:
    """Return the limits for a drafter that has `width` ranks; None for any number.

    Raises:
        UsageError: a width below 1.
    """
    if width is None:
        return limits
    if width < 1:
        raise UsageError(f"width must be at least 1, got {width}")
    return replace(limits, ranks=min(limits.ranks, width))


def within(frontier: Frontier, limits: Limits, *, nodes: int, depth: int, padded: bool = False) -> Fitting:
    """Return what `fitting` returns, but for limits, and empty if there is no tree; `padded` as in `branchings`."""
    size = min(nodes, limits.nodes)
    if limits.sizes is not None:
        size = min(size, max(limits.sizes, default=0))
    deepest = min(depth, limits.depth, size)
    if limits.uniform:
        trees = _filtered(_uniform(frontier, limits, size, deepest, padded), limits)
        if padded or len(trees.tokens):
            return trees
        return _filtered(_uniform(frontier, limits, size, deepest, True), limits)
    depth = min(deepest, int(frontier.depth.max(initial=0)))
    candidates = Nodes.of(frontier, limits, depth=depth)
    if limits.contiguous or limits.contiguous_root or not candidates.falling:
        solved = limits if limits.contiguous else replace(limits, expand_prefix=False)
        selected = select(candidates, solved, size=size, depth=depth)
        taken = selected.taken
        hopeful = selected.value
        if candidates.beyond > 0 and not candidates.known.all():
            hopeful = select(_hopeful(candidates), solved, size=size, depth=depth).value
    else:
        taken = _most_valuable(candidates, size=size, depth=depth, min_depth=limits.min_depth)
        hopeful = _largest_sums(_hopeful(candidates), size=size, depth=depth)
    ideal = (candidates.value @ _flat(taken)).reshape(depth, size + 1)
    bound = _bound(ideal, hopeful, frontier.floors(deepest), limits.min_depth)
    valid = _valid(candidates, limits, taken)
    exact = bool(valid.all())
    if not exact:
        taken = np.where(valid, taken, grow(candidates, limits, size=size, depth=depth))
    flat = _flat(taken)
    widths = candidates.fed_widths(flat)
    caps = np.repeat(np.arange(1, depth + 1), size + 1)
    new = np.flatnonzero((widths > 0).sum(axis=1) == caps)  # shallower trees are found at a lower cap
    flat = flat[:, new]
    pool_trees = Fitting(
        1 + candidates.value @ flat,
        flat.sum(axis=0),
        widths[new],
        candidates.branching(flat),
        exact,
        True,
        lambda i: candidates.tree(flat[:, i]),
    )
    trees = _filtered(pool_trees, limits)
    if len(trees.tokens) and limits.sizes is None and limits.min_depth <= 1:
        closed = candidates.beyond == 0 or bool((_best(trees, size, deepest) >= bound - ROUNDING)[1:, 1:].all())
        return replace(trees, exact=trees.exact and closed, closed=closed or not trees.exact)
    return _completed(frontier, limits, pool_trees, trees, bound)


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
    ideal: NDArray[np.float64], hopeful: NDArray[np.float64], floors: NDArray[np.float64], min_depth: int
) -> NDArray[np.float64]:
    """Return an upper bound on the tokens of trees no larger and no deeper, float64 (size + 1, depth + 1).

    A tree consists of candidates and of other nodes.

    Args:
        ideal: float64 (caps, size + 1), values of the best trees of candidates; those of the cap `min_depth` reach it.
        hopeful: the same with the largest values that candidates may have, and for trees of any depth.
        floors: float64 (depth,), largest value of a node that is no candidate, by cap; of more caps than `ideal` where
            no candidate is that deep.
        min_depth: smallest depth of a tree.
    """
    depth, sizes = len(floors), ideal.shape[1]
    missing = bool(floors.any())
    best = np.zeros((depth, sizes))
    best[: len(ideal)] = np.maximum(ideal, hopeful) if missing else ideal
    best[len(ideal) :] = best[len(ideal) - 1] if len(ideal) else 0.0
    if missing and 1 < min_depth <= len(ideal):  # the node of that depth is a candidate, or it is none
        reached = np.maximum(ideal[min_depth - 1, 1:], hopeful[min_depth - 1, :-1] + floors[min_depth - 1])
        best[min_depth - 1] = np.append(0.0, reached)
    alone = best.copy()
    for count in range(1, sizes if missing else 1):
        np.maximum(best[:, count:], alone[:, :-count] + count * floors[:, None], out=best[:, count:])
    bound = np.ones((sizes, depth + 1))
    bound[:, 1:] = 1 + best.T
    return np.asarray(np.maximum.accumulate(np.maximum.accumulate(bound, axis=0), axis=1))


def _flat(taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return one column per tree."""
    return taken.reshape(len(taken), taken.shape[1] * taken.shape[2])


def _valid(nodes: Nodes, limits: Limits, taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool (caps, size + 1): trees that keep the other limits too, and reach the minimum depth at its cap."""
    flat = _flat(taken)
    valid = nodes.branching(flat) <= limits.children
    levels = nodes.level_widths(flat)
    for level, width in enumerate(levels.T, 1):
        valid &= width <= limits.level(level)
    if limits.expand_prefix:
        expanded = nodes.expanded(flat)
        after = np.flatnonzero(nodes.rank > 0)
        valid &= ~(expanded[after] & ~expanded[after - 1]).any(axis=0)
    by_cap = valid.reshape(taken.shape[1], taken.shape[2])
    if 1 < limits.min_depth <= len(by_cap) and limits.min_depth <= levels.shape[1]:
        reached = (levels[:, limits.min_depth - 1] > 0).reshape(*by_cap.shape)[limits.min_depth - 1, :]
        too_few = np.arange(by_cap.shape[1]) < limits.min_depth
        by_cap[limits.min_depth - 1] &= reached | too_few | ~taken[:, limits.min_depth - 1].any(axis=0)
    return by_cap


def _most_valuable(nodes: Nodes, *, size: int, depth: int, min_depth: int) -> NDArray[np.bool_]:
    """Return the most valuable nodes of each cap and size, bool (n, caps, size + 1); cap `min_depth` is reached."""
    taken = np.zeros((len(nodes.value), depth, size + 1), dtype=np.bool_)
    sizes = np.arange(size + 1)
    for cap in range(1, depth + 1):
        order = np.flatnonzero(nodes.depth <= cap)
        order = order[np.argsort(-nodes.value[order], kind="stable")]
        taken[order, cap - 1] = (np.arange(len(order))[:, None] < sizes) & (sizes <= len(order))
        if cap == min_depth > 1:
            for count in range(min_depth, min(size, len(order)) + 1):
                if nodes.depth[order[:count]].max() == cap:
                    break
                taken[:, cap - 1, count] = False
                taken[_reaching(nodes, order, cap, count), cap - 1, count] = True
    return taken


def _reaching(nodes: Nodes, order: NDArray[np.int64], depth: int, count: int) -> NDArray[np.int64]:
    """Return the best `count` nodes of an order that reach this depth: a path to it, and the best of the others."""
    best, value = np.empty(0, np.int64), -1.0
    for last in np.flatnonzero(nodes.depth == depth).tolist():
        path = [last]
        while nodes.parent[path[-1]] >= 0:
            path.append(int(nodes.parent[path[-1]]))
        first = order[:count]
        chosen = np.append(path, first[~np.isin(first, path)][: count - depth])
        if nodes.value[chosen].sum() > value:
            best, value = chosen, float(nodes.value[chosen].sum())
    return best


def _uniform(frontier: Frontier, limits: Limits, size: int, depth: int, padded: bool) -> Fitting:
    shapes, tokens = branchings(frontier, limits, size=size, depth=depth, padded=padded)
    table = np.zeros((len(shapes), depth), dtype=np.int64)
    for i, shape in enumerate(shapes):
        table[i, : len(shape)] = shape
    levels = np.cumprod(table, axis=1)
    widths = np.concatenate([np.ones((len(shapes), 1), dtype=np.int64), levels], axis=1)[:, :depth] * (table > 0)
    closed = frontier.floor == 0
    return Fitting(
        tokens,
        levels.sum(axis=1),
        widths,
        table.max(axis=1, initial=0),
        closed,
        closed,
        lambda i: Tree.cartesian(shapes[i]),
    )


def _completed(
    frontier: Frontier, limits: Limits, pool_trees: Fitting, valid: Fitting, bound: NDArray[np.float64]
) -> Fitting:
    """Return trees that keep all limits, adding trees with filler nodes where that is better or the only way.

    A tree that reaches the bound is proved best.

    Args:
        frontier: the pool.
        limits: limits to keep.
        pool_trees: best trees of the pool, whether or not they keep sizes, minimum depth and candidate pools.
        valid: those of them that keep all limits.
        bound: float64 (size + 1, depth + 1), as `_bound` returns it.
    """
    size, depth = bound.shape[0] - 1, bound.shape[1] - 1
    have, inside_best = _best(valid, size, depth), np.maximum(_best(pool_trees, size, depth), 1.0)
    depths = (pool_trees.widths > 0).sum(axis=1)
    value: dict[Path, float] = dict(zip(frontier.paths, frontier.value.tolist(), strict=True))
    added: dict[Tree, float] = {}
    exact, closed = pool_trees.exact, True
    for cap in range(max(limits.min_depth, 1), depth + 1):
        for count in range(1, size + 1) if limits.sizes is None else sorted(limits.sizes):
            if count > size or have[count, cap] >= bound[count, cap]:
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
            closed = closed and (best is None or have[count, cap] >= bound[count, cap] - ROUNDING)
            exact = exact and (best is None or have[count, cap] >= inside_best[count, cap] - ROUNDING)
            exact = exact and not (best is None and limits.pool)
    closed = closed or not exact
    exact = exact and closed
    if not added:
        return replace(valid, exact=exact, closed=closed)
    trees = list(added)
    widths = np.zeros((len(trees), depth), dtype=np.int64)
    for row, tree in zip(widths, trees, strict=True):
        row[: tree.depth] = tree.fed_widths
    known = np.zeros((len(valid.tokens), depth), dtype=np.int64)
    known[:, : valid.widths.shape[1]] = valid.widths[:, :depth]
    return Fitting(
        np.append(valid.tokens, list(added.values())),
        np.append(valid.nodes, [tree.nodes for tree in trees]),
        np.concatenate([known, widths]),
        np.append(valid.branching, [branching(tree) for tree in trees]),
        exact,
        closed,
        lambda i: valid.tree(i) if i < len(valid.tokens) else trees[i - len(valid.tokens)],
    )


def _best(trees: Fitting, size: int, depth: int) -> NDArray[np.float64]:
    """Return the most tokens of trees no larger and no deeper, float64 (size + 1, depth + 1); 0 if there are none."""
    best = np.zeros((size + 1, depth + 1))
    np.maximum.at(best, (trees.nodes, (trees.widths > 0).sum(axis=1)), trees.tokens)
    return np.maximum.accumulate(np.maximum.accumulate(best, axis=0), axis=1)


def _fill(tree: Tree, limits: Limits, nodes: int, depth: int) -> Tree | None:
    """Return the tree filled up within all limits, made deeper where the pool of candidates requires it."""
    for reached in range(max(limits.min_depth, 1), (depth if limits.pool else max(limits.min_depth, 1)) + 1):
        full = filled(tree, replace(limits, min_depth=reached), nodes=nodes, depth=depth)
        if full and not (limits.pool and full.nodes > pool(depth=full.depth, width=branching(full))):
            return full
    return None


def _filtered(trees: Fitting, limits: Limits) -> Fitting:
    """Return the trees whose size, depth and branching are allowed."""
    depth = (trees.widths > 0).sum(axis=1)
    allowed = (depth >= limits.min_depth) & (trees.nodes > 0)
    if limits.sizes is not None:
        allowed &= np.isin(trees.nodes, list(limits.sizes))
    exact = trees.exact
    if limits.pool:
        candidates = np.array(
            [pool(depth=d, width=w) for d, w in zip(depth.tolist(), trees.branching.tolist(), strict=True)]
        )
        fits = trees.nodes <= candidates
        exact = exact and (limits.uniform or bool(fits[allowed].all()))  # a wider tree may fit where the best does not
        allowed &= fits
    rows = np.flatnonzero(allowed)
    return Fitting(
        trees.tokens[rows],
        trees.nodes[rows],
        trees.widths[rows],
        trees.branching[rows],
        exact,
        trees.closed,
        lambda i: trees.tree(int(rows[i])),
    )
