"""Local search for a better tree on a replayed trace (`renewal`): policy improvement, restarts, a weight sweep, swaps.

Proves nothing. Takes a pool of nodes and prices of steps, wherever they come from.

`Saved` values nodes on the walk of a tree. Let V(t) be the steps from anchor t to the end of its request. A node of
depth d that the text at a visited anchor t follows saves V(t + d) − V(t + d + 1) steps there: the gain in this step if
all later steps stay as they are (policy improvement, Howard 1960). The value may be negative, and larger than that of
the node's parent.

`ClosedParts` takes the most valuable subtree of the pool, a node only with its parent, for many value vectors at once.
For additive values of any sign it is optimal. After a node, in depth-first order, comes its first child if the node is
taken, else the node after its subtree (a knapsack with precedence on a tree): O(pool · nodes) for all values together.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.many_trees import Chosen, Replayer
from treeopt.replay.objective import THROUGHPUT, Objective
from treeopt.replay.walk import in_step, longest, next_anchors
from treeopt.searchers.best_first import count_prefixes
from treeopt.traces.trace import Trace
from treeopt.tree import MAX_NODES, Tree

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
SPEEDS = 4  # groups that requests of one price row fall into, by steps per token
GROWTH = 16  # a tree grown from nothing begins with 1/GROWTH of the nodes

Values = NDArray[np.float64]


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
        pool = replayer.pool
        self._above = np.array(pool.parents, dtype=np.int64)
        self._barred = np.array(pool.depths, dtype=np.int64) > depth  # the last ones of the pool
        inside = pool.nodes - int(self._barred.sum())
        self._closed = ClosedParts(Tree(pool.parents[:inside], pool.ranks[:inside]))
        self._left = effort * WORK * replayer.trace.anchors**0.5
        self._costs: dict[bytes, float] = {}
        self._valued: dict[bytes, tuple[Values, Values]] = {}
        self._expanded: set[bytes] = set()  # trees whose successors were tried
        self.best, self.cost = self._most_frequent(), np.inf
        self._replay(self.best[None])
        self._saved = Saved(replayer, prices, self._steps(self.best))

    def run(self) -> None:
        """Search until no improvement is found or the work is used up."""
        if self.best.any():
            self._start()
            self._iterate(self.best)
            self._iterate(self._grow())
            self._sweep()
            self._swap()

    def _most_frequent(self) -> Chosen:
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

    def _grow(self) -> Chosen:
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
        if (key := chosen.tobytes()) not in self._valued:
            self._valued[key] = self._saved.under(chosen)
        at_visited, at_all = self._valued[key]
        weights = self._row_weights(chosen)[:, self._saved.row] * self._saved.steps_per_token**power
        return np.concatenate([weights @ at_visited, weights @ (at_visited + at_all) / 2])

    def _row_weights(self, chosen: Chosen) -> NDArray[np.float64]:
        """Return weights of the rows, float64 (n, K): only the most expensive, expensive ones more, all equally."""
        if len(self._prices) == 1:
            return np.ones((1, 1))
        costs = self._prices @ self._steps(chosen)
        near = np.exp(SHARPNESS * (costs / costs.max() - 1))
        return np.array([costs == costs.max(), near, np.ones(len(costs))], dtype=np.float64)

    def _fill(self, values: Values, nodes: int | None = None) -> NDArray[np.bool_]:
        parts = np.zeros(values.shape, dtype=bool)
        inside = values[:, ~self._barred]
        parts[:, ~self._barred] = self._closed.fill(inside, nodes=self._nodes if nodes is None else nodes)
        return parts

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


def remaining_steps(accepted: NDArray[np.int64], trace: Trace) -> NDArray[np.int32]:
    """Return the steps from every anchor to the end of its request, V(t) = 1 + V(t + 1 + accepted(t)); int32 (P,).

    Args:
        accepted: int64 (P,), drafted tokens that a step from each anchor accepts.
        trace: the requests.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0], [0], [0]]), 1)
    >>> remaining_steps(np.array([1, 0, 0]), trace).tolist()
    [2, 2, 1]
    """
    jump = next_anchors(accepted, trace)
    steps = np.ones(trace.anchors + 1, dtype=np.int32)
    steps[-1] = 0
    if not in_step(trace):
        for _ in range(longest(trace).bit_length()):
            steps += steps[jump]
            jump = jump[jump]
        return steps[:-1]
    by_length = np.argsort(-trace.lengths, kind="stable")
    starts = trace.starts[by_length]
    longer = np.searchsorted(-trace.lengths[by_length], -np.arange(longest(trace)))  # requests beyond each position
    for position in range(len(longer) - 1, -1, -1):
        anchors = starts[: longer[position]] + position
        steps[anchors] += steps[jump[anchors]]
    return steps[:-1]


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
        times, size = values.shape
        room = min(nodes, size)
        ordered = values.T[self._order][:, :, None]
        best = np.zeros((size + 1, times, room + 1))
        for i in range(size - 1, -1, -1):
            taken = np.add(best[i + 1, :, :-1], ordered[i], out=best[i, :, 1:])
            np.maximum(taken, best[self._after[i], :, 1:], out=taken)
        parts = np.zeros((times, size), dtype=bool)
        for time in range(times):
            i, left = 0, room
            while i < size and left:
                if best[i, time, left] > best[self._after[i], time, left]:
                    parts[time, self._order[i]] = True
                    i, left = i + 1, left - 1
                else:
                    i = self._after[i]
        return parts


POOL = 8  # pool size as a multiple of the nodes wanted
LARGEST_POOL = 1024


def improve(
    trace: Trace,
    *,
    nodes: int,
    depth: int,
    objective: Objective = THROUGHPUT,
    effort: float = 1.0,
    replayer: Replayer | None = None,
) -> Tree:
    """Return the best replayed tree of at most `nodes` nodes and `depth` levels that was found.

    Starts from position-averaged trees. Each round values all nodes of a pool under the current tree, takes the most
    valuable subtrees, replays them and continues from the best; finally single nodes are swapped.

    Args:
        trace: trace to replay on.
        nodes: largest tree.
        depth: deepest tree.
        objective: what is maximised.
        effort: multiple of the usual work.
        replayer: replayer of this trace, made by `ready` for at least as many nodes and levels; default a new one.

    Raises:
        TraceError: an objective that the trace cannot answer.
    """
    replayer = replayer or ready(trace, nodes=nodes, depth=depth)
    climb = Climb(replayer, objective.prices(trace), nodes=nodes, depth=depth, effort=effort)
    climb.run()
    return replayer.tree(climb.best)


def ready(trace: Trace, *, nodes: int, depth: int) -> Replayer:
    """Return a replayer for improving trees of at most `nodes` nodes and `depth` levels.

    Its pool holds the most frequent prefixes, several times `nodes`, including the position-averaged trees of all
    smaller sizes and depth caps.
    """
    size = min(max(min(POOL * nodes, LARGEST_POOL), 2 * nodes, 64), MAX_NODES)
    frontier = count_prefixes(trace, nodes=size, depth=depth)
    pool = set(frontier.order(depth).tolist())
    for cap in range(1, min(depth, trace.depth)):
        pool.update(frontier.order(cap)[:nodes].tolist())
    return Replayer(trace, Tree.from_paths(frontier.paths[node] for node in sorted(pool)[:MAX_NODES]))
