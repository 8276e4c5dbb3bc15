"""Local search for a better tree on one replayed trace: policy improvement, restarts, a weight sweep, node swaps.

Proves nothing. Takes a pool of nodes and prices of steps, wherever they come from.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.many_trees import Chosen, Replayer
from treeopt.searchers.static_trees.closed_subtrees import ClosedParts
from treeopt.searchers.static_trees.node_values import Saved, Values

WORK = 2**18  # anchors replayed at effort 1, per square root of the trace's anchors: large traces get fewer replays
VALUED = 24  # time of valuing all nodes, in replays
SWAPPED = 2**23  # anchors that swaps are replayed on before one is made, but at least FEWEST_SWAPS swaps
FEWEST_SWAPS = 16
ROUNDS = 12
PATIENCE = 3  # rounds without improvement before stopping
POWERS = (0, 1, 2, 3)  # powers of a group's steps per token: weights of the position averages to start from
SWEPT = (-1.0, -0.5, 0.5, 1.0)  # the same, for values under the best tree
BONUSES = (0.0, 0.1, 0.3, 1.0, 3.0)  # added to the current tree's nodes, in multiples of the least value taken
ASIDE = 0.1  # weight of the other rows when starting for one row
SHARPNESS = 20.0  # how sharply weights favour the most expensive row
GROWTH = 16  # a tree grown from nothing begins with 1/GROWTH of the nodes


class Climb:
    """A local search.

    Attributes:
        best: bool (C,), nodes of the best tree that was replayed.
        cost: its steps at the prices of its most expensive row.
    """

    def __init__(
        self, replayer: Replayer, prices: NDArray[np.float64], *, nodes: int, depth: int, effort: float
    ) -> None:
        """Start at the position-averaged tree of at most `nodes` nodes and `depth` levels.

        Args:
            replayer: trace and pool of C nodes.
            prices: float64 (K, R), see `objective`.
            nodes: largest tree.
            depth: deepest tree.
            effort: multiple of the usual work.
        """
        self._replayer, self._prices, self._nodes = replayer, prices, nodes
        self._closed = ClosedParts(replayer.pool)
        self._above = np.array(replayer.pool.parents, dtype=np.int64)
        self._barred = np.array(replayer.pool.depths, dtype=np.int64) > depth
        self._left = effort * WORK * replayer.trace.anchors**0.5
        self._costs: dict[bytes, float] = {}
        self._expanded: set[bytes] = set()  # trees whose successors were tried
        self.best, self.cost = self._averaged(), np.inf
        self._replay(self.best[None])
        self._saved = Saved(replayer, prices, self._steps(self.best))

    def run(self) -> None:
        """Search until no improvement is found or the work is used up."""
        if self.best.any():
            self._start()
            self._iterate(self.best)
            self._iterate(self._grown())
            self._sweep()
            self._swap()

    def _averaged(self) -> Chosen:
        """Return the most frequent nodes, with ties settled as in `best_first`."""
        times = np.where(self._barred, 0, self._replayer.times())
        frequent = np.argsort(-times, kind="stable")[: self._nodes]
        chosen = np.zeros(len(times), dtype=bool)
        chosen[frequent[times[frequent] > 0]] = True
        return chosen

    def _start(self) -> None:
        """Replay position-averaged trees under several weights of the groups."""
        saved = self._saved
        weights = [saved.steps_per_token**power for power in POWERS]
        if len(self._prices) > 1:
            weights += [np.where(saved.row == row, 1.0, ASIDE) for row in range(len(self._prices))]
        self._replay(self._fill(np.array(weights) @ saved.frequencies()))

    def _grown(self) -> Chosen:
        """Return a tree that doubles from a few nodes, each time with those that save most under the tree before."""
        chosen, size = np.zeros_like(self.best), max(1, self._nodes // GROWTH)
        while self._left > 0:
            self._replay(chosen[None])
            chosen = self._fill(self._values(chosen)[:1], nodes=size)[0]
            if size == self._nodes:
                self._replay(chosen[None])
                break
            size = min(2 * size, self._nodes)
        return chosen

    def _iterate(self, chosen: Chosen) -> None:
        """Improve the policy: continue from the best of the trees that values under the last tree propose."""
        waited = 0
        for _ in range(ROUNDS):
            known = self.cost
            self._expanded.add(chosen.tobytes())
            values = self._values(chosen)
            least = np.partition(values, -min(self._nodes, values.shape[1]))[:, [-min(self._nodes, values.shape[1])]]
            trees = self._fill(np.concatenate([values + bonus * np.maximum(least, 0) * chosen for bonus in BONUSES]))
            following = self._following(trees)
            waited = 0 if self.cost < known else waited + 1
            if following is None or waited > PATIENCE or self._left <= 0:
                break
            chosen = following

    def _sweep(self) -> None:
        """Try values under the best tree with other weights of the groups: faster or slower requests count more."""
        if self._left > 0:
            known = self.cost
            self._replay(self._fill(np.concatenate([self._values(self.best, power) for power in SWEPT])))
            if self.cost < known:
                self._iterate(self.best)

    def _swap(self) -> None:
        """Swap one leaf for one child, most promising first, also where no swap gains at once."""
        chosen, waited = self.best, 0
        self._expanded.clear()
        while self._left > 0 and waited <= PATIENCE:
            known = self.cost
            self._expanded.add(chosen.tobytes())
            following = self._following(self._neighbours(chosen))
            if following is None:
                break
            chosen, waited = following, 0 if self.cost < known else waited + 1

    def _neighbours(self, chosen: Chosen) -> NDArray[np.bool_]:
        """Return trees with one leaf less, one child more, or both."""
        size, inside = len(chosen), np.append(chosen, True)
        inner = np.zeros(size + 1, dtype=bool)
        inner[self._above[chosen]] = True
        none = size  # stands for no node: nothing is dropped, or nothing is added
        leaves = np.append(np.flatnonzero(chosen & ~inner[:-1]), none)
        children = np.append(np.flatnonzero(~chosen & inside[self._above] & ~self._barred), none)
        dropped, added = (grid.ravel() for grid in np.meshgrid(leaves, children, indexing="ij"))
        orphan = (np.append(self._above, -1)[added] == dropped) & (added != none)
        full = (dropped == none) & (added != none) & (chosen.sum() >= self._nodes)
        gain = np.append(self._values(chosen)[0], 0.0)
        promise = np.where(orphan | full | (dropped == added), -np.inf, gain[added] - gain[dropped])
        swaps = max(FEWEST_SWAPS, SWAPPED // self._replayer.trace.anchors)
        tried = np.argsort(-promise, kind="stable")[:swaps]
        tried = tried[promise[tried] > -np.inf]
        trees = np.repeat(np.append(chosen, False)[None], len(tried), axis=0)
        trees[np.arange(len(tried)), dropped[tried]] = False
        trees[np.arange(len(tried)), added[tried]] = True
        return trees[:, :size]

    def _following(self, trees: NDArray[np.bool_]) -> Chosen | None:
        """Return the best of the trees that the search has not continued from yet."""
        for i in np.argsort(self._replay(trees), kind="stable").tolist():
            if trees[i].tobytes() not in self._expanded:
                return np.asarray(trees[i])
        return None

    def _values(self, chosen: Chosen, power: float = 0.0) -> Values:
        """Return values of nodes under a tree, float64 (n, C): per row weighting, at visited anchors and at all."""
        self._left -= VALUED * self._replayer.trace.anchors
        at_visited, at_all = self._saved.under(chosen)
        weights = self._row_weights(chosen)[:, self._saved.row] * self._saved.steps_per_token**power
        return np.concatenate([weights @ at_visited, weights @ (at_visited + at_all) / 2])

    def _row_weights(self, chosen: Chosen) -> NDArray[np.float64]:
        """Return weights of the rows, float64 (n, K): only the most expensive, expensive ones more, all equally."""
        costs = self._prices @ self._steps(chosen)
        if len(costs) == 1:
            return np.ones((1, 1))
        near = np.exp(SHARPNESS * (costs / costs.max() - 1))
        return np.array([costs == costs.max(), near, np.ones(len(costs))], dtype=np.float64)

    def _fill(self, values: Values, nodes: int | None = None) -> NDArray[np.bool_]:
        return self._closed.fill(np.where(self._barred, -np.inf, values), nodes=self._nodes if nodes is None else nodes)

    def _steps(self, chosen: Chosen) -> NDArray[np.int64]:
        return np.asarray(self._replayer.steps(chosen[None])[0])

    def _replay(self, trees: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return costs of trees, float64 (T,), replaying only new ones; remember the best."""
        keys = [tree.tobytes() for tree in trees]
        new = {key: i for i, key in enumerate(keys) if key not in self._costs}
        if new:
            fresh = trees[list(new.values())]
            costs = (self._prices @ self._replayer.steps(fresh).T).max(0)
            self._costs.update(zip(new, costs.tolist(), strict=True))
            self._left -= len(fresh) * self._replayer.trace.anchors
            if costs.min() < self.cost:
                self.best, self.cost = fresh[costs.argmin()], float(costs.min())
        return np.array([self._costs[key] for key in keys])
