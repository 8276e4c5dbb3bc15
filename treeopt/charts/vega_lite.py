"""Charts as Vega-Lite specifications: interactive, each mark shows its full values on pointing at it."""

import json
from typing import Any

from treeopt.charts.chart import Axis, Chart, Layer, rows_of
from treeopt.charts.palette import LIGHT, Palette, shape

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
LARGEST = 420  # square pixels of the largest point, where sizes differ
DOT = 55  # square pixels of a point
DASHES = [5, 4]
UNNAMED = 140  # pixels that a name may take


def as_vega_lite(chart: Chart, *, palette: Palette = LIGHT, width: int | str = "container") -> dict[str, Any]:
    """Return a chart as a Vega-Lite specification, without title and legend if its width is the container's.

    Args:
        chart: the chart.
        palette: its colours.
        width: pixels, or `container` to fill the element that it is put into. A chart of its own width has its title
            and a legend.
    """
    alone = width != "container"
    spec: dict[str, Any] = {
        "$schema": SCHEMA,
        "width": width,
        "height": chart.height,
        "autosize": {"type": "fit", "contains": "padding"},
        "background": palette.back if alone else "transparent",
        "description": chart.alt or chart.title,
        "config": _config(palette),
        "layer": [mark for layer in chart.layers for mark in _marks(chart, layer, palette, legend=alone)],
    }
    return {"title": chart.title, **spec} if alone else spec


def _config(palette: Palette) -> dict[str, Any]:
    grey, ink = palette.muted, palette.text
    axis = {
        "labelColor": grey, "titleColor": ink, "gridColor": palette.grid, "domain": False, "ticks": False,
        "titleFontWeight": 500, "labelFontSize": 12, "titleFontSize": 12.5, "titlePadding": 10, "labelPadding": 5,
        "labelFont": FONT, "titleFont": FONT,
    }  # fmt: skip
    legend = {"labelColor": palette.text, "titleColor": palette.text, "orient": "bottom", "columns": 2, "title": None}
    return {"view": {"stroke": None}, "font": FONT, "axis": axis, "legend": legend, "title": {"color": palette.text}}


def _marks(chart: Chart, layer: Layer, palette: Palette, *, legend: bool) -> list[dict[str, Any]]:
    """Return the marks of a layer: intervals are lines with points on them."""
    names = chart.series
    place = names.index(layer.series) if layer.series else 0
    grey = layer.muted or not layer.series
    colour = palette.muted if grey else palette.colour(place)
    data = {"values": rows_of(layer) if layer.mark != "rule" else _rule_rows(layer)}
    for row, number in zip(data["values"], range(len(layer)), strict=False):
        row |= {name: column[number] for name, column in layer.details} | ({"series": layer.series} if legend else {})
    across, upwards = _position("x", chart.x), _position("y", chart.y)
    tips = [] if layer.mark in ("rule", "edges", "labels", "band") else _tips(chart, layer)
    found = []
    for mark, encoding in _drawn(layer, colour, place, across, upwards, palette):
        if legend and layer.series and mark["type"] in ("point", "line", "area"):
            encoding = encoding | {"color": _legend(chart, palette)}
            filled = {"filled": not layer.dashed} if mark["type"] == "point" else {}
            mark = {key: value for key, value in mark.items() if key not in ("color", "stroke", "fill")} | filled
        found.append({"data": data, "mark": mark, "encoding": encoding | ({"tooltip": tips} if tips else {})})
    return found


def _legend(chart: Chart, palette: Palette) -> dict[str, Any]:
    colours = [palette.muted if chart.muted(name) else palette.colour(place) for place, name in enumerate(chart.series)]
    return {"field": "series", "type": "nominal", "scale": {"domain": list(chart.series), "range": colours}}


def _drawn(
    layer: Layer, colour: str, place: int, x: dict[str, Any], y: dict[str, Any], palette: Palette
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return marks with their encodings."""
    dash = {"strokeDash": DASHES} if layer.dashed else {}
    both = {"x": x, "y": y}
    if layer.mark in ("line", "steps"):
        bend = {"interpolate": "step-after"} if layer.mark == "steps" else {}
        order = {"order": {"value": 0}}  # lines follow the rows, not the x axis
        return [({"type": "line", "color": colour, "strokeWidth": 2, **bend, **dash}, both | order)]
    if layer.mark == "band":
        edges = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}}
        return [({"type": "area", "color": colour, "opacity": 0.16}, edges)]
    if layer.mark == "rule":
        side = {"x": x} if layer.x else {"y": y}
        return [({"type": "rule", "color": colour, "strokeWidth": 1.25, "strokeDash": DASHES}, side)]
    if layer.mark == "edges":
        ends = both | {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
        return [({"type": "rule", "color": colour, "strokeWidth": 1.25, **dash}, ends)]
    if layer.mark == "labels":
        look = {
            "type": "text",
            "color": palette.text,
            "fontSize": 11.5,
            "align": "left",
            "dx": 7,
            "dy": -7,
            "font": FONT,
        }
        return [(look, both | {"text": {"field": "text", "type": "nominal"}})]
    return [*_bars(layer, colour, both), (_dot(layer, colour, place, palette), both | _sizes(layer))]


def _bars(layer: Layer, colour: str, both: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    line = {"type": "rule", "color": colour, "strokeWidth": 1.5, "opacity": 0.75}
    bars = []
    if layer.low:
        bars.append((line, both | {"y": both["y"] | {"field": "low"}, "y2": {"field": "high"}}))
    if layer.left:
        bars.append((line, both | {"x": both["x"] | {"field": "left"}, "x2": {"field": "right"}}))
    return bars


def _dot(layer: Layer, colour: str, place: int, palette: Palette) -> dict[str, Any]:
    drawn = {"type": "point", "shape": shape(place), "size": DOT, "opacity": 1, "strokeWidth": 1.75}
    return drawn | {"stroke": colour, "fill": palette.back if layer.dashed else colour}


def _sizes(layer: Layer) -> dict[str, Any]:
    scale = {"domain": [0, 1], "range": [12, LARGEST]}
    return {"size": {"field": "size", "type": "quantitative", "scale": scale, "legend": None}} if layer.size else {}


def _position(name: str, axis: Axis) -> dict[str, Any]:
    """Return the encoding of a place."""
    scale: dict[str, Any] = {"zero": axis.zero, "nice": axis.limits is None and axis.scale == "linear"}
    if axis.scale == "log":
        scale = {"type": "log", "nice": False}
    if axis.extent is not None:
        scale["domain"] = list(axis.extent)
        scale["nice"] = False
    if axis.reverse:
        scale["reverse"] = True
    drawn: dict[str, Any] | None = {"title": axis.title or None, "format": ",~r", "labelOverlap": True, "tickCount": 6}
    if not axis.shown:
        drawn = None
    elif axis.names:
        expression = f"{json.dumps(axis.names)}[datum.value]"
        drawn = {
            "title": axis.title or None, "values": list(range(len(axis.names))), "labelExpr": expression,
            "labelLimit": UNNAMED, "labelOverlap": False,
        }  # fmt: skip
    elif axis.ticks and drawn is not None:
        drawn["values"] = list(axis.ticks)
    return {"field": name, "type": "quantitative", "scale": scale, "axis": drawn}


def _rule_rows(layer: Layer) -> list[dict[str, Any]]:
    name = "x" if layer.x else "y"
    return [{name: value} for value in (layer.x or layer.y)]


def _tips(chart: Chart, layer: Layer) -> list[dict[str, Any]]:
    """Return what a reader sees on pointing at a mark: the values in full, with both ends of their intervals."""
    tips: list[dict[str, Any]] = []
    for name, axis, ends in (("x", chart.x, ("left", "right")), ("y", chart.y, ("low", "high"))):
        title = axis.title or name
        if not axis.names and axis.shown:
            tips.append(_tip(name, title))
            tips += [
                _tip(end, f"{title}, {word}")
                for end, word in zip(ends, ("from", "to"), strict=True)
                if getattr(layer, end)
            ]
    return [*tips, *({"field": name, "type": "nominal", "title": name} for name, _ in layer.details)]


def _tip(field: str, title: str) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title, "format": ",.6~r"}
