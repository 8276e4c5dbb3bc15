"""Charts drawn by matplotlib: into given axes, or as an SVG that is the same for the same data."""

import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.charts.chart import Axis, Chart, Layer, decimal, short
from treeopt.charts.palette import LIGHT, MATPLOTLIB_SHAPES, Palette, shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

PIXELS = 96  # an inch
WIDTH = 720  # pixels of a picture
DASHES = (0, (4, 3))
LARGEST = 240.0  # square points of the largest point, where sizes differ
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def draw(chart: Chart, ax: "Axes", *, palette: Palette = LIGHT, legend: bool = True) -> None:
    """Draw a chart into axes.

    Args:
        chart: the chart.
        ax: where to draw.
        palette: its colours.
        legend: add a legend if there are several series.
    """
    for layer in chart.layers:
        _draw_layer(ax, chart, layer, palette)
    for name, axis in (("x", chart.x), ("y", chart.y)):
        _set_axis(ax, name, axis)
    ax.grid(visible=True, color=palette.grid, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(length=0, colors=palette.muted)
    for side in ax.spines.values():
        side.set_visible(False)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(palette.text)
    if legend and len(chart.series) > 1:
        _legend(ax, chart, palette)


def new_axes(chart: Chart) -> "Axes":
    """Return axes of a new figure of the chart's size, which a notebook shows.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; says how to install it.
    """
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plots need matplotlib: pip install 'treeopt[report]'", name=error.name) from error

    figure = plt.figure(figsize=(WIDTH / PIXELS, (chart.height + 60) / PIXELS), layout="constrained")
    return figure.subplots()


def as_svg(chart: Chart, *, palette: Palette = LIGHT, legend: bool = True, title: bool = False) -> str:
    """Return a chart as an SVG element; the same bytes for the same chart and version of matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: Any = {"svg.hashsalt": "treeopt", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(WIDTH / PIXELS, (chart.height + 60) / PIXELS), layout="constrained")
        figure.patch.set_facecolor(palette.back)
        ax = figure.subplots()
        ax.set_facecolor(palette.back)
        draw(chart, ax, palette=palette, legend=legend)
        if title:
            ax.set_title(chart.title.replace("$", r"\$"), loc="left", color=palette.text, fontsize=11)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return _compact(file.getvalue())


def _legend(ax: "Axes", chart: Chart, palette: Palette) -> None:
    """Add the legend, in the order of the series."""
    drawn = {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    labels = [label for label in map(_named, chart.series) if label in drawn]
    ax.legend([drawn[label] for label in labels], labels, fontsize="small", frameon=False, labelcolor=palette.text)


def _compact(text: str) -> str:
    """Return the element alone, without metadata and declarations, in the reader's own font."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace("'DejaVu Sans'", FONTS.replace("'", "&apos;"))
    return re.sub(r"[ \t]*\n[ \t]*", "\n", text)


def _draw_layer(ax: "Axes", chart: Chart, layer: Layer, palette: Palette) -> None:
    place = chart.series.index(layer.series) if layer.series else 0
    colour = palette.muted if layer.muted or not layer.series else palette.colour(place)
    label = _named(layer.series) if layer is chart.in_legend(layer.series) else "_"
    style = DASHES if layer.dashed else "-"
    if layer.mark in ("line", "steps"):
        how = "steps-post" if layer.mark == "steps" else "default"
        ax.plot(layer.x, layer.y, color=colour, linestyle=style, linewidth=1.6, drawstyle=how, label=label)
    elif layer.mark == "band":
        ax.fill_between(layer.x, layer.low, layer.high, color=colour, alpha=0.16, linewidth=0, label=label)
    elif layer.mark == "rule":
        for value in layer.x:
            ax.axvline(value, color=colour, linewidth=1, linestyle=DASHES)
        for value in () if layer.x else layer.y:
            ax.axhline(value, color=colour, linewidth=1, linestyle=DASHES)
    elif layer.mark == "edges":
        for ends in zip(layer.x, layer.x2, layer.y, layer.y2, strict=True):
            ax.plot(ends[:2], ends[2:], color=colour, linewidth=1, linestyle=style, zorder=1, label="_")
    elif layer.mark == "labels":
        for x, y, text in zip(layer.x, layer.y, layer.text, strict=True):
            ax.annotate(_named(text), (x, y), (5, 5), textcoords="offset points", fontsize=8, color=palette.text)
    else:
        _draw_points(ax, layer, colour, place, palette, label)


def _draw_points(ax: "Axes", layer: Layer, colour: str, place: int, palette: Palette, label: str) -> None:
    marker, inside = MATPLOTLIB_SHAPES[shape(place)], palette.back if layer.dashed else colour
    if layer.size:
        ax.scatter(layer.x, layer.y, LARGEST * np.array(layer.size) + 6, color=colour, zorder=3, label=label)
        return
    ax.errorbar(
        layer.x,
        layer.y,
        xerr=_bars(layer.x, layer.left, layer.right),
        yerr=_bars(layer.y, layer.low, layer.high),
        color=colour,
        marker=marker,
        markersize=5,
        markerfacecolor=inside,
        linestyle="",
        elinewidth=1.2,
        label=label,
    )


def _bars(values: tuple[float, ...], low: tuple[float, ...], high: tuple[float, ...]) -> "NDArray[np.float64] | None":
    """Return the lengths of bars on both sides, float64 (2, n)."""
    if not low:
        return None
    middle = np.array(values)
    return np.asarray(np.maximum(np.array((middle - np.array(low), np.array(high) - middle)), 0.0))


def _set_axis(ax: "Axes", name: str, axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    side = ax.xaxis if name == "x" else ax.yaxis
    lines = getattr(ax, f"set_{name}scale")
    if axis.scale == "log":
        lines("log")
        side.set_minor_locator(NullLocator())
    if axis.names:
        side.set_ticks(range(len(axis.names)), [_named(text) for text in axis.names])
    else:
        if axis.ticks:
            side.set_ticks(axis.ticks)
        side.set_major_formatter(FuncFormatter(lambda value, _: decimal(value)))
    if axis.extent is not None:
        getattr(ax, f"set_{name}lim")(*axis.extent)
    elif axis.zero:
        getattr(ax, f"set_{name}lim")(**{"left" if name == "x" else "bottom": 0})
    if axis.reverse:
        side.set_inverted(True)
    if axis.shown:
        side.set_label_text(axis.title.replace("$", r"\$"))
    else:
        side.set_ticks([])


def _named(text: str) -> str:
    """Return a name that matplotlib neither reads as a formula nor hides for its underscore; only the end if long."""
    name = short(text).replace("$", r"\$")
    return name if not name.startswith("_") else f" {name}"
