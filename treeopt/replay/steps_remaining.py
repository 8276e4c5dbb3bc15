"""The remaining-steps function V(t): steps from every anchor of a trace to the end of its request."""

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.walk import in_step, longest, next_anchors
from treeopt.traces.trace import Trace


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
