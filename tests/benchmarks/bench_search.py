"""Seconds and peak memory of the core: best trees of a large trace, replays, improved trees, a search, a table.

Run as `python -m tests.benchmarks.bench_search`. Prints; asserts nothing about time. Each benchmark has a
process of its own, so that peaks do not mix; `before` is the peak of making its input.
"""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.positional_trees import from_table
from treeopt.cost_model import CostParts, StepShape
from treeopt.engines import ENGINES
from treeopt.planning.search_pipeline import search
from treeopt.replay.many_trees import Replayer
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.renewal_local_search import improve
from treeopt.traces.resumable_shards import Shards, note, ranks_of
from treeopt.traces.trace import Trace


class Cost:
    """A made-up device: weights once, 64 tokens free, a draft pass a level."""

    separable = True
    growths = ()
    meta: Mapping[str, Any] = {"device": "made up"}

    def step_s(self, shapes: Sequence[StepShape]) -> NDArray[np.float64]:
        tokens = np.array([shape.batch * shape.tokens for shape in shapes])
        levels = np.array([len(shape.widths) for shape in shapes])
        return 0.02 * np.maximum(1, np.ceil(tokens / 64) * 0.5) + 0.001 * levels

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        return float(self.step_s([StepShape(batch, 1, (), context)])[0])

    def error(self, shape: StepShape) -> float:
        return 0.0

    def parts(self, *, batch: int, tokens: int, depth: int, width: int, context: int | None = None) -> CostParts:
        verify = self.step_s([StepShape(batch, size, (), context) for size in range(1, tokens + 1)])
        draft = np.full((depth, width + 1), 0.001)
        draft[:, 0] = 0
        return CostParts(np.append(np.inf, verify), draft)


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


def bench_replay() -> str:
    """Many trees on one trace, against one at a time; long and short requests."""
    lines = []
    for length in (500, 32):
        trace = synthetic_trace(1_000_000, length=length)
        frontier = count_prefixes(trace, nodes=512, depth=8)
        trees = [frontier.tree(size, 8) for size in (8, 63, 256)]
        before = peak_mib()
        ready_s, replayer = timed(lambda: Replayer(trace, frontier.tree(1024, 8)))  # noqa: B023
        peak = peak_mib()
        ours_s, found = timed(lambda: [replayer.replay(tree) for tree in trees])  # noqa: B023
        plain_s, due = timed(lambda: [replay_tree(tree, trace) for tree in trees])  # noqa: B023
        apart = sum(int(np.abs(a.steps - b.steps).sum()) for a, b in zip(found, due, strict=True))
        lines.append(
            f"replay, 1 M anchors in requests of {length}, depth 8, trees of 8, 63 and 256 nodes:  "
            f"{ours_s / 3 * 1e3:.1f} ms a tree after {ready_s:.2f} s (peak {peak:.0f} MiB, before {before:.0f}), "
            f"plainly {plain_s / 3 * 1e3:.0f} ms, ratio {plain_s / ours_s:.0f}; steps that differ: {apart}"
        )
    return "\n".join(lines)


def bench_improve() -> str:
    """Trees of 63 nodes for their own walk."""
    lines = []
    for anchors in (100_000, 1_000_000):
        trace = synthetic_trace(anchors)
        average = count_prefixes(trace, nodes=63, depth=8).tree(63, 8)
        before = peak_mib()
        first = time.process_time()
        seconds, found = timed(lambda: improve(trace, nodes=63, depth=8), repeats=2)  # noqa: B023
        core_s = (time.process_time() - first) / 2
        tau, better = (replay_tree(tree, trace).tau for tree in (average, found))
        lines.append(
            f"improve, {anchors} anchors, 63 nodes, depth 8:  {seconds:.2f} s, {core_s:.2f} s of a core, peak "
            f"{peak_mib():.0f} MiB (before {before:.0f}); tau {better:.4f}, position-averaged {tau:.4f}"
        )
    return "\n".join(lines)


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


def write_shards(folder: Path, shards: int, anchors: int) -> None:
    """A folder of synthetic shards with probabilities, whose anchors are `anchors` each."""
    requests = shards * -(-anchors // 500)
    found = Shards.begin(folder, {"verification": "greedy", "repeated_4grams": {}}, {}, requests)
    for number in range(shards):
        trace = synthetic_trace(anchors, seed=number)
        blank = np.zeros((anchors, trace.depth, trace.width), dtype=np.float16)
        found.add(replace(trace, draft_prob=blank, meta=note([str(number)], 0, 0)))


def bench_large(shards: int = 10, anchors: int = 1_000_000) -> str:
    """A search on 10 M anchors from shards on the disk, written by another process."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "shards"
        with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
            pool.submit(write_shards, folder, shards, anchors).result()
        before = peak_mib()
        read_s, trace = timed(lambda: ranks_of(folder), repeats=1)
        read = peak_mib()
    seconds, plan = timed(lambda: search(trace, Cost(), batch=(1, 4)), repeats=1)
    nodes = [entry.choice.tree.nodes if entry.choice.tree else 0 for entry in plan.entries]
    return (
        f"search, {trace.anchors} anchors from {shards} shards with probabilities, 2 batch sizes, 63 nodes:  "
        f"{read_s:.1f} s to read, {seconds:.1f} s to search, peak {peak_mib():.0f} MiB (reading {read:.0f}, before "
        f"{before:.0f}); chosen nodes {nodes}"
    )


def bench_engines() -> str:
    """Searches over eight batch sizes and a million anchors, under the rules of every engine; no integer programmes."""
    trace, batches = synthetic_trace(1_000_000), (1, 2, 4, 8, 16, 32, 64, 128)
    before, spent = peak_mib(), {}
    for name in ENGINES.limiting():
        start = time.process_time()
        search(trace, Cost(), batch=batches, max_nodes=128, rules=ENGINES[name].rules, solver_work=0, compare={})
        spent[name] = time.process_time() - start
    slowest = max(spent, key=lambda name: spent[name])
    return (
        f"search, 1 M anchors, 8 batch sizes, 128 nodes:  {spent['treeopt']:.1f} s of one core without rules, under "
        f"those of {len(spent) - 1} engines {min(spent.values()):.1f} to {spent[slowest]:.1f} s ({slowest}), "
        f"peak {peak_mib():.0f} MiB (before {before:.0f})"
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
    for bench in (bench_prefixes, bench_replay, bench_improve, bench_search, bench_engines, bench_large, bench_table):
        with ProcessPoolExecutor(max_workers=1, mp_context=fresh) as pool:
            print(pool.submit(bench).result(), flush=True)


if __name__ == "__main__":
    main()
