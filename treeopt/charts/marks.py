"""The pieces that charts are made of, in altair: axes, series with their colours and shapes, marks, titles.

A chart is an `altair.LayerChart` with a title, its conditions as subtitle, and its content in words as description.
Colours and shapes are those that colour-blind readers can tell apart, in both themes and in print. Charts have the
colours of the light theme; `themed` replaces them where a page has a dark one too.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from treeopt.errors import visible_in
from treeopt.statistics import Estimate

if TYPE_CHECKING:
    import altair as alt


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Of points, in the order of series; the names are Vega's.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")


@dataclass(frozen=True)
class Palette:
    """Colours: of series in their order, of text, of grey marks, of grid lines, and behind the chart."""

    series: tuple[str, ...]
    text: str
    muted: str
    grid: str
    back: str

    def properties(self) -> str:
        """Return the colours as custom properties of CSS."""
        colours = zip(_properties(), (*self.series, self.text, self.muted, self.grid, self.back), strict=True)
        return ";".join(f"{name}:{colour}" for name, colour in colours)


# After Okabe and Ito 2008, darkened or lightened to a contrast of at least 3 with the page.
LIGHT = Palette(
    ("#0b62b5", "#b8470a", "#0b7a5b", "#94407c", "#7a6000", "#4d5bc4", "#8c2f2f"),
    text="#1d2530", muted="#5a6470", grid="#e3e6ea", back="#ffffff",
)  # fmt: skip
DARK = Palette(
    ("#6db3ff", "#ff9d66", "#4fd0a5", "#e59ad0", "#dcc15a", "#a5afff", "#ff9a9a"),
    text="#e6eaf0", muted="#98a2b0", grid="#2c343f", back="#161b22",
)  # fmt: skip
# Of Vega-Lite: marks have no words of their own for screen readers, which read the chart's description.
CONFIG = {
    "font": FONT,
    "background": LIGHT.back,
    "view": {"stroke": None},
    "mark": {"aria": False},
    "line": {"strokeWidth": 2},
    "rule": {"strokeWidth": 1.5},
    "text": {"color": LIGHT.text, "fontSize": 11.5, "align": "left", "dx": 7, "dy": -7},
    "title": {
        "anchor": "start", "frame": "group", "color": LIGHT.text, "fontSize": 15, "fontWeight": 600, "offset": 12,
        "subtitleColor": LIGHT.muted, "subtitleFontSize": 12, "subtitlePadding": 6,
    },
    "legend": {
        "aria": False, "orient": "top", "labelColor": LIGHT.text, "labelFontSize": 12.5, "symbolSize": 70,
        "labelOffset": 8, "columnPadding": 16, "rowPadding": 4, "offset": 12,
    },
    "axis": {
        "aria": False, "domain": False, "ticks": False, "grid": True, "gridColor": LIGHT.grid,
        "labelColor": LIGHT.muted, "labelFontSize": 12, "labelPadding": 5, "titleColor": LIGHT.text,
        "titleFontWeight": 500, "titleFontSize": 12.5, "titlePadding": 10,
    },
}  # fmt: skip


def themed(drawing: str) -> str:
    """Return a chart's specification or SVG whose colours are custom properties of the page around it.

    >>> themed('stroke="#0b62b5"')
    'stroke="var(--series-0)"'
    """
    colours = (*LIGHT.series, LIGHT.text, LIGHT.muted, LIGHT.grid, LIGHT.back)
    for name, colour in zip(_properties(), colours, strict=True):
        drawing = drawing.replace(colour, f"var({name})")
    return drawing


def themed_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with the colours of the page around it."""
    found: dict[str, Any] = json.loads(themed(json.dumps(spec)))
    return found


def _properties() -> list[str]:
    """Return the names of the custom properties, in the order of a palette's colours."""
    return [
        *(f"--series-{place}" for place in range(len(LIGHT.series))),
        *(f"--chart-{name}" for name in ("text", "muted", "grid", "back")),
    ]


