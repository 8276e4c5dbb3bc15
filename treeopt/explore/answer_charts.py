"""The charts of an answer, and how marimo shows one."""

import json
from dataclasses import dataclass, replace

from treeopt.charts.chart import Chart
from treeopt.charts.latency_charts import throughput_and_latency
from treeopt.charts.page_charts import accepted_shares
from treeopt.charts.palette import STYLED
from treeopt.charts.speedup_charts import speedups
from treeopt.charts.tau_chart import tau_by_nodes
from treeopt.charts.tree_chart import tree_picture
from treeopt.charts.vega_lite import as_vega_lite
from treeopt.errors import TraceError
from treeopt.explore.answers import Answer
from treeopt.replay.sampled_rules import with_drawn_ranks

VEGA_LITE = "application/vnd.vegalite.v6+json"
# Properties of marimo_page.css; marimo has properties of its own under the names of `STYLED`.
THEMED = replace(STYLED, text="var(--ink)", muted="var(--soft)", grid="var(--line)", back="var(--sheet)")


@dataclass(frozen=True)
class Drawing:
    """A chart as marimo shows it: as SVG, whose colours follow the page's theme."""

    chart: Chart

    def _mime_(self) -> tuple[str, str]:
        """Return the chart as marimo asks for it."""
        spec = as_vega_lite(self.chart, palette=THEMED)
        return VEGA_LITE, json.dumps(spec | {"usermeta": {"embedOptions": {"renderer": "svg", "actions": False}}})


def charts_of(answer: Answer, batch: int) -> tuple[Chart, ...]:
    """Return the charts of an answer; the tree is that of a batch size.

    Without a tree, none is drawn; tau by nodes is left out where the trace's rule accepts several siblings.
    """
    plan, tree = answer.plan, answer.plan.entry(batch).choice.tree
    replayed = with_drawn_ranks(answer.trace, 0)
    drawn = (tree_picture(tree, accepted=accepted_shares(tree, replayed)),) if tree else ()
    named = {"chosen tree": tree} if tree else {}
    frontier: tuple[Chart, ...]
    try:
        frontier = (tau_by_nodes(replayed, named=named),)
    except TraceError:
        frontier = ()
    return (speedups(plan), *frontier, throughput_and_latency(plan), *drawn)
