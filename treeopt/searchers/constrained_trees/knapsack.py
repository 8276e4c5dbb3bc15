"""The most valuable trees of every size and depth cap among given nodes, where better siblings may be required.

Proves: of all trees of exactly so many of the nodes, no deeper than the cap, none has a larger sum of values.
Values need not fall from parent to child nor from rank to rank. Source: the tree knapsack in its first-child,
next-sibling form; of sibling i and those after it,

    X(i, m) = max over j of value(i) + below(i, j) + X(i + 1, m − 1 − j),

below(i, j) being the same for the children of i; where ranks may be skipped, X(i + 1, m) competes, and where
only the best siblings may be continued, m siblings without children do.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Limits
from treeopt.errors import UsageError
from treeopt.searchers.constrained_trees.node_pool import Nodes

Values = NDArray[np.float64]  # (caps, m + 1): of trees of 0, 1, ..., m nodes, −inf where there is none
Counts = NDArray[np.int64]  # (caps, nodes + 1): nodes left to take, for each tree that is being read off


@dataclass(frozen=True, eq=False)
class Selection:
    """The best trees of every size and depth cap.

    Attributes:
        value: float64 (caps, nodes + 1), sum of values; −inf where no tree has that size.
        taken: bool (n, caps, nodes + 1), the nodes of each; none where there is no tree.
    """

    value: Values
    taken: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Step:
    """One sibling's part: `below`, how many nodes go to its children, and `chosen`, whether it competes at all."""

    below: NDArray[np.int16]
    chosen: NDArray[np.bool_]


def select(nodes: Nodes, limits: Limits, *, size: int, depth: int) -> Selection:
    """The best trees of up to `size` nodes for depth caps 1 to `depth`, as far as the limits order siblings.

    Args:
        nodes: of which to choose.
        limits: `contiguous`, `contiguous_root` and `expand_prefix` are obeyed, the others are not looked at.
        size: largest tree.
        depth: deepest cap.

    Raises:
        UsageError: `expand_prefix` without `contiguous`, or a size without meaning.
    """
    if size < 0 or depth < 0:
        raise UsageError(f"size and depth must be 0 or more, got {size} and {depth}")
    if limits.expand_prefix and not limits.contiguous:
        raise UsageError("siblings that are continued first must be contiguous here")
    caps = np.arange(1, depth + 1)
    values = np.where(nodes.depth[:, None] <= caps, nodes.value[:, None], -np.inf)
    lists: dict[int, Values] = {}
    steps: dict[int, _Step] = {}
    none = np.zeros((depth, 1))
    for above in range(len(nodes.value) - 1, -2, -1):
        start, end = nodes.first[above + 1 : above + 3].tolist()
        after = none
        tail = none  # siblings without children
        for node in range(end - 1, start - 1, -1):
            below = lists.pop(node, none)
            if limits.expand_prefix:
                below = np.where(np.arange(below.shape[1]) == 0, -np.inf, below)
                tail = np.concatenate([none, values[node][:, None] + tail], axis=1)[:, : size + 1]
                other = tail
            else:
                other = none if limits.contiguous or (limits.contiguous_root and above < 0) else after
            after, steps[node] = _take(values[node][:, None], below, after, other, size)
        if above < 0 or end > start:
            lists[above] = after
    value = np.full((depth, size + 1), -np.inf)
    value[:, : lists[-1].shape[1]] = lists[-1]
    return Selection(value, _read_off(nodes, limits, steps, np.where(np.isfinite(value), np.arange(size + 1), 0)))


def _take(own: Values, below: Values, after: Values, other: Values, size: int) -> tuple[Values, _Step]:
    """X(i, m) from the parts, and what it took."""
    length = min(size + 1, max(below.shape[1] + after.shape[1], other.shape[1]))
    found = np.full((len(own), length), -np.inf)
    split = np.zeros(found.shape, dtype=np.int16)
    few, many = (below, after) if below.shape[1] <= after.shape[1] else (after, below)
    for taken in range(min(few.shape[1], length - 1)):
        reach = min(many.shape[1], length - 1 - taken)
        here = slice(1 + taken, 1 + taken + reach)
        sums = few[:, taken, None] + many[:, :reach]
        better = sums > found[:, here]
        found[:, here][better] = sums[better]
        split[:, here][better] = taken if few is below else np.broadcast_to(np.arange(reach), sums.shape)[better]
    found += own
    rest = np.full_like(found, -np.inf)
    rest[:, : other.shape[1]] = other[:, :length]
    chosen = found > rest
    return np.where(chosen, found, rest), _Step(split, chosen)


def _read_off(nodes: Nodes, limits: Limits, steps: dict[int, _Step], wanted: Counts) -> NDArray[np.bool_]:
    """Which nodes the best trees of the wanted sizes hold, for all of them at once."""
    taken = np.zeros((len(nodes.value), *wanted.shape), dtype=np.bool_)
    left = {-1: wanted}
    caps = np.arange(len(wanted))[:, None]
    for above in range(-1, len(nodes.value)):
        start, end = nodes.first[above + 1 : above + 3].tolist()
        now = left.pop(above, None)
        if now is None or not now.any():
            continue
        tail = np.zeros_like(now)
        for node in range(start, end):
            step = steps[node]
            at = np.minimum(now, step.chosen.shape[1] - 1)
            chosen = (now > 0) & step.chosen[caps, at]
            below = np.where(chosen, step.below[caps, at], 0)
            if limits.expand_prefix:
                tail = np.where(chosen, 0, tail + now)
                now = np.where(chosen, now, 0)
            taken[node] = chosen | (tail > 0)
            tail = np.maximum(tail - 1, 0)
            left[node] = below
            now = np.where(chosen, now - 1 - below, now)
    return taken
