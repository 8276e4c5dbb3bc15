"""Results as sections of a page: what shows and draws each kind. Knows nothing of files."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.report.compare_tables import SCHEMA as COMPARISON
from treeopt.report.compare_tables import show_comparison
from treeopt.report.html_page import Section
from treeopt.report.plan_tables import models_told, show_plan, show_trace
from treeopt.report.plots import draw_agreement, draw_comparison, draw_scenarios, draw_speedups, draw_tau
from treeopt.report.simulate_tables import show_capacity, show_runs, show_serving
from treeopt.report.validate_tables import show_validation
from treeopt.report.whatif_tables import show_scenarios
from treeopt.traces.trace import CHAINS, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of records by their schema: what they are called, what shows and what draws them.
RECORDS: dict[str, tuple[str, Callable[..., None], "Callable[[Axes, Mapping[str, Any]], None] | None"]] = {
    COMPARISON: ("Drafters side by side", show_comparison, draw_comparison),
    "treeopt.run/1": ("A run of all requests", show_runs, None),
    "treeopt.serving/1": ("A server", show_serving, None),
    "treeopt.capacity/1": ("What a server carries", show_capacity, None),
    "treeopt.validation/2": ("Predicted and measured", show_validation, draw_agreement),
    "treeopt.whatif/1": ("Devices that were not measured", show_scenarios, draw_scenarios),
}


def trace_section(trace: Trace, source: str, *, replayed: Trace | None = None) -> Section:
    """What a trace holds, and tau by the size of trees, where its rule keeps one sibling of any tree.

    Args:
        trace: the trace.
        source: where it stands.
        replayed: the same with ranks that say what its rule keeps, where its own do not.
    """
    alone = trace.tree_kept is None and trace.meta.get("verification") not in CHAINS
    draws = (partial(draw_tau, trace=replayed or trace),) if alone else ()
    return Section(f"Trace: {models_told(trace.meta)}", source, partial(show_trace, trace), draws)


def plan_section(plan: Plan, source: str, *, checks: Mapping[int, str]) -> Section:
    """A plan, with what is known from live runs of its choices; see `show_plan`."""
    sizes = ", ".join(str(entry.batch) for entry in plan.entries)
    show = partial(show_plan, plan, checks=checks)
    return Section(f"Plan for batch {sizes}", source, show, (partial(draw_speedups, plan=plan),))


def record_section(record: Mapping[str, Any], source: str) -> Section:
    """A record of one of the schemas of `RECORDS`."""
    title, show, draw = RECORDS[record["schema"]]
    shown = _whole(lambda console: show(record, console), record, source)
    drawn = () if draw is None else (_whole(lambda ax: draw(ax, record), record, source),)
    return Section(title, source, shown, drawn)


def _whole(act: Callable[[Any], None], record: Mapping[str, Any], source: str) -> Callable[[Any], None]:
    """The same, with an error of ours where the record lacks something."""

    def acted(on: Any) -> None:
        try:
            act(on)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{source}: no whole {record['schema']}: {what}") from error

    return acted
