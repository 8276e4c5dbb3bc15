"""Replay of a static tree along a trace: which anchors its steps start from and how many tokens each step accepts.

The walk itself (position 0, then on by accepted + 1) is in `treeopt.replay.walk`.
"""

from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from treeopt.acceptance_rule_entries import draws_candidates, may_accept_several
from treeopt.cost_model import CostModel, StepShape
from treeopt.errors import TraceError
from treeopt.replay.walk import StepCounts, Walk, count, total_counts, walk_steps
from treeopt.settings import typed
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


@typed
def replay_tree(tree: Tree, trace: Trace) -> StepCounts:
    """Return the counts of the tree's walk through every request.

    Raises:
        UsageError: another value than a tree or a trace, such as a path.
        TraceError: as `visit` does.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> replay_tree(Tree.chain(1), trace).tau
    1.5
    """
    return total_counts(trace.map(_counts, repeat(tree)))


def _counts(trace: Trace, tree: Tree) -> StepCounts:
    return count(visit(tree, trace), trace, depth=tree.depth)


def visit(tree: Tree, trace: Trace) -> Walk:
    """Return the steps that the tree takes through every request.

    Raises:
        TraceError: as `deepest` and `check_ranks` do.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> visit(Tree.chain(1), trace).anchors.tolist()
    [0, 2]
    """
    if tree.nodes:
        check_ranks(trace)
    return walk_steps(accepted_lengths(tree, trace), trace)


def accepted_lengths(tree: Tree, trace: Trace) -> NDArray[np.int64]:
    """Return the drafted tokens that a step from each anchor would accept; int64 (P,).

    Raises:
        TraceError: as `deepest` does.

    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> accepted_lengths(Tree.chain(1), trace).tolist()
    [1, 0, 1]
    """
    return np.array([*tree.depths, 0])[deepest(tree, trace)]


def deepest(tree: Tree, trace: Trace) -> NDArray[np.int64]:
    """Return the deepest node of the tree that the text at each anchor follows, −1 for the root; int64 (P,).

    Raises:
        TraceError: the tree is deeper than the trace, or needs ranks or nodes that were not recorded.
    """
    rule = trace.meta.get("verification")
    if may_accept_several(rule) and trace.tree_kept is None:
        raise TraceError(
            f"rule {rule} may accept several siblings, but ranks record only one; this trace has no `tree_kept` array"
        )
    if tree.depth > trace.depth:
        raise TraceError(f"the tree has depth {tree.depth}, the trace records depth {trace.depth}")
    if tree.nodes and max(tree.ranks) >= trace.width:
        raise TraceError(f"the tree uses rank {max(tree.ranks)}, the trace records ranks below {trace.width}")
    if trace.tree_kept is not None:
        return _deepest_accepted(tree, trace, trace.tree_kept)
    # child[node + 1, rank] is the node there, or -1; the last column stands for "not recorded".
    child = np.full((tree.nodes + 1, trace.width + 1), -1, dtype=np.int64)
    child[np.asarray(tree.parents, dtype=np.int64) + 1, list(tree.ranks)] = np.arange(tree.nodes)
    nodes = np.full(trace.anchors, -1, dtype=np.int64)
    alive, node = np.arange(trace.anchors), nodes
    for depth in range(tree.depth):
        rank = trace.rank[alive, depth]
        node = child[node + 1, np.where(rank >= 0, rank, trace.width)]
        alive, node = alive[node >= 0], node[node >= 0]
        nodes[alive] = node
    return nodes


