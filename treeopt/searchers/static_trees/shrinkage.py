"""The strength of shrinkage of path counts: the one with which half of the requests best predicts the other half."""

import numpy as np
from numpy.typing import NDArray

from treeopt.searchers.static_trees.best_first import BackOff, Frontier, count_prefixes, kinds_below
from treeopt.traces.trace import Trace

# Stronger shrinkage gains little on few anchors and costs on many: data/benchmarks/small_data.json.
TRIED = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
UNKNOWN = 40.0  # for a single request, whose halves would not be independent


def fit_strength(trace: Trace, *, nodes: int, depth: int) -> float:
    """Return the pseudo-anchors of the back-off, one of `TRIED`, for `count_prefixes(..., shrink=)`.

    Every other request predicts the next rank of the rest below the `nodes` most frequent paths, and the other way
    round; the strength with the highest likelihood wins. It is the largest where paths of one kind are alike, as for
    trained heads, and small where text loops, so that whole paths return.
    """
    if trace.requests < 2:
        return UNKNOWN
    depth = min(depth, trace.depth)
    frontier = count_prefixes(trace, nodes=nodes, depth=depth - 1)  # paths that have a next rank
    kinds = _kinds(frontier)
    level = np.append(0, frontier.depth)
    halves = [trace.select(np.arange(start, trace.requests, 2)) for start in (0, 1)]
    counts = [_next_ranks(frontier, half) for half in halves]
    likelihood = np.zeros(len(TRIED))
    for half, fitted_on, predicted in zip(halves, counts, counts[::-1], strict=True):
        share = BackOff.of(half.rank, depth=depth, width=trace.width).share[level, kinds]
        share = np.concatenate([share, 1 - share.sum(axis=1, keepdims=True)], axis=1)
        for number, shrink in enumerate(TRIED):
            law = (fitted_on + shrink * share) / (fitted_on.sum(axis=1, keepdims=True) + shrink)
            likelihood[number] += float((predicted * np.log(law)).sum())
    return TRIED[int(np.argmax(likelihood))]


def _kinds(frontier: Frontier) -> NDArray[np.int8]:
    """Return the kind of the root and of each path of the frontier."""
    kinds = np.zeros(len(frontier.value) + 1, dtype=np.int8)
    for level in range(1, int(frontier.depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(frontier.depth == level)
        kinds[nodes + 1] = kinds_below(kinds[frontier.parent[nodes] + 1], frontier.rank[nodes])
    return kinds


def _next_ranks(frontier: Frontier, trace: Trace) -> NDArray[np.int64]:
    """Return anchors by path (the root first) and next rank (last column: no rank), int64 (1 + C, width + 1)."""
    paths, width = len(frontier.value) + 1, trace.width
    child = np.full((paths, width + 1), -1)
    child[frontier.parent + 1, frontier.rank] = np.arange(1, paths)
    counts = np.zeros(paths * (width + 1), dtype=np.int64)
    alive, node = np.arange(trace.anchors), np.zeros(trace.anchors, dtype=np.int64)
    for level in range(int(frontier.depth.max(initial=0)) + 1):
        rank = trace.rank[alive, level]
        rank = np.where(rank >= 0, rank, np.int16(width))
        counts += np.bincount(node * (width + 1) + rank, minlength=len(counts))
        node = child[node, rank]
        alive, node = alive[node >= 0], node[node >= 0]
    return counts.reshape(paths, width + 1)