Row = dict[str, Any]
WIDTH = 640  # pixels of a chart that stands alone
LINE = 104  # letters of a line of conditions
NAME = 150  # pixels that a name beside a row may take
LEGEND, LETTER = 560, 7  # pixels of the legend, and of a letter in it
DOT = 55  # square pixels of a point
DASHES, SOLID = [5, 4], [1, 0]
# Lines in the legend, as shapes.
STROKE = "M-2 -.2H2V.2H-2Z"
DASH = "M-2 -.2H-1V.2H-2ZM-.5 -.2H.5V.2H-.5ZM1 -.2H2V.2H1Z"
DECADE = (1.0, 2.0, 5.0)
ACROSS = ("left", "right")  # columns of intervals across; those of intervals upwards are `low` and `high`
DRAWN = {"series", "low", "high", "left", "right"}  # columns that are drawn, and not listed on pointing at a mark


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        field: the column that it shows.
        title: its quantity, with the unit.
        log: a logarithmic scale.
        ticks: places of ticks; empty: altair's.
        limits: first and last value; None: as the values need.
        zero: begin at zero.
        names: texts that stand in the column in place of numbers, in their order.
    """

    field: str
    title: str = ""
    log: bool = False
    ticks: Sequence[float] = ()
    limits: tuple[float, float] | None = None
    zero: bool = False
    names: Sequence[str] = ()

    def channel(self, side: str) -> Any:
        """Return altair's channel of a side, `x` or `y`."""
        alt = library()
        kind = alt.X if side == "x" else alt.Y
        if self.names:
            labels = alt.Axis(title=None, labelLimit=NAME, grid=True)
            return kind(field=self.field, type="nominal", sort=list(self.names), axis=labels)
        limits = self.limits or ((self.ticks[0], self.ticks[-1]) if self.log and self.ticks else None)
        scale = {"type": "log", "nice": False} if self.log else {"zero": self.zero, "nice": limits is None}
        ticks = {"values": list(self.ticks)} if self.ticks else {"tickCount": 6}
        return kind(
            field=self.field,
            type="quantitative",
            scale=alt.Scale(**scale, **({"domain": list(limits)} if limits else {})),
            axis=alt.Axis(title=self.title, format=",~r", labelOverlap=True, **ticks),
        )

    def tips(self, ends: tuple[str, str], row: Row) -> list[Any]:
        """Return what a reader sees on pointing at a mark: the value in full, with both ends of its interval."""
        alt = library()
        if self.names or not self.title:
            return []
        shown = {self.field: "", **{end: f", {word}" for end, word in zip(ends, ("from", "to"), strict=True)}}
        return [
            alt.Tooltip(field=name, type="quantitative", title=self.title + words, format=",.6~r")
            for name, words in shown.items()
            if name in row
        ]


