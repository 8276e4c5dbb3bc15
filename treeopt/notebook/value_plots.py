"""Charts of each kind of value, drawn into matplotlib's axes: the same charts that the HTML report shows."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from simulate.profiles.profile import Profile
from treeopt.api.page.chart_inputs import device_chart, profile_chart
from treeopt.charts.acceptance_charts import acceptance_by_depth, acceptance_by_domain
from treeopt.charts.agreement_charts import agreement
from treeopt.charts.chart import Chart
from treeopt.charts.latency_charts import scenario_latency, throughput_and_latency
from treeopt.charts.matplotlib_axes import draw, new_axes
from treeopt.charts.server_charts import carried_rates, latencies, load_over_time
from treeopt.charts.speedup_charts import contests, scenario_speedups, speedups
from treeopt.charts.tau_chart import tau_by_nodes
from treeopt.charts.tree_chart import tree_picture
from treeopt.comparison.compare_drafters import Comparison
from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.results.comparison import comparison_record
from treeopt.traces.trace import CHAINS, Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Charts = Mapping[str, Callable[[], Chart | None]]
# Schema of a record -> its charts by name, the first one the default.
RECORD_CHARTS: dict[str, Mapping[str, Callable[[Any], Chart | None]]] = {
    "treeopt.run/1": {"latency": latencies},
    "treeopt.serving/1": {"load": load_over_time, "latency": latencies},
    "treeopt.capacity/1": {"rates": carried_rates},
    "treeopt.validation/2": {"agreement": agreement},
    "treeopt.whatif/1": {"speedup": scenario_speedups, "latency": scenario_latency, "roofline": device_chart},
    "treeopt.comparison/1": {"contests": contests},
}


def plot_value(value: Any, ax: "Axes | None" = None, *, chart: str | None = None) -> "Axes":
    """Draw a chart of a value into its axes, or with its title into new ones; see `ValueMethods.plot`."""
    if ax is not None and not hasattr(ax, "set_xlabel"):
        raise UsageError(f"ax must be matplotlib's axes, got {ax!r:.40}: name a chart as chart=...")
    drawn = chart_of(value, chart)
    axes = new_axes(drawn) if ax is None else ax
    draw(drawn, axes)
    if ax is None:
        axes.set_title(drawn.title, loc="left", fontsize="medium")
    return axes


def chart_of(value: Any, name: str | None = None) -> Chart:
    """Return a chart of a value by name, or its first.

    Raises:
        UsageError: the value has no chart, none of this name, or lacks what the chart shows.
        TraceError: the trace's rule draws its candidates or accepts several siblings, and the chart replays it.
    """
    charts = _charts(value)
    if not charts:
        raise UsageError(f"{_noun(value)} has no chart")
    chosen = next(iter(charts)) if name is None else name
    if chosen not in charts:
        raise UsageError(f"{_noun(value)} has no chart {chosen!r}: choose one of {', '.join(charts)}")
    made = charts[chosen]()
    if made is None:
        raise UsageError(f"{_noun(value)} does not hold what the chart {chosen!r} shows")
    return made


def _noun(value: Any) -> str:
    return f"a {type(value).__name__.lower()}"


def _charts(value: Any) -> Charts:
    if isinstance(value, Tree):
        return {"tree": partial(tree_picture, value)}
    if isinstance(value, Trace):
        return _trace_charts(value)
    if isinstance(value, Plan):
        return {"speedup": partial(speedups, value), "latency": partial(throughput_and_latency, value)}
    if isinstance(value, Profile):
        return {"steps": partial(profile_chart, value)}
    if isinstance(value, Comparison):
        return {"contests": lambda: contests(comparison_record(value))}
    return {name: partial(make, value) for name, make in RECORD_CHARTS.get(value.get("schema"), {}).items()}


def _trace_charts(trace: Trace) -> Charts:
    """Return the charts of a trace; those that replay trees need a rule that accepts one sibling of any tree."""
    charts: dict[str, Callable[[], Chart | None]] = {}
    replayed = trace.tree_kept is None and trace.meta.get("verification") not in CHAINS
    if replayed:
        charts["tau"] = lambda: tau_by_nodes(with_drawn_ranks(trace, 0))
    charts["acceptance"] = lambda: acceptance_by_depth(trace)
    if replayed and trace.domain is not None:
        chain = Tree.chain(trace.depth)
        charts["domains"] = lambda: acceptance_by_domain(
            with_drawn_ranks(trace, 0), chain, name=f"chain of {trace.depth}"
        )
    return charts
