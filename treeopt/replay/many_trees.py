"""Replay of many trees on one trace: each anchor is looked up once in a pool of nodes that all trees are made of.

What an anchor's text follows is then one number, its deepest node of the pool, and what a tree keeps there one
entry of a small table. All requests walk in step and look only at anchors where a step starts; requests that are few
and long are walked by doubling (`walk.walked`). Counts are those of `replay_tree`.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.replay.static_tree import StepCounts, Walk, count, deepest, in_step, replay_tree, walked
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

STRIDE = 8  # steps between two looks at which requests have ended
LANES = 2**16  # requests that walk together, those of several trees counted apart

Chosen = NDArray[np.bool_]
Round = tuple[NDArray[np.int64], NDArray[np.uint8]]


class Replayer:
    """A trace made ready for the trees of a pool.

    Attributes:
        trace: what is replayed on.
        pool: the tree whose closed parts are replayed fast; C nodes.
        leaf: int16 (P,), 1 + the deepest node of the pool that the text at each anchor follows; 0, the root.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> Replayer(trace, Tree.full(2, 2)).replay(Tree.chain(1)).tau
    1.5
    """

    def __init__(self, trace: Trace, pool: Tree) -> None:
        """Looks every anchor up.

        Raises:
            TraceError: the pool is deeper than the trace, or looks at ranks that were not recorded.
            UsageError: a pool with nodes, and a rule that may keep several siblings: no leaf tells what it keeps.
        """
        if pool.nodes and trace.tree_kept is not None:
            raise UsageError("where several siblings may be kept, no pool of nodes makes replays faster")
        self.trace, self.pool = trace, pool
        self.leaf = (deepest(pool, trace) + 1).astype(np.int16)
        self._number = {step: i for i, step in enumerate(zip(pool.parents, pool.ranks, strict=True))}
        self._above = np.array(pool.parents, dtype=np.int64) + 1
        self._depth = np.array([0, *pool.depths], dtype=np.uint8)
        # A walk runs over the leaves with two places behind every request, which no step leaves: the last step of a
        # request may end one past its text. They hold C + 1.
        self._first = trace.starts + 2 * np.arange(trace.requests)
        self._leaf = np.insert(self.leaf, np.repeat(trace.stops, 2), pool.nodes + 1)

    def chosen(self, tree: Tree) -> Chosen | None:
        """The pool's nodes that the tree has, bool (C,), or None where the pool lacks one of the tree's."""
        numbers: list[int] = []
        for parent, rank in zip(tree.parents, tree.ranks, strict=True):
            number = self._number.get((numbers[parent] if parent >= 0 else -1, rank))
            if number is None:
                return None
            numbers.append(number)
        chosen = np.zeros(self.pool.nodes, dtype=bool)
        chosen[numbers] = True
        return chosen

    def tree(self, chosen: Chosen) -> Tree:
        """The tree of those nodes of the pool, bool (C,), and all above them."""
        return Tree.from_paths(self.pool.paths[node] for node in np.flatnonzero(chosen).tolist())

    def times(self) -> NDArray[np.int64]:
        """Anchors whose text follows each node of the pool, int64 (C,)."""
        times = np.bincount(self.leaf, minlength=self.pool.nodes + 1)
        for node in range(self.pool.nodes, 0, -1):
            times[self._above[node - 1]] += times[node]
        return times[1:]

    def replay(self, tree: Tree) -> StepCounts:
        """As `replay_tree`, which it falls back to for a tree with nodes outside the pool."""
        chosen = self.chosen(tree)
        if chosen is None:
            return replay_tree(tree, self.trace)
        if not in_step(self.trace):
            return count(self.visit(chosen), self.trace, depth=tree.depth)
        seen: list[Round] = []
        steps = self._walk(self._moves(chosen[None]), seen)[0]
        kept = np.bincount(np.concatenate([move for _, move in seen]), minlength=tree.depth + 2)
        return StepCounts(steps, self.trace.lengths, kept[1:])

    def steps(self, chosen: Chosen) -> NDArray[np.int64]:
        """Steps of each request under each of T trees, int64 (T, R).

        Args:
            chosen: bool (T, C), nodes of the pool that each tree has.

        Raises:
            UsageError: a node without its parent.
        """
        moves = self._moves(chosen)
        if not in_step(self.trace, len(chosen)):
            walks = (self.visit(row).request for row in chosen)
            return np.array([np.bincount(request, minlength=self.trace.requests) for request in walks])
        parts = -(-len(moves) * self.trace.requests // LANES)
        return np.concatenate([self._walk(part) for part in np.array_split(moves, max(1, min(parts, len(moves))))])

    def accepted(self, chosen: Chosen) -> NDArray[np.int64]:
        """Drafted tokens that a step would keep at every anchor, int64 (P,), under those nodes, bool (C,)."""
        return np.asarray(self._moves(chosen[None])[0].astype(np.int64)[self.leaf] - 1)

    def visit(self, chosen: Chosen) -> Walk:
        """The steps that the tree of those nodes, bool (C,), takes through every request."""
        accepted = self.accepted(chosen)
        if not in_step(self.trace):
            return walked(accepted, self.trace)
        seen: list[Round] = []
        self._walk(self._moves(chosen[None]), seen)
        visited = np.zeros(len(self._leaf), dtype=bool)
        for at, _ in seen:
            visited[at] = True
        anchors = np.flatnonzero(visited[self._leaf <= self.pool.nodes])
        return Walk(anchors, accepted[anchors], self.trace.request_index[anchors].astype(np.int64))

    def _moves(self, chosen: Chosen) -> NDArray[np.uint8]:
        """Tokens that a step commits by the leaf at its anchor, uint8 (T, C + 2); 0 behind the text."""
        held = np.concatenate([np.ones((len(chosen), 1), dtype=bool), chosen], axis=1)
        if (chosen & ~held[:, self._above]).any():
            raise UsageError("a tree that has a node must have its parent")
        moves = np.zeros((len(chosen), self.pool.nodes + 2), dtype=np.uint8)
        moves[:, 0] = 1
        stop = 1
        for width in self.pool.level_widths:
            level = slice(stop, stop := stop + width)
            moves[:, level] = np.where(
                held[:, level], self._depth[level] + 1, moves[:, self._above[level.start - 1 : stop - 1]]
            )
        return moves

    def _walk(self, moves: NDArray[np.uint8], seen: list[Round] | None = None) -> NDArray[np.int64]:
        """Steps of each request, int64 (T, R), all in step; appends where they stand and what they commit to `seen`."""
        trees, entries = moves.shape
        total = np.zeros(trees * self.trace.requests, dtype=np.int64)
        lane = np.arange(len(total))
        at = np.tile(self._first, trees)
        table = np.repeat(np.arange(trees) * entries, self.trace.requests)
        flat = moves.ravel()
        while len(lane):
            steps = np.zeros(len(lane), dtype=np.int64)
            for _ in range(STRIDE):
                move = flat.take(self._leaf.take(at) + table)
                if seen is not None:
                    seen.append((at, move))
                at = at + move
                steps += move > 0
            total[lane] += steps
            going = np.flatnonzero(move)
            if len(going) < len(lane):
                lane, at, table = lane[going], at[going], table[going]
        return total.reshape(trees, -1)
