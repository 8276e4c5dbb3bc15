"""The chart of a learning curve: tau on held-out requests by the number of requests that trees are chosen on."""

from collections.abc import Sequence

from treeopt.charts.chart import Axis, Chart, Layer, columns, decimal_ticks, floats
from treeopt.planning.learning_curve import LearningCurve


def learning(curves: Sequence[LearningCurve]) -> Chart:
    """Return the learning curves, a line per tree size; dashed is tau where the trees were chosen."""
    layers: list[Layer] = []
    for curve in curves:
        name = f"{curve.nodes} nodes"
        x = floats([point.requests for point in curve.points])
        value, low, high = columns(point.held_out for point in curve.points)
        layers += [
            Layer("line", x, floats([point.fitted for point in curve.points]), name, dashed=True),
            Layer("line", x, value, name),
            Layer("intervals", x, value, name, low, high),
        ]
    requests = [point.requests for curve in curves for point in curve.points]
    flat = [f"{curve.nodes} nodes: {_flat(curve)}" for curve in curves]
    return Chart(
        "Learning curve",
        Axis("requests that trees are chosen on", "log", decimal_ticks(min(requests), max(requests))),
        Axis("tau on requests held out"),
        tuple(layers),
        ("Bars: 95 % intervals. Dashed: tau on the requests that the trees were chosen on.", f"{'; '.join(flat)}."),
        f"tau by the number of requests; {'; '.join(flat)}.",
    )


def _flat(curve: LearningCurve) -> str:
    if curve.vague:
        return "too few requests to say"
    return (
        "not flat yet"
        if curve.flat is None
        else f"flat from {curve.flat.requests} request{'s' if curve.flat.requests > 1 else ''}"
    )
