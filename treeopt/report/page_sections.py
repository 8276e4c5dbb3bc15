"""Results as sections of the HTML page: tables and plots of each kind of record. Reads no files."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from treeopt.charts.agreement_charts import agreement
from treeopt.charts.chart import Chart
from treeopt.charts.speedup_charts import contests, scenario_speedups, speedups
from treeopt.charts.tau_chart import tau_by_nodes
from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.report.html_page import Section
from treeopt.tables.compare_tables import SCHEMA as COMPARISON
from treeopt.tables.compare_tables import show_comparison
from treeopt.tables.plan_tables import show_plan
from treeopt.tables.simulate_tables import show_capacity, show_runs, show_serving
from treeopt.tables.terminal_text import describe_models
from treeopt.tables.trace_tables import show_trace
from treeopt.tables.validate_tables import show_validation
from treeopt.tables.whatif_tables import show_scenarios
from treeopt.traces.trace import CHAINS, Trace

# Schema of a record -> its title, the function that prints it and the one that returns its chart.
RECORDS: dict[str, tuple[str, Callable[..., None], Callable[[Mapping[str, Any]], Chart] | None]] = {
    COMPARISON: ("Drafters side by side", show_comparison, contests),
    "treeopt.run/1": ("Run of all requests", show_runs, None),
    "treeopt.serving/1": ("Server", show_serving, None),
    "treeopt.capacity/1": ("Capacity of a server", show_capacity, None),
    "treeopt.validation/2": ("Predicted and measured", show_validation, agreement),
    "treeopt.whatif/1": ("Devices that were not measured", show_scenarios, scenario_speedups),
}


def trace_section(trace: Trace, source: str, *, replayed: Trace | None = None) -> Section:
    """Return the section of a trace, with a plot of tau by tree size if its rule accepts one sibling of any tree.

    Args:
        trace: the trace.
        source: its file, with the checksum.
        replayed: the trace with drawn ranks that determine acceptance, if its own ranks do not.
    """
    single = trace.tree_kept is None and trace.meta.get("verification") not in CHAINS
    draws = (partial(tau_by_nodes, replayed or trace),) if single else ()
    return Section(f"Trace: {describe_models(trace.meta)}", source, partial(show_trace, trace), draws)


def plan_section(plan: Plan, source: str, *, checks: Mapping[int, str]) -> Section:
    """Return the section of a plan, with live checks of its choices; see `show_plan`."""
    sizes = ", ".join(str(entry.batch) for entry in plan.entries)
    show = partial(show_plan, plan, checks=checks)
    return Section(f"Plan for batch {sizes}", source, show, (partial(speedups, plan),))


def record_section(record: Mapping[str, Any], source: str) -> Section:
    """Return the section of a record of one of the schemas in `RECORDS`."""
    title, show, draw = RECORDS[record["schema"]]
    printed = _checked(lambda console: show(record, console), record, source)
    drawn = () if draw is None else (_checked(lambda: draw(record), record, source),)
    return Section(title, source, printed, drawn)


def _checked(act: Callable[..., Any], record: Mapping[str, Any], source: str) -> Callable[..., Any]:
    """Return `act` with a `UsageError` in place of Python's errors for a record that lacks a field."""

    def checked(*words: Any) -> Any:
        try:
            return act(*words)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{source}: no whole {record['schema']}: {reason}") from error

    return checked
