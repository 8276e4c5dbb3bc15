"""The charts of an answer, and how marimo shows one."""

import json
from dataclasses import dataclass
from typing import Any

from treeopt.charts.chart_files import Figure
from treeopt.charts.latency_charts import throughput_and_latency
from treeopt.charts.page_charts import accepted_shares
from treeopt.charts.speedup_charts import speedups
from treeopt.charts.theme import themed
from treeopt.charts.trace_charts import tau_by_nodes
from treeopt.charts.tree_chart import tree_picture
from treeopt.errors import TraceError
from treeopt.explore.answers import Answer
from treeopt.replay.sampled_rules import with_drawn_ranks

VEGA_LITE = "application/vnd.vegalite.v6+json"


@dataclass(frozen=True)
class Drawing:
    """A chart as marimo shows it: as SVG, whose colours follow the page's theme."""

    figure: Figure

    def _mime_(self) -> tuple[str, str]:
        """Return the chart as marimo asks for it."""
        options = {"usermeta": {"embedOptions": {"renderer": "svg", "actions": False}}}
        return VEGA_LITE, themed(json.dumps(self.figure.spec | options))


def charts_of(answer: Answer, batch: int) -> tuple[Any, ...]:
    """Return the charts of an answer; the tree is that of a batch size.

    Without a tree, none is drawn; tau by nodes is left out where the trace's rule accepts several siblings.
    """
    plan, tree = answer.plan, answer.plan.entry(batch).choice.tree
    replayed = with_drawn_ranks(answer.trace, 0)
    drawn = (tree_picture(tree, accepted=accepted_shares(tree, replayed)),) if tree else ()
    named = {"chosen tree": tree} if tree else {}
    frontier: tuple[Any, ...]
    try:
        frontier = (tau_by_nodes(replayed, named=named),)
    except TraceError:
        frontier = ()
    return (speedups(plan), *frontier, throughput_and_latency(plan), *drawn)
