"""The best trees of every size and depth that keep an engine's rules, by the fastest method that the rules allow.

Proves: for rules that exclude ranks, depths or sizes, for siblings in order, and for chains, the tree of each size and
depth is the most valuable one. A node outside the pool is worth at most `Frontier.floor`: where a tree with such nodes
could be better, nothing is proved, and `Fitting.closed` says that a larger pool may help. For a minimum depth of trees
that branch, nothing is proved. `Fitting.exact` records which case applied. Chains reach a minimum depth by nodes
without value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Constraint, Limits, joined
from treeopt.errors import EngineError
from treeopt.searchers.best_first import Frontier
from treeopt.tree import Tree


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes in breadth-first order, siblings by rank and side by side.

    Attributes:
        value: float64 (n,), probability that the node lies on the accepted path; values need not fall with depth.
        depth: int64 (n,), 1 for children of the root.
        parent: int64 (n,), −1 for the root; always before the node, and never falling.
        rank: int64 (n,), rising among siblings.
        known: bool (n,), False for a node that was not in the pool and was added, with value 0, because rules require
            it for another node.
        beyond: upper bound on the value of any node that is missing here.
    """

    value: NDArray[np.float64]
    depth: NDArray[np.int64]
    parent: NDArray[np.int64]
    rank: NDArray[np.int64]
    known: NDArray[np.bool_]
    beyond: float

    @classmethod
    def of(cls, pool: Frontier, limits: Limits, *, depth: int, most: int | None = None) -> "Nodes":
        """Return the nodes of a pool that a tree within the limits may hold.

        Args:
            pool: nodes to choose from.
            limits: limits that the rules set.
            depth: deepest level wanted.
            most: largest number of nodes, the most valuable ones; None for all.
        """
        kept = (pool.depth <= min(depth, limits.depth)) & (pool.rank < limits.ranks)
        for node in np.flatnonzero(kept & (pool.parent >= 0)).tolist():
            kept[node] = kept[pool.parent[node]]
        chosen = np.flatnonzero(kept)
        beyond = pool.floor
        if most is not None and len(chosen) > most:
            beyond = max(beyond, float(pool.value[chosen[most:]].max()))
            chosen = chosen[:most]
        place = np.full(len(kept) + 1, -1)  # the last entry maps -1, the root, to itself
        place[chosen] = np.arange(len(chosen))
        parent, rank = place[pool.parent[chosen]], pool.rank[chosen]
        if limits.contiguous:
            parent, rank = _with_better_siblings(parent.tolist(), rank.tolist())
        added = len(rank) - len(chosen)
        value = np.append(pool.value[chosen], np.zeros(added))
        return cls._ordered(value, parent, rank, np.arange(len(rank)) < len(chosen), beyond)

    @classmethod
    def _ordered(
        cls,
        value: NDArray[np.float64],
        parent: NDArray[np.int64],
        rank: NDArray[np.int64],
        known: NDArray[np.bool_],
        beyond: float,
    ) -> "Nodes":
        order, depths, above = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        place = np.full(len(rank) + 1, -1)
        level, count = np.flatnonzero(parent < 0), 0
        while len(level):
            level = level[np.lexsort((rank[level], place[parent[level]]))]
            above.append(place[parent[level]])
            place[level] = count + np.arange(len(level))
            count += len(level)
            order.append(level)
            depths.append(np.full(len(level), len(depths)))
            level = np.flatnonzero(np.isin(parent, level))
        chosen = np.concatenate(order)
        return cls(value[chosen], np.concatenate(depths), np.concatenate(above), rank[chosen], known[chosen], beyond)

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The index of the first child of the root and of each node, and the end: int64 (n + 2,).

        The children of node i are `first[i + 1]` to `first[i + 2]`, those of the root `first[0]` to `first[1]`.
        """
        return np.searchsorted(self.parent, np.arange(-1, len(self.value) + 1))

    @property
    def falling(self) -> bool:
        """True if no node has a larger value than its parent."""
        inner = self.parent >= 0
        return bool((self.value[inner] <= self.value[self.parent[inner]]).all())

    def tree(self, taken: NDArray[np.bool_]) -> Tree:
        """Return the tree of the nodes that are taken, bool (n,), which must include their parents.

        Raises:
            TreeError: a node without its parent.
        """
        chosen = np.flatnonzero(taken)
        place = np.full(len(taken) + 1, len(chosen))
        place[-1], place[chosen] = -1, np.arange(len(chosen))
        return Tree(tuple(place[self.parent[chosen]].tolist()), tuple(self.rank[chosen].tolist()))

    def expanded(self, taken: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the nodes that have children in each tree: bool (n, trees), as `taken`."""
        inner = np.zeros(taken.shape, dtype=np.bool_)
        below = self.parent >= 0
        starts = np.flatnonzero(np.diff(self.parent[below], prepend=-1))
        if len(starts):
            parents = self.parent[below][starts]
            inner[parents] = np.maximum.reduceat(taken[below], starts, axis=0)
        return inner

    def level_widths(self, taken: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of nodes on each level of each tree: int64 (trees, levels).

        Args:
            taken: bool (n, trees).
        """
        starts = np.flatnonzero(np.diff(self.depth, prepend=0))
        if len(starts) == 0:
            return np.zeros((taken.shape[1], 0), dtype=np.int64)
        return np.add.reduceat(taken, starts, axis=0, dtype=np.int64).T

    def fed_widths(self, taken: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the nodes fed to the drafter at each level of each tree: int64 (trees, levels), as `Tree.fed_widths`.

        Args:
            taken: bool (n, trees).
        """
        inner = self.level_widths(self.expanded(taken))
        if inner.size == 0:
            return inner
        root = self.level_widths(taken)[:, :1] > 0
        return np.concatenate([root, inner[:, :-1]], axis=1)


def _with_better_siblings(parent: list[int], rank: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return parents and ranks with the better siblings appended that are missing."""
    present = set(zip(parent, rank, strict=True))
    for above, worst in sorted(present):
        for at in range(worst):
            if (above, at) not in present:
                present.add((above, at))
                parent.append(above)
                rank.append(at)
    return np.array(parent, dtype=np.int64), np.array(rank, dtype=np.int64)


Values = NDArray[np.float64]  # (caps, m + 1): values of trees of 0, 1, ..., m nodes, −inf where there is none
Counts = NDArray[np.int64]  # (caps, nodes + 1): nodes left to take, for each tree that is being read off
Split = tuple[NDArray[np.int16], NDArray[np.bool_]]  # nodes given to a sibling's children; True where it is taken


def select(nodes: Nodes, limits: Limits, *, size: int, depth: int) -> tuple[Values, NDArray[np.bool_]]:
    """Return the best trees of up to `size` nodes for depth caps 1 to `depth`, under limits on the order of siblings.

    Among all trees of exactly m of the nodes, no deeper than the cap, none has a larger sum of values, which need not
    fall from parent to child or from rank to rank. Source: the tree knapsack in first-child, next-sibling form. For
    sibling i and those after it, X(i, m) = max over j of value(i) + below(i, j) + X(i + 1, m − 1 − j), where
    below(i, j) is the same for the children of i. If ranks may be skipped, X(i + 1, m) competes.

    Args:
        nodes: nodes to choose from.
        limits: `contiguous` is obeyed, the others are ignored.
        size: largest tree.
        depth: deepest cap.

    Returns:
        the sum of values of each, float64 (caps, size + 1), −inf where no tree has that size; and its nodes, bool
        (n, caps, size + 1), all False there.
    """
    caps = np.arange(1, depth + 1)
    values = np.where(nodes.depth[:, None] <= caps, nodes.value[:, None], -np.inf)
    lists: dict[int, Values] = {}
    splits: dict[int, Split] = {}
    none = np.zeros((depth, 1))
    for above in range(len(nodes.value) - 1, -2, -1):
        start, end = nodes.first[above + 1 : above + 3].tolist()
        after = none
        for node in range(end - 1, start - 1, -1):
            below = lists.pop(node, none)
            other = none if limits.contiguous else after
            after, splits[node] = _take(values[node][:, None], below, after, other, size)
        if above < 0 or end > start:
            lists[above] = after
    value = np.full((depth, size + 1), -np.inf)
    value[:, : lists[-1].shape[1]] = lists[-1]
    return value, _read_off(nodes, splits, np.where(np.isfinite(value), np.arange(size + 1), 0))


def _take(value: Values, below: Values, after: Values, other: Values, size: int) -> tuple[Values, Split]:
    """Return X(i, m) from its parts, and the split that reaches it."""
    length = min(size + 1, max(below.shape[1] + after.shape[1], other.shape[1]))
    best = np.full((len(value), length), -np.inf)
    split = np.zeros(best.shape, dtype=np.int16)
    few, many = (below, after) if below.shape[1] <= after.shape[1] else (after, below)
    for taken in range(min(few.shape[1], length - 1)):
        reach = min(many.shape[1], length - 1 - taken)
        columns = slice(1 + taken, 1 + taken + reach)
        sums = few[:, taken, None] + many[:, :reach]
        better = sums > best[:, columns]
        best[:, columns][better] = sums[better]
        split[:, columns][better] = taken if few is below else np.broadcast_to(np.arange(reach), sums.shape)[better]
    best += value
    without = np.full_like(best, -np.inf)
    without[:, : other.shape[1]] = other[:, :length]
    chosen = best > without
    return np.where(chosen, best, without), (split, chosen)


def _read_off(nodes: Nodes, splits: dict[int, Split], wanted: Counts) -> NDArray[np.bool_]:
    """Return the nodes of the best trees of the wanted sizes, for all trees at once."""
    taken = np.zeros((len(nodes.value), *wanted.shape), dtype=np.bool_)
    left = {-1: wanted}
    caps = np.arange(len(wanted))[:, None]
    for above in range(-1, len(nodes.value)):
        start, end = nodes.first[above + 1 : above + 3].tolist()
        now = left.pop(above, None)
        if now is None or not now.any():
            continue
        for node in range(start, end):
            given, kept = splits[node]
            at = np.minimum(now, kept.shape[1] - 1)
            chosen = (now > 0) & kept[caps, at]
            below = np.where(chosen, given[caps, at], 0)
            taken[node] = chosen
            left[node] = below
            now = np.where(chosen, now - 1 - below, now)
    return taken


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
        hopeful, taken = select(candidates, limits, size=size, depth=depth)
        if candidates.beyond > 0 and not candidates.known.all():
            hopeful, _ = select(_hopeful(candidates), limits, size=size, depth=depth)
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
