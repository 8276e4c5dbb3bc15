"""Replay of dynamic trees along a trace: which of the recorded candidates a policy would have verified.

Each step expands and re-ranks as the live loop does (EAGLE-2, Li et al. 2024, arXiv 2406.16858, section 4): values
are the drafter's log-probabilities added up in single precision from the root on, ties fall to the candidate that is
recorded first. So the steps of a greedy trace are those of the live loop, one by one.

A policy may be narrower than the recording. Where it would expand a candidate whose children were not recorded, what
follows is not known, and a replay that comes there is refused. A budget is that of a sequence decoded alone.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.policy import DynamicTree
from treeopt.trace import Candidates, Trace
from treeopt.walk import StepCounts, Walk, count, walked

UNKNOWN = -1
CHUNK = 2**22  # candidates looked at together


def accepted_lengths(policy: DynamicTree, trace: Trace) -> NDArray[np.int64]:
    """Drafted tokens that a step would keep, for a start at every anchor; int64 (P,), UNKNOWN where it cannot be told.

    Raises:
        TraceError: the trace holds no candidates.
    """
    if trace.candidates is None:
        raise TraceError("replaying dynamic trees needs recorded candidates, the trace has none")
    found = np.full(trace.anchors, UNKNOWN, dtype=np.int64)
    sizes = np.diff(trace.candidates.offset)
    for size in np.unique(sizes[sizes > 0]):
        alike = np.flatnonzero(sizes == size)
        for part in np.array_split(alike, -(-len(alike) * size // CHUNK)):
            found[part] = _accepted(policy, trace.candidates, trace.candidates.offset[part, None] + np.arange(size))
    return found


def visit(policy: DynamicTree, trace: Trace) -> Walk:
    """The steps that the policy takes through every request.

    Raises:
        TraceError: the trace holds no candidates, or too few where a step starts.
    """
    steps = walked(np.maximum(accepted := accepted_lengths(policy, trace), 0), trace)
    unknown = accepted[steps.anchors] == UNKNOWN
    if unknown.any():
        anchor = int(steps.anchors[np.argmax(unknown)])
        raise TraceError(
            f"anchor {anchor}: the policy expands a candidate whose children were not recorded; record candidates at "
            "every position, as deep and as wide as the policy, with a larger beam"
        )
    return steps


def replay(policy: DynamicTree, trace: Trace) -> StepCounts:
    """Counts of the policy's walk through every request; raises as `visit` does.

    >>> tree = Candidates(np.int64([0, 2, 4]), *(np.int16([-1, 0] * 2), np.uint8([0] * 4)),
    ...     np.float32([-0.5, -1] * 2), np.array([True, True, True, False]))
    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 0], [0, -2]]), 2, candidates=tree)
    >>> replay(DynamicTree(nodes=2, depth=2, beam=1), trace).tau
    2.0
    """
    return count(visit(policy, trace), trace, depth=policy.depth)


def _accepted(policy: DynamicTree, candidates: Candidates, place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of anchors with equally many candidates, which stand at `place` (anchors, size)."""
    parent, rank = candidates.parent[place], candidates.rank[place]
    logs = candidates.logprob[place].astype(np.float32, copy=False)
    least = math.log(policy.min_probability) if policy.min_probability else -math.inf
    anchors, size = parent.shape
    row = np.arange(anchors)[:, None]
    value = np.zeros((anchors, size), dtype=np.float32)
    seen: NDArray[np.bool_] = np.zeros((anchors, size), dtype=bool)
    expanded: NDArray[Any] = seen
    known = np.ones(anchors, dtype=bool)
    level = parent < 0
    due = np.ones(anchors, dtype=np.int64)  # nodes to be expanded
    for depth in range(policy.depth):
        columns = np.flatnonzero(level.any(0))
        here, above = level[:, columns], parent[:, columns]
        drafted = here & (rank[:, columns] < policy.children) & ((depth == 0) | expanded[row, above])
        start = value[row, above] if depth else np.float32(0)
        value[:, columns] = np.where(here, start + logs[:, columns], value[:, columns])
        known &= drafted.sum(1) == due * policy.children
        seen[:, columns] |= drafted
        if depth + 1 == policy.depth:
            break
        # A child is less probable than its parent: below a node that is left out nothing is verified, nor missed.
        order = np.where(drafted, -value[:, columns], np.nan).argsort(1, kind="stable")
        best = order[:, : policy.expanded[depth + 1]]
        expanded = np.zeros_like(seen)
        expanded[row, columns[best]] = drafted[row, best]
        expanded &= value >= least
        due = expanded.sum(1)
        level = (parent >= 0) & level[row, parent]
    kept = _chosen(policy, value, seen, np.argwhere(seen & candidates.hit[place]), least)
    return np.where(known, np.bincount(kept, minlength=anchors), UNKNOWN)


def _chosen(
    policy: DynamicTree, value: NDArray[np.float32], seen: NDArray[np.bool_], nodes: NDArray[np.int64], least: float
) -> NDArray[np.int64]:
    """The rows of those nodes, int64 (n, 2) of row and column, that are verified."""
    most = policy.nodes if policy.budget is None else min(policy.nodes, policy.budget)
    found = []
    for part in np.array_split(nodes, max(1, -(-nodes.size * value.shape[1] // CHUNK))):
        rows, columns = part[:, 0], part[:, 1, None]
        own = value[rows[:, None], columns]
        before = (value[rows] > own) | ((value[rows] == own) & (np.arange(value.shape[1]) < columns))
        ahead = (before & seen[rows]).sum(1)
        found.append(rows[(ahead < most) & (own[:, 0] >= least)])
    return np.concatenate(found)
