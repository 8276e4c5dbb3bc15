"""The most frequent rank prefixes: every best tree of every size and depth cap, at once.

Proves: for greedy verification and an objective averaged over weighted anchors, the `nodes` most frequent
prefixes of a depth cap are an optimal tree of that size, because counts cannot grow from parent to child
(design: "The mathematics"). Sizes are nested. It says nothing about the walk, whose weights depend on the tree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.trace import Trace
from treeopt.tree import Path, Tree

# Of one level, in path order: each child's parent (index among the kept nodes above), rank and value.
Children = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
# Children of the nodes that were kept, given as indices into the children returned last.
Expand = Callable[[int, NDArray[np.int64]], Children]


@dataclass(frozen=True, eq=False)
class Frontier:
    """Nodes in the order in which best trees take them: by value (falling), depth, path.

    Attributes:
        value: float64 (C,), probability that the node lies on the accepted path.
        depth: int64 (C,).
        parent: int64 (C,), index in this order, −1 for the root; always before the node.
        rank: int64 (C,).
        limit: sizes up to this one are exact for every depth cap.
    """

    value: NDArray[np.float64]
    depth: NDArray[np.int64]
    parent: NDArray[np.int64]
    rank: NDArray[np.int64]
    limit: int

    def order(self, max_depth: int) -> NDArray[np.int64]:
        """Nodes no deeper than `max_depth`, best first, at most `limit` of them."""
        return np.flatnonzero(self.depth <= max_depth)[: self.limit]

    def tokens(self, max_depth: int) -> NDArray[np.float64]:
        """Expected tokens a step of the best trees of 0, 1, 2, ... nodes, averaged over anchors, bonus counted."""
        return 1 + np.append(0.0, np.cumsum(self.value[self.order(max_depth)]))

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Rank path of each node."""
        paths: list[Path] = []
        for parent, rank in zip(self.parent.tolist(), self.rank.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), rank))
        return tuple(paths)

    def tree(self, nodes: int, max_depth: int) -> Tree:
        """The best tree of `nodes` nodes, or of all nodes with any value when there are fewer."""
        return Tree.from_paths(self.paths[i] for i in self.order(max_depth)[:nodes].tolist())


def count_prefixes(trace: Trace, *, nodes: int, depth: int, weights: NDArray[np.float64] | None = None) -> Frontier:
    """Best trees of up to `nodes` nodes and `depth` levels, by the frequency of rank prefixes.

    Args:
        trace: what the drafter got right.
        nodes: largest size wanted.
        depth: deepest level wanted; the trace's depth at most.
        weights: float64 (P,), weight of each anchor, not negative; None weights all alike.

    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 0], [1, -2]]), 2)
    >>> count_prefixes(trace, nodes=2, depth=2).tree(2, 2).paths
    ((0,), (1,))
    """
    depth = min(depth, trace.depth)
    if weights is not None and not (
        weights.shape == (trace.anchors,) and (weights >= 0).all() and 0 < weights.sum() < np.inf
    ):
        raise UsageError("weights must be finite, not negative and not all 0, one an anchor")
    total = float(trace.anchors if weights is None else weights.sum())
    alive = np.arange(trace.anchors)  # anchors whose text follows a kept node, and that node's child
    node = np.zeros(trace.anchors, dtype=np.int64)
    children = np.array([0, 1])  # numbers of the children returned last, and a bound on them

    def expand(level: int, kept: NDArray[np.int64]) -> Children:
        nonlocal alive, node, children
        index = np.full(int(children[-1]), -1, dtype=np.int64)
        index[children[kept]] = np.arange(len(kept))
        rank = trace.rank[alive, level].astype(np.int64)
        follows = (index[node] >= 0) & (rank >= 0)
        alive = alive[follows]
        node = index[node[follows]] * trace.width + rank[follows]
        size = len(kept) * trace.width
        value = np.bincount(node, None if weights is None else weights[alive], minlength=size) / total
        children = np.append(np.flatnonzero(value > 0), size)  # `size` bounds the numbers
        return children[:-1] // trace.width, children[:-1] % trace.width, value[children[:-1]]

    return _grow(expand, nodes=nodes, depth=depth)


def from_table(table: NDArray[np.float64], *, nodes: int) -> Frontier:
    """Best trees under a positional table (Medusa, Sequoia): value of a path = Π table[d, rank at depth d].

    Args:
        table: float64 (depth, width), probability of each rank at each depth, wherever its parent stands.
        nodes: largest size wanted. Ranks may be skipped.
    """
    depth, width = table.shape
    if not ((table >= 0) & (table <= 1)).all():
        raise UsageError("table must hold probabilities in [0, 1]")
    value = np.ones(1)

    def expand(level: int, kept: NDArray[np.int64]) -> Children:
        nonlocal value
        value = (value[kept, None] * table[level]).ravel()
        return np.repeat(np.arange(len(kept)), width), np.tile(np.arange(width), len(kept)), value

    return _grow(expand, nodes=nodes, depth=depth)


def _grow(expand: Expand, *, nodes: int, depth: int) -> Frontier:
    """Level by level, keep what some best tree of at most `nodes` nodes may take."""
    if nodes < 0 or depth < 0:
        raise UsageError(f"nodes and depth must be 0 or more, got {nodes} and {depth}")
    values, parents, ranks = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    kept, offset = np.zeros(1, dtype=np.int64), -1
    for level in range(depth if nodes else 0):
        parent, rank, value = expand(level, kept)
        # A node that has `nodes` better ones no deeper than itself is in no tree: neither are its children.
        kept = np.sort(np.argsort(-value, kind="stable")[:nodes])
        known = np.concatenate([*values, value[kept]])
        floor = np.partition(known, -nodes)[-nodes] if len(known) > nodes else 0.0
        kept = kept[(value[kept] > 0) & (value[kept] >= floor)]
        if len(kept) == 0:
            break
        parents.append(parent[kept] + offset)
        offset = sum(len(v) for v in values)
        values.append(value[kept])
        ranks.append(rank[kept])
    value = np.concatenate(values)
    depths = np.repeat(np.arange(len(values)), [len(v) for v in values])
    order = np.argsort(-value, kind="stable")  # levels follow one another, each in path order: ties are settled
    place = np.append(np.argsort(order), -1)  # the last entry maps -1, the root, to itself
    return Frontier(
        value[order],
        depths[order],
        place[np.concatenate(parents)[order]],
        np.concatenate(ranks)[order],
        nodes,
    )
