"""Trees for the positions that they themselves visit: re-weight by the walk, search, replay, keep the best.

Proves nothing: a tree changes its own walk. Every result is replayed, so it is never worse on the trace than
the position-averaged tree that it starts from.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.searchers.best_first import count_prefixes
from treeopt.trace import Trace
from treeopt.tree import Tree
from treeopt.walk import StepCounts, Walk, count, visit


@dataclass(frozen=True)
class Replayed:
    """A tree and what its walk counted."""

    tree: Tree
    counts: StepCounts


def improve(trace: Trace, *, nodes: int, depth: int, rounds: int = 4) -> Replayed:
    """The best replayed tree of at most `nodes` nodes and `depth` levels met in `rounds` re-weightings.

    A token gained at a visited anchor of request r saves 1 / tau_r steps, so visited anchors weigh 1 / tau_r
    (the gradient of Σ_r tokens_r / tau_r); plain visits are tried as well.
    """
    start = count_prefixes(trace, nodes=nodes, depth=depth).tree(nodes, depth)
    steps = visit(start, trace)
    best = Replayed(start, count(steps, trace))
    for per_request in (True, False):
        seen = {start}
        here = steps
        for _ in range(rounds):
            weights = _visits(here, trace, per_request=per_request)
            tree = count_prefixes(trace, nodes=nodes, depth=depth, weights=weights).tree(nodes, depth)
            if tree in seen:
                break
            seen.add(tree)
            here = visit(tree, trace)
            found = Replayed(tree, count(here, trace))
            if found.counts.tau > best.counts.tau:
                best = found
    return best


def _visits(steps: Walk, trace: Trace, *, per_request: bool) -> NDArray[np.float64]:
    weights = np.zeros(trace.anchors)
    counts = count(steps, trace)
    weights[steps.anchors] = (counts.steps / counts.committed)[steps.request] if per_request else 1.0
    return weights


def grow(trace: Trace, *, nodes: int, depth: int, requests: int = 100, tried: int = 24) -> list[Tree]:
    """Hydra's procedure: from nothing, add the child that most raises the replayed tau, one node at a time.

    Source: Ankner et al. 2024 (arXiv 2402.05109), §4, which simulates on 100 prompts. Of the possible children
    only the `tried` most often matched at visited anchors are replayed.

    Returns:
        nested trees of 1, 2, ... nodes; fewer than `nodes` when no child is ever matched.
    """
    if nodes < 0 or depth < 0:
        raise UsageError(f"nodes and depth must be 0 or more, got {nodes} and {depth}")
    part = trace.select(np.arange(min(requests, trace.requests)))
    depth = min(depth, part.depth)
    paths: list[tuple[int, ...]] = []
    trees: list[Tree] = []
    while len(paths) < nodes:
        here = visit(Tree.from_paths(paths), part)
        children = _matched(part, here, paths, depth)[:tried]
        if not children:
            break
        taus = [count(visit(Tree.from_paths([*paths, child]), part), part).tau for child in children]
        paths.append(children[int(np.argmax(taus))])
        trees.append(Tree.from_paths(paths))
    return trees


def _matched(trace: Trace, steps: Walk, paths: list[tuple[int, ...]], depth: int) -> list[tuple[int, ...]]:
    """Children just below the tree that visited anchors would have used, most frequent first."""
    stopped = steps.accepted < depth
    anchors, accepted = steps.anchors[stopped], steps.accepted[stopped]
    ranks = trace.rank[anchors, :depth]
    wanted = ranks[np.arange(len(anchors)), accepted] >= 0
    ranks = np.where(np.arange(depth) <= accepted[:, None], ranks, -1)[wanted]
    found, times = np.unique(ranks, axis=0, return_counts=True)
    order = np.argsort(-times, kind="stable")
    return [tuple(int(rank) for rank in row if rank >= 0) for row in found[order]]
