"""Uniform trees: all trees in which the nodes of a level have equally many children, with the value of each."""

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Limits
from treeopt.searchers.constrained_trees.node_pool import Nodes
from treeopt.searchers.static_trees.best_first import Frontier


def branchings(
    frontier: Frontier, limits: Limits, *, size: int, depth: int, padded: bool = False
) -> tuple[list[tuple[int, ...]], NDArray[np.float64]]:
    """Return every uniform tree within the limits: children per node of each level, and expected tokens per step.

    Trees with a level or a last rank that no node of the pool takes are left out where rules cannot require it: without
    it they are smaller and worth as much, though a step may take longer.

    Args:
        frontier: values of nodes; other nodes are worth nothing.
        limits: limits that the rules set. The caller checks the minimum depth, sizes and pools of candidates.
        size: largest tree.
        depth: deepest level.
        padded: also return those trees, for all ranks and levels within the limits.

    Returns:
        number of children per node by level, as `Tree.cartesian` takes them, and float64 (n,) tokens, bonus counted.
    """
    nodes = Nodes.of(frontier, Limits(), depth=depth)
    padded = padded or limits.sizes is not None or limits.pool or limits.full or limits.min_depth > 1
    widest = min(limits.ranks, limits.children, size)
    shapes: list[tuple[int, ...]] = []
    tokens: list[float] = []

    def numbers(shape: tuple[int, ...], limit: int, level: int, total: int) -> range:
        most = min(limit, (size - total) // level, limits.level(len(shape) + 1) // level)
        if limits.full and shape:
            return range(shape[0], min(most, shape[0]) + 1)
        return range(1, most + 1)

    def extend(shape: tuple[int, ...], level: int, total: int, value: float, inside: NDArray[np.int64]) -> None:
        if shape:
            shapes.append(shape)
            tokens.append(1 + value)
        if len(shape) == depth or total + level > size:
            return
        if len(inside) == 0:  # nothing below is worth anything
            if padded:
                for branches in numbers(shape, widest, level, total):
                    extend((*shape, branches), level * branches, total + level * branches, value, inside)
            return
        above = np.zeros(len(nodes.value) + 1, dtype=np.bool_)  # the last entry is the root's
        above[inside] = True
        children = np.flatnonzero(above[nodes.parent])
        ranks = nodes.rank[children]
        gain = np.cumsum(np.bincount(ranks, nodes.value[children], minlength=widest)[: max(widest, 0)])
        useful = widest if padded else min(widest, int(ranks.max(initial=-1)) + 1)
        for branches in numbers(shape, useful, level, total):
            below, width = children[ranks < branches], level * branches
            extend((*shape, branches), width, total + width, value + float(gain[branches - 1]), below)

    extend((), 1, 0, 0.0, np.array([-1]))
    return shapes, np.array(tokens)
