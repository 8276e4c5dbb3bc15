"""How far improved trees are from the best of all trees, on traces so small that all can be replayed.

Run as `python -m tests.benchmarks.bench_regret --output data/benchmarks/regret.json`. Regret is the share of time a
token that a tree takes longer than the best tree of at most as many nodes: cost / least cost − 1, both replayed on the
trace that they are chosen on. Every tree over the prefixes that some anchor matches is replayed, rank gaps included;
other nodes never help.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.strategies import with_lengths
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import OBJECTIVES, Objective
from treeopt.replay.static_tree import replay_tree
from treeopt.replay.walk import StepCounts
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.renewal_local_search import improve
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped, write_text
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree

SCHEMA = "treeopt.regret/1"
INSTANCES = 100  # of each family
MOST_TREES = 150_000
FAMILIES = ("easy and hard requests", "regimes along a request", "acceptance drifts", "shipped traces")


def instance(family: str, seed: int) -> Trace:
    """A trace of a few hundred anchors, width 3 to 5 and depth 3 or 4, its requests of two domains."""
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    width, depth = int(rng.integers(3, 6)), int(rng.integers(3, 5))
    if family == "shipped traces":
        files = sorted(shipped("traces").glob("*.npz"))
        whole = load_trace(files[int(rng.integers(len(files)))])
        few = np.sort(rng.choice(whole.requests, int(rng.integers(6, 16)), replace=False))
        return _cut(whole.select(few), width, depth)
    lengths = rng.integers(10, 80, int(rng.integers(4, 12)))
    if family == "easy and hard requests":
        acceptance = np.repeat(rng.choice([rng.uniform(0.7, 0.95), rng.uniform(0.1, 0.4)], len(lengths)), lengths)
    elif family == "regimes along a request":
        easy, hard = rng.uniform(0.7, 0.97), rng.uniform(0.05, 0.4)
        changes = np.cumsum(rng.random(lengths.sum()) < rng.uniform(0.02, 0.2))
        acceptance = np.where(changes % 2 == 0, easy, hard)
    else:
        first, last = rng.uniform(0.1, 0.95, 2)
        acceptance = np.concatenate([np.linspace(first, last, length) for length in lengths])
    return _drawn(acceptance, lengths.tolist(), width=width, depth=depth, rng=rng)


def _drawn(
    acceptance: NDArray[np.float64], lengths: list[int], *, width: int, depth: int, rng: np.random.Generator
) -> Trace:
    """Rank 0 is right with the acceptance of the position, 5 % less each level; the other ranks fall geometrically."""
    fall = rng.uniform(0.4, 0.8)
    rest = (1 - fall) * fall ** np.arange(width - 1)
    rank = np.empty((len(acceptance), depth), dtype=np.int64)
    for level in range(depth):
        first = np.append(acceptance[level:], acceptance[len(acceptance) - level :]) * 0.95**level
        edges = np.cumsum(np.column_stack([first, (1 - first)[:, None] * rest]), axis=1)
        rank[:, level] = (rng.random((len(first), 1)) >= edges).sum(axis=1)
    halves = np.arange(len(lengths), dtype=np.int16) % 2
    return with_lengths(
        np.where(rank < width, rank, -1), lengths, width=width, domain=halves, domain_names=("even", "odd")
    )


def _cut(trace: Trace, width: int, depth: int) -> Trace:
    rank = np.where(trace.rank[:, :depth] < width, trace.rank[:, :depth], -1).astype(np.int16)
    halves = np.arange(trace.requests, dtype=np.int16) % 2
    return Trace(trace.request, trace.position, rank, width, domain=halves, domain_names=("even", "odd"))


def matched(trace: Trace) -> Tree:
    """All prefixes that some anchor follows."""
    frontier = count_prefixes(trace, nodes=4096, depth=trace.depth)
    return frontier.tree(4096, trace.depth)


def all_trees(pool: Tree, nodes: int) -> NDArray[np.bool_] | None:
    """Every closed part of the pool of at most `nodes` nodes, bool (n, C); None if they are too many."""
    parts, last = np.zeros((1, pool.nodes), dtype=bool), np.array([-1])
    found = [parts]
    for _ in range(nodes):
        grown = list(_grown(parts, last, pool))
        if not grown:
            break
        parts, last = (np.concatenate(each) for each in zip(*grown, strict=True))
        found.append(parts)
        if sum(map(len, found)) > MOST_TREES:
            return None
    return np.concatenate(found)


def _grown(parts: NDArray[np.bool_], last: NDArray[np.int64], pool: Tree) -> Iterator[tuple[Any, Any]]:
    """Parts with one node more, behind their last one: each part is made once."""
    for node, parent in enumerate(pool.parents):
        may = last < node
        if parent >= 0:
            may &= parts[:, parent]
        made = parts[may]
        made[:, node] = True
        if len(made):
            yield made, np.full(len(made), node)


def regrets(trace: Trace, *, nodes: int) -> dict[str, dict[str, float]]:
    """By objective: regret of the improved and of the position-averaged tree, and how many trees were replayed."""
    pool = matched(trace)
    trees = all_trees(pool, nodes)
    while trees is None:
        nodes -= 1
        trees = all_trees(pool, nodes)
    steps = Replayer(trace, pool).steps(trees)
    average = replay_tree(count_prefixes(trace, nodes=nodes, depth=trace.depth).tree(nodes, trace.depth), trace)
    found = {}
    for name, objective in OBJECTIVES.items():
        least = float((objective.prices(trace) @ steps.T).max(axis=0).min())
        improved = replay_tree(improve(trace, nodes=nodes, depth=trace.depth, objective=objective), trace)
        found[name] = {
            "improved": _regret(improved, objective, trace, least),
            "averaged": _regret(average, objective, trace, least),
            "trees": len(trees),
            "nodes": nodes,
            "anchors": trace.anchors,
        }
    return found


def _regret(counts: StepCounts, objective: Objective, trace: Trace, least: float) -> float:
    """Of costs that differ by more than rounding."""
    regret = 1 / objective.tokens(counts.steps, trace) / least - 1
    return 0.0 if abs(regret) < 1e-12 else regret


def summary(values: list[float]) -> dict[str, float]:
    """Regret in percent."""
    percent = 100 * np.array(values)
    return {
        "mean_percent": float(percent.mean()),
        "median_percent": float(np.median(percent)),
        "p95_percent": float(np.quantile(percent, 0.95)),
        "max_percent": float(percent.max()),
        "share_optimal": float((percent == 0).mean()),
    }


def measured(instances: int) -> dict[str, Any]:
    """The record that is written."""
    runs = {
        family: [
            regrets(instance(family, seed), nodes=int(np.random.default_rng(seed).integers(4, 8)))
            for seed in range(instances)
        ]
        for family in FAMILIES
    }
    every = [run for family in FAMILIES for run in runs[family]]
    by_objective: dict[str, Any] = {}
    for name in OBJECTIVES:
        by_objective[name] = {}
        for group, of in {"all": every, **runs}.items():
            by_objective[name][group] = {
                "instances": len(of),
                **{way: summary([run[name][way] for run in of]) for way in ("improved", "averaged")},
                "below_averaged": sum(run[name]["improved"] > run[name]["averaged"] + 1e-12 for run in of),
            }
    sizes = {key: [run["throughput"][key] for run in every] for key in ("trees", "nodes", "anchors")}
    return {
        "schema": SCHEMA,
        "regret": by_objective,
        "sizes": {key: {"mean": float(np.mean(of)), "max": int(max(of))} for key, of in sizes.items()},
        "provenance": this_run(),
    }


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=INSTANCES, help="of each family")
    parser.add_argument("--output", type=Path)
    words = parser.parse_args()
    record = measured(words.instances)
    for name, groups in record["regret"].items():
        for group, of in groups.items():
            a, b = of["improved"], of["averaged"]
            print(
                f"{name}, {group}, {of['instances']} instances:  regret {a['mean_percent']:.4f} % in the mean, "
                f"p95 {a['p95_percent']:.3f} %, largest {a['max_percent']:.3f} %, {a['share_optimal']:.1%} optimal;  "
                f"position average {b['mean_percent']:.3f} %, {b['p95_percent']:.2f} %, {b['max_percent']:.2f} %, "
                f"{b['share_optimal']:.1%};  below it: {of['below_averaged']}"
            )
    print(record["sizes"])
    if words.output:
        write_text(words.output, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
