"""A chart as a value: axes, layers of marks with tidy columns, conditions and a text for people who cannot see it.

Knows nothing of plotting libraries: `vega_lite` and `matplotlib_axes` render it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from treeopt.statistics.clustered_estimate import Estimate

Floats = tuple[float, ...]
Scale = Literal["linear", "log"]
# points; a line through them; the same as a staircase; points with their intervals; the area from `low` to `high`;
# lines across the whole chart, at `x` or at `y`; lines from (x, y) to (x2, y2); texts.
Mark = Literal["points", "line", "steps", "intervals", "band", "rule", "edges", "labels"]

NUMBERS = ("x", "y", "low", "high", "left", "right", "x2", "y2", "size")
COLUMNS = (*NUMBERS, "text")
DECADE = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        title: its quantity, with the unit.
        scale: `linear` or `log`.
        ticks: places of ticks; empty leaves them to the renderer.
        names: names of the places 0, 1, ..., in place of numbers.
        limits: first and last value; None: see `extent`.
        zero: begin at zero.
        reverse: the first value is at the top or at the right.
        shown: draw it.
    """

    title: str
    scale: Scale = "linear"
    ticks: Floats = ()
    names: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None
    zero: bool = False
    reverse: bool = False
    shown: bool = True

    @property
    def extent(self) -> tuple[float, float] | None:
        """First and last value drawn; None leaves them to the renderer.

        >>> Axis("", names=("first", "last")).extent
        (-0.6, 1.6)
        """
        if self.limits is None and self.names:
            return (-0.6, len(self.names) - 0.4)  # marks of the outer names keep off the edges
        if self.limits is None and self.scale == "log" and self.ticks:
            return (self.ticks[0], self.ticks[-1])
        return self.limits


@dataclass(frozen=True)
class Layer:
    """Marks of one kind and series; columns have one value per mark, or are empty.

    Attributes:
        mark: how they are drawn.
        x: places across.
        y: places upwards.
        series: name in the legend, which chooses colour and shape; empty: a reference that the legend omits.
        low: lower ends of intervals and bands.
        high: upper ends.
        left: left ends of intervals across.
        right: right ends.
        x2: other ends of edges, across.
        y2: other ends of edges, upwards.
        text: labels.
        size: areas of points, as shares of the largest.
        details: further columns that a reader sees on pointing at a mark: name -> values as text.
        dashed: dashed lines, hollow points.
        muted: grey.
    """

    mark: Mark
    x: Floats = ()
    y: Floats = ()
    series: str = ""
    low: Floats = ()
    high: Floats = ()
    left: Floats = ()
    right: Floats = ()
    x2: Floats = ()
    y2: Floats = ()
    text: tuple[str, ...] = ()
    size: Floats = ()
    details: tuple[tuple[str, tuple[str, ...]], ...] = ()
    dashed: bool = False
    muted: bool = False

    def __post_init__(self) -> None:
        """Check that columns have the same length and finite numbers.

        Raises:
            ValueError: names the column that differs, or that holds another number.
        """
        for name, column in (*((name, getattr(self, name)) for name in COLUMNS), *self.details):
            if column and len(column) != len(self):
                raise ValueError(f"column {name} must have {len(self)} values, got {len(column)}")
        for name in NUMBERS:
            if not all(map(math.isfinite, getattr(self, name))):
                raise ValueError(f"column {name} must hold finite numbers")

    @property
    def points(self) -> bool:
        """True for marks that are points."""
        return self.mark in ("points", "intervals")

    def __len__(self) -> int:
        """Return the number of marks."""
        return max(len(self.x), len(self.y))


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: what it shows.
        x: the axis across.
        y: the axis upwards.
        layers: what is drawn, the first at the bottom.
        conditions: sentences under the chart: under which conditions its numbers hold.
        alt: its content in words.
        height: height in pixels, 96 an inch.
        order: names of series in the order of the legend; empty: as they are drawn.
    """

    title: str
    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    conditions: tuple[str, ...] = ()
    alt: str = ""
    height: int = 320
    order: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the series, in the order of the legend; the first one has the accent colour."""
        named = sorted((layer for layer in self.layers if layer.series), key=lambda layer: layer.muted)
        return tuple(dict.fromkeys((*self.order, *(layer.series for layer in named))))

    def muted(self, series: str) -> bool:
        """Return True if a series is grey."""
        return all(layer.muted for layer in self.layers if layer.series == series)

    def in_legend(self, series: str) -> Layer | None:
        """Return the layer of a series that the legend shows: its first points, or else its first layer."""
        own = [layer for layer in self.layers if series and layer.series == series]
        return next((layer for layer in own if layer.points), own[0] if own else None)


def estimates(layer: Layer, values: Iterable[Estimate]) -> Layer:
    """Return a layer with the values of estimates upwards and their intervals.

    >>> estimates(Layer("intervals", x=(1.0,), y=(0.0,)), [Estimate(2.0, 1.5, 2.5)]).high
    (2.5,)
    """
    value, low, high = columns(values)
    return replace(layer, y=value, low=low, high=high)


def columns(values: Iterable[Estimate]) -> tuple[Floats, Floats, Floats]:
    """Return the values of estimates and both ends of their intervals; an end that is not finite is the value."""
    rows = [(v.value, *(end if math.isfinite(end) else v.value for end in (v.low, v.high))) for v in values] or [
        (0.0, 0.0, 0.0)
    ][:0]
    return tuple(tuple(float(row[i]) for row in rows) for i in range(3))  # type: ignore[return-value]


def decimal_ticks(low: float, high: float) -> Floats:
    """Return ticks 1, 2, 5, 10, ... that cover a range of positive values, at most about ten of them.

    >>> decimal_ticks(3, 40)
    (2.0, 5.0, 10.0, 20.0, 50.0)
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = DECADE if len(powers) <= 4 else DECADE[:1]
    ticks = [float(f"{step * 10.0**power:.3g}") for power in powers for step in steps]
    first = max((i for i, tick in enumerate(ticks) if tick <= low), default=0)
    last = min((i for i, tick in enumerate(ticks) if tick >= high), default=len(ticks) - 1)
    return tuple(ticks[first : last + 1])


def decimal(value: float) -> str:
    """Return a number without an exponent, for ticks and tooltips.

    >>> decimal(0.25), decimal(12000), decimal(3.0)
    ('0.25', '12,000', '3')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 5 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(name: str, longest: int = 40) -> str:
    """Return a name, only its end if it is long.

    >>> short("a" * 50 + "end", 8)
    '...aaend'
    """
    return name if len(name) <= longest else f"...{name[3 - longest :]}"


def rows_of(layer: Layer) -> list[dict[str, float | str]]:
    """Return a layer's marks as records, columns that are empty left out."""
    full = [(f.name, getattr(layer, f.name)) for f in fields(layer) if f.name in COLUMNS]
    return [{name: column[i] for name, column in full if column} for i in range(len(layer))]


def floats(values: Sequence[float]) -> Floats:
    """Return values as a column."""
    return tuple(float(value) for value in values)
