"""Colours and shapes of charts: told apart by colour-blind readers, in light and dark, and in print by shape."""

from dataclasses import dataclass

# Of points, in the order of series; the names are Vega's.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
MATPLOTLIB_SHAPES = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "cross": "P",
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
