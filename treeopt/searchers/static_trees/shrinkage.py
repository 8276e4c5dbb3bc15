"""The strength of shrinkage of path counts: the one with which half of the requests best predicts the other half."""

from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from treeopt.searchers.static_trees.best_first import BackOff, Frontier, count_prefixes, counts_by_kind, kinds_below
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
    halves = [trace.cut(np.arange(trace.requests) % 2 == start) for start in (0, 1)]
    counts = [
        [sum(part) for part in zip(*trace.map(_counted, half, repeat(frontier), repeat(depth)), strict=True)]
        for half in halves
    ]
    likelihood = np.zeros(len(TRIED))
    for (fitted_on, by_kind), (predicted, _) in (counts, counts[::-1]):
        share = BackOff.of(by_kind).share[level, kinds]
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


def _counted(
    trace: Trace, chosen: NDArray[np.bool_], frontier: Frontier, depth: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the counts of some requests by path and by kind of path."""
    rank = trace.rank[chosen[trace.request_index]]
    return _next_ranks(frontier, rank, trace.width), counts_by_kind(rank, depth, trace.width)


def _next_ranks(frontier: Frontier, ranks: NDArray[np.int16], width: int) -> NDArray[np.int64]:
    """Return anchors by path (the root first) and next rank (last column: no rank), int64 (1 + C, width + 1)."""
    paths = len(frontier.value) + 1
    child = np.full((paths, width + 1), -1)
    child[frontier.parent + 1, frontier.rank] = np.arange(1, paths)
    counts = np.zeros(paths * (width + 1), dtype=np.int64)
    alive, node = np.arange(len(ranks)), np.zeros(len(ranks), dtype=np.int64)
    for level in range(int(frontier.depth.max(initial=0)) + 1):
        rank = ranks[alive, level]
        rank = np.where(rank >= 0, rank, np.int16(width))
        counts += np.bincount(node * (width + 1) + rank, minlength=len(counts))
        node = child[node, rank]
        alive, node = alive[node >= 0], node[node >= 0]
    return counts.reshape(paths, width + 1)
