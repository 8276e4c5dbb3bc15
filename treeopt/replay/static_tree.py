"""Replay of a tree along a trace: where its steps start and what each keeps.

A request's walk starts at position 0 and moves by accepted + 1; its last step is cut where the text ends.
Nothing is averaged over positions that no step visits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.traces.trace import DRAWN, MANY_KEPT, Trace
from treeopt.tree import Tree

ROUND = 1000  # what a round of steps costs on its own, in anchors of one round of doubling


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


def deepest(tree: Tree, trace: Trace) -> NDArray[np.int64]:
    """The deepest node of the tree that the text at every anchor follows, −1 for the root; int64 (P,).

    Raises:
        TraceError: the tree is deeper than the trace, or looks at ranks or nodes that were not recorded.
    """
    rule = trace.meta.get("verification")
    if rule in MANY_KEPT and trace.tree_kept is None:
        raise TraceError(f"rule {rule} may keep several siblings, of which ranks tell one: the trace lacks `tree_kept`")
    if tree.depth > trace.depth:
        raise TraceError(f"the tree has depth {tree.depth}, the trace records depth {trace.depth}")
    if tree.nodes and max(tree.ranks) >= trace.width:
        raise TraceError(f"the tree uses rank {max(tree.ranks)}, the trace records ranks below {trace.width}")
    if trace.tree_kept is not None:
        return _deepest_kept(tree, trace, trace.tree_kept)
    # child[node + 1, rank] is the node there, or -1; the last column stands for "not recorded".
    child = np.full((tree.nodes + 1, trace.width + 1), -1, dtype=np.int64)
    child[np.asarray(tree.parents, dtype=np.int64) + 1, list(tree.ranks)] = np.arange(tree.nodes)
    found = np.full(trace.anchors, -1, dtype=np.int64)
    alive, node = np.arange(trace.anchors), found
    for depth in range(tree.depth):
        rank = trace.rank[alive, depth]
        node = child[node + 1, np.where(rank >= 0, rank, trace.width)]
        alive, node = alive[node >= 0], node[node >= 0]
        found[alive] = node
    return found


def _deepest_kept(tree: Tree, trace: Trace, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`deepest` where several siblings may be kept: the first of the deepest nodes that are."""
    known = {path: node for node, path in enumerate(trace.tree.paths if trace.tree else ())}
    missing = next((path for path in tree.paths if path not in known), None)
    if missing is not None:
        raise TraceError(f"node {list(missing)} of the tree is none of those that the trace was recorded with")
    found = np.full(trace.anchors, -1, dtype=np.int64)
    for node in sorted(range(tree.nodes), key=lambda node: (tree.depths[node], -node)):
        found[kept[:, known[tree.paths[node]]]] = node  # ancestors are kept where it is
    return found


def covers(trace: Trace, tree: Tree) -> bool:
    """Whether the trace tells what a step with this tree keeps.

    >>> covers(Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 2), Tree.chain(2))
    False
    """
    known = trace.tree is None or set(tree.paths) <= set(trace.tree.paths)
    return tree.depth <= trace.depth and max(tree.ranks, default=0) < trace.width and known


def check_ranks(trace: Trace) -> None:
    """Refuse ranks that do not say what steps keep.

    Raises:
        TraceError: the trace's rule draws its candidates, and its ranks are the drafter's own.
    """
    rule = trace.meta.get("verification")
    if rule in DRAWN and not trace.meta.get("drawn_ranks"):
        raise TraceError(
            f"rule {rule} draws its candidates, so ranks do not say what it keeps: record sample-and-match, or draw "
            "ranks from `kept` (treeopt.replay.sampled_rules.drawn_ranks)"
        )


def accepted_lengths(tree: Tree, trace: Trace) -> NDArray[np.int64]:
    """Drafted tokens that a step would keep, for a start at every anchor; int64 (P,). Raises as `deepest` does."""
    return np.array([*tree.depths, 0])[deepest(tree, trace)]


def visit(tree: Tree, trace: Trace) -> Walk:
    """The steps that the tree takes through every request.

    Raises:
        TraceError: as `deepest` and `check_ranks` do.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> visit(Tree.chain(1), trace).anchors.tolist()
    [0, 2]
    """
    if tree.nodes:
        check_ranks(trace)
    return walked(accepted_lengths(tree, trace), trace)


def walked(accepted: NDArray[np.int64], trace: Trace) -> Walk:
    """The steps through every request, given what a step from each anchor keeps, int64 (P,)."""
    visited = np.zeros(trace.anchors + 1, dtype=bool)
    visited[trace.starts] = True
    jump = _jumps(accepted, trace)
    # After round k every anchor within 2^(k+1) - 1 steps of a start is marked.
    for _ in range((longest(trace) - 1).bit_length()):
        visited[jump[np.flatnonzero(visited)]] = True
        jump = jump[jump]
    anchors = np.flatnonzero(visited[:-1])
    return Walk(anchors, accepted[anchors], trace.request_index[anchors].astype(np.int64))


def remaining_steps(accepted: NDArray[np.int64], trace: Trace) -> NDArray[np.int32]:
    """Steps from every anchor to the end of its request, V(t) = 1 + V(t + 1 + accepted(t)); int32 (P,).

    Args:
        accepted: int64 (P,), what a step from each anchor keeps.
        trace: the requests.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0], [0], [0]]), 1)
    >>> remaining_steps(np.array([1, 0, 0]), trace).tolist()
    [2, 2, 1]
    """
    jump = _jumps(accepted, trace)
    steps = np.ones(trace.anchors + 1, dtype=np.int32)
    steps[-1] = 0
    if not in_step(trace):
        for _ in range(longest(trace).bit_length()):
            steps += steps[jump]
            jump = jump[jump]
        return steps[:-1]
    by_length = np.argsort(-trace.lengths, kind="stable")
    starts = trace.starts[by_length]
    longer = np.searchsorted(-trace.lengths[by_length], -np.arange(longest(trace)))  # than each position
    for position in range(len(longer) - 1, -1, -1):
        here = starts[: longer[position]] + position
        steps[here] += steps[jump[here]]
    return steps[:-1]


def in_step(trace: Trace, trees: int = 1) -> bool:
    """Whether all requests, under so many trees, are better walked side by side than each by doubling its steps."""
    return longest(trace) * ROUND <= trees * trace.anchors * longest(trace).bit_length()


def longest(trace: Trace) -> int:
    """Anchors of the longest request."""
    return int(trace.lengths.max())


def _jumps(accepted: NDArray[np.int64], trace: Trace) -> NDArray[np.int64]:
    """Where the step from each anchor leads, int64 (P + 1,); P, which leads to itself, for the end of a request."""
    goal = np.arange(1, trace.anchors + 1) + accepted
    return np.append(np.where(goal < trace.stops[trace.request_index], goal, trace.anchors), trace.anchors)


def replay_tree(tree: Tree, trace: Trace) -> StepCounts:
    """Counts of the tree's walk through every request.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> replay_tree(Tree.chain(1), trace).tau
    1.5
    """
    return count(visit(tree, trace), trace, depth=tree.depth)


def count(steps: Walk, trace: Trace, depth: int = 0) -> StepCounts:
    """Counts of a walk."""
    return StepCounts(
        steps=np.bincount(steps.request, minlength=trace.requests),
        committed=trace.lengths,
        accepted_counts=np.bincount(steps.accepted, minlength=depth + 1),
    )
