"""Values of nodes on the walk of a tree: the steps that each node of a pool saves, from the steps left after an anchor.

Let V(t) be the steps from anchor t to the end of its request. A node of depth d that the text at a visited anchor t
follows saves V(t + d) − V(t + d + 1) steps there: the gain in this step if all later steps stay as they are (policy
improvement, Howard 1960). The value may be negative, and larger than that of the node's parent.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.many_trees import Chosen, Replayer
from treeopt.replay.steps_remaining import remaining_steps

SPEEDS = 4  # groups that requests of one price row fall into, by steps per token

Values = NDArray[np.float64]


class Saved:
    """Priced steps that nodes save, summed over groups of requests.

    Attributes:
        row: int64 (G,), the price row of a group's requests.
        steps_per_token: float64 (G,), of each group under the tree that the groups were made from.
    """

    def __init__(self, replayer: Replayer, prices: NDArray[np.float64], steps: NDArray[np.int64]) -> None:
        """Group the requests by the row that prices them and, in each row, by their steps per token.

        Args:
            replayer: trace and pool of C nodes.
            prices: float64 (K, R); for each request the row with the highest price counts.
            steps: int64 (R,), steps with the tree that groups are made from.
        """
        self.replayer = replayer
        trace, pool = replayer.trace, replayer.pool
        row, speed = prices.argmax(0), steps / trace.lengths
        edges = np.quantile(speed, np.arange(1, SPEEDS) / SPEEDS)
        groups, group = np.unique(row * SPEEDS + np.searchsorted(edges, speed, side="right"), return_inverse=True)
        self.row = groups // SPEEDS
        self.steps_per_token = np.bincount(group, steps) / np.bincount(group, trace.lengths)
        # Two extra places follow every request: a node's text may end with the request, and V is 0 there.
        self._ends = np.repeat(trace.stops, 2)
        number = replayer.leaf.astype(np.int64) + (group * (pool.nodes + 1))[trace.request_index]
        self._number = np.insert(number, self._ends, 0)
        self._price = np.insert(prices.max(0)[trace.request_index], self._ends, 0.0)
        self._above = np.array(pool.parents, dtype=np.int64) + 1

    def frequencies(self) -> Values:
        """Return priced anchors whose text follows each node, float64 (G, C), the summands of position averages."""
        at_leaf = self._by_leaf(self._number, self._price)
        return self._below(np.repeat(at_leaf[:, None], self.replayer.pool.depth, axis=1))

    def under(self, chosen: Chosen) -> tuple[Values, Values]:
        """Return the steps that nodes save under the tree `chosen`, bool (C,): at visited anchors, and at all anchors.

        Returns:
            two arrays float64 (G, C); the second, which is less noisy, is scaled to the number of visited anchors.
        """
        trace, depth = self.replayer.trace, self.replayer.pool.depth
        visited = self.replayer.visit(chosen).anchors
        left = np.insert(remaining_steps(self.replayer.accepted(chosen), trace), self._ends, 0)
        saved = -np.diff(left, append=np.zeros(depth + 1, left.dtype))
        places = visited + 2 * trace.request_index[visited]
        number, price = self._number[places], self._price[places]
        at_visited, at_all = [], []
        for level in range(1, depth + 1):
            at_visited.append(self._by_leaf(number, saved[places + level] * price))
            at_all.append(self._by_leaf(self._number, saved[level : level + len(left)] * self._price))
        share = len(visited) / trace.anchors
        return self._below(np.stack(at_visited, axis=1)), share * self._below(np.stack(at_all, axis=1))

    def _by_leaf(self, number: NDArray[np.int64], weights: Values) -> Values:
        size = self.replayer.pool.nodes + 1
        return np.asarray(np.bincount(number, weights, len(self.row) * size).reshape(-1, size), dtype=np.float64)

    def _below(self, at_leaf: Values) -> Values:
        """Return for each node the sum over leaves at and below it of the entry for its depth, float64 (G, C).

        Args:
            at_leaf: float64 (G, D, C + 1), by depth and deepest node; the root first.
        """
        pool = self.replayer.pool
        sums = np.moveaxis(at_leaf, 2, 0).copy()
        values = np.zeros((len(self.row), pool.nodes))
        stop = pool.nodes
        for level in range(pool.depth - 1, -1, -1):
            nodes = slice(stop - pool.level_widths[level], stop)
            level_sums = sums[nodes.start + 1 : nodes.stop + 1]
            values[:, nodes] = level_sums[:, :, level].T
            np.add.at(sums, self._above[nodes], level_sums)
            stop = nodes.start
        return values