def _deepest_accepted(tree: Tree, trace: Trace, accepted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return `deepest` for rules that may accept several siblings: the first of the deepest accepted nodes."""
    recorded = {path: node for node, path in enumerate(trace.tree.paths if trace.tree else ())}
    missing = next((path for path in tree.paths if path not in recorded), None)
    if missing is not None:
        raise TraceError(
            f"node {list(missing)} of the tree is not in the tree that the trace was recorded with, and this rule is "
            "replayed on parts of that tree alone: record another with `trace collect --tree`"
        )
    nodes = np.full(trace.anchors, -1, dtype=np.int64)
    for node in sorted(range(tree.nodes), key=lambda node: (tree.depths[node], -node)):
        nodes[accepted[:, recorded[tree.paths[node]]]] = node  # where a node is accepted its ancestors are too
    return nodes


def covers(trace: Trace, tree: Tree) -> bool:
    """Return True if the trace records everything that a step with this tree needs.

    >>> covers(Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 2), Tree.chain(2))
    False
    """
    recorded = trace.tree is None or set(tree.paths) <= set(trace.tree.paths)
    return tree.depth <= trace.depth and max(tree.ranks, default=0) < trace.width and recorded


def check_ranks(trace: Trace) -> None:
    """Raise an error if the ranks of the trace do not determine what steps accept.

    Raises:
        TraceError: the trace's rule draws its candidates, and its ranks are the drafter's own.
    """
    rule = trace.meta.get("verification")
    if draws_candidates(rule) and not trace.meta.get("drawn_ranks"):
        raise TraceError(
            f"rule {rule} draws its candidates, so ranks do not determine what it accepts: record sample-and-match, or "
            "draw ranks from `kept` (treeopt.replay.sampled_rules.drawn_ranks)"
        )


ALL_STEPS = "means_over_all_steps"  # true in the provenance of an engine that does not report what it drafts


def step_seconds(
    tree: Tree,
    cost: CostModel,
    *,
    batch: int,
    context: int | None = None,
    committed: float | None = None,
    drafted: NDArray[np.int64] | None = None,
) -> float:
    """Return the mean seconds of a step.

    A step in which nothing was proposed costs a plain step, and a shorter proposal what the tree cut to its levels
    costs. For one sequence the result is the mean over the steps of the walk, which is exact. For a larger batch the
    price is interpolated linearly at the mean number of levels proposed per sequence: an engine verifies as many tokens
    as its sequences have together. treeopt's own loop, which verifies as many levels as the longest proposal has, takes
    more.

    Args:
        tree: the tree.
        cost: seconds of whole steps.
        batch: sequences.
        context: tokens per sequence in the cache; None leaves it to the cost model.
        committed: mean tokens per sequence that a step commits; None leaves it to the cost model.
        drafted: `StepCounts.drafted_counts` of the walk; None: every step has the whole tree. A cost model whose
            times are means over steps with and without a draft (`ALL_STEPS` in its provenance) does not need it.

    Raises:
        CostError: the tree, or a part that is needed, lies outside what the model was calibrated for.
    """

    def price(levels: int) -> float:
        """Return the seconds of a step with this many levels of the tree."""
        if levels == 0:
            return cost.plain_s(batch=batch, context=context)
        part = tree if levels == tree.depth else upper_levels(tree, levels)
        most = None if committed is None else min(committed, levels + 1.0)
        return float(cost.step_s([StepShape.of(part, batch=batch, context=context, committed=most)])[0])

    if drafted is None or look(cost.meta, ALL_STEPS):
        return float(cost.step_s([StepShape.of(tree, batch=batch, context=context, committed=committed)])[0])
    share = drafted / drafted.sum()
    if batch == 1:
        return float(sum(share[levels] * price(levels) for levels in np.flatnonzero(drafted).tolist()))
    mean = float(share @ np.arange(len(share)))
    below = min(int(mean), tree.depth - 1)
    rest = mean - below
    return float((1 - rest) * price(below) + rest * price(below + 1))


def upper_levels(tree: Tree, levels: int) -> Tree:
    """Return the nodes of the first levels.

    >>> upper_levels(Tree.from_paths([(0, 1), (2,)]), 1).paths
    ((0,), (2,))
    """
    return Tree.from_paths(path for path in tree.paths if len(path) <= levels)


def plain_share(drafted: NDArray[np.int64] | None) -> float:
    """Return the share of a walk's steps in which nothing was proposed; 0 without a record of it.

    >>> plain_share(np.array([1, 0, 3]))
    0.25
    """
    return 0.0 if drafted is None else float(drafted[0] / drafted.sum())
