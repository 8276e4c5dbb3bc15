"""The charts of speedup and tau drawn into matplotlib's axes, for figures of the user's own."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from treeopt.charts.marks import LIGHT, Row
from treeopt.charts.speed_charts import SPEEDUP, speedup_rows
from treeopt.charts.trace_charts import SIZES, TAU, tau_rows
from treeopt.plans import Plan
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^DvP"  # in the order of `SHAPES`
DASHES = (0, (4, 3))


def draw_speedups(ax: "Axes", plan: Plan) -> None:
    """Draw predicted speedup by batch size, one line per configuration, with 95 % intervals."""
    names, rows = speedup_rows(plan)
    ax.axhline(1.0, color=LIGHT.muted, linewidth=1, linestyle=DASHES)
    for place, name in enumerate(names):
        _draw(ax, place, name, [row for row in rows if row["series"] == name], "batch", "speedup")
    _finish(ax, sorted({entry.batch for entry in plan.entries}), "batch", SPEEDUP.title)


def draw_tau(ax: "Axes", trace: Trace, *, sizes: Sequence[int] = SIZES) -> None:
    """Draw tau by tree size: of the best trees, averaged over positions and replayed along the walk, and of chains.

    Raises:
        TraceError: the trace's rule draws its candidates or accepts several siblings.
    """
    averaged, best, chains = tau_rows(trace, sizes)
    for row in averaged[:1]:
        x, y = ([row[column] for row in averaged] for column in ("nodes", "tau"))
        ax.plot(x, y, color=LIGHT.muted, linestyle=DASHES, label=row["series"])
    for place, rows in enumerate((best, chains)):
        if rows:
            _draw(ax, place, rows[0]["series"], rows, "nodes", "tau")
    largest = max(row["nodes"] for row in (*best, *chains))
    _finish(ax, [2**power for power in range(largest.bit_length())], "nodes", TAU)


def _draw(ax: "Axes", place: int, name: str, rows: Iterable[Row], x: str, y: str) -> None:
    """Draw a series with its intervals."""
    across, value, low, high = zip(*((row[x], row[y], row["low"], row["high"]) for row in rows), strict=True)
    bars = [[max(0.0, v - end) for v, end in zip(value, low, strict=True)]]
    bars.append([max(0.0, end - v) for v, end in zip(value, high, strict=True)])
    look: Any = {"color": LIGHT.series[place % len(LIGHT.series)], "marker": MARKERS[place % len(MARKERS)]}
    # matplotlib reads a dollar as a formula, and hides a name that begins with an underscore.
    label = f"{' ' if name.startswith('_') else ''}{name}".replace("$", r"\$")
    ax.errorbar(across, value, bars, markersize=5, elinewidth=1.2, linewidth=1.6, label=label, **look)


def _finish(ax: "Axes", ticks: Sequence[int], x: str, y: str) -> None:
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(visible=True, color=LIGHT.grid, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(length=0, colors=LIGHT.muted)
    ax.spines[:].set_visible(False)
    ax.legend(fontsize="small", frameon=False, labelcolor=LIGHT.text)


# Kind of result and chart -> what draws it.
DRAWN: dict[tuple[str, str], Callable[["Axes", Any], None]] = {
    ("plan", "speedup"): draw_speedups,
    ("trace", "tau"): lambda ax, trace: draw_tau(ax, with_drawn_ranks(trace, 0)),
}
