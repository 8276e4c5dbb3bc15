"""Hydra's procedure: grow a tree node by node, each time by the child that most raises the replayed tau.

Proves nothing. Source: Ankner et al. 2024 (arXiv 2402.05109), §4.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from treeopt.replay.walk import Walk, count, walk_steps
from treeopt.traces.trace import Trace
from treeopt.tree import Path, Tree


def grow(
    trace: Trace,
    *,
    nodes: int,
    depth: int,
    keeps: Callable[[Tree], bool] | None = None,
    requests: int = 100,
    tried: int = 24,
) -> list[Tree]:
    """Grow from nothing: add the child that most raises the replayed tau, one node at a time.

    The paper simulates on 100 prompts. Here they are spread evenly over the trace, which may be ordered by domain.

    Args:
        trace: trace to replay on.
        nodes: largest tree.
        depth: deepest tree.
        keeps: returns True for trees that may be grown; default all.
        requests: number of requests to replay.
        tried: number of children to replay per node, those most often matched at visited anchors.

    Returns:
        nested trees of 1, 2, ... nodes; fewer than `nodes` when no child is ever matched.
    """
    taken = min(requests, trace.requests)
    part = trace.select(np.arange(taken) * trace.requests // taken)
    depth = min(depth, part.depth)
    paths: list[Path] = []
    trees: list[Tree] = []
    accepted = np.zeros(part.anchors, dtype=np.int64)
    while len(paths) < nodes:
        children = _matching_children(part, walk_steps(accepted, part), paths, depth)
        if keeps is not None:
            children = [child for child in children if keeps(Tree.from_paths([*paths, child]))]
        children = children[:tried]
        if not children:
            break
        longer = [np.maximum(accepted, len(child) * _follows(part, child)) for child in children]
        best = int(np.argmax([count(walk_steps(lengths, part), part).tau for lengths in longer]))
        accepted = longer[best]
        paths.append(children[best])
        trees.append(Tree.from_paths(paths))
    return trees


def _follows(trace: Trace, path: Path) -> NDArray[np.bool_]:
    """Return the anchors at which all nodes of this path would be accepted, bool (P,)."""
    if trace.tree is not None and trace.tree_kept is not None:
        return trace.tree_kept[:, trace.tree.paths.index(path)]
    return np.asarray((trace.rank[:, : len(path)] == path).all(axis=1))


def _matching_children(trace: Trace, steps: Walk, paths: list[Path], depth: int) -> list[Path]:
    """Return children just below the tree that would lengthen steps at visited anchors, most frequent first."""
    if trace.tree is not None and trace.tree_kept is not None:
        return _accepting_children(trace.tree, trace.tree_kept, steps, paths, depth)
    stopped = steps.accepted < depth
    anchors, accepted = steps.anchors[stopped], steps.accepted[stopped]
    ranks = trace.rank[anchors, :depth]
    wanted = ranks[np.arange(len(anchors)), accepted] >= 0
    ranks = np.where(np.arange(depth) <= accepted[:, None], ranks, -1)[wanted]
    rows, times = np.unique(ranks, axis=0, return_counts=True)
    order = np.argsort(-times, kind="stable")
    return [tuple(int(rank) for rank in row if rank >= 0) for row in rows[order]]


def _accepting_children(tree: Tree, kept: NDArray[np.bool_], steps: Walk, paths: list[Path], depth: int) -> list[Path]:
    """Return the same where several siblings may be accepted: children that would have made a step longer.

    Args:
        tree: the tree that the trace was recorded with.
        kept: bool (P, nodes), the nodes accepted at each anchor.
        steps: the walk of the tree grown so far.
        paths: its nodes.
        depth: deepest tree.
    """
    inside = {(), *paths}
    below = np.array(
        [path[:-1] in inside and path not in inside and len(path) <= depth for path in tree.paths], dtype=bool
    )
    nodes = np.flatnonzero(below)
    longer = np.array(tree.depths, dtype=np.int64)[nodes] > steps.accepted[:, None]
    times = (kept[np.ix_(steps.anchors, nodes)] & longer).sum(axis=0)
    return [tree.paths[nodes[i]] for i in np.argsort(-times, kind="stable").tolist() if times[i]]
