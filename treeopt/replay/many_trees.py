"""Replay of many static trees at once: each anchor is looked up a single time in a pool that holds all their nodes.

The text after an anchor is then one number, the deepest node of the pool that it follows, and the tokens that a tree
accepts there are one entry of a small table. All requests walk side by side and read only anchors where a step starts;
requests that are few and long are walked by doubling (`treeopt.replay.walk.walk_steps`). Of many trees that resemble
each other, only requests in which they differ are walked. Counts equal those of `replay_tree`.
"""

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.replay.static_tree import deepest, replay_tree
from treeopt.replay.walk import StepCounts, Walk, count, in_step, next_anchors, walk_steps
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

STRIDE = 8  # steps between two checks for requests that have ended
LANES = 2**14  # requests that walk together; each tree's requests count separately

Chosen = NDArray[np.bool_]


def replayed(trace: Trace, pool: Tree, tree: Tree) -> StepCounts:
    """Return the counts of `replay_tree`, by a `Replayer` that stays with the trace until another pool is given."""
    replayer = trace.__dict__.get("replayer")
    if replayer is None or replayer.pool != pool:
        trace.__dict__["replayer"] = replayer = Replayer(trace, pool)
    return replayer.replay(tree)


class Replayer:
    """A trace prepared for replaying the subtrees of a pool.

    Attributes:
        trace: the trace to replay on.
        pool: the tree whose subtrees (a node only with its parent) are replayed fast; C nodes.
        leaf: int16 (P,), 1 + the deepest node of the pool that the text at each anchor follows; 0, the root.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> Replayer(trace, Tree.full(2, 2)).replay(Tree.chain(1)).tau
    1.5
    """

    def __init__(self, trace: Trace, pool: Tree) -> None:
        """Look up every anchor in the pool.

        Raises:
            TraceError: the pool is deeper than the trace, or needs ranks that were not recorded.
            UsageError: a pool with nodes, and a rule that may accept several siblings: one leaf does not determine
                what it accepts.
        """
        if pool.nodes and trace.tree_kept is not None:
            raise UsageError("a rule that may accept several siblings cannot be replayed with a pool of nodes")
        self.trace, self.pool = trace, pool
        self.leaf = (deepest(pool, trace) + 1).astype(np.int16)
        self._number = {step: i for i, step in enumerate(zip(pool.parents, pool.ranks, strict=True))}
        self._above = np.array(pool.parents, dtype=np.int64) + 1
        self._depth = np.array([0, *pool.depths], dtype=np.uint8)
        # A walk runs over the leaves with two extra places after every request, which no step leaves: the last step of
        # a request may end one past its text. They hold C + 1.
        self._first = trace.starts + 2 * np.arange(trace.requests)
        self._leaf = np.insert(self.leaf, np.repeat(trace.stops, 2), pool.nodes + 1)

    def chosen(self, tree: Tree) -> Chosen | None:
        """Return the pool's nodes that the tree has, bool (C,), or None if the tree has a node outside the pool."""
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
        """Return the tree of these nodes of the pool, bool (C,), and all their ancestors."""
        return Tree.from_paths(self.pool.paths[node] for node in np.flatnonzero(chosen).tolist())

    def times(self) -> NDArray[np.int64]:
        """Return the number of anchors whose text follows each node of the pool, int64 (C,)."""
        times = np.bincount(self.leaf, minlength=self.pool.nodes + 1)
        for node in range(self.pool.nodes, 0, -1):
            times[self._above[node - 1]] += times[node]
        return times[1:]

    def replay(self, tree: Tree) -> StepCounts:
        """Return the counts of `replay_tree`, which is also called for a tree with nodes outside the pool."""
        chosen = self.chosen(tree)
        if chosen is None:
            return replay_tree(tree, self.trace)
        return count(self.visit(chosen), self.trace, depth=tree.depth)

    def steps(self, chosen: Chosen) -> NDArray[np.int64]:
        """Return the steps of each request under each of T trees, int64 (T, R).

        Args:
            chosen: bool (T, C), nodes of the pool that each tree has.

        Raises:
            UsageError: a node without its parent.
        """
        moves = self._moves(chosen)
        if not in_step(self.trace, len(chosen)):
            walks = (self.visit(row).request for row in chosen)
            return np.array([np.bincount(request, minlength=self.trace.requests) for request in walks])
        usual = 2 * chosen.sum(axis=0) > len(chosen)  # where a tree moves as this one, its requests take as many steps
        walk = self.visit(usual)
        steps = np.tile(np.bincount(walk.request, minlength=self.trace.requests), len(moves))
        differs = moves != self._moves(usual[None])
        seen = np.zeros((moves.shape[1], self.trace.requests), dtype=np.float32)
        seen[self.leaf[walk.anchors], walk.request] = 1
        some = differs.any(axis=0)
        lanes = np.flatnonzero(differs[:, some].astype(np.float32) @ seen[some])
        for part in np.array_split(lanes, 1 + len(lanes) // LANES):
            steps[part] = self._walk(moves, part)
        return steps.reshape(len(moves), -1)

    def accepted(self, chosen: Chosen) -> NDArray[np.int64]:
        """Return the tokens that a step from each anchor accepts, int64 (P,), with these nodes, bool (C,)."""
        return np.asarray(self._moves(chosen[None])[0].astype(np.int64)[self.leaf] - 1)

    def visit(self, chosen: Chosen) -> Walk:
        """Return the steps that the tree of these nodes, bool (C,), takes through every request."""
        accepted = self.accepted(chosen)
        if not in_step(self.trace):
            return walk_steps(accepted, self.trace)
        jump, reached = next_anchors(accepted, self.trace), self.trace.starts
        visited = np.zeros(self.trace.anchors, dtype=bool)
        while len(reached):
            visited[reached] = True
            reached = jump[reached]
            reached = reached[reached < self.trace.anchors]
        anchors = np.flatnonzero(visited)
        return Walk(anchors, accepted[anchors], self.trace.request_index[anchors].astype(np.int64))

    def _moves(self, chosen: Chosen) -> NDArray[np.uint8]:
        """Return the tokens that a step commits by the leaf at its anchor, uint8 (T, C + 2); 0 after the text."""
        present = np.concatenate([np.ones((len(chosen), 1), dtype=bool), chosen], axis=1)
        if (chosen & ~present[:, self._above]).any():
            raise UsageError("a tree that has a node must have its parent")
        moves = np.zeros((len(chosen), self.pool.nodes + 2), dtype=np.uint8)
        moves[:, 0] = 1
        stop = 1
        for width in self.pool.level_widths:
            level = slice(stop, stop := stop + width)
            moves[:, level] = np.where(
                present[:, level], self._depth[level] + 1, moves[:, self._above[level.start - 1 : stop - 1]]
            )
        return moves

    def _walk(self, moves: NDArray[np.uint8], lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Walk requests side by side and return the steps of each, int64 (L,).

        Args:
            moves: uint8 (T, C + 2), see `_moves`.
            lanes: int64 (L,), R times the tree's number plus the request's.
        """
        tree, request = np.divmod(lanes, self.trace.requests)
        total, lane = np.zeros(len(lanes), dtype=np.int64), np.arange(len(lanes))
        places, table, flat = self._first[request], tree * moves.shape[1], moves.ravel()
        while len(lane):
            steps = np.zeros(len(lane), dtype=np.int64)
            for _ in range(STRIDE):
                move = flat.take(self._leaf.take(places) + table)
                places = places + move
                steps += move > 0
            total[lane] += steps
            unfinished = np.flatnonzero(move)
            if len(unfinished) < len(lane):
                lane, places, table = lane[unfinished], places[unfinished], table[unfinished]
        return total
