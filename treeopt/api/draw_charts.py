"""Draw charts of plans and traces into matplotlib's axes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.plans.plan import Plan
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (1, 2, 4, 8, 16, 32, 63)


def draw_speedups(ax: "Axes", plan: Plan) -> None:
    """Draw predicted speedup by batch size, one line per configuration, with 95 % intervals."""
    from treeopt.charts.matplotlib_axes import draw
    from treeopt.charts.speedup_charts import speedups

    draw(speedups(plan), ax)


def draw_tau(ax: "Axes", trace: Trace, *, sizes: Sequence[int] = SIZES) -> None:
    """Draw tau by tree size: of the best trees, averaged over positions and replayed along the walk, and of chains.

    Raises:
        TraceError: the trace's rule draws its candidates or accepts several siblings.
    """
    from treeopt.charts.matplotlib_axes import draw
    from treeopt.charts.tau_chart import tau_by_nodes

    draw(tau_by_nodes(trace, sizes=sizes), ax)
