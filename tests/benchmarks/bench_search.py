"""Seconds and peak memory of the core: best trees of a large trace, a search, a table.

Run as `python -m tests.benchmarks.bench_search`. Prints; asserts nothing about time. Each benchmark has a
process of its own, so that peaks do not mix; `before` is the peak of making its input.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.cost import StepShape
from treeopt.optimize import search
from treeopt.searchers.best_first import count_prefixes, from_table
from treeopt.trace import Trace


class Cost:
    """A made-up device: weights once, 64 tokens free, a draft pass a level."""

    separable = True
    relative_error = 0.0
    meta: Mapping[str, Any] = {"device": "made up"}

    def step_s(self, shapes: Sequence[StepShape]) -> NDArray[np.float64]:
        tokens = np.array([shape.batch * shape.tokens for shape in shapes])
        levels = np.array([len(shape.widths) for shape in shapes])
        return 0.02 * np.maximum(1, np.ceil(tokens / 64) * 0.5) + 0.001 * levels

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        return float(self.step_s([StepShape(batch, 1, (), context)])[0])


def peak_mib() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def synthetic_trace(anchors: int, *, depth: int = 8, width: int = 16, length: int = 500, seed: int = 0) -> Trace:
    """Requests of `length` positions; acceptance drifts with the position, ranks fall off geometrically."""
    rng = np.random.default_rng(seed)
    rank = np.empty((anchors, depth), dtype=np.int16)
    for start in range(0, anchors, 50_000):  # in parts, so that making it leaves no peak behind
        part = rank[start : start + 50_000]
        hard = 0.2 + 0.5 * rng.beta(1, 2, (len(part), 1))
        drawn = np.log(rng.random(part.shape)) / np.log(hard)
        part[:] = np.where(drawn < width, drawn, -1)
    position = (np.arange(anchors) % length).astype(np.int32)
    left = np.minimum(length - position, anchors - np.arange(anchors))
    rank[np.arange(depth) >= left[:, None]] = -2
    return Trace((np.arange(anchors) // length).astype(np.int32), position, rank, width)


def sequoia_programme(vector: Sequence[float], *, nodes: int, depth: int) -> list[float]:
    """Best expected tokens of trees of 0 .. `nodes` drafted nodes and `depth` levels, ranks without gaps.

    Plain Python. T(m, l, b), the most that m nodes add on l levels below a node of b children at most, is
    max_y T(m − y, l, b − 1) + p_b (1 + T(y − 1, l − 1, any)). Source: Sequoia (Chen et al. 2024).
    """
    lowest = float("-inf")
    below = [0.0] + [lowest] * nodes  # what y nodes below a node add, by y; no levels left
    for _ in range(depth):
        best = [0.0] + [lowest] * nodes
        reached = list(best)
        for probability in vector:
            extended = [lowest] * (nodes + 1)
            for m in range(1, nodes + 1):
                top = lowest
                for y in range(1, m + 1):
                    value = best[m - y] + probability * (1 + below[y - 1])
                    top = max(top, value)
                extended[m] = top
            best = extended
            reached = [max(a, b) for a, b in zip(reached, best, strict=True)]
        below = reached
    return [1 + value for value in below]


def geo() -> NDArray[np.float64]:
    """A falling acceptance vector of 32 ranks."""
    jitter = 1 + 0.001 * np.random.default_rng(20240607).standard_normal(32)
    return -np.sort(-np.array([0.6, 0.15] + [0.07 * 0.62**i for i in range(30)]) * jitter)


def timed(function: Callable[[], Any], *, repeats: int = 3) -> tuple[float, Any]:
    """Seconds of the fastest of some runs, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def bench_prefixes() -> str:
    """All best trees up to 512 nodes and depth 8 of a million anchors."""
    trace = synthetic_trace(1_000_000)
    before = peak_mib()
    seconds, frontier = timed(lambda: count_prefixes(trace, nodes=512, depth=8))
    tokens = " ".join(f"{frontier.tokens(8)[size]:.4f}" for size in (1, 8, 64, 512))
    return (
        f"best trees, 1 M anchors, 512 nodes, depth 8:  {seconds:.2f} s, peak {peak_mib():.0f} MiB (before "
        f"{before:.0f}); {len(frontier.value)} nodes kept, tokens at 1/8/64/512 nodes {tokens}"
    )


def bench_search() -> str:
    """A whole search with four batch sizes on 100 k anchors."""
    trace = synthetic_trace(100_000)
    before = peak_mib()
    seconds, plan = timed(lambda: search(trace, Cost(), batch=(1, 4, 16, 64)))
    nodes = [entry.choice.tree.nodes if entry.choice.tree else 0 for entry in plan.entries]
    return (
        f"search, 100 k anchors, 4 batch sizes, 63 nodes:  {seconds:.2f} s without start-up, "
        f"peak {peak_mib():.0f} MiB (before {before:.0f}); chosen nodes {nodes}"
    )


def bench_table() -> str:
    """A positional table against Sequoia's programme."""
    vector = geo()
    whole_s, _ = timed(lambda: from_table(np.tile(vector, (16, 1)), nodes=511), repeats=10)
    nodes, depth = 64, 8
    ours_s, frontier = timed(lambda: from_table(np.tile(vector, (depth, 1)), nodes=nodes), repeats=10)
    theirs_s, values = timed(lambda: sequoia_programme(vector.tolist(), nodes=nodes, depth=depth), repeats=1)
    apart = float(np.abs(frontier.tokens(depth) - np.array(values)).max())
    return (
        f"table, 511 nodes, 16 levels:  {whole_s * 1e3:.2f} ms\n"
        f"table, {nodes} nodes, {depth} levels:  {ours_s * 1e3:.2f} ms, dynamic programme {theirs_s:.2f} s, "
        f"ratio {theirs_s / ours_s:.0f}; values of all sizes differ by at most {apart:.1e}"
    )


def main() -> None:
    """Run all, each in a fresh process."""
    fresh = multiprocessing.get_context("spawn")
    for bench in (bench_prefixes, bench_search, bench_table):
        with ProcessPoolExecutor(max_workers=1, mp_context=fresh) as pool:
            print(pool.submit(bench).result(), flush=True)


if __name__ == "__main__":
    main()
