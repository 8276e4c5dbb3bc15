"""Replay under acceptance rules that draw candidates, from a trace's `kept`.

A lossless rule writes texts of the target's law, so a recorded text is as good as one that it would have written.
Given the text, only the place where each step ends is random; a trace's `kept` has the probabilities
(executor/recording/teacher_forced.py). Drawn ranks are exact: those of the rule's own walk to this very text, for
static trees of any depth (chains for leviathan and block).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from treeopt.acceptance_rule_entries import recorded_rule, takes_chains_only
from treeopt.constraints import Constraint, broken, chains_only, contiguous_ranks
from treeopt.errors import TraceError
from treeopt.replay.static_tree import accepted_lengths
from treeopt.traces.trace import MISSED, PAST_END, Trace
from treeopt.tree import Tree


def evidence(trace: Trace) -> Literal["rank", "kept", "accept"]:
    """Return the name of the array that determines what the trace's rule accepts.

    `rank` also stands for `tree_kept`: with either of them nothing is random.

    Raises:
        TraceError: the trace has no such array.

    >>> evidence(Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 1, {"verification": "greedy"}))
    'rank'
    """
    rule = trace.meta.get("verification")
    known = recorded_rule(rule)
    if rule is None or (known is not None and not known.draws):
        return "rank"
    if trace.kept is not None:
        return "kept"
    if trace.accept is not None:
        return "accept"
    raise TraceError(f"rule {rule} draws its candidates and needs the array `kept`, which the trace does not have")


def drawn_ranks(trace: Trace, rng: np.random.Generator) -> Trace:
    """Return the trace with ranks drawn from `kept`: the sibling accepted as the text's token, or MISSED.

    Everything that reads ranks (replay, search, runs, serving) then evaluates static trees under the trace's rule as it
    does under sample-and-match: a drawn walk is one that the rule might have taken to this text. For `block` the
    ranks of a step are drawn one after the other, given that the shallower ones were accepted; a chain needs no more.

    Args:
        trace: a trace with `kept`.
        rng: draws one uniform number per anchor and depth.

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
    """Return the constraints that the trace's rule puts on trees: chains only, or siblings tried in order."""
    rule = trace.meta["verification"]
    source = f"rule {rule}"
    return (chains_only(source=source),) if takes_chains_only(rule) else (contiguous_ranks(source=source),)


def check_tree(tree: Tree, trace: Trace) -> None:
    """Raise an error if the trace's rule cannot verify the tree, or the trace does not cover it.

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
