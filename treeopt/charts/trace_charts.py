"""Charts of traces: what a drafter gets right by depth and domain, tokens per step by tree size, learning curves."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from treeopt.charts.marks import (
    ACROSS,
    Axis,
    Row,
    Series,
    data,
    decimal_ticks,
    interval,
    line,
    points,
    rule,
    series_of,
    short,
    titled,
)
from treeopt.errors import TraceError, counted
from treeopt.planning.learning_curve import LearningCurve
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.traces.trace import PAST_END, Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    import altair as alt

TOPS = (1, 2, 4, 8)
WIDEST = 1.5  # interval that is drawn, in units of tau over all requests
DOMAINS = 40  # domains shown, those with most requests
SIZES = (1, 2, 4, 8, 16, 32, 63)
REPLAYED = "replayed along the walk"
AVERAGED = "averaged over positions"
CHAINS = "chains, replayed"
NAMED = "named trees, replayed"
SERIES = 3  # named trees that have a series each, so that no label stands on another; more are labelled points
CHOSEN = "chosen in the plan, replayed"
NODES, TAU = "nodes", "tau, tokens per step"


def acceptance_by_depth(trace: Trace, *, tops: Sequence[int] = TOPS) -> "alt.LayerChart":
    """Return the share of positions at which the text's token is among the drafter's best, by depth.

    Args:
        trace: what the drafter got right.
        tops: numbers of candidates, a line for each that the trace records.
    """
    depths = [depth for depth in range(trace.depth) if (trace.rank[:, depth] != PAST_END).any()]
    rows: list[Row] = [
        {
            "series": "best candidate" if top == 1 else f"best {top} candidates",
            "depth": depth + 1,
            "share": _share_within(trace, depth, top),
        }
        for top in [top for top in tops if top <= trace.width] or [trace.width]
        for depth in depths
    ]
    first = [row["share"] for row in rows if row["series"] == rows[0]["series"]]
    x = Axis("depth", "depth", ticks=range(1, trace.depth + 1), limits=(0.75, trace.depth + 0.25))
    y, series = Axis("share", "share of positions", limits=(0.0, 1.0)), series_of(rows)
    return titled(
        [*line(rows, x, y, series), *points(rows, x, y, series)],
        "Acceptance by depth and rank",
        "The text's own token is among the drafter's best candidates there, whatever was accepted before.",
        f"All {trace.anchors:,} positions of {counted(trace.requests, 'request')}; tau needs a replay.",
        words=f"The best candidate is right at {', '.join(f'{share:.0%}' for share in first)} of positions, by depth.",
    )


def _share_within(trace: Trace, depth: int, top: int) -> float:
    rank = trace.rank[:, depth]
    known = rank[rank != PAST_END]
    return float(((known >= 0) & (known < top)).mean())


def acceptance_by_domain(trace: Trace, tree: Tree, *, name: str) -> "alt.LayerChart":
    """Return tau of a tree in each domain, with intervals.

    Args:
        trace: with domains; its ranks determine acceptance.
        tree: the tree that is replayed.
        name: its name.

    Raises:
        TraceError: the trace does not cover the tree.
    """
    assert trace.domain is not None
    counts, rows = replay_tree(tree, trace), list[Row]()
    sizes = np.bincount(trace.domain, minlength=len(trace.domain_names))
    for domain in np.argsort(-sizes, kind="stable")[:DOMAINS].tolist():
        chosen = trace.domain == domain
        if chosen.any():
            tau = _finite(ratio(counts.committed[chosen], counts.steps[chosen]), counts.tau)
            names = {"series": "tau of a domain", "domain": short(trace.domain_names[domain], 24)}
            rows.append(names | {"tau": tau.value, **interval(tau, ACROSS)})
    rows.sort(key=lambda row: -row["tau"])
    left_out, best, worst = len(trace.domain_names) - len(rows), rows[0], rows[-1]
    y = Axis("domain", names=[row["domain"] for row in rows])
    return titled(
        [*rule(x=counts.tau), *points(rows, Axis("tau", TAU), y, series_of(rows))],
        "Acceptance by domain",
        f"{name}, replayed. Bars: 95 % intervals, clustered by request. Dashed: all requests, {counts.tau:.2f}.",
        *(["Domains of too few requests have no bar."] if any(row["left"] == row["right"] for row in rows) else []),
        *([f"{counted(left_out, 'domain')} with fewer requests left out."] if left_out else []),
        words=f"tau lies between {worst['tau']:.2f} ({worst['domain']}) and {best['tau']:.2f} ({best['domain']}).",
        height=40 + 22 * len(rows),
    )


def _finite(tau: Estimate, whole: float) -> Estimate:
    """Return the estimate without an interval if that is infinite or wider than all of the chart."""
    wide = not np.isfinite([tau.low, tau.high]).all() or tau.high - tau.low > WIDEST * whole
    return Estimate(tau.value, tau.value, tau.value) if wide else tau


def tau_by_nodes(
    trace: Trace,
    *,
    sizes: Sequence[int] = SIZES,
    named: Mapping[str, Tree] | None = None,
    chosen: Mapping[str, Tree] | None = None,
) -> "alt.LayerChart":
    """Return tau of the best trees of each size, of chains, of named trees and of those that plans chose.

    Args:
        trace: ranks that determine acceptance.
        sizes: nodes of the best trees.
        named: name -> tree, such as published ones; those that the trace does not cover are left out.
        chosen: name -> tree of plans.

    Raises:
        TraceError: its rule draws candidates or accepts several siblings.
    """
    averaged, best, chains = tau_rows(trace, sizes)
    labelled = named is not None and len(named) > SERIES
    others = [
        *_covered(trace, named or {}, NAMED if labelled else ""),
        *_covered(trace, chosen or {}, CHOSEN),
    ]
    rows = [*best, *chains, *others]
    largest = max(row["nodes"] for row in (*averaged, *rows))
    ticks = [2**power for power in range(int(largest).bit_length())]
    x, y = Axis("nodes", NODES, log=True, ticks=ticks, limits=(0.9, largest * 1.15)), Axis("tau", TAU)
    names = list(dict.fromkeys(row["series"] for row in (*rows, *averaged)))
    series = Series(names, grey=frozenset({AVERAGED}), dashes=frozenset({AVERAGED}))
    labels = [row for row in others if row["series"] == NAMED]
    texts = [data(labels).mark_text().encode(x.channel("x"), y.channel("y"), text="tree:N")] if labels else []
    ends = [f"{row['tau']:.2f} with {row['nodes']} nodes" for row in (best[:1] + best[-1:])]
    return titled(
        [
            *line(averaged, x, y, series, dashed=True),
            *line([*best, *chains], x, y, series),
            *points(rows, x, y, series),
            *texts,
        ],
        "Tokens per step by tree size",
        "Bars: 95 % intervals, clustered by request. Trees: the most frequent rank paths of the same requests.",
        "Averaging counts positions that a decoder rarely visits: it over-predicts tau.",
        words=f"tau of the best trees: {' to '.join(dict.fromkeys(ends))}."
        if ends
        else "No drafted token is ever accepted: tau is 1 for every tree.",
    )


def tau_rows(trace: Trace, sizes: Sequence[int] = SIZES) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the rows of tau by nodes: averaged, replayed, and of chains; the best trees of each size.

    Raises:
        TraceError: its rule draws candidates or accepts several siblings.
    """
    frontier = count_prefixes(trace, nodes=max(sizes), depth=trace.depth)
    tokens = frontier.tokens(trace.depth)
    reached = [size for size in sizes if size < len(tokens)]
    averaged: list[Row] = [{"series": AVERAGED, "nodes": size, "tau": float(tokens[size])} for size in reached]
    best = [_replayed(trace, REPLAYED, "best of its size", frontier.tree(size, trace.depth)) for size in reached]
    chains = [_replayed(trace, CHAINS, "chain", Tree.chain(depth)) for depth in range(1, trace.depth + 1)]
    return averaged, best, chains