@dataclass(frozen=True)
class Series:
    """Names of series, in the order of the legend; some are grey, lines or dashed lines without points.

    The first one has the accent colour.
    """

    names: Sequence[str]
    grey: frozenset[str] = frozenset()
    lines: frozenset[str] = frozenset()
    dashes: frozenset[str] = frozenset()

    def channels(self, *, shapes: bool = True) -> dict[str, Any]:
        """Return altair's channels of colour and of shape; a single series has no legend."""
        alt = library()
        columns = max(1, LEGEND // (40 + LETTER * max(map(len, self.names))))
        legend = alt.Legend(title=None, columns=columns, labelLimit=LEGEND) if len(self.names) > 1 else None
        colours = [
            LIGHT.muted if name in self.grey else LIGHT.series[place % len(LIGHT.series)]
            for place, name in enumerate(self.names)
        ]
        forms = [
            STROKE if name in self.lines else DASH if name in self.dashes else SHAPES[place % len(SHAPES)]
            for place, name in enumerate(self.names)
        ]
        kinds = {"color": (alt.Color, colours), **({"shape": (alt.Shape, forms)} if shapes else {})}
        return {
            name: kind(
                field="series",
                type="nominal",
                scale=alt.Scale(domain=list(self.names), range=values),
                legend=legend,
            )
            for name, (kind, values) in kinds.items()
        }


def series_of(rows: Iterable[Row]) -> Series:
    """Return the series of rows, in their order."""
    return Series(list(dict.fromkeys(row["series"] for row in rows)))


def line(
    rows: Iterable[Row], x: Axis, y: Axis, series: Series, *, dashed: bool = False, steps: bool = False
) -> "list[alt.Chart]":
    """Return a line through the rows of each series, in their order."""
    alt = library()
    mark = data(rows).mark_line(interpolate="step-after" if steps else "linear", strokeDash=DASHES if dashed else SOLID)
    order = alt.OrderValue(0)  # lines follow the rows, not the x axis
    return [mark.encode(x.channel("x"), y.channel("y"), order=order, **series.channels(shapes=False))]


def points(rows: Iterable[Row], x: Axis, y: Axis, series: Series, *, hollow: bool = False) -> "list[alt.Chart]":
    """Return a point for each row, and its intervals: from `low` to `high` upwards, from `left` to `right` across."""
    alt = library()
    rows = list(rows)
    if not rows:
        return []
    across, upwards = x.channel("x"), y.channel("y")
    bars = data(rows).mark_rule(strokeOpacity=0.75)
    marks = []
    if "low" in rows[0]:
        marks.append(
            bars.encode(across, replace(y, field="low").channel("y"), y2="high", **series.channels(shapes=False))
        )
    if "left" in rows[0]:
        marks.append(
            bars.encode(replace(x, field="left").channel("x"), upwards, x2="right", **series.channels(shapes=False))
        )
    details = [alt.Tooltip(field=name, type="nominal") for name in rows[0] if name not in DRAWN | {x.field, y.field}]
    tooltip = [*x.tips(("left", "right"), rows[0]), *y.tips(("low", "high"), rows[0]), *details]
    dots = data(rows).mark_point(filled=not hollow, size=DOT, opacity=1, strokeWidth=1.75)
    return [*marks, dots.encode(across, upwards, tooltip=tooltip, **series.channels())]


def rule(**place: float) -> "list[alt.Chart]":
    """Return a dashed grey line across the whole chart, at a value of `x` or of `y`."""
    alt = library()
    places = {side: alt.datum(value) for side, value in place.items()}
    return [data([{}]).mark_rule(color=LIGHT.muted, strokeWidth=1.25, strokeDash=DASHES).encode(**places)]


def diagonal(limits: tuple[float, float], x: Axis, y: Axis) -> "list[alt.Chart]":
    """Return the dashed grey line of equal values."""
    ends = [{x.field: end, y.field: end} for end in limits]
    mark = data(ends).mark_line(color=LIGHT.muted, strokeWidth=1.25, strokeDash=DASHES)
    return [mark.encode(x.channel("x"), y.channel("y"))]


def library() -> Any:
    """Return altair, which takes a second to load.

    Raises:
        ModuleNotFoundError: it is not installed; says how to install it.
    """
    try:
        import altair as alt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("charts need altair: pip install 'treeopt[report]'", name=error.name) from error
    return alt


def data(rows: Iterable[Row]) -> "alt.Chart":
    """Return a chart without marks that holds rows."""
    chart: alt.Chart = library().Chart(library().InlineData(values=list(rows)))
    return chart


def titled(
    marks: "Iterable[alt.Chart]", title: str, *conditions: str, words: str, height: int = 320
) -> "alt.LayerChart":
    """Return the chart of marks, the first at the bottom.

    Args:
        marks: from the functions above.
        title: what it shows.
        conditions: sentences: under which conditions its numbers hold.
        words: its content in words, for readers who cannot see it.
        height: of its plot, in pixels.
    """
    altair = library()
    chart: alt.LayerChart = altair.layer(*marks).properties(
        width=WIDTH,
        height=height,
        autosize=altair.AutoSizeParams(type="fit-x", contains="padding"),
        title=altair.TitleParams(title, subtitle=[part for line in conditions for part in wrap(line, LINE)]),
        description=words,
        usermeta={"conditions": conditions},  # not wrapped, for pages
        config=CONFIG,
    )
    return chart


def estimated(
    name: str, estimate: Estimate | Mapping[str, float], ends: tuple[str, str] = ("low", "high"), *, scale: float = 1.0
) -> dict[str, float]:
    """Return an estimate, or the mapping of a record, as columns times `scale`; an end that is not finite is the value.

    >>> estimated("tau", Estimate(2.0, 1.5, math.inf))
    {'tau': 2.0, 'low': 1.5, 'high': 2.0}
    """
    of = asdict(estimate) if isinstance(estimate, Estimate) else estimate
    values = (of[end] if math.isfinite(of[end]) else of["value"] for end in ("value", "low", "high"))
    return {column: float(scale * value) for column, value in zip((name, *ends), values, strict=True)}


def decimal_ticks(low: float, high: float) -> tuple[float, ...]:
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


def short(name: str, longest: int = 40) -> str:
    """Return a name, only its end if it is long.

    >>> short("a" * 50 + "end", 8)
    '...aaend'
    """
    return name if len(name) <= longest else f"...{name[3 - longest :]}"


HEIGHT = 320  # pixels of a plot that names none


@dataclass(frozen=True)
class Figure:
    """A chart in a page, which writes title and conditions in its own letters, so that they fit every width.

    Attributes:
        title: what the chart shows.
        conditions: sentences: under which conditions its numbers hold.
        words: its content in words, for readers who cannot see it.
        spec: Vega-Lite's specification of the rest; as wide as its place, with nothing behind it.
        height: of its plot, in pixels.
    """

    title: str
    conditions: tuple[str, ...]
    words: str
    spec: dict[str, Any]
    height: int

    @classmethod
    def of(cls, chart: "alt.TopLevelMixin") -> "Figure":
        """Return a chart as a figure; any chart of altair is one, best with a title and a description."""
        spec = visible_in(chart.to_dict())
        title = spec.pop("title", "")
        text = title if isinstance(title, str) else title["text"]
        spec |= {"width": "container", "background": "transparent", "config": CONFIG | spec.get("config", {})}
        for layer in spec.get("layer", ()):
            for legend in (layer["encoding"].get(channel, {}).get("legend") for channel in ("color", "shape")):
                if legend:
                    legend["columns"] = max(1, legend["columns"] // 3)  # fits narrow screens, beside names of rows
        conditions, words = spec.pop("usermeta", {}).get("conditions", ()), spec.get("description", text)
        return cls(text, tuple(conditions), words, spec, spec.setdefault("height", HEIGHT))

    def svg(self) -> str:
        """Return the figure as an SVG element."""
        return as_svg(self.spec | {"width": WIDTH})


def as_svg(spec: dict[str, Any]) -> str:
    """Return a specification as an SVG element, the same for the same chart."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg
