"""All trees in which the nodes of a level have equally many children, and what each is worth."""

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Limits
from treeopt.searchers.constrained_trees.node_pool import Nodes
from treeopt.searchers.static_trees.best_first import Frontier


def branchings(
    frontier: Frontier, limits: Limits, *, size: int, depth: int, padded: bool = False
) -> tuple[list[tuple[int, ...]], NDArray[np.float64]]:
    """Children a node of each level, and the expected tokens a step: every uniform tree within the limits.

    Trees with a level or a last rank that no node of the pool takes are left out where rules cannot ask for it:
    without it they are smaller and worth as much, though a step may take longer.

    Args:
        frontier: values of nodes; others are worth nothing.
        limits: what the rules leave. The least depth, sizes and pools of candidates are for the caller to check.
        size: largest tree.
        depth: deepest level.
        padded: keep those trees too, for all ranks and levels within the limits.

    Returns:
        number of children by level, as `Tree.cartesian` takes them, and float64 (n,) tokens, bonus counted.
    """
    nodes = Nodes.of(frontier, Limits(), depth=depth)
    padded = padded or limits.sizes is not None or limits.pool or limits.full or limits.min_depth > 1
    most = min(limits.ranks, limits.children, size)
    shapes: list[tuple[int, ...]] = []
    tokens: list[float] = []

    def wide(shape: tuple[int, ...], most: int, level: int, total: int) -> range:
        widest = min(most, (size - total) // level, limits.level(len(shape) + 1) // level)
        if limits.full and shape:
            return range(shape[0], min(widest, shape[0]) + 1)
        return range(1, widest + 1)

    def extend(shape: tuple[int, ...], level: int, total: int, value: float, held: NDArray[np.int64]) -> None:
        if shape:
            shapes.append(shape)
            tokens.append(1 + value)
        if len(shape) == depth or total + level > size:
            return
        if len(held) == 0:  # nothing below is worth anything
            if padded:
                for branches in wide(shape, most, level, total):
                    extend((*shape, branches), level * branches, total + level * branches, value, held)
            return
        above = np.zeros(len(nodes.value) + 1, dtype=np.bool_)  # the last entry is the root's
        above[held] = True
        children = np.flatnonzero(above[nodes.parent])
        ranks = nodes.rank[children]
        gain = np.cumsum(np.bincount(ranks, nodes.value[children], minlength=most)[: max(most, 0)])
        useful = most if padded else min(most, int(ranks.max(initial=-1)) + 1)
        for branches in wide(shape, useful, level, total):
            below, here = children[ranks < branches], level * branches
            extend((*shape, branches), here, total + here, value + float(gain[branches - 1]), below)

    extend((), 1, 0, 0.0, np.array([-1]))
    return shapes, np.array(tokens)
