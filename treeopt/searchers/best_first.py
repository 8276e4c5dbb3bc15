"""The most frequent rank prefixes: the best position-averaged tree of every size and depth cap, all at once.

Proves: for greedy verification and an objective averaged over weighted anchors, the `nodes` most frequent
prefixes of a depth cap are an optimal tree of that size, because counts cannot grow from parent to child
(design: "The mathematics"). Sizes are nested. It proves nothing about the walk, whose weights depend on the tree.

Counts are shrunk with a strength that is fitted: the one with which half of the requests best predicts the other half.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.traces.trace import Trace
from treeopt.tree import Path, Tree

# Kinds of path: all ranks 0 (also the root), a last rank of 0 after others, a last rank of 1, 2-3, 4-7, 8 or more.
KINDS = 6
PRIOR = 20.0  # pseudo-anchors
Weights = NDArray[np.float64] | NDArray[np.bool_] | None  # of anchors; None: all 1


def kinds_below(kind: NDArray[np.int8], rank: NDArray[np.integer]) -> NDArray[np.int8]:
    """Return the kind of each path of the given kind once it is extended by the given rank, 0 or more.

    >>> kinds_below(np.int8([0, 0, 3, 1]), np.int16([0, 1, 0, 5])).tolist()
    [0, 2, 1, 4]
    """
    by_rank = np.array([1, 2, 3, 3, 4, 4, 4, 4, 5], dtype=np.int8)[np.minimum(rank, 8)]
    return np.where((rank == 0) & (kind == 0), np.int8(0), by_rank)


def back_off_shares(
    rank: NDArray[np.int16], *, depth: int, width: int, weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return shares of the ranks below paths of each depth and kind, float64 (depth, KINDS, width).

    They are at most 1 in sum over ranks, do not rise with the rank, and count all anchors that follow a path, whichever
    path it is. A rare kind has few anchors at a depth. To these `PRIOR` pseudo-anchors are added, distributed as at
    that depth overall; to those again `PRIOR`, distributed as at all depths; to those `PRIOR` spread evenly, so that
    every rank has a share.

    Args:
        rank: int16 (P, D) of a trace.
        depth: levels wanted.
        width: number of ranks.
        weights: float64 (P,), number of anchors that each one counts for; None for 1.
    """
    counts = _counts(rank, depth, width, weights)
    share = np.full(width, 1 / (width + 1))
    for counted in (counts.sum(axis=(0, 1)), counts.sum(axis=1)[:, None], counts):
        share = falling((counted[..., :width] + PRIOR * share) / (counted.sum(axis=-1, keepdims=True) + PRIOR))
    return share


