"""Replay of a tree along a trace: where its steps start and what each keeps.

A request's walk starts at position 0 and moves by accepted + 1; its last step is cut where the text ends.
Nothing is averaged over positions that no step visits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.trace import Trace
from treeopt.tree import Tree


@dataclass(frozen=True, eq=False)
class StepCounts:
    """What a replay counted. Counts of several runs may be added.

    Attributes:
        steps: int64 (R,), steps of each request.
        committed: int64 (R,), tokens emitted by each request (its length).
        accepted_counts: int64 (depth + 1,), steps that kept 0, 1, ... drafted tokens.
    """

    steps: NDArray[np.int64]
    committed: NDArray[np.int64]
    accepted_counts: NDArray[np.int64]

    @property
    def tau(self) -> float:
        """Committed tokens a step, the bonus counted: a ratio of sums."""
        return float(self.committed.sum() / self.steps.sum())


@dataclass(frozen=True, eq=False)
class Walk:
    """The anchors that a tree visits.

    Attributes:
        anchors: int64 (S,), where the steps start, in order.
        accepted: int64 (S,), drafted tokens that each step keeps (never past the end of the text).
        request: int64 (S,), index of the request of each step.
    """

    anchors: NDArray[np.int64]
    accepted: NDArray[np.int64]
    request: NDArray[np.int64]


def accepted_lengths(tree: Tree, trace: Trace) -> NDArray[np.int64]:
    """Drafted tokens that a step would keep, for a start at every anchor; int64 (P,).

    Raises:
        TraceError: the tree is deeper than the trace, or looks at ranks that were not recorded.
    """
    if tree.depth > trace.depth:
        raise TraceError(f"the tree has depth {tree.depth}, the trace records depth {trace.depth}")
    if tree.nodes and max(tree.ranks) >= trace.width:
        raise TraceError(f"the tree uses rank {max(tree.ranks)}, the trace records ranks below {trace.width}")
    # child[node + 1, rank] is the node there, or -1; the last column stands for "not recorded".
    child = np.full((tree.nodes + 1, trace.width + 1), -1, dtype=np.int64)
    child[np.asarray(tree.parents, dtype=np.int64) + 1, list(tree.ranks)] = np.arange(tree.nodes)
    accepted = np.zeros(trace.anchors, dtype=np.int64)
    alive = np.arange(trace.anchors)
    node = np.full(trace.anchors, -1, dtype=np.int64)
    for depth in range(tree.depth):
        rank = trace.rank[alive, depth]
        node = child[node + 1, np.where(rank >= 0, rank, trace.width)]
        alive, node = alive[node >= 0], node[node >= 0]
        accepted[alive] = depth + 1
    return accepted


def visit(tree: Tree, trace: Trace) -> Walk:
    """The steps that the tree takes through every request.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> visit(Tree.chain(1), trace).anchors.tolist()
    [0, 2]
    """
    return walked(accepted_lengths(tree, trace), trace)


def walked(accepted: NDArray[np.int64], trace: Trace) -> Walk:
    """The steps through every request, given what a step from each anchor keeps, int64 (P,)."""
    here = np.arange(trace.anchors)
    goal = here + accepted + 1
    goal = np.where(goal < trace.stops[trace.request_index], goal, trace.anchors)
    visited = np.zeros(trace.anchors + 1, dtype=bool)
    visited[trace.starts] = True
    jump = np.append(goal, trace.anchors)
    # After round k every anchor within 2^(k+1) - 1 steps of a start is marked.
    longest = int((trace.stops - trace.starts).max())
    for _ in range(max(longest - 1, 0).bit_length()):
        visited[jump[np.flatnonzero(visited)]] = True
        jump = jump[jump]
    anchors = np.flatnonzero(visited[:-1])
    return Walk(anchors, accepted[anchors], trace.request_index[anchors])


def replay(tree: Tree, trace: Trace) -> StepCounts:
    """Counts of the tree's walk through every request.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> replay(Tree.chain(1), trace).tau
    1.5
    """
    return count(visit(tree, trace), trace, depth=tree.depth)


def count(steps: Walk, trace: Trace, depth: int = 0) -> StepCounts:
    """Counts of a walk."""
    return StepCounts(
        steps=np.bincount(steps.request, minlength=trace.requests),
        committed=trace.stops - trace.starts,
        accepted_counts=np.bincount(steps.accepted, minlength=depth + 1),
    )
