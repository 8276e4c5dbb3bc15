"""Greedy growth under caps: add the node with the highest value per node, with all that it requires, while it fits.

Proves nothing.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Limits
from treeopt.searchers.constrained_trees.node_pool import Nodes


def grow(nodes: Nodes, limits: Limits, *, size: int, depth: int) -> NDArray[np.bool_]:
    """Return a tree of each size for depth caps 1 to `depth`, nested, bool (n, caps, size + 1); empty where stuck.

    Args:
        nodes: nodes to choose from.
        limits: caps on levels and children and the order of siblings are obeyed; the minimum depth is reached first
            where the cap allows it.
        size: largest tree.
        depth: deepest cap.
    """
    requires = _requirements(nodes, limits)
    taken = np.zeros((len(nodes.value), depth, size + 1), dtype=np.bool_)
    for cap in range(1, depth + 1):
        order = _grown(nodes, limits, requires, size, cap)
        for count in range(1, len(order) + 1):
            taken[order[:count], cap - 1, count] = True
    return taken


def _grown(nodes: Nodes, limits: Limits, requires: NDArray[np.bool_], size: int, cap: int) -> list[int]:
    """Return the nodes in the order in which they are added."""
    inside = np.zeros(len(nodes.value), dtype=np.bool_)
    open_ = nodes.depth <= cap
    count = requires.sum(axis=1)
    value = requires @ nodes.value
    at_level = np.zeros(cap + 1, dtype=np.int64)
    children = np.zeros(len(nodes.value) + 1, dtype=np.int64)  # the last entry is the root's
    order: list[int] = []
    deep = nodes.depth == limits.min_depth if cap >= limits.min_depth > 1 else np.zeros_like(inside)
    while True:
        reach = open_ & deep & ~inside
        wanted = reach if reach.any() and not (inside & deep).any() else open_ & ~inside
        if not wanted.any():
            return order
        density = np.where(wanted, value / np.maximum(count, 1), -1.0)
        best = int(np.argmax(density))
        missing = np.flatnonzero(requires[best] & ~inside)
        levels = at_level + np.bincount(nodes.depth[missing], minlength=cap + 1)
        siblings = children.copy()
        np.add.at(siblings, nodes.parent[missing], 1)
        fits = len(order) + len(missing) <= size and siblings.max() <= limits.children
        if not fits or any(levels[level] > limits.level(level) for level in range(1, cap + 1)):
            open_[best] = False  # the tree only grows, so it will never fit
            continue
        inside[missing] = True
        order += missing.tolist()
        at_level, children = levels, siblings
        count -= requires[:, missing].sum(axis=1)
        value -= requires[:, missing] @ nodes.value[missing]


def _requirements(nodes: Nodes, limits: Limits) -> NDArray[np.bool_]:
    """Return bool (n, n); row i holds node i and all nodes that it requires."""
    requires = np.eye(len(nodes.value), dtype=np.bool_)
    for node, (above, rank) in enumerate(zip(nodes.parent.tolist(), nodes.rank.tolist(), strict=True)):
        if above >= 0:
            requires[node] |= requires[above]
        if rank and (limits.contiguous or (limits.contiguous_root and above < 0)):
            requires[node] |= requires[node - 1]
        if limits.expand_prefix and above >= 0 and nodes.rank[above]:
            start, end = nodes.first[above : above + 2].tolist()  # children of the sibling before the parent
            requires[node] |= requires[start if limits.contiguous else start + int(np.argmax(nodes.value[start:end]))]
    return requires
