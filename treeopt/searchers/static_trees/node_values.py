"""What each node of a pool saves on the walk of a tree, from the steps that remain behind every anchor.

With V(t) the steps from anchor t to the end of its request, a node of depth d that the text at a visited anchor t
follows saves V(t + d) − V(t + d + 1) steps there: what it adds to a tree's first step if all later ones stay as they
are (policy improvement, Howard 1960). It may be negative, and larger than that of the node's parent.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.many_trees import Chosen, Replayer
from treeopt.replay.steps_remaining import remaining_steps

PACES = 4  # groups that requests of one price row fall into

Values = NDArray[np.float64]


class Saved:
    """Priced steps that nodes save, summed over groups of requests.

    Attributes:
        row: int64 (G,), the price row that a group's requests count in.
        pace: float64 (G,), steps a token of each group under the tree that groups were made from.
    """

    def __init__(self, replayer: Replayer, prices: NDArray[np.float64], steps: NDArray[np.int64]) -> None:
        """Groups the requests by the row that prices them and, in each row, by their steps a token.

        Args:
            replayer: trace and pool of C nodes.
            prices: float64 (K, R); of each request one row counts, its dearest.
            steps: int64 (R,), of the tree that groups are made from.
        """
        self.replayer = replayer
        trace, pool = replayer.trace, replayer.pool
        row, pace = prices.argmax(0), steps / trace.lengths
        fast = np.quantile(pace, np.arange(1, PACES) / PACES)
        found, group = np.unique(row * PACES + np.searchsorted(fast, pace, side="right"), return_inverse=True)
        self.row = found // PACES
        self.pace = np.bincount(group, steps) / np.bincount(group, trace.lengths)
        # Two places follow every request: a node's text may end with it, and V is 0 there.
        self._behind = np.repeat(trace.stops, 2)
        number = replayer.leaf.astype(np.int64) + (group * (pool.nodes + 1))[trace.request_index]
        self._number = np.insert(number, self._behind, 0)
        self._price = np.insert(prices.max(0)[trace.request_index], self._behind, 0.0)
        self._above = np.array(pool.parents, dtype=np.int64) + 1

    def frequencies(self) -> Values:
        """Priced anchors whose text follows each node, float64 (G, C): what position averages add up."""
        at_leaf = self._by_leaf(self._number, self._price)
        return self._below(np.repeat(at_leaf[:, None], self.replayer.pool.depth, axis=1))

    def under(self, chosen: Chosen) -> tuple[Values, Values]:
        """What nodes save under the tree of `chosen`, bool (C,): at visited anchors, and at any.

        Returns:
            twice float64 (G, C); the second, which chance moves less, is scaled to as many anchors as are visited.
        """
        trace, depth = self.replayer.trace, self.replayer.pool.depth
        visited = self.replayer.visit(chosen).anchors
        left = np.insert(remaining_steps(self.replayer.accepted(chosen), trace), self._behind, 0)
        saved = -np.diff(left, append=np.zeros(depth + 1, left.dtype))
        places = visited + 2 * trace.request_index[visited]
        number, price = self._number[places], self._price[places]
        here, anywhere = [], []
        for level in range(1, depth + 1):
            here.append(self._by_leaf(number, saved[places + level] * price))
            anywhere.append(self._by_leaf(self._number, saved[level : level + len(left)] * self._price))
        share = len(visited) / trace.anchors
        return self._below(np.stack(here, axis=1)), share * self._below(np.stack(anywhere, axis=1))

    def _by_leaf(self, number: NDArray[np.int64], weights: Values) -> Values:
        size = self.replayer.pool.nodes + 1
        return np.asarray(np.bincount(number, weights, len(self.row) * size).reshape(-1, size), dtype=np.float64)

    def _below(self, at_leaf: Values) -> Values:
        """Of each node, the sum over leaves at and below it of the entry for its depth, float64 (G, C).

        Args:
            at_leaf: float64 (G, D, C + 1), by depth and deepest node; the root first.
        """
        pool = self.replayer.pool
        sums = np.moveaxis(at_leaf, 2, 0).copy()
        values = np.zeros((len(self.row), pool.nodes))
        stop = pool.nodes
        for level in range(pool.depth - 1, -1, -1):
            nodes = slice(stop - pool.level_widths[level], stop)
            held = sums[nodes.start + 1 : nodes.stop + 1]
            values[:, nodes] = held[:, :, level].T
            np.add.at(sums, self._above[nodes], held)
            stop = nodes.start
        return values
