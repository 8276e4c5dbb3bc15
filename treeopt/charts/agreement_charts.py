"""Charts of predictions beside measurements: speedups with the line of equal values, and errors by batch size."""

from collections.abc import Mapping, Sequence
from typing import Any

from treeopt.charts.chart import Axis, Chart, Layer, columns
from treeopt.statistics.clustered_estimate import Estimate

EQUAL = "equal"


def agreement(record: Mapping[str, Any]) -> Chart:
    """Return measured against predicted speedups, a colour per batch size; `record` is a validation."""
    cells = record["cells"]
    layers = [
        _batch(batch, [cell for cell in cells if cell["batch"] == batch])
        for batch in dict.fromkeys(cell["batch"] for cell in cells)
    ]
    ends = [end for layer in layers for column in (layer.left, layer.right, layer.low, layer.high) for end in column]
    first, last = (min(ends), max(ends)) if ends else (0.0, 1.0)
    margin = 0.04 * (last - first)
    limits = (max(0.0, first - margin), last + margin)
    equal = Layer("line", limits, limits, dashed=True, muted=True)
    covered = record["coverage"]["covered"]["cells"]
    return Chart(
        "Predicted and measured speedup",
        Axis("predicted speedup", limits=limits),
        Axis("measured speedup", limits=limits),
        (equal, *layers),
        (
            "Bars: 95 % intervals. Dashed: equal values. One point per tree and batch size.",
            f"Error: mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}. "
            f"{covered} of {record['coverage']['cells']} predicted intervals contain the measured value.",
        ),
        f"{len(cells)} predicted speedups beside measured ones; mean error {record['mean_error']:.1%}.",
        height=420,
    )


def _batch(batch: int, cells: Sequence[Mapping[str, Any]]) -> Layer:
    """Return the points of a batch size."""
    (x, left, right), (y, low, high) = (
        columns(Estimate(**cell[side]["speedup"]) for cell in cells) for side in ("predicted", "measured")
    )
    details = (
        ("tree", tuple(str(cell["name"]) for cell in cells)),
        ("error", tuple(f"{cell['error']:+.1%}" for cell in cells)),
    )
    return Layer("intervals", x, y, f"batch {batch}", low, high, left, right, details=details)