def _counts(
    rank: NDArray[np.int16], depth: int, width: int, weights: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return anchors by depth, kind of path and next rank, float64 (depth, KINDS, width + 1); last column: no rank."""
    counts = np.zeros((depth, KINDS, width + 1))
    alive = np.arange(len(rank), dtype=np.int32)
    kind = np.zeros(len(rank), dtype=np.int8)
    for level in range(depth):
        next_rank = rank[alive, level]
        follows = next_rank >= 0
        cell = kind * np.int32(width + 1) + np.where(follows, next_rank, np.int16(width))
        cells = np.bincount(cell, None if weights is None else weights[alive], minlength=KINDS * (width + 1))
        counts[level] = cells.reshape(KINDS, width + 1)
        alive = alive[follows]
        kind = kinds_below(kind[follows], next_rank[follows])
    return counts


def falling(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest values, in squares, that do not rise along the last axis: adjacent violators are pooled.

    Source: Ayer et al. 1955, "An empirical distribution function for sampling with incomplete information".

    >>> falling(np.array([4.0, 1.0, 2.0, 0.0])).tolist()
    [4.0, 1.5, 1.5, 0.0]
    """
    result = np.empty_like(values)
    for index in np.ndindex(values.shape[:-1]):
        means: list[float] = []
        sizes: list[int] = []
        for value in values[index].tolist():
            mean, size = value, 1
            while means and means[-1] < mean:
                joined = size + sizes[-1]
                mean, size = (mean * size + means.pop() * sizes.pop()) / joined, joined
            means.append(mean)
            sizes.append(size)
        result[index] = np.repeat(means, sizes)
    return result


# Children of one level, in path order: parent (index among the kept nodes above), rank and value of each.
Children = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
# Returns the children of the nodes that were kept, which are given as indices into the children returned last.
Expand = Callable[[int, NDArray[np.int64]], Children]


@dataclass(frozen=True, eq=False)
class Frontier:
    """Nodes in the order in which the best trees take them: by value (falling), depth, path.

    Attributes:
        value: float64 (C,), probability that the node lies on the accepted path.
        depth: int64 (C,).
        parent: int64 (C,), index in this order, −1 for the root; always before the node.
        rank: int64 (C,).
        limit: sizes up to this one are exact for every depth cap; above the number of nodes if none is missing.
    """

    value: NDArray[np.float64]
    depth: NDArray[np.int64]
    parent: NDArray[np.int64]
    rank: NDArray[np.int64]
    limit: int

    @property
    def floor(self) -> float:
        """An upper bound on the value of any node that is missing here."""
        return float(self.value[self.limit - 1]) if 0 < self.limit <= len(self.value) else 0.0

    def floors(self, depth: int) -> NDArray[np.float64]:
        """Return upper bounds on the value of any missing node of depth 1 or less, 2 or less, ..., float64 (depth,)."""
        orders = (self.value[self.depth <= cap] for cap in range(1, depth + 1))
        return np.array([order[self.limit - 1] if 0 < self.limit <= len(order) else 0.0 for order in orders])

    def order(self, max_depth: int) -> NDArray[np.int64]:
        """Return the nodes no deeper than `max_depth`, best first, at most `limit` of them."""
        return np.flatnonzero(self.depth <= max_depth)[: self.limit]

    def tokens(self, max_depth: int) -> NDArray[np.float64]:
        """Return position-averaged tokens per step of the best trees of 0, 1, 2, ... nodes, bonus counted."""
        return 1 + np.append(0.0, np.cumsum(self.value[self.order(max_depth)]))

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The rank path of each node."""
        paths: list[Path] = []
        for parent, rank in zip(self.parent.tolist(), self.rank.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), rank))
        return tuple(paths)

    def tree(self, nodes: int, max_depth: int) -> Tree:
        """Return the best tree of `nodes` nodes, or of all nodes with any value when there are fewer."""
        return Tree.from_paths(self.paths[i] for i in self.order(max_depth)[:nodes].tolist())


def count_prefixes(
    trace: Trace,
    *,
    nodes: int,
    depth: int,
    weights: NDArray[np.float64] | None = None,
    shrink: float = 0.0,
    ranks: int | None = None,
    levels: int | None = None,
) -> Frontier:
    """Return the best trees of up to `nodes` nodes and `depth` levels, by the frequency of rank prefixes.

    Counts of few anchors flatter the paths that happened to occur. With `shrink` k, a child's share of its parent
    is (count of child + k b) / (count of parent + k), where b is its rank's share below all paths like the parent
    (`back_off_shares`). This also covers children and parents that never occurred. Shares are at most 1, so values
    still fall from parent to child, and the best trees are the most valuable prefixes.

    Args:
        trace: what the drafter got right.
        nodes: largest size wanted.
        depth: deepest level wanted; the trace's depth at most.
        weights: float64 (P,), weight of each anchor, not negative; None weights all equally. For shrinking they are
            scaled to add up to the effective number of anchors, (Σ w)² / Σ w² (Kish, Survey Sampling, 1965, §11.7).
        shrink: pseudo-anchors of the back-off at every path; 0: raw counts. `fit_strength` finds a good one.
        ranks: return only nodes whose ranks are below this number; None for all.
        levels: return only nodes of this many levels; None for all. Their values do not depend on it.

    Raises:
        TraceError: the trace's rule may accept several siblings.

    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 0], [1, -2]]), 2)
    >>> count_prefixes(trace, nodes=2, depth=2).tree(2, 2).paths
    ((0,), (1,))
    """
    if trace.tree_kept is not None:
        raise TraceError(
            "rank paths do not determine acceptance under a rule that may accept several siblings: grow trees by replay"
        )
    depth = min(depth, trace.depth)
    ranks = trace.width if ranks is None else ranks
    prefixes = _Prefixes(trace, weights)
    expand = prefixes.shrunk(depth, shrink) if shrink else prefixes.expand
    return _grow(expand, nodes=nodes, depth=depth if levels is None else min(depth, levels), ranks=ranks)


def distinct_rows(
    rank: NDArray[np.int16], width: int, weights: Weights
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """Return the distinct rows of ranks and the summed weight of each; the rows themselves where they have no number.

    >>> rows, weights = distinct_rows(np.int16([[0, 1], [2, -1], [0, 1]]), 3, None)
    >>> rows.tolist(), weights.tolist()
    ([[2, -1], [0, 1]], [1.0, 2.0])
    """
    base, depth = width + 2, rank.shape[1]
    if depth * math.log2(base) >= 63:
        return rank, np.ones(len(rank)) if weights is None else weights.astype(np.float64)
    places = base ** np.arange(depth, dtype=np.int64)
    number = (rank + np.int64(2)) @ places
    if base**depth <= len(rank):
        found = np.arange(base**depth)
    else:
        found, number = np.unique(number, return_inverse=True)
    sums = np.bincount(number, weights, len(found)).astype(np.float64, copy=False)
    rows = found[sums > 0, None] // places % base - 2
    return rows.astype(np.int16), sums[sums > 0]


def _rows(trace: Trace, weights: Weights) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    return distinct_rows(trace.rank, trace.width, weights)


def _all_rows(trace: Trace, weights: Weights) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """Return the distinct rows of a trace, whose parts count theirs."""
    one, *others = parts = trace.map(_rows, repeat(None) if weights is None else trace.cut(weights))
    if not others:
        return one
    rows, sums = (np.concatenate(each) for each in zip(*parts, strict=True))
    return distinct_rows(rows, trace.width, sums)


class _Prefixes:
    """Counts, level by level, of the anchors whose text follows the nodes kept so far."""

    def __init__(self, trace: Trace, weights: NDArray[np.float64] | None) -> None:
        self.trace, self.scale = trace, 1.0
        self.total = float(trace.anchors if weights is None else weights.sum())
        if weights is not None:
            top = float(weights.max())  # squares of very small weights would be 0
            self.scale = self.total / top / float(np.square(weights / top).sum()) / top
        self.rank, self.weights = _all_rows(trace, weights)
        self.alive = np.arange(len(self.rank))  # anchors whose text follows a kept node; `node` is that node's child
        self.node = np.zeros(len(self.rank), dtype=np.int64)
        self.children = np.array([0, 1])  # numbers of the children returned last, and a bound on them

    def counts(self, level: int, kept: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weight of the anchors that follow each child of the nodes kept, float64 (kept · width,)."""
        index = np.full(int(self.children[-1]), -1, dtype=np.int64)
        index[self.children[kept]] = np.arange(len(kept))
        rank = self.rank[self.alive, level].astype(np.int64)
        follows = (index[self.node] >= 0) & (rank >= 0)
        self.alive = self.alive[follows]
        self.node = index[self.node[follows]] * self.trace.width + rank[follows]
        counts = np.bincount(self.node, self.weights[self.alive], minlength=len(kept) * self.trace.width)
        return counts.astype(np.float64, copy=False)

    def expand(self, level: int, kept: NDArray[np.int64]) -> Children:
        """Return the children that occur, with their frequencies as values."""
        return self.number(self.counts(level, kept) / self.total)

    def number(self, value: NDArray[np.float64]) -> Children:
        """Return the children that have any value."""
        self.children = np.append(np.flatnonzero(value > 0), len(value))
        nonzero = self.children[:-1]
        return nonzero // self.trace.width, nonzero % self.trace.width, value[nonzero]

    def shrunk(self, depth: int, shrink: float) -> Expand:
        """Return `expand` with frequencies shrunk towards those of the same rank below paths of the same kind."""
        trace, scale = self.trace, self.scale
        back_off = back_off_shares(self.rank, depth=depth, width=trace.width, weights=self.weights * scale)
        value, count, kind = np.ones(1), np.array([self.total * scale]), np.zeros(1, dtype=np.int8)

        def expand(level: int, kept: NDArray[np.int64]) -> Children:
            nonlocal value, count, kind
            above, total, kinds = value[kept, None], count[kept, None], kind[kept]
            counts = self.counts(level, kept) * scale
            share = (counts.reshape(-1, trace.width) + shrink * back_off[level, kinds]) / (total + shrink)
            parent, rank, value = self.number((above * share).ravel())
            count = counts[self.children[:-1]]
            kind = kinds_below(kinds[parent], rank)
            return parent, rank, value

        return expand


def _grow(expand: Expand, *, nodes: int, depth: int, ranks: int) -> Frontier:
    """Keep, level by level, the nodes that some best tree of at most `nodes` nodes and these ranks may take."""
    values, parents, ranked = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    kept, offset = np.zeros(1, dtype=np.int64), -1
    for level in range(depth if nodes else 0):
        parent, rank, value = expand(level, kept)
        value = np.where(rank < ranks, value, 0.0)
        # A node with `nodes` better nodes that are no deeper is in no best tree, and neither are its children.
        kept = np.sort(np.argsort(-value, kind="stable")[:nodes])
        known = np.concatenate([*values, value[kept]])
        floor = np.partition(known, -nodes)[-nodes] if len(known) > nodes else 0.0
        kept = kept[(value[kept] > 0) & (value[kept] >= floor)]
        if len(kept) == 0:
            break
        parents.append(parent[kept] + offset)
        offset = sum(len(v) for v in values)
        values.append(value[kept])
        ranked.append(rank[kept])
    return _sort_nodes(values, parents, ranked, limit=nodes)


def _sort_nodes(
    values: list[NDArray[np.float64]], parents: list[NDArray[np.int64]], ranked: list[NDArray[np.int64]], *, limit: int
) -> Frontier:
    """Return the nodes of all levels, sorted by value."""
    value = np.concatenate(values)
    depths = np.repeat(np.arange(len(values)), [len(v) for v in values])
    order = np.argsort(-value, kind="stable")  # ties fall to the shallower node, then to path order
    place = np.append(np.argsort(order), -1)  # the last entry maps -1, the root, to itself
    return Frontier(
        value[order],
        depths[order],
        place[np.concatenate(parents)[order]],
        np.concatenate(ranked)[order],
        limit,
    )


# Stronger shrinkage gains little on few anchors and costs on many: data/benchmarks/small_data.json.
TRIED = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
UNKNOWN = 40.0  # for a single request, whose halves would not be independent


def fit_strength(trace: Trace, *, nodes: int, depth: int) -> float:
    """Return the pseudo-anchors of the back-off, one of `TRIED`, for `count_prefixes(..., shrink=)`.

    Every other request predicts the next rank of the rest below the `nodes` most frequent paths, and the other way
    round; the strength with the highest likelihood wins. It is the largest where paths of one kind are alike, as for
    trained heads, and small where text loops, so that whole paths return.
    """
    if trace.requests < 2:
        return UNKNOWN
    depth = min(depth, trace.depth)
    frontier = count_prefixes(trace, nodes=nodes, depth=depth - 1)  # paths that have a next rank
    kinds = _kinds(frontier)
    level = np.append(0, frontier.depth)
    first = np.repeat(np.arange(trace.requests) % 2 == 0, trace.lengths)
    halves = [_all_rows(trace, half) for half in (first, ~first)]
    counts = [_next_ranks(frontier, *half, trace.width) for half in halves]
    likelihood = np.zeros(len(TRIED))
    for (rank, times), fitted_on, predicted in zip(halves, counts, counts[::-1], strict=True):
        share = back_off_shares(rank, depth=depth, width=trace.width, weights=times)[level, kinds]
        share = np.concatenate([share, 1 - share.sum(axis=1, keepdims=True)], axis=1)
        for number, shrink in enumerate(TRIED):
            law = (fitted_on + shrink * share) / (fitted_on.sum(axis=1, keepdims=True) + shrink)
            likelihood[number] += float((predicted * np.log(law)).sum())
    return TRIED[int(np.argmax(likelihood))]


def _kinds(frontier: Frontier) -> NDArray[np.int8]:
    """Return the kind of the root and of each path of the frontier."""
    kinds = np.zeros(len(frontier.value) + 1, dtype=np.int8)
    for level in range(1, int(frontier.depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(frontier.depth == level)
        kinds[nodes + 1] = kinds_below(kinds[frontier.parent[nodes] + 1], frontier.rank[nodes])
    return kinds


def _next_ranks(
    frontier: Frontier, ranks: NDArray[np.int16], times: NDArray[np.float64], width: int
) -> NDArray[np.float64]:
    """Return anchors by path (the root first) and next rank (last column: no rank), float64 (1 + C, width + 1)."""
    paths = len(frontier.value) + 1
    child = np.full((paths, width + 1), -1)
    child[frontier.parent + 1, frontier.rank] = np.arange(1, paths)
    counts = np.zeros(paths * (width + 1))
    alive, node = np.arange(len(ranks)), np.zeros(len(ranks), dtype=np.int64)
    for level in range(int(frontier.depth.max(initial=0)) + 1):
        rank = ranks[alive, level]
        rank = np.where(rank >= 0, rank, np.int16(width))
        counts += np.bincount(node * (width + 1) + rank, times[alive], minlength=len(counts))
        node = child[node, rank]
        alive, node = alive[node >= 0], node[node >= 0]
    return counts.reshape(paths, width + 1)
