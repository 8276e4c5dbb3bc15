"""Charts of traces and plans: what a drafter gets right, tokens per step by tree size, learning curves, and trees.

A tree is drawn as a tree: levels from left to right, a row for each leaf.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.charts.marks import (
    ACROSS,
    DOT,
    LIGHT,
    Axis,
    Row,
    Series,
    data,
    decimal_ticks,
    diagonal,
    estimated,
    library,
    line,
    points,
    rule,
    series_of,
    short,
    titled,
)
from treeopt.charts.speed_charts import speedups, throughput_and_latency
from treeopt.errors import TraceError, TreeoptError, counted
from treeopt.planning.learning_curve import LearningCurve, learning_curves
from treeopt.plans import Plan
from treeopt.replay.dynamic_tree import first_tree
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.replay.static_tree import covers, deepest, replay_tree, visit
from treeopt.results.predictions import plan_of
from treeopt.results.trace import NODES, replayable, share_within, tau_of
from treeopt.searchers.best_first import count_prefixes
from treeopt.statistics import Estimate, ratio
from treeopt.traces.confidence_reliability import reliability
from treeopt.traces.trace import PAST_END, Trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import EAGLE, MEDUSA, published_trees

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
TAU = "tau, tokens per step"
CURVES = (4, 16)  # nodes of learning curves
PICTURES = 3  # trees of a plan that are drawn
ROW = 18  # pixels of a leaf
LABELLED = 80  # nodes up to which labels show their ranks
LARGEST = 420  # square pixels of a node that every step accepts


def acceptance_by_depth(trace: Trace) -> "alt.LayerChart":
    """Return the share of positions at which the text's token is among the drafter's best, by depth."""
    depths = [depth for depth in range(trace.depth) if (trace.rank[:, depth] != PAST_END).any()]
    rows: list[Row] = [
        {
            "series": "best candidate" if top == 1 else f"best {top} candidates",
            "depth": depth + 1,
            "share": share_within(trace, depth, top),
        }
        for top in [top for top in TOPS if top <= trace.width] or [trace.width]
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


def acceptance_by_domain(trace: Trace, tree: Tree, *, name: str) -> "alt.LayerChart":
    """Return replayed tau of a tree, by its name, in each domain of a trace whose ranks determine acceptance.

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
            rows.append(names | estimated("tau", tau, ACROSS))
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
    trace: Trace, *, named: Mapping[str, Tree] | None = None, chosen: Mapping[str, Tree] | None = None
) -> "alt.LayerChart":
    """Return tau of the best trees of each size, of chains, of named trees and of those that plans chose.

    Args:
        trace: ranks that determine acceptance.
        named: name -> tree, such as published ones; those that the trace does not cover are left out.
        chosen: name -> tree of plans.

    Raises:
        TraceError: its rule draws candidates or accepts several siblings.
    """
    averaged, best, chains = tau_rows(trace)
    labelled = named is not None and len(named) > SERIES
    others = [
        *_covered(trace, named or {}, NAMED if labelled else ""),
        *_covered(trace, chosen or {}, CHOSEN),
    ]
    rows = [*best, *chains, *others]
    largest = max(row["nodes"] for row in (*averaged, *rows))
    ticks = [2**power for power in range(int(largest).bit_length())]
    x, y = Axis("nodes", "nodes", log=True, ticks=ticks, limits=(0.9, largest * 1.15)), Axis("tau", TAU)
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
    return {"series": series, "nodes": tree.nodes, **estimated("tau", tau_of(tree, trace)), "tree": name}


def _covered(trace: Trace, trees: Mapping[str, Tree], series: str) -> Iterator[Row]:
    """Yield the trees that the trace covers, each a series of its own if none is named."""
    for name, tree in trees.items():
        try:
            yield _replayed(trace, series or f"{name}, replayed", name, tree)
        except TraceError:
            continue


