"""Learning curves as tables on the terminal, and as records for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from treeopt.planning.learning_curve import WIDE, LearningCurve
from treeopt.tables.terminal_text import interval, terminal


def curve_record(curve: LearningCurve) -> dict[str, Any]:
    """Return a curve as JSON values."""
    points = [
        {
            "requests": point.requests,
            "anchors": point.anchors,
            "tree": [list(path) for path in point.tree.paths],
            "fitted": point.fitted,
            "held_out": asdict(point.held_out),
            "loss": asdict(point.loss),
        }
        for point in curve.points
    ]
    flat_from = None if curve.flat is None else curve.flat.requests
    return {"nodes": curve.nodes, "flat_from": flat_from, "vague": curve.vague, "points": points}


def show_curves(curves: Sequence[LearningCurve], console: Console | None = None) -> None:
    """Print a table for each size, and from where its curve is flat."""
    console = console or terminal()
    for curve in curves:
        last = curve.points[-1]
        table = Table(title=f"best trees of {curve.nodes} nodes", title_justify="left", title_style="bold")
        for name in ("requests", "anchors", "tau where chosen", "tau held out", f"loss against {last.requests}"):
            table.add_column(name, justify="right")
        for point in curve.points:
            table.add_row(
                str(point.requests),
                str(point.anchors),
                f"{point.fitted:.3f}",
                interval(point.held_out, 3),
                "" if point is last else interval(point.loss, 3),
            )
        console.print(table)
        console.print(_verdict(curve), soft_wrap=True, markup=False)
        console.print()


def _verdict(curve: LearningCurve) -> str:
    *_, last = curve.points
    if curve.vague:
        loss = curve.points[-2].loss
        return (
            "The trace is too small to show whether the curve is flat: the interval of the last loss is "
            f"{(loss.high - loss.low) / last.held_out.value:.1%} of tau wide, more than {WIDE:.0%}. Record more."
        )
    if curve.flat is None:
        return f"Not flat: {last.requests} requests find better trees than fewer do. Record more."
    gain = max(point.loss.high for point in curve.points[curve.points.index(curve.flat) : -1])
    return (
        f"Flat from {curve.flat.requests} requests: the gain from more requests, up to {last.requests}, is within the "
        f"noise (at most {max(gain, 0) / last.held_out.value:.1%} of tau)."
    )
