"""Learning curves as tables, and as records for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from treeopt.errors import counted
from treeopt.planning.learning_curve import WIDE, LearningCurve, Point
from treeopt.results.blocks import Block, Blocks, Cell, Column, Line, Row, Table, number, ranged

COLUMNS = (
    Column("requests", key=True, meaning="Requests that the trees were chosen on."),
    Column("anchors", drop=2, meaning="Text positions of these requests."),
    Column("tau where chosen", drop=1, meaning="Tokens per step on the requests that the tree was chosen on."),
    Column("tau held out", meaning="Tokens per step on other requests."),
)
LOSS = "Tokens per step lost to the tree chosen on the most requests."


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


def curve_blocks(curves: Sequence[LearningCurve]) -> Blocks:
    """Return a table for each size, and from where its curve is flat."""
    blocks: list[Block] = []
    for curve in curves:
        rows = tuple(_row(point, last=point is curve.points[-1]) for point in curve.points)
        columns = (*COLUMNS, Column(f"loss against {curve.points[-1].requests}", meaning=LOSS))
        blocks.append(Table(f"best trees of {curve.nodes} nodes", columns, rows))
        blocks.append(Line("note", _verdict(curve)))
    return tuple(blocks)


def _row(point: Point, *, last: bool) -> Row:
    counts = (number(point.requests), number(point.anchors))
    return Row((*counts, number(point.fitted, 3), ranged(point.held_out, 3), Cell() if last else ranged(point.loss, 3)))


def _verdict(curve: LearningCurve) -> str:
    *_, last = curve.points
    if curve.vague:
        loss = curve.points[-2].loss
        return (
            "The trace is too small to show whether the curve is flat: the interval of the last loss is "
            f"{(loss.high - loss.low) / last.held_out.value:.1%} of tau wide, more than {WIDE:.0%}. Record more."
        )
    if curve.flat is None:
        return f"Not flat: {last.requests:,} requests find better trees than fewer do. Record more."
    gain = max(point.loss.high for point in curve.points[curve.points.index(curve.flat) : -1])
    return (
        f"Flat from {counted(curve.flat.requests, 'request')}: the gain from more requests, up to {last.requests:,}, "
        f"is within the noise (at most {max(gain, 0) / last.held_out.value:.1%} of tau)."
    )
