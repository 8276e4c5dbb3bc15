"""The walk of a decoder through the requests of a trace: the anchors where its steps start, and how many they are.

A request's walk starts at position 0 and moves by accepted + 1; its last step is cut where the text ends.
Nothing is averaged over positions that no step visits.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.traces.trace import Trace

ROUND = 1000  # the fixed cost of one round of steps, in anchors of one round of doubling


@dataclass(frozen=True, eq=False)
class StepCounts:
    """The counts of a replay. Counts of several runs may be added.

    Attributes:
        steps: int64 (R,), steps of each request.
        committed: int64 (R,), tokens emitted by each request (its length).
        accepted_counts: int64 (depth + 1,), steps that accepted 0, 1, ... drafted tokens.
        drafted_counts: int64 (depth + 1,), steps for which the drafter proposed 0, 1, ... levels of the tree; None: all
            levels in every step.
    """

    steps: NDArray[np.int64]
    committed: NDArray[np.int64]
    accepted_counts: NDArray[np.int64]
    drafted_counts: NDArray[np.int64] | None = None

    @property
    def tau(self) -> float:
        """The committed tokens per step, bonus counted: a ratio of sums."""
        return float(self.committed.sum() / self.steps.sum())


@dataclass(frozen=True, eq=False)
class Walk:
    """The anchors that a tree visits.

    Attributes:
        anchors: int64 (S,), where the steps start, in order.
        accepted: int64 (S,), drafted tokens that each step accepts (never past the end of the text).
        request: int64 (S,), index of the request of each step.
    """

    anchors: NDArray[np.int64]
    accepted: NDArray[np.int64]
    request: NDArray[np.int64]


def walk_steps(accepted: NDArray[np.int64], trace: Trace) -> Walk:
    """Return the steps through every request.

    Args:
        accepted: int64 (P,), drafted tokens that a step from each anchor accepts.
        trace: the requests.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0], [0], [0]]), 1)
    >>> walk_steps(np.array([1, 0, 0]), trace).anchors.tolist()
    [0, 2]
    """
    visited = np.zeros(trace.anchors + 1, dtype=bool)
    visited[trace.starts] = True
    jump = next_anchors(accepted, trace)
    # After round k every anchor within 2^(k+1) - 1 steps of a start is marked.
    for _ in range((longest(trace) - 1).bit_length()):
        visited[jump[np.flatnonzero(visited)]] = True
        jump = jump[jump]
    anchors = np.flatnonzero(visited[:-1])
    return Walk(anchors, accepted[anchors], trace.request_index[anchors].astype(np.int64))


def count(walk: Walk, trace: Trace, depth: int = 0) -> StepCounts:
    """Return the counts of a walk; `depth` is the tree's, for the length of `accepted_counts`."""
    return StepCounts(
        steps=np.bincount(walk.request, minlength=trace.requests),
        committed=trace.lengths,
        accepted_counts=np.bincount(walk.accepted, minlength=depth + 1),
        drafted_counts=drafted_counts(walk.anchors, trace, depth),
    )


def total_counts(parts: Iterable[StepCounts]) -> StepCounts:
    """Return the counts of a trace from those of its parts, in order."""
    first, *others = parts
    if not others:
        return first
    every = (first, *others)
    drafted = [part.drafted_counts for part in every if part.drafted_counts is not None]
    return StepCounts(
        np.concatenate([part.steps for part in every]),
        np.concatenate([part.committed for part in every]),
        np.sum([part.accepted_counts for part in every], axis=0),
        np.sum(drafted, axis=0) if drafted else None,
    )


def drafted_counts(anchors: NDArray[np.int64], trace: Trace, depth: int) -> NDArray[np.int64] | None:
    """Return the steps at these anchors by the levels that were proposed, at most `depth`; see `StepCounts`."""
    if trace.drafted is None:
        return None
    return np.bincount(np.minimum(trace.drafted[anchors], depth), minlength=depth + 1)


def next_anchors(accepted: NDArray[np.int64], trace: Trace) -> NDArray[np.int64]:
    """Return the anchor at which the next step starts, int64 (P + 1,).

    Entry P stands for the end of a request and leads to itself.

    Args:
        accepted: int64 (P,), drafted tokens that a step from each anchor accepts.
        trace: the requests.
    """
    goal = np.arange(1, trace.anchors + 1) + accepted
    return np.append(np.where(goal < trace.stops[trace.request_index], goal, trace.anchors), trace.anchors)


def in_step(trace: Trace, trees: int = 1) -> bool:
    """Return True if walking all requests side by side, under this number of trees, is faster than doubling steps."""
    return longest(trace) * ROUND <= trees * trace.anchors * longest(trace).bit_length()


def longest(trace: Trace) -> int:
    """Return the number of anchors of the longest request."""
    return int(trace.lengths.max())
