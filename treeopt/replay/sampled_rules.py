"""What steps keep under rules that draw their candidates, from a trace's `kept` or, as an approximation, `accept`.

A lossless rule writes texts of the target's law, so a recorded text is as good as one that it would have written.
What is random, given the text, is where each step ends; `kept` of a trace has the probabilities (executor/odds.py).

* With `kept`, or with ranks of a rule that keeps whatever candidate is the text's token (greedy, sample-and-match,
  point-mass), odds, expected counts and drawn ranks are exact: those of the rule's own walk to this very text, for
  static trees of any depth (chains for leviathan and block).
* `accept` alone knows the chance of being kept before the text's token is known. Averaged over texts the first level
  is exact, P(a step keeps at least one token). Deeper levels are not: acceptance there is recorded after the target's
  tokens, and kept ones have another law (those that the drafter likes, too); nor is the walk, for where a step ends
  and what the text goes on with are then taken to be independent. This must be asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import ChainOnly, Constraint, ContiguousRanks, broken
from treeopt.errors import TraceError
from treeopt.replay.static_tree import accepted_lengths
from treeopt.traces.trace import CHAINS, MANY_KEPT, MISSED, PAST_END, Trace
from treeopt.tree import Tree

RANKED = ("greedy", "sample-and-match", "point-mass", *MANY_KEPT, None)  # None: a trace that does not say
CHUNK = 2**22  # probabilities looked at together

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExpectedCounts:
    """What a replay counts in the mean over the rule's coins, the text being given.

    Attributes:
        steps: float64 (R,), steps of each request.
        committed: int64 (R,), tokens emitted by each request (its length).
        accepted_counts: float64 (depth + 1,), steps that keep 0, 1, ... drafted tokens.
    """

    steps: Floats
    committed: NDArray[np.int64]
    accepted_counts: Floats

    @property
    def tau(self) -> float:
        """Committed tokens a step, the bonus counted: a ratio of sums."""
        return float(self.committed.sum() / self.steps.sum())


def evidence(trace: Trace) -> Literal["rank", "kept", "accept"]:
    """The array that says what the trace's rule keeps; `rank` also stands for `tree_kept`: both leave nothing open.

    Raises:
        TraceError: there is none.
    """
    rule = trace.meta.get("verification")
    if rule in RANKED:
        return "rank"
    if trace.kept is not None:
        return "kept"
    if trace.accept is not None:
        return "accept"
    raise TraceError(f"rule {rule} draws its candidates: what it keeps is in `kept`, which the trace does not have")


def accepted_odds(tree: Tree, trace: Trace, *, approximate: bool = False) -> Floats:
    """P(a step from this anchor keeps 0, 1, ... drafted tokens | the text), float64 (P, depth + 1).

    Args:
        tree: static.
        trace: see the module for which arrays make this exact.
        approximate: also take `accept` where `kept` was not recorded.

    Raises:
        TraceError: the tree is deeper or wider than the trace, the rule cannot verify it, or only an approximation is
            possible and was not asked for.

    >>> kept, meta = np.float16([[[0.5]], [[0.25]]]), {"verification": "specinfer"}
    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0], [0]]), 1, meta, kept=kept)
    >>> accepted_odds(Tree.chain(1), trace).tolist()
    [[0.5, 0.5], [0.75, 0.25]]
    """
    known = evidence(trace)
    if known == "rank":
        odds = np.zeros((trace.anchors, tree.depth + 1))
        odds[np.arange(trace.anchors), accepted_lengths(tree, trace)] = 1
        return odds
    if known == "accept" and not approximate:
        raise TraceError(
            f"without `kept`, rule {trace.meta['verification']} can be judged by `accept` only as an approximation: "
            "record the trace anew, or ask for the approximation"
        )
    check_tree(tree, trace)
    shares = trace.kept if known == "kept" else trace.accept
    assert shares is not None
    at_least = np.empty((trace.anchors, tree.depth + 2))
    at_least[:, 0], at_least[:, -1] = 1, 0
    for part in np.array_split(np.arange(trace.anchors), -(-trace.anchors * (tree.nodes + 1) // CHUNK)):
        at_least[part, 1:-1] = survival(tree, shares[part])
    return np.asarray(at_least[:, :-1] - at_least[:, 1:])


def survival(tree: Tree, shares: NDArray[np.floating]) -> Floats:
    """P(a step keeps at least 1, 2, ... tokens), float64 (P, depth): a node is reached by the product along its path.

    Args:
        tree: static.
        shares: (P, D, W), P(sibling r is kept | its ancestors were) along the path.

    >>> survival(Tree.from_paths([(0, 0), (1,)]), np.array([[[0.5, 0.25], [0.5, 0.5]]])).tolist()
    [[0.75, 0.25]]
    """
    reached = np.ones((len(shares), 1))
    nodes: list[int] = [-1]
    found = np.empty((len(shares), tree.depth))
    for depth in range(tree.depth):
        place = {node: column for column, node in enumerate(nodes)}
        nodes = [node for node, level in enumerate(tree.depths) if level == depth + 1]
        above = [place[tree.parents[node]] for node in nodes]
        ranks = [tree.ranks[node] for node in nodes]
        reached = reached[:, above] * shares[:, depth, ranks].astype(np.float64)
        found[:, depth] = reached.sum(1)
    # Half precision may make the sum of siblings exceed 1 by a little; deeper never outlives shallower.
    return np.asarray(np.minimum.accumulate(found.clip(max=1), axis=1))


def expected_replay(tree: Tree, trace: Trace, *, approximate: bool = False) -> ExpectedCounts:
    """Counts of the tree's walk through every request in the mean over the rule's coins; see `accepted_odds`.

    An anchor is visited with probability u(t) = Σ_k u(t − k − 1) P(a step from t − k − 1 keeps k), 1 at the beginning
    of a request: a banded triangular system.

    >>> kept, meta = np.float16([[[0.5]], [[0.25]]]), {"verification": "specinfer"}
    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0], [0]]), 1, meta, kept=kept)
    >>> expected_replay(Tree.chain(1), trace).steps.tolist()  # two, if the first token is not kept
    [1.5]
    """
    odds = accepted_odds(tree, trace, approximate=approximate)
    visits = visited(odds, trace)
    return ExpectedCounts(
        steps=np.add.reduceat(visits, trace.starts),
        committed=trace.lengths,
        accepted_counts=visits @ odds,
    )


def visited(odds: Floats, trace: Trace) -> Floats:
    """P(a step starts at this anchor), float64 (P,), given the odds of what each step keeps, (P, depth + 1)."""
    from scipy.linalg import solve_banded

    depth = odds.shape[1] - 1
    band = np.zeros((depth + 2, trace.anchors))
    band[0] = 1
    for kept in range(depth + 1):
        band[kept + 1] = np.where(kept + 1 < trace.left, -odds[:, kept], 0)
    start = (trace.position == 0).astype(np.float64)
    return np.asarray(solve_banded((depth + 1, 0), band, start))


def drawn_ranks(trace: Trace, rng: np.random.Generator) -> Trace:
    """The trace with ranks drawn from `kept`: which sibling kept the text's token, MISSED where none did.

    Whatever reads ranks (replay, search, runs, serving) then judges static trees of the trace's rule as it judges those
    of sample-and-match: a drawn walk is one that the rule might have taken to this text. For `block` a step's
    ranks are drawn one after the other, given that the shallower ones were kept, which is all that a chain looks at.

    Args:
        trace: with `kept`.
        rng: one uniform number an anchor and depth.

    Raises:
        TraceError: the trace has no `kept`.
    """
    if trace.kept is None:
        raise TraceError("ranks are drawn from `kept`, which the trace does not have")
    edges = trace.kept.astype(np.float64).cumsum(axis=2)
    rank = (rng.random(trace.rank.shape)[..., None] >= edges).sum(axis=2)
    rank = np.where(rank < trace.width, rank, MISSED)
    rank = np.where(trace.rank == PAST_END, PAST_END, rank).astype(np.int16)
    return replace(trace, rank=rank, meta={**trace.meta, "drawn_ranks": True})


def rules(trace: Trace) -> tuple[Constraint, ...]:
    """What the trace's rule asks of trees: chains, or siblings that are tried in order."""
    rule = trace.meta["verification"]
    source = f"rule {rule}"
    return (ChainOnly(source=source),) if rule in CHAINS else (ContiguousRanks(source=source),)


