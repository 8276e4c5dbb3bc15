"""Trees for the positions that they themselves visit: value nodes by the steps they save, replay, keep the best.

Proves nothing: a tree changes its own walk. Every result is replayed, so it is never worse on the trace than
the position-averaged tree. How far from the best of all trees it is on small traces: `data/benchmarks/regret.json`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import THROUGHPUT, Objective
from treeopt.replay.walk import StepCounts, Walk, count, walked
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.searchers.static_trees.local_search import Climb
from treeopt.traces.trace import Trace
from treeopt.tree import MAX_NODES, Tree

POOL = 8  # times the nodes wanted
LARGEST_POOL = 1024


@dataclass(frozen=True)
class Replayed:
    """A tree and what its walk counted."""

    tree: Tree
    counts: StepCounts


def improve(
    trace: Trace,
    *,
    nodes: int,
    depth: int,
    objective: Objective = THROUGHPUT,
    effort: float = 1.0,
    replayer: Replayer | None = None,
) -> Replayed:
    """The best replayed tree of at most `nodes` nodes and `depth` levels that was met.

    Begins with position-averaged trees. Each round values all nodes of a pool under the tree at hand, takes the most
    valuable closed parts, replays them and goes on from the best; in the end single nodes are swapped.

    Args:
        trace: what is replayed on.
        nodes: nodes at most.
        depth: levels at most.
        objective: what is maximised.
        effort: times the usual work.
        replayer: of this trace, made by `ready` for no fewer nodes and levels; saves making one.

    Raises:
        UsageError: a negative size, or a replayer of another trace.
        TraceError: an objective that the trace cannot answer.
    """
    if nodes < 0 or depth < 0:
        raise UsageError(f"nodes and depth must be 0 or more, got {nodes} and {depth}")
    replayer = replayer or ready(trace, nodes=nodes, depth=depth)
    if replayer.trace is not trace:
        raise UsageError("the replayer must be of the trace that is improved on")
    climb = Climb(replayer, objective.prices(trace), nodes=nodes, depth=depth, effort=effort)
    climb.run()
    tree = replayer.tree(climb.best)
    return Replayed(tree, replayer.replay(tree))


def ready(trace: Trace, *, nodes: int, depth: int) -> Replayer:
    """A replayer for improving trees of at most `nodes` nodes and `depth` levels.

    Its pool is the most frequent prefixes, several times `nodes`; the position-averaged trees of all smaller sizes and
    depth caps are part of it.
    """
    size = min(max(min(POOL * nodes, LARGEST_POOL), 2 * nodes, 64), MAX_NODES)
    frontier = count_prefixes(trace, nodes=size, depth=depth)
    pool = set(frontier.order(depth).tolist())
    for cap in range(1, min(depth, trace.depth)):
        pool.update(frontier.order(cap)[:nodes].tolist())
    return Replayer(trace, Tree.from_paths(frontier.paths[node] for node in sorted(pool)[:MAX_NODES]))


def grow(
    trace: Trace,
    *,
    nodes: int,
    depth: int,
    keeps: Callable[[Tree], bool] | None = None,
    requests: int = 100,
    tried: int = 24,
) -> list[Tree]:
    """Hydra's procedure: from nothing, add the child that most raises the replayed tau, one node at a time.

    Source: Ankner et al. 2024 (arXiv 2402.05109), §4, which simulates on 100 prompts; here they are spread evenly over
    the trace, whose order may be one of domains. Of the possible children only the `tried` most often matched at
    visited anchors are replayed.

    Args:
        trace: what is replayed on.
        nodes: nodes at most.
        depth: levels at most.
        keeps: which trees may be grown; default all.
        requests: replayed.
        tried: see above.

    Returns:
        nested trees of 1, 2, ... nodes; fewer than `nodes` when no child is ever matched.
    """
    if nodes < 0 or depth < 0:
        raise UsageError(f"nodes and depth must be 0 or more, got {nodes} and {depth}")
    taken = min(requests, trace.requests)
    part = trace.select(np.arange(taken) * trace.requests // taken)
    depth = min(depth, part.depth)
    paths: list[tuple[int, ...]] = []
    trees: list[Tree] = []
    accepted = np.zeros(part.anchors, dtype=np.int64)
    while len(paths) < nodes:
        children = _matched(part, walked(accepted, part), paths, depth)
        if keeps is not None:
            children = [child for child in children if keeps(Tree.from_paths([*paths, child]))]
        children = children[:tried]
        if not children:
            break
        longer = [np.maximum(accepted, len(child) * _follows(part, child)) for child in children]
        best = int(np.argmax([count(walked(each, part), part).tau for each in longer]))
        accepted = longer[best]
        paths.append(children[best])
        trees.append(Tree.from_paths(paths))
    return trees


def _follows(trace: Trace, path: tuple[int, ...]) -> NDArray[np.bool_]:
    """The anchors at which a tree with this path would keep all of it, bool (P,)."""
    if trace.tree is not None and trace.tree_kept is not None:
        return trace.tree_kept[:, trace.tree.paths.index(path)]
    return np.asarray((trace.rank[:, : len(path)] == path).all(axis=1))


def _matched(trace: Trace, steps: Walk, paths: list[tuple[int, ...]], depth: int) -> list[tuple[int, ...]]:
    """Children just below the tree that visited anchors would have used, most frequent first."""
    if trace.tree is not None and trace.tree_kept is not None:
        return _kept(trace.tree, trace.tree_kept, steps, paths, depth)
    stopped = steps.accepted < depth
    anchors, accepted = steps.anchors[stopped], steps.accepted[stopped]
    ranks = trace.rank[anchors, :depth]
    wanted = ranks[np.arange(len(anchors)), accepted] >= 0
    ranks = np.where(np.arange(depth) <= accepted[:, None], ranks, -1)[wanted]
    found, times = np.unique(ranks, axis=0, return_counts=True)
    order = np.argsort(-times, kind="stable")
    return [tuple(int(rank) for rank in row if rank >= 0) for row in found[order]]


def _kept(
    tree: Tree, kept: NDArray[np.bool_], steps: Walk, paths: list[tuple[int, ...]], depth: int
) -> list[tuple[int, ...]]:
    """The same where several siblings may be kept: those that would have made a step longer."""
    held = {(), *paths}
    below = np.array([path[:-1] in held and path not in held and len(path) <= depth for path in tree.paths], dtype=bool)
    nodes = np.flatnonzero(below)
    longer = np.array(tree.depths, dtype=np.int64)[nodes] > steps.accepted[:, None]
    times = (kept[np.ix_(steps.anchors, nodes)] & longer).sum(axis=0)
    return [tree.paths[nodes[i]] for i in np.argsort(-times, kind="stable").tolist() if times[i]]
