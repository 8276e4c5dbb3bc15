"""The renewal search: fit a tree to the positions it visits itself; value nodes by saved steps, replay, keep the best.

Proves nothing: a tree changes its own walk. Every result is replayed, so it is never worse on the trace than the
position-averaged tree. `data/benchmarks/regret.json` records its distance from the best of all trees on small traces.
"""

from dataclasses import dataclass

from treeopt.errors import UsageError
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import THROUGHPUT, Objective
from treeopt.replay.walk import StepCounts
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.searchers.static_trees.local_search import Climb
from treeopt.traces.trace import Trace
from treeopt.tree import MAX_NODES, Tree

POOL = 8  # pool size as a multiple of the nodes wanted
LARGEST_POOL = 1024


@dataclass(frozen=True)
class Replayed:
    """A tree and the counts of its walk."""

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
    """Return the best replayed tree of at most `nodes` nodes and `depth` levels that was found.

    Starts from position-averaged trees. Each round values all nodes of a pool under the current tree, takes the most
    valuable subtrees, replays them and continues from the best; finally single nodes are swapped.

    Args:
        trace: trace to replay on.
        nodes: largest tree.
        depth: deepest tree.
        objective: what is maximised.
        effort: multiple of the usual work.
        replayer: replayer of this trace, made by `ready` for at least as many nodes and levels; default a new one.

    Raises:
        UsageError: a negative size, or a replayer of another trace.
        TraceError: an objective that the trace cannot answer.
    """
    if nodes < 0 or depth < 0:
        raise UsageError(f"nodes and depth must be 0 or more, got {nodes} and {depth}")
    replayer = replayer or ready(trace, nodes=nodes, depth=depth)
    if replayer.trace is not trace:
        raise UsageError("the replayer must be made for the given trace")
    climb = Climb(replayer, objective.prices(trace), nodes=nodes, depth=depth, effort=effort)
    climb.run()
    tree = replayer.tree(climb.best)
    return Replayed(tree, replayer.replay(tree))


def ready(trace: Trace, *, nodes: int, depth: int) -> Replayer:
    """Return a replayer for improving trees of at most `nodes` nodes and `depth` levels.

    Its pool holds the most frequent prefixes, several times `nodes`, including the position-averaged trees of all
    smaller sizes and depth caps.
    """
    size = min(max(min(POOL * nodes, LARGEST_POOL), 2 * nodes, 64), MAX_NODES)
    frontier = count_prefixes(trace, nodes=size, depth=depth)
    pool = set(frontier.order(depth).tolist())
    for cap in range(1, min(depth, trace.depth)):
        pool.update(frontier.order(cap)[:nodes].tolist())
    return Replayer(trace, Tree.from_paths(frontier.paths[node] for node in sorted(pool)[:MAX_NODES]))
