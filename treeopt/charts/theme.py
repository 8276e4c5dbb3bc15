"""The look of charts: colours and shapes that colour-blind readers can tell apart in both themes and in print.

Charts have the colours of the light theme; `themed` replaces them where a page has a dark one too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
