"""Replay of a dynamic policy, sequence by sequence."""

import numpy as np
from numpy.typing import NDArray

from treeopt.policies import Policy
from treeopt.policies.reranking import shortlists
from treeopt.replay.dynamic_tree import choose, not_recorded
from treeopt.replay.walk import StepCounts, Walk, count, walk_steps
from treeopt.traces.trace import Trace

UNKNOWN = -1


def accepted_lengths(policy: Policy, trace: Trace) -> NDArray[np.int64]:
    """Return the drafted tokens that a step from each anchor would accept; int64 (P,), UNKNOWN where not recorded.

    Raises:
        TraceError: the trace holds no candidates.
    """
    lists = shortlists(trace, policy.drafting, nodes=policy.nodes, calibration=policy.calibration)
    chosen = choose(policy, lists)
    return np.where(chosen.known, lists.accepted(chosen.levels, chosen.nodes), UNKNOWN)


def visit(policy: Policy, trace: Trace) -> Walk:
    """Return the steps that the policy takes through every request.

    Raises:
        TraceError: the trace holds no candidates, or too few where a step starts.
    """
    steps = walk_steps(np.maximum(accepted := accepted_lengths(policy, trace), 0), trace)
    unknown = accepted[steps.anchors] == UNKNOWN
    if unknown.any():
        raise not_recorded(int(steps.anchors[np.argmax(unknown)]))
    return steps


def replay_policy(policy: Policy, trace: Trace) -> StepCounts:
    """Return the counts of the policy's walk through every request.

    Raises:
        TraceError: as `visit` does.

    >>> from treeopt.policies import DynamicTree
    >>> from treeopt.traces.candidates import Candidates
    >>> tree = Candidates(np.int64([0, 2, 4]), *(np.int16([-1, 0] * 2), np.uint8([0] * 4)),
    ...     np.float32([-0.5, -1] * 2), np.array([True, True, True, False]))
    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 0], [0, -2]]), 2, candidates=tree)
    >>> replay_policy(DynamicTree(nodes=2, depth=2, beam=1), trace).tau
    2.0
    """
    return count(visit(policy, trace), trace, depth=policy.drafting.depth)
