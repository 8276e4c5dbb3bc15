"""Charts as pictures and as specifications: what a page takes over in its own words, and what it draws."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treeopt.charts.marks import WIDTH

if TYPE_CHECKING:
    import altair as alt


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
    def of(cls, chart: "alt.LayerChart") -> "Figure":
        """Return a chart as a figure."""
        spec = chart.to_dict()
        title, conditions = spec.pop("title")["text"], spec.pop("usermeta")["conditions"]
        spec |= {"width": "container", "background": "transparent"}
        return cls(title, tuple(conditions), spec["description"], spec, spec["height"])

    def svg(self) -> str:
        """Return the figure as an SVG element."""
        return as_svg(self.spec | {"width": WIDTH})


def as_svg(spec: dict[str, Any]) -> str:
    """Return a specification as an SVG element, the same for the same chart."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg
