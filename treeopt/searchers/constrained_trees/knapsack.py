"""The tree knapsack: the most valuable trees of every size and depth cap, where better siblings may be required.

Proves: among all trees of exactly m of the nodes, no deeper than the cap, none has a larger sum of values. Values need
not fall from parent to child or from rank to rank. Source: the tree knapsack in first-child, next-sibling form. For
sibling i and those after it,

    X(i, m) = max over j of value(i) + below(i, j) + X(i + 1, m − 1 − j),

where below(i, j) is the same for the children of i. If ranks may be skipped, X(i + 1, m) competes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Limits
from treeopt.errors import UsageError
from treeopt.searchers.constrained_trees.node_pool import Nodes

Values = NDArray[np.float64]  # (caps, m + 1): values of trees of 0, 1, ..., m nodes, −inf where there is none
Counts = NDArray[np.int64]  # (caps, nodes + 1): nodes left to take, for each tree that is being read off


@dataclass(frozen=True, eq=False)
class Selection:
    """The best trees of every size and depth cap.

    Attributes:
        value: float64 (caps, nodes + 1), sum of values; −inf where no tree has that size.
        taken: bool (n, caps, nodes + 1), the nodes of each; all False where there is no tree.
    """

    value: Values
    taken: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Step:
    """The part of a sibling: `below`, the nodes given to its children, and `chosen`, True where it is taken."""

    below: NDArray[np.int16]
    chosen: NDArray[np.bool_]


def select(nodes: Nodes, limits: Limits, *, size: int, depth: int) -> Selection:
    """Return the best trees of up to `size` nodes for depth caps 1 to `depth`, under limits on the order of siblings.

    Args:
        nodes: nodes to choose from.
        limits: `contiguous` is obeyed, the others are ignored.
        size: largest tree.
        depth: deepest cap.

    Raises:
        UsageError: a size without meaning.
    """
    if size < 0 or depth < 0:
        raise UsageError(f"size and depth must be 0 or more, got {size} and {depth}")
    caps = np.arange(1, depth + 1)
    values = np.where(nodes.depth[:, None] <= caps, nodes.value[:, None], -np.inf)
    lists: dict[int, Values] = {}
    steps: dict[int, _Step] = {}
    none = np.zeros((depth, 1))
    for above in range(len(nodes.value) - 1, -2, -1):
        start, end = nodes.first[above + 1 : above + 3].tolist()
        after = none
        for node in range(end - 1, start - 1, -1):
            below = lists.pop(node, none)
            other = none if limits.contiguous else after
            after, steps[node] = _take(values[node][:, None], below, after, other, size)
        if above < 0 or end > start:
            lists[above] = after
    value = np.full((depth, size + 1), -np.inf)
    value[:, : lists[-1].shape[1]] = lists[-1]
    return Selection(value, _read_off(nodes, steps, np.where(np.isfinite(value), np.arange(size + 1), 0)))


def _take(value: Values, below: Values, after: Values, other: Values, size: int) -> tuple[Values, _Step]:
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
    return np.where(chosen, best, without), _Step(split, chosen)


def _read_off(nodes: Nodes, steps: dict[int, _Step], wanted: Counts) -> NDArray[np.bool_]:
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
            step = steps[node]
            at = np.minimum(now, step.chosen.shape[1] - 1)
            chosen = (now > 0) & step.chosen[caps, at]
            below = np.where(chosen, step.below[caps, at], 0)
            taken[node] = chosen
            left[node] = below
            now = np.where(chosen, now - 1 - below, now)
    return taken
