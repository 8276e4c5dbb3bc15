"""Odds and expected counts of a static tree's replay under rules that draw candidates: what drawn ranks average to.

Exact with `kept`, and with ranks of a rule that accepts any candidate that is the text's token (greedy,
sample-and-match, point-mass).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.sampled_rules import check_tree, evidence
from treeopt.replay.static_tree import accepted_lengths
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExpectedCounts:
    """The expected counts of a replay over the rule's random draws, given the text.

    Attributes:
        steps: float64 (R,), steps of each request.
        committed: int64 (R,), tokens emitted by each request (its length).
        accepted_counts: float64 (depth + 1,), steps that accept 0, 1, ... drafted tokens.
    """

    steps: Floats
    committed: NDArray[np.int64]
    accepted_counts: Floats

    @property
    def tau(self) -> float:
        """The committed tokens per step, bonus counted: a ratio of sums."""
        return float(self.committed.sum() / self.steps.sum())


def accepted_odds(tree: Tree, trace: Trace) -> Floats:
    """Return P(a step from this anchor accepts 0, 1, ... drafted tokens | the text), float64 (P, depth + 1).

    Args:
        tree: a static tree.
        trace: see the module docstring for the arrays that make this exact.

    Raises:
        TraceError: the tree is deeper or wider than the trace, or the rule cannot verify it.

    >>> kept, meta = np.float16([[[0.5]], [[0.25]]]), {"verification": "specinfer"}
    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0], [0]]), 1, meta, kept=kept)
    >>> accepted_odds(Tree.chain(1), trace).tolist()
    [[0.5, 0.5], [0.75, 0.25]]
    """
    if evidence(trace) == "rank":
        odds = np.zeros((trace.anchors, tree.depth + 1))
        odds[np.arange(trace.anchors), accepted_lengths(tree, trace)] = 1
        return odds
    check_tree(tree, trace)
    assert trace.kept is not None
    at_least = np.empty((trace.anchors, tree.depth + 2))
    at_least[:, 0], at_least[:, -1] = 1, 0
    at_least[:, 1:-1] = survival(tree, trace.kept)
    return np.asarray(at_least[:, :-1] - at_least[:, 1:])


def survival(tree: Tree, shares: NDArray[np.floating]) -> Floats:
    """Return P(a step accepts at least 1, 2, ... tokens), float64 (P, depth).

    A node is reached with the product of the probabilities along its path.

    Args:
        tree: a static tree.
        shares: (P, D, W), P(sibling r is accepted | its ancestors were) along the path.

    >>> survival(Tree.from_paths([(0, 0), (1,)]), np.array([[[0.5, 0.25], [0.5, 0.5]]])).tolist()
    [[0.75, 0.25]]
    """
    reached = np.ones((len(shares), 1))
    nodes: list[int] = [-1]
    at_least = np.empty((len(shares), tree.depth))
    for depth in range(tree.depth):
        columns = {node: column for column, node in enumerate(nodes)}
        nodes = [node for node, level in enumerate(tree.depths) if level == depth + 1]
        parents = [columns[tree.parents[node]] for node in nodes]
        ranks = [tree.ranks[node] for node in nodes]
        reached = reached[:, parents] * shares[:, depth, ranks].astype(np.float64)
        at_least[:, depth] = reached.sum(1)
    # In half precision the sum over siblings may slightly exceed 1, or exceed that of the level above.
    return np.asarray(np.minimum.accumulate(at_least.clip(max=1), axis=1))


def expected_replay(tree: Tree, trace: Trace) -> ExpectedCounts:
    """Return the expected counts of the tree's walk through every request; see `accepted_odds`.

    An anchor is visited with probability u(t) = Σ_k u(t − k − 1) P(a step from t − k − 1 accepts k), 1 at the beginning
    of a request: a banded triangular system.

    Raises:
        TraceError: as `accepted_odds` does.

    >>> kept, meta = np.float16([[[0.5]], [[0.25]]]), {"verification": "specinfer"}
    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0], [0]]), 1, meta, kept=kept)
    >>> expected_replay(Tree.chain(1), trace).steps.tolist()  # two, if the first token is rejected
    [1.5]
    """
    odds = accepted_odds(tree, trace)
    visits = visit_odds(odds, trace)
    return ExpectedCounts(
        steps=np.add.reduceat(visits, trace.starts),
        committed=trace.lengths,
        accepted_counts=visits @ odds,
    )


def visit_odds(odds: Floats, trace: Trace) -> Floats:
    """Return P(a step starts at this anchor), float64 (P,), from the odds of `accepted_odds`, (P, depth + 1)."""
    from scipy.linalg import solve_banded

    depth = odds.shape[1] - 1
    band = np.zeros((depth + 2, trace.anchors))
    band[0] = 1
    for accepted in range(depth + 1):
        band[accepted + 1] = np.where(accepted + 1 < trace.left, -odds[:, accepted], 0)
    start = (trace.position == 0).astype(np.float64)
    return np.asarray(solve_banded((depth + 1, 0), band, start))
