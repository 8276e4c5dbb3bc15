"""The chart of devices' rooflines: attainable FLOP/s against FLOP per byte, with the forwards that were priced."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.charts.chart import Axis, Chart, Layer, decimal_ticks, floats

TERA = 1e12


@dataclass(frozen=True)
class Roof:
    """A device's limits, and forwards on it.

    Attributes:
        device: its name.
        flops: FLOP/s.
        bandwidth: B/s.
        forwards: name, FLOP per byte and FLOP/s of each forward.
    """

    device: str
    flops: float
    bandwidth: float
    forwards: Sequence[tuple[str, float, float]] = ()

    def attainable(self, intensity: float) -> float:
        """Return FLOP/s at an intensity, in FLOP per byte.

        >>> Roof("X", flops=100.0, bandwidth=2.0).attainable(10.0)
        20.0
        """
        return min(self.flops, self.bandwidth * intensity)


def roofline(roofs: Sequence[Roof], *, conditions: Sequence[str] = ()) -> Chart:
    """Return the rooflines of devices.

    Args:
        roofs: the devices.
        conditions: how the forwards' figures were found.
    """
    intensities = [x for roof in roofs for _, x, _ in roof.forwards] or [1.0]
    ticks = decimal_ticks(min(intensities), max(*intensities, *(4 * roof.flops / roof.bandwidth for roof in roofs)))
    first, last = ticks[0], ticks[-1]
    layers: list[Layer] = []
    for roof in roofs:
        x = (first, roof.flops / roof.bandwidth, last)
        layers.append(Layer("line", x, floats([roof.attainable(value) / TERA for value in x]), roof.device))
        if roof.forwards:
            names, across, reached = zip(*roof.forwards, strict=True)
            y = floats([value / TERA for value in reached])
            layers.append(Layer("points", floats(across), y, roof.device, details=(("forward", names),)))
    heights = [y for layer in layers for y in layer.y]
    return Chart(
        "Roofline",
        Axis("FLOP per byte of weights", "log", ticks),
        Axis("TFLOP/s", "log", decimal_ticks(min(heights), max(heights))),
        tuple(layers),
        ("Lines: what memory and arithmetic allow. Points: forwards of the steps above.", *conditions),
        "; ".join(f"{roof.device}: {roof.flops / TERA:.0f} TFLOP/s, {roof.bandwidth / 1e9:.0f} GB/s" for roof in roofs),
    )
