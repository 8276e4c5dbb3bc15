"""Plots of plans and traces; each draws into the axes it is given, and returns nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from treeopt.plan import Plan
from treeopt.searchers.best_first import count_prefixes
from treeopt.trace import Trace
from treeopt.walk import replay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_speedups(ax: "Axes", plan: Plan) -> None:
    """Predicted speedup by batch size, a line a way of decoding, with 95 % intervals."""
    frame = plan.frame()
    frame = frame[frame["nodes"] > 0]
    for name, rows in frame.groupby("name", sort=False):
        bars = np.abs(rows[["speedup_low", "speedup_high"]].to_numpy().T - rows["speedup"].to_numpy())
        ax.errorbar(rows["batch"], rows["speedup"], yerr=bars, label=str(name), marker="o", capsize=3)
    ax.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    sizes = sorted(set(plan.frame()["batch"]))
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set(xlabel="batch", ylabel="predicted speedup over plain decoding")
    ax.legend()


def draw_tau(ax: "Axes", trace: Trace, *, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 63)) -> None:
    """tau of the best trees by size: averaged over positions, and replayed along the walk."""
    frontier = count_prefixes(trace, nodes=max(sizes), depth=trace.depth)
    averaged = frontier.tokens(trace.depth)
    reached = [size for size in sizes if size < len(averaged)]
    replayed = [replay(frontier.tree(size, trace.depth), trace).tau for size in reached]
    ax.plot(reached, [averaged[size] for size in reached], marker="o", label="averaged over all positions")
    ax.plot(reached, replayed, marker="o", label="replayed: positions a decoder visits")
    ax.set_xscale("log", base=2)
    ax.set_xticks(reached, [str(size) for size in reached])
    ax.set(xlabel="nodes", ylabel="tokens a step")
    ax.legend()