def check_tree(tree: Tree, trace: Trace) -> None:
    """Refuse what the trace's rule cannot verify, or the trace cannot judge.

    Raises:
        TraceError: names the path.
    """
    accepted_lengths(tree, trace)
    if reason := broken(tree, rules(trace)):
        raise TraceError(reason)


def with_drawn_ranks(trace: Trace, seed: int) -> Trace:
    """Return the trace; where its rule draws its candidates (`kept`), with ranks drawn by this seed."""
    return trace if trace.kept is None else drawn_ranks(trace, np.random.default_rng(seed))


def ranks_and_rules(trace: Trace, seed: int) -> tuple[Trace, tuple[Constraint, ...]]:
    """Return `with_drawn_ranks` of the trace and the rules that its trees must keep; () for rules that read ranks."""
    return with_drawn_ranks(trace, seed), () if trace.kept is None else rules(trace)


def ranks_for_trees(trace: Trace, trees: Sequence[Tree | None], seed: int) -> Trace:
    """Return the trace with ranks that say what its rule accepts of these trees: its own, or drawn by this seed.

    Raises:
        TraceError: the trace does not record it, or the rule cannot verify a tree.
    """
    if evidence(trace) == "rank":
        return trace
    drawn = drawn_ranks(trace, np.random.default_rng(seed))
    for tree in trees:
        if tree is not None:
            check_tree(tree, trace)
    return drawn