def _replayed(trace: Trace, series: str, name: str, tree: Tree) -> Row:
    tau = tau_of(tree, trace)
    return {"series": series, "nodes": tree.nodes, "tau": tau.value, **interval(tau), "tree": name}


def _covered(trace: Trace, trees: Mapping[str, Tree], series: str) -> Iterator[Row]:
    """Yield the trees that the trace covers, each a series of its own if none is named."""
    for name, tree in trees.items():
        try:
            yield _replayed(trace, series or f"{name}, replayed", name, tree)
        except TraceError:
            continue


def tau_of(tree: Tree, trace: Trace) -> Estimate:
    """Return the replayed tau of a tree, with its interval.

    Raises:
        TraceError: the trace does not cover the tree.
    """
    counts = replay_tree(tree, trace)
    return ratio(counts.committed, counts.steps)


def learning(curves: Sequence[LearningCurve]) -> "alt.LayerChart":
    """Return learning curves, a line per tree size: tau on requests held out, by the number of the others.

    Dashed is tau on the requests that the trees were chosen on.
    """
    rows: list[Row] = [
        {
            "series": f"{curve.nodes} nodes",
            "requests": point.requests,
            "tau": point.held_out.value,
            **interval(point.held_out),
            "fitted": point.fitted,
        }
        for curve in curves
        for point in curve.points
    ]
    requests = [row["requests"] for row in rows]
    x = Axis(
        "requests", "requests that trees are chosen on", log=True, ticks=decimal_ticks(min(requests), max(requests))
    )
    y, series = Axis("tau", "tau on requests held out"), series_of(rows)
    flat = "; ".join(f"{curve.nodes} nodes: {_flat(curve)}" for curve in curves)
    return titled(
        [
            *line(rows, x, Axis("fitted", y.title), series, dashed=True),
            *line(rows, x, y, series),
            *points(rows, x, y, series),
        ],
        "Learning curve",
        "Bars: 95 % intervals. Dashed: tau on the requests that the trees were chosen on.",
        f"{flat}.",
        words=f"tau by the number of requests; {flat}.",
    )


def _flat(curve: LearningCurve) -> str:
    if curve.vague:
        return "too few requests to say"
    return "not flat yet" if curve.flat is None else f"flat from {counted(curve.flat.requests, 'request')}"
