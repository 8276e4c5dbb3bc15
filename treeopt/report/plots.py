"""Plots of plans, traces and records; each draws into the axes that it is given."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.plans.plan import Plan
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

LONGEST = 40  # letters of a name in a plot


def draw_speedups(ax: "Axes", plan: Plan) -> None:
    """Draw predicted speedup by batch size, one line per configuration, with 95 % intervals."""
    frame = plan.frame()
    frame = frame[frame["nodes"] > 0]
    for name, rows in frame.groupby("name", sort=False):
        bars = np.abs(rows[["speedup_low", "speedup_high"]].to_numpy().T - rows["speedup"].to_numpy())
        ax.errorbar(rows["batch"], rows["speedup"], yerr=bars, label=_named(str(name)), marker="o", capsize=3)
    _over_batches(ax, sorted(set(plan.frame()["batch"])))
    _legend(ax)


def draw_tau(ax: "Axes", trace: Trace, *, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 63)) -> None:
    """Draw tau of the best trees by size: averaged over positions, and replayed along the walk."""
    frontier = count_prefixes(trace, nodes=max(sizes), depth=trace.depth)
    averaged = frontier.tokens(trace.depth)
    reached = [size for size in sizes if size < len(averaged)]
    replayed = [replay_tree(frontier.tree(size, trace.depth), trace).tau for size in reached]
    ax.plot(reached, [averaged[size] for size in reached], marker="o", label="averaged over all positions")
    ax.plot(reached, replayed, marker="o", label="replayed: positions a decoder visits")
    ax.set_xscale("log", base=2)
    ax.set_xticks(reached, [str(size) for size in reached])
    ax.set(xlabel="nodes", ylabel="tokens per step")
    _legend(ax)


def draw_scenarios(ax: "Axes", record: Mapping[str, Any]) -> None:
    """Draw the best speedup by batch size, one line per device and context, with intervals; for a what-if."""
    cells = record["cells"]
    for device, context in dict.fromkeys((cell["device"], cell["context"]) for cell in cells):
        line = [c for c in cells if (c["device"], c["context"]) == (device, context) and c["fits"] is not False]
        if line:
            label = f"{device}, {context} tokens of context"
            _with_bars(ax, [cell["batch"] for cell in line], [cell["speedup"] for cell in line], label)
    _over_batches(ax, sorted({cell["batch"] for cell in cells}))
    _legend(ax)


def draw_comparison(ax: "Axes", record: Mapping[str, Any]) -> None:
    """Draw the ratio of each drafter's tau or speedup to the first one's, with intervals, by contest."""
    contests = record["contests"]
    for drafter in dict.fromkeys(standing["drafter"] for contest in contests for standing in contest["standings"]):
        points = [
            (place, standing["over"])
            for place, contest in enumerate(contests)
            for standing in contest["standings"]
            if standing["drafter"] == drafter and standing["over"] is not None
        ]
        if points:
            _with_bars(ax, [place for place, _ in points], [over for _, over in points], drafter, line="")
    ax.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    names = [contest["name"] if contest["batch"] is None else f"batch {contest['batch']}" for contest in contests]
    ax.set_xticks(range(len(contests)), names, fontsize="small")
    ax.set(ylabel=f"ratio to {_named(record['first'])}:\ntau with trees of one size, speedup with its best tree")
    _legend(ax)


def draw_agreement(ax: "Axes", record: Mapping[str, Any]) -> None:
    """Draw measured against predicted speedups with intervals, one colour per batch size; for a validation."""
    for batch in dict.fromkeys(cell["batch"] for cell in record["cells"]):
        cells = [cell for cell in record["cells"] if cell["batch"] == batch]
        predicted, measured = ([cell[side]["speedup"] for cell in cells] for side in ("predicted", "measured"))
        ax.errorbar(
            [estimate["value"] for estimate in predicted],
            [estimate["value"] for estimate in measured],
            xerr=_bars(predicted),
            yerr=_bars(measured),
            label=f"batch {batch}",
            marker="o",
            linestyle="",
            elinewidth=0.8,
        )
    ends = (*ax.get_xlim(), *ax.get_ylim())
    ax.plot([min(ends), max(ends)], [min(ends), max(ends)], color="grey", linewidth=1, linestyle="--")
    ax.set(xlabel="predicted speedup", ylabel="measured speedup")
    _legend(ax)


def _over_batches(ax: "Axes", sizes: Sequence[int]) -> None:
    ax.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set(xlabel="batch", ylabel="predicted speedup over plain decoding")


def _with_bars(
    ax: "Axes", places: Sequence[float], estimates: Sequence[Mapping[str, float]], label: str, *, line: str = "-"
) -> None:
    values = [estimate["value"] for estimate in estimates]
    ax.errorbar(places, values, yerr=_bars(estimates), label=_named(label), marker="o", capsize=3, linestyle=line)


def _bars(estimates: Sequence[Mapping[str, float]]) -> "NDArray[np.float64]":
    """Return the lengths of the bars below and above, float64 (2, n)."""
    below = [estimate["value"] - estimate["low"] for estimate in estimates]
    above = [estimate["high"] - estimate["value"] for estimate in estimates]
    return np.abs(np.array((below, above), dtype=np.float64))


def _named(text: str) -> str:
    """Return a name that matplotlib neither reads as a formula nor hides for its underscore; only the end if long."""
    short = text if len(text) <= LONGEST else f"...{text[3 - LONGEST :]}"
    return f" {short}".replace("$", r"\$") if short.startswith("_") else short.replace("$", r"\$")


def _legend(ax: "Axes") -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
