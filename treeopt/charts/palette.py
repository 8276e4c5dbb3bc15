"""Colours and shapes of charts, which colour-blind readers can tell apart in both themes, and by shape in print."""

from dataclasses import dataclass

# Of points, in the order of series; the names are Vega's.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
MATPLOTLIB_SHAPES = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "cross": "P",
}  # fmt: skip
# The same as outlines in a box of 12 by 12.
OUTLINES = {
    "circle": "M6 1.6a4.4 4.4 0 1 0 0 8.8a4.4 4.4 0 1 0 0-8.8z", "square": "M2 2h8v8h-8z",
    "triangle-up": "M6 1.4l5 9h-10z", "triangle-down": "M6 10.6l5-9h-10z",
    "diamond": "M6 .8l5.2 5.2l-5.2 5.2l-5.2-5.2z",
    "cross": "M4.4 1.2h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
}  # fmt: skip


@dataclass(frozen=True)
class Palette:
    """Colours: of series in their order, of text, of grey marks, of grid lines, and behind the chart."""

    series: tuple[str, ...]
    text: str
    muted: str
    grid: str
    back: str

    def colour(self, place: int) -> str:
        """Return the colour of a series by its place."""
        return self.series[place % len(self.series)]


# After Okabe and Ito 2008, darkened or lightened to a contrast of at least 3 with the page.
LIGHT = Palette(
    ("#0b62b5", "#b8470a", "#0b7a5b", "#94407c", "#7a6000", "#4d5bc4", "#8c2f2f"),
    text="#1d2530", muted="#5a6470", grid="#e3e6ea", back="#ffffff",
)  # fmt: skip
DARK = Palette(
    ("#6db3ff", "#ff9d66", "#4fd0a5", "#e59ad0", "#dcc15a", "#a5afff", "#ff9a9a"),
    text="#e6eaf0", muted="#98a2b0", grid="#2c343f", back="#161b22",
)  # fmt: skip
# Custom properties of the page, so that charts follow its theme.
STYLED = Palette(
    tuple(f"var(--series-{place})" for place in range(len(LIGHT.series))),
    text="var(--text)", muted="var(--muted)", grid="var(--grid)", back="var(--card)",
)  # fmt: skip


def shape(place: int) -> str:
    """Return the shape of a series by its place."""
    return SHAPES[place % len(SHAPES)]


def legend_mark(place: int, colour: str, *, points: bool, dashed: bool) -> str:
    """Return the mark of a series in a legend as SVG: a point, hollow if it is drawn so, or a piece of its line.

    Args:
        place: of the series.
        colour: a CSS colour.
        points: the series has points; else it is a line.
        dashed: hollow points, a dashed line.
    """
    if points:
        ink = f'fill="none" stroke="{colour}" stroke-width="1.4"' if dashed else f'fill="{colour}"'
        path, width = f'<path d="{OUTLINES[shape(place)]}" {ink}/>', 12
    else:
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        path, width = f'<path d="M0 6h21" stroke="{colour}" stroke-width="2"{dash}/>', 21
    box = f'viewBox="0 0 {width} 12" width="{width}" height="12"'
    return f'<svg {box} aria-hidden="true" focusable="false">{path}</svg>'