def learning(curves: Sequence[LearningCurve]) -> "alt.LayerChart":
    """Return learning curves, a line per tree size: tau on requests held out, by the number of the others.

    Dashed is tau on the requests that the trees were chosen on.
    """
    rows: list[Row] = [
        {
            "series": f"{curve.nodes} nodes",
            "requests": point.requests,
            **estimated("tau", point.held_out),
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


def tree_picture(
    tree: Tree, *, accepted: Sequence[float] | None = None, sample: str = "", title: str = ""
) -> "alt.LayerChart":
    """Return the picture of a tree.

    Args:
        tree: the tree.
        accepted: share of steps in which each node is accepted, float (nodes,); None draws all nodes alike.
        sample: how the tree was made, for a dynamic one that differs from step to step.
        title: default its size.
    """
    alt = library()
    rows = leaf_rows(tree)
    root = {"depth": 0, "row": _middle([rows[i] for i, parent in enumerate(tree.parents) if parent < 0])}
    places = [{"depth": depth, "row": row} for depth, row in zip(tree.depths, rows, strict=True)]
    before = [places[parent] if parent >= 0 else root for parent in tree.parents]
    nodes = [
        place
        | {"depth before": parent["depth"], "row before": parent["row"], "rank": rank, "rank path": str(list(path))}
        | ({} if accepted is None else {"accepted": accepted[i], "accepted in": f"{accepted[i]:.1%} of steps"})
        for i, (place, parent, rank, path) in enumerate(zip(places, before, tree.ranks, tree.paths, strict=True))
    ]
    x = Axis("depth", "depth", ticks=range(tree.depth + 1), limits=(-0.25, tree.depth + 0.5)).channel("x")
    limits = alt.Scale(domain=[-0.8, max(rows, default=0) + 0.8], reverse=True)
    y = alt.Y(field="row", type="quantitative", scale=limits, axis=None)
    shares = alt.Scale(domain=[0, 1], range=[12, LARGEST])
    size = alt.value(DOT) if accepted is None else alt.Size("accepted:Q", scale=shares, legend=None)
    tips = ["rank path:N", *(["accepted in:N"] if accepted is not None else [])]
    drawn = data(nodes)
    marks = [
        drawn.mark_rule(color=LIGHT.muted, strokeWidth=1.25).encode(x, y, x2="depth before", y2="row before"),
        data([root]).mark_square(color=LIGHT.muted, size=DOT, opacity=1).encode(x, y),
        drawn.mark_circle(color=LIGHT.series[0], opacity=1).encode(x, y, size=size, tooltip=tips),
    ]
    labels = drawn.mark_text().encode(x, y, text="rank:N")
    sized = " Area: share of steps that accept the node." if accepted is not None else ""
    number = counted(tree.nodes, "node")
    return titled(
        [*marks, labels] if tree.nodes <= LABELLED else marks,
        (title or f"Tree of {number}") + (", a sample" if sample else ""),
        "Circles: drafted tokens; the square: the last committed token. "
        f"Labels: rank of the drafter's candidate, 0 is the best.{sized}",
        *([sample] if sample else []),
        words=f"A tree of {number}; nodes by level: {', '.join(map(str, tree.level_widths))}.",
        height=max(80, ROW * round(max(rows, default=0) + 2)),
    )


def leaf_rows(tree: Tree) -> list[float]:
    """Return the row of each node: leaves take rows of their own, in path order; a parent is between its children.

    >>> leaf_rows(Tree.from_paths([(0, 0), (0, 1), (1,)]))
    [0.5, 2.0, 0.0, 1.0]
    """
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        below.setdefault(parent, []).append(node)
    rows = [0.0] * tree.nodes
    leaves = sorted((node for node in range(tree.nodes) if node not in below), key=lambda node: tree.paths[node])
    for row, node in enumerate(leaves):
        rows[node] = float(row)
    for node in reversed(range(tree.nodes)):
        if node in below:
            rows[node] = _middle([rows[child] for child in below[node]])
    return rows


def _middle(rows: Sequence[float]) -> float:
    return (min(rows) + max(rows)) / 2 if rows else 0.0


def tau(trace: Trace) -> "alt.LayerChart | None":
    """Return tau by tree size; None where the trace's rule does not determine it for all trees."""
    return tau_by_nodes(with_drawn_ranks(trace, 0)) if replayable(trace) else None


def domains(trace: Trace) -> "alt.LayerChart | None":
    """Return the acceptance of a chain by domain; None where the trace does not say."""
    if trace.domain is None or not replayable(trace):
        return None
    chain = Tree.chain(trace.depth)
    return acceptance_by_domain(with_drawn_ranks(trace, 0), chain, name=f"chain of {trace.depth}")


def calibration(trace: Trace) -> "alt.LayerChart | None":
    """Return the reliability curve of the drafter's confidences; None where the trace does not say."""
    curve = reliability(trace)
    if curve is None:
        return None
    rows: list[Row] = [{"series": "drafted tokens", **asdict(one)} for one in curve.bins]
    x = Axis("confidence", "drafter's confidence", limits=(0.0, 1.0))
    y, series = Axis("right", "share that the target accepted", limits=(0.0, 1.0)), series_of(rows)
    return titled(
        [*diagonal((0.0, 1.0), x, y), *line(rows, x, y, series), *points(rows, x, y, series)],
        "Calibration of the drafter",
        f"Drafted tokens whose ancestors were right, by confidence; off by {curve.error:.1%} on average.",
        words=f"Accepted share by confidence: {', '.join(f'{b.right:.0%} at {b.confidence:.0%}' for b in curve.bins)}.",
    )


def charts_of_trace(trace: Trace, *, chosen: Mapping[str, Tree] | None = None, **_: Any) -> "Iterator[alt.LayerChart]":
    """Yield the charts of a trace beside the trees that plans chose, which `chosen` has by name."""
    yield acceptance_by_depth(trace)
    if (curve := calibration(trace)) is not None:
        yield curve
    if not replayable(trace):
        return
    trace = with_drawn_ranks(trace, 0)
    published = published_trees()
    named = {"Medusa's tree": published[MEDUSA], "EAGLE-1's tree": published[EAGLE]}
    yield tau_by_nodes(trace, named=named, chosen=chosen)
    if trace.domain is not None and len(trace.domain_names) > 1:
        tree = count_prefixes(trace, nodes=NODES, depth=trace.depth).tree(NODES, trace.depth)
        yield acceptance_by_domain(trace, tree, name=f"Best tree of {tree.nodes} nodes")
    if trace.requests >= 4 * len(CURVES) and trace.width > 1:
        yield learning(learning_curves(trace, nodes=CURVES, depth=trace.depth, seed=0))


def plan_charts(plan: Plan, *, trace: Trace | None = None, **_: Any) -> "Iterator[alt.LayerChart]":
    """Yield the charts of a plan, with its chosen trees; `trace`, which it was made from, sizes their nodes."""
    yield speedups(plan)
    yield throughput_and_latency(plan)
    found: dict[Tree, list[str]] = {}
    for entry in plan.entries:
        if entry.choice.tree is not None and entry.choice.tree.nodes:
            found.setdefault(entry.choice.tree, []).append(str(entry.batch))
    for tree, batches in list(found.items())[:PICTURES]:
        yield tree_picture(
            tree, accepted=accepted_shares(tree, trace), title=f"Chosen tree, batch {', '.join(batches)}"
        )
    for entry in plan.entries:
        policy = None if entry.choice.grown is None else entry.choice.grown.policy
        if policy is None or trace is None or trace.candidates is None:
            continue
        with suppress(TraceError):  # the trace lacks candidates there
            tree, anchor = first_tree(policy, trace)
            made = f"A dynamic tree ({entry.choice.name}) differs from step to step. This one is of position {anchor}."
            yield tree_picture(tree, sample=made, title=f"Dynamic tree, batch {entry.batch}")


def predicted_speedups(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return the speedups of the plan of predictions."""
    return speedups(plan_of(record))


def predicted_latencies(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return the latencies of the plan of predictions."""
    return throughput_and_latency(plan_of(record))


def accepted_shares(tree: Tree, trace: Trace | None) -> list[float] | None:
    """Return the share of a walk's steps that accept each node, float (nodes,); None if the trace does not say."""
    if trace is None or not covers(trace, tree):
        return None
    try:
        walk = visit(tree, trace)
    except TreeoptError:
        return None
    reached = deepest(tree, trace)[walk.anchors]
    shares = np.bincount(reached[reached >= 0], minlength=tree.nodes).astype(float)
    for node in reversed(range(tree.nodes)):
        if tree.parents[node] >= 0:
            shares[tree.parents[node]] += shares[node]
    return [float(share) for share in shares / len(walk.anchors)]
