"""The most valuable subtree of a pool of nodes (a node only with its parent), for many value vectors at once.

Proves: for additive values of any sign and in any order along a path, the subtree is optimal. Nodes are considered in
depth-first order: after a node comes its first child if the node is taken, else the node after its subtree (a knapsack
with precedence on a tree). O(pool · nodes) for all values together, made for local searches that call it repeatedly.
No engine rules; `knapsack` obeys rules and returns trees of exactly N nodes for all sizes and depth caps.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.tree import Tree


class ClosedParts:
    """Subtrees of one pool, for many value vectors.

    >>> pool = Tree.from_paths([(0, 0), (1,)])
    >>> part = ClosedParts(pool).fill(np.array([[-1.0, 1.5, 3.0]]), nodes=2)[0]  # values of (0,), (1,) and (0, 0)
    >>> [path for path, taken in zip(pool.paths, part.tolist(), strict=True) if taken]
    [(0,), (0, 0)]
    """

    def __init__(self, pool: Tree) -> None:
        """Put the nodes into depth-first order."""
        self.pool = pool
        self._order = sorted(range(pool.nodes), key=pool.paths.__getitem__)
        size = np.ones(pool.nodes, dtype=np.int64)
        for node in range(pool.nodes - 1, -1, -1):
            if pool.parents[node] >= 0:
                size[pool.parents[node]] += size[node]
        self._after = (np.arange(pool.nodes) + size[self._order]).tolist()  # first node after a node's subtree

    def fill(self, values: NDArray[np.float64], *, nodes: int) -> NDArray[np.bool_]:
        """Return the most valuable subtrees of at most `nodes` nodes; a node that adds nothing is left out.

        Args:
            values: float64 (T, C), value of each node, T times.
            nodes: largest subtree.

        Returns:
            bool (T, C), the nodes of each subtree.
        """
        if nodes < 0:
            raise UsageError(f"nodes must be 0 or more, got {nodes}")
        times, size = values.shape
        room = min(nodes, size)
        ordered = values[:, self._order].T[:, :, None]
        best = np.zeros((size + 1, times, room + 1))
        taken = np.zeros((size, times, room + 1), dtype=bool)
        for i in range(size - 1, -1, -1):
            without = best[self._after[i]]
            best[i, :, 0] = without[:, 0]
            added = best[i + 1, :, :-1] + ordered[i]
            np.greater(added, without[:, 1:], out=taken[i, :, 1:])
            np.maximum(added, without[:, 1:], out=best[i, :, 1:])
        parts = np.zeros((times, size), dtype=bool)
        for time in range(times):
            i, left = 0, room
            while i < size and left:
                if taken[i, time, left]:
                    parts[time, self._order[i]] = True
                    i, left = i + 1, left - 1
                else:
                    i = self._after[i]
        return parts
