"""The chart of step times against verified tokens: measured points, the model's line, points that it had not seen."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.charts.chart import Axis, Chart, Floats, Layer, decimal_ticks

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step except drafting at one batch size and context, as (tokens per sequence, seconds).

    Attributes:
        name: batch size and context.
        measured: what was measured.
        line: what the model says, at every size.
        left_out: what the model predicts of measured sizes without having seen them.
        plain_s: seconds of a plain step.
    """

    name: str
    measured: Points
    line: Points
    left_out: Points
    plain_s: float


def step_times(rows: Sequence[StepTimes], *, conditions: Sequence[str] = ()) -> Chart:
    """Return step times against verified tokens per sequence.

    Args:
        rows: one for each batch size and context.
        conditions: how they were measured.
    """
    layers: list[Layer] = []
    for row in rows:
        x, y = _columns(row.measured)
        plain = (("plain step, ms", (f"{row.plain_s * 1e3:.4g}",) * len(x)),)
        layers += [
            Layer("line", *_columns(row.line), row.name),
            Layer("points", x, y, row.name, details=plain),
        ]
    left_out = [point for row in rows for point in row.left_out]
    if left_out:
        layers.append(Layer("points", *_columns(left_out), "predicted without the point", dashed=True, muted=True))
    sizes = [tokens for row in rows for tokens, _ in row.measured]
    heights = [y for layer in layers for y in layer.y]
    return Chart(
        "Step time by verified tokens",
        Axis("verified tokens per sequence", "log", decimal_ticks(min(sizes), max(sizes))),
        Axis("step except drafting, ms", "log", decimal_ticks(min(heights), max(heights))),
        tuple(layers),
        ("Points: measured. Lines: the model between them.", *conditions),
        f"Step times at {', '.join(row.name for row in rows)}, for {min(sizes):g} to {max(sizes):g} tokens.",
        height=360,
    )


def _columns(points: Points) -> tuple[Floats, Floats]:
    return tuple(float(tokens) for tokens, _ in points), tuple(seconds * 1e3 for _, seconds in points)
