"""Charts of what a drafter gets right: by depth and rank over all positions, and tau by domain along the walk."""

from collections.abc import Sequence

import numpy as np

from treeopt.charts.chart import Axis, Chart, Layer, floats, short
from treeopt.charts.speedup_charts import across
from treeopt.errors import counted
from treeopt.replay.static_tree import replay_tree
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.traces.trace import PAST_END, Trace
from treeopt.tree import Tree

TOPS = (1, 2, 4, 8)
WIDEST = 1.5  # interval that is drawn, in units of tau over all requests
DOMAINS = 40  # domains shown, those with most requests


def acceptance_by_depth(trace: Trace, *, tops: Sequence[int] = TOPS) -> Chart:
    """Return the share of positions at which the text's token is among the drafter's best, by depth.

    Args:
        trace: what the drafter got right.
        tops: numbers of candidates, a line for each that the trace records.
    """
    layers: list[Layer] = []
    depths = [depth for depth in range(trace.depth) if (trace.rank[:, depth] != PAST_END).any()]
    for top in [top for top in tops if top <= trace.width] or [trace.width]:
        shares = floats([_share_within(trace, depth, top) for depth in depths])
        name = "best candidate" if top == 1 else f"best {top} candidates"
        x = floats([depth + 1 for depth in depths])
        layers += [Layer("line", x, shares, name), Layer("points", x, shares, name)]
    first = layers[0].y
    return Chart(
        "Acceptance by depth and rank",
        Axis("depth", ticks=floats(range(1, trace.depth + 1)), limits=(0.75, trace.depth + 0.25)),
        Axis("share of positions", limits=(0.0, 1.0)),
        tuple(layers),
        (
            "The text's own token is among the drafter's best candidates there, whatever was accepted before.",
            f"All {trace.anchors:,} positions of {counted(trace.requests, 'request')}; tau needs a replay.",
        ),
        "The best candidate is right at " + ", ".join(f"{share:.0%}" for share in first) + " of positions, by depth.",
    )


def _share_within(trace: Trace, depth: int, top: int) -> float:
    rank = trace.rank[:, depth]
    known = rank[rank != PAST_END]
    return float(((known >= 0) & (known < top)).mean())


def acceptance_by_domain(trace: Trace, tree: Tree, *, name: str) -> Chart:
    """Return tau of a tree in each domain, with intervals.

    Args:
        trace: with domains; its ranks determine acceptance.
        tree: the tree that is replayed.
        name: its name.

    Raises:
        TraceError: the trace does not cover the tree.
    """
    assert trace.domain is not None
    counts, values = replay_tree(tree, trace), []
    sizes = np.bincount(trace.domain, minlength=len(trace.domain_names))
    for domain in np.argsort(-sizes, kind="stable")[:DOMAINS].tolist():
        chosen = trace.domain == domain
        if chosen.any():
            tau = ratio(counts.committed[chosen], counts.steps[chosen])
            values.append((short(trace.domain_names[domain], 24), tau, int(chosen.sum())))
    values.sort(key=lambda row: -row[1].value)
    whole = counts.tau
    left_out = len(trace.domain_names) - len(values)
    drawn = [_finite(tau, whole) for _, tau, _ in values]
    points = across("tau of a domain", enumerate(drawn))
    return Chart(
        "Acceptance by domain",
        Axis("tau, tokens per step"),
        Axis("", names=tuple(domain for domain, _, _ in values), reverse=True),
        (Layer("rule", x=(whole,)), points),
        (
            f"{name}, replayed. Bars: 95 % intervals, clustered by request. Dashed: all requests, {whole:.2f}.",
            *(("Domains of too few requests have no bar.",) if any(tau.low == tau.high for tau in drawn) else ()),
            *((f"{counted(left_out, 'domain')} with fewer requests left out.",) if left_out else ()),
        ),
        f"tau lies between {values[-1][1].value:.2f} ({values[-1][0]}) and {values[0][1].value:.2f} ({values[0][0]}).",
        height=90 + 22 * len(values),
    )


def _finite(tau: Estimate, whole: float) -> Estimate:
    """Return the estimate without an interval if that is infinite or wider than all of the chart."""
    wide = not np.isfinite([tau.low, tau.high]).all() or tau.high - tau.low > WIDEST * whole
    return Estimate(tau.value, tau.value, tau.value) if wide else tau
