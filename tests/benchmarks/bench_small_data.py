"""Trees from few anchors: raw counts of paths, counts shrunk towards a back-off, products of depths' marginals.

Run as `python -m tests.benchmarks.bench_small_data [--output FILE]`. Trees are chosen on T anchors and judged on
others, by the tokens a step that they accept on average over positions, as a share of what the best tree of that
size chosen on the judging part itself accepts there. In the spirit of tree_search.md §3.5.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.positional_trees import from_table
from treeopt.replay.static_tree import accepted_lengths
from treeopt.searchers.best_first import TRIED, Frontier, count_prefixes, fit_strength
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped, write_text
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace

SIZES = (15, 63, 255)
ANCHORS = (300, 1_000, 3_000, 10_000, 30_000)
PRIORS = (20.0, 40.0, 80.0, 160.0, 640.0)
SHIPPED = ("medusa-t0", "hydra-t0", "eagle-t0", "bigram-t0", "prompt-lookup-t0", "medusa-t1", "eagle-t1", "bigram-t1")
DEPTH = 8

Estimator = Callable[[Trace, int], Frontier]


def difficult_trace(anchors: int, rng: np.random.Generator, *, length: int = 250, width: int = 16) -> Trace:
    """Requests whose difficulty drifts: AR(1) of correlation 0.9 a token, the first guess right with
    1 / (1 + exp(−(0.6 + 1.3 x − 0.15 d))), later ranks falling off geometrically, faster where the text is easy.
    """
    requests = -(-anchors // length)
    state = rng.standard_normal(requests)
    path = np.empty((requests, length + DEPTH))
    for t in range(length + DEPTH):
        path[:, t] = state
        state = 0.9 * state + np.sqrt(1 - 0.81) * rng.standard_normal(requests)
    easy = np.stack([path[:, d : d + length] for d in range(DEPTH)], axis=-1).reshape(-1, DEPTH)[:anchors]
    first = 1 / (1 + np.exp(-(0.6 + 1.3 * easy - 0.15 * np.arange(DEPTH))))
    later = np.clip(0.72 - 0.12 * easy, 0.3, 0.95)
    drawn = 1 + np.floor(np.log(rng.random(easy.shape)) / np.log(later))
    drawn = np.where(rng.random(easy.shape) < first, 0, drawn)
    rank = np.where(drawn < width, drawn, -1).astype(np.int16)
    position = (np.arange(anchors) % length).astype(np.int32)
    left = np.minimum(length - position, anchors - np.arange(anchors))
    rank[np.arange(DEPTH) >= left[:, None]] = -2
    return Trace((np.arange(anchors) // length).astype(np.int32), position, rank, width)


def marginals(trace: Trace) -> NDArray[np.float64]:
    """Share of the anchors with each rank at each depth, whatever came before: float64 (depth, width)."""
    counts = [np.bincount(r[r >= 0], minlength=trace.width) / max((r != -2).sum(), 1) for r in trace.rank.T]
    return np.array(counts)


def estimators(priors: Sequence[float]) -> dict[str, Estimator]:
    """Ways to choose trees from a trace, by name."""
    found: dict[str, Estimator] = {
        "counts": lambda trace, nodes: count_prefixes(trace, nodes=nodes, depth=trace.depth),
        "shrunk, fitted": lambda trace, nodes: count_prefixes(
            trace, nodes=nodes, depth=trace.depth, shrink=fit_strength(trace, nodes=nodes, depth=trace.depth)
        ),
        "product of marginals": lambda trace, nodes: from_table(marginals(trace), nodes=nodes),
    }
    for prior in priors:
        found[f"shrunk, {prior:g}"] = lambda trace, nodes, prior=prior: count_prefixes(  # type: ignore[misc]
            trace, nodes=nodes, depth=trace.depth, shrink=prior
        )
    return found


def accepted(frontier: Frontier, nodes: int, judge: Trace) -> float:
    """Tokens a step of the tree of that size, averaged over the judge's positions."""
    return 1 + float(accepted_lengths(frontier.tree(nodes, judge.depth), judge).mean())


def parts(trace: Trace, anchors: int, rng: np.random.Generator) -> tuple[Trace, Trace]:
    """About `anchors` anchors of whole requests out of one half of the requests, and the other half."""
    order = rng.permutation(trace.requests)
    half = trace.requests // 2
    lengths = trace.lengths[order[:half]]
    few = min(int(np.searchsorted(np.cumsum(lengths), anchors)) + 1, half)
    return trace.select(np.sort(order[:few])), trace.select(np.sort(order[half:]))


def compare(
    make: Callable[[int, np.random.Generator], tuple[Trace, Trace]],
    anchors: int,
    seeds: int,
    ways: dict[str, Estimator],
) -> list[dict[str, Any]]:
    """Of each size and way, the mean share of the oracle over seeds, held out, and its standard error."""
    shares: dict[tuple[int, str], list[float]] = {}
    for seed in range(seeds):
        fit, judge = make(anchors, np.random.default_rng([seed, anchors]))
        for nodes in SIZES:
            best = accepted(count_prefixes(judge, nodes=nodes, depth=judge.depth), nodes, judge)
            for name, way in ways.items():
                shares.setdefault((nodes, name), []).append(accepted(way(fit, nodes), nodes, judge) / best)
    return [
        {
            "anchors": anchors,
            "nodes": nodes,
            "way": name,
            "share": round(float(np.mean(found)), 5),
            "error": round(float(np.std(found, ddof=1) / np.sqrt(len(found))), 5),
        }
        for (nodes, name), found in shares.items()
    ]


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table on stdout."""
    columns = sorted({row["anchors"] for row in rows})
    print(f"{title}\n  nodes  {'way':22}" + "".join(f"{c:>9}" for c in columns))
    for nodes in SIZES:
        for name in dict.fromkeys(row["way"] for row in rows):
            found = {r["anchors"]: r["share"] for r in rows if r["nodes"] == nodes and r["way"] == name}
            print(f"  {nodes:5}  {name:22}" + "".join(f"{found[c]:9.4f}" for c in columns), flush=True)


def main() -> None:
    """Compare on synthetic and shipped traces; print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--judge", type=int, default=100_000, help="anchors that synthetic trees are judged on")
    given = parser.parse_args()
    ways = estimators(PRIORS)

    def drawn(anchors: int, rng: np.random.Generator) -> tuple[Trace, Trace]:
        return difficult_trace(anchors, rng), difficult_trace(given.judge, rng)

    results = {"AR(1) difficulty": [row for t in ANCHORS for row in compare(drawn, t, given.seeds, ways)]}
    show("AR(1) difficulty", results["AR(1) difficulty"])
    for name in SHIPPED:
        trace = load_trace(shipped(f"traces/{name}.npz"))
        sizes = [t for t in ANCHORS if t < trace.anchors / 2]

        def cut(anchors: int, rng: np.random.Generator, trace: Trace = trace) -> tuple[Trace, Trace]:
            return parts(trace, anchors, rng)

        results[name] = [row for t in sizes for row in compare(cut, t, given.seeds, ways)]
        show(name, results[name])
    if given.output:
        record = {"tried": TRIED, "seeds": given.seeds, "judge": given.judge, "provenance": this_run(), **results}
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
        write_text(given.output, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
