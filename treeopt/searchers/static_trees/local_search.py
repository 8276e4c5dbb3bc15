"""From tree to better tree on one replayed trace: rounds of policy improvement, restarts, a weight sweep, swaps.

Proves nothing. Knows a pool of nodes and what steps cost, not where they come from.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.many_trees import Chosen, Replayer
from treeopt.searchers.static_trees.closed_subtrees import ClosedParts
from treeopt.searchers.static_trees.node_values import Saved, Values

WORK = 2**18  # anchors that are replayed at effort 1, for each root of an anchor: larger traces get less each
VALUED = 24  # replays that valuing all nodes takes the time of
SWAPPED = 2**23  # anchors that swaps are replayed on before one is made, a few at least
FEWEST_SWAPS = 16
ROUNDS = 12
PATIENCE = 3  # rounds that may bring nothing
POWERS = (0, 1, 2, 3)  # of a group's steps a token: weights of the position averages that are started from
SWEPT = (-1.0, -0.5, 0.5, 1.0)  # the same, for values under the best tree
HELD = (0.0, 0.1, 0.3, 1.0, 3.0)  # what the tree's own nodes are worth on top, in values of the least one taken
ASIDE = 0.1  # weight of the other rows when one is started for
SHARPNESS = 20.0  # of the dearest row's weight among the others
GROWTH = 16  # share of the nodes that a tree grown from nothing begins with


class Climb:
    """One improvement.

    Attributes:
        best: bool (C,), nodes of the best tree that was replayed.
        cost: its steps at the prices of its dearest row.
    """

    def __init__(
        self, replayer: Replayer, prices: NDArray[np.float64], *, nodes: int, depth: int, effort: float
    ) -> None:
        """Stands at the position-averaged tree of at most `nodes` nodes and `depth` levels.

        Args:
            replayer: trace and pool of C nodes.
            prices: float64 (K, R), see `objective`.
            nodes: of a tree at most.
            depth: of a tree at most.
            effort: times the usual work.
        """
        self._replayer, self._prices, self._nodes = replayer, prices, nodes
        self._closed = ClosedParts(replayer.pool)
        self._above = np.array(replayer.pool.parents, dtype=np.int64)
        self._barred = np.array(replayer.pool.depths, dtype=np.int64) > depth
        self._left = effort * WORK * replayer.trace.anchors**0.5
        self._costs: dict[bytes, float] = {}
        self._gone_from: set[bytes] = set()
        self.best, self.cost = self._averaged(), np.inf
        self._replay(self.best[None])
        self._saved = Saved(replayer, prices, self._steps(self.best))

    def run(self) -> None:
        """Climb until nothing is found or the work is done."""
        if self.best.any():
            self._start()
            self._iterate(self.best)
            self._iterate(self._grown())
            self._sweep()
            self._swap()

    def _averaged(self) -> Chosen:
        """The most frequent nodes, ties as `best_first` settles them."""
        times = np.where(self._barred, 0, self._replayer.times())
        most = np.argsort(-times, kind="stable")[: self._nodes]
        chosen = np.zeros(len(times), dtype=bool)
        chosen[most[times[most] > 0]] = True
        return chosen

    def _start(self) -> None:
        """Trees averaged over positions under several weights of the groups."""
        saved = self._saved
        weights = [saved.pace**power for power in POWERS]
        if len(self._prices) > 1:
            weights += [np.where(saved.row == row, 1.0, ASIDE) for row in range(len(self._prices))]
        self._replay(self._fill(np.array(weights) @ saved.frequencies()))

    def _grown(self) -> Chosen:
        """A tree that doubles from a few nodes, those that save most under the one before."""
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
        """Policy improvement: go on from the best of the trees that values under the last one propose."""
        waited = 0
        for _ in range(ROUNDS):
            known = self.cost
            self._gone_from.add(chosen.tobytes())
            values = self._values(chosen)
            least = np.partition(values, -min(self._nodes, values.shape[1]))[:, [-min(self._nodes, values.shape[1])]]
            trees = self._fill(np.concatenate([values + held * np.maximum(least, 0) * chosen for held in HELD]))
            following = self._following(trees)
            waited = 0 if self.cost < known else waited + 1
            if following is None or waited > PATIENCE or self._left <= 0:
                break
            chosen = following

    def _sweep(self) -> None:
        """Values under the best tree with other weights of the groups: faster or slower requests count more."""
        if self._left > 0:
            known = self.cost
            self._replay(self._fill(np.concatenate([self._values(self.best, power) for power in SWEPT])))
            if self.cost < known:
                self._iterate(self.best)

    def _swap(self) -> None:
        """Put one child for one leaf, those first that values promise most of, even where nothing gains at once."""
        chosen, waited = self.best, 0
        self._gone_from.clear()
        while self._left > 0 and waited <= PATIENCE:
            known = self.cost
            self._gone_from.add(chosen.tobytes())
            following = self._following(self._neighbours(chosen))
            if following is None:
                break
            chosen, waited = following, 0 if self.cost < known else waited + 1

    def _neighbours(self, chosen: Chosen) -> NDArray[np.bool_]:
        """Trees with a leaf less, a child more, or both."""
        size, inside = len(chosen), np.append(chosen, True)
        inner = np.zeros(size + 1, dtype=bool)
        inner[self._above[chosen]] = True
        none = size  # in the place of a node: nothing is dropped, or added
        leaves = np.append(np.flatnonzero(chosen & ~inner[:-1]), none)
        children = np.append(np.flatnonzero(~chosen & inside[self._above] & ~self._barred), none)
        dropped, added = (each.ravel() for each in np.meshgrid(leaves, children, indexing="ij"))
        orphan = (np.append(self._above, -1)[added] == dropped) & (added != none)
        full = (dropped == none) & (added != none) & (chosen.sum() >= self._nodes)
        gain = np.append(self._values(chosen)[0], 0.0)
        promise = np.where(orphan | full | (dropped == added), -np.inf, gain[added] - gain[dropped])
        most = max(FEWEST_SWAPS, SWAPPED // self._replayer.trace.anchors)
        tried = np.argsort(-promise, kind="stable")[:most]
        tried = tried[promise[tried] > -np.inf]
        trees = np.repeat(np.append(chosen, False)[None], len(tried), axis=0)
        trees[np.arange(len(tried)), dropped[tried]] = False
        trees[np.arange(len(tried)), added[tried]] = True
        return trees[:, :size]

    def _following(self, trees: NDArray[np.bool_]) -> Chosen | None:
        """The best of the trees that was not gone from yet."""
        for i in np.argsort(self._replay(trees), kind="stable").tolist():
            if trees[i].tobytes() not in self._gone_from:
                return np.asarray(trees[i])
        return None

    def _values(self, chosen: Chosen, power: float = 0.0) -> Values:
        """Worth of nodes under a tree, float64 (n, C): by weights of the rows, at visited anchors and half at any."""
        self._left -= VALUED * self._replayer.trace.anchors
        here, anywhere = self._saved.under(chosen)
        weights = self._row_weights(chosen)[:, self._saved.row] * self._saved.pace**power
        return np.concatenate([weights @ here, weights @ (here + anywhere) / 2])

    def _row_weights(self, chosen: Chosen) -> NDArray[np.float64]:
        """Weights of the rows, float64 (n, K): the dearest alone, dearer ones more, all alike."""
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
        """Costs of trees, float64 (T,); those met before are not replayed again, the best is kept."""
        keys = [tree.tobytes() for tree in trees]
        new = {key: i for i, key in enumerate(keys) if key not in self._costs}
        if new:
            met = trees[list(new.values())]
            costs = (self._prices @ self._replayer.steps(met).T).max(0)
            self._costs.update(zip(new, costs.tolist(), strict=True))
            self._left -= len(met) * self._replayer.trace.anchors
            if costs.min() < self.cost:
                self.best, self.cost = met[costs.argmin()], float(costs.min())
        return np.array([self._costs[key] for key in keys])
