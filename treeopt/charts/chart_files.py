"""Charts as pictures and as specifications: what a page takes over in its own words, and what it draws."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treeopt.charts.marks import WIDTH
from treeopt.charts.theme import CONFIG

if TYPE_CHECKING:
    import altair as alt

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
        spec = chart.to_dict()
        title = spec.pop("title", "")
        text = title if isinstance(title, str) else title["text"]
        spec |= {"width": "container", "background": "transparent", "config": CONFIG | spec.get("config", {})}
        for layer in spec.get("layer", ()):
            for legend in (layer["encoding"].get(channel, {}).get("legend") for channel in ("color", "shape")):
                if legend:
                    legend["columns"] = max(1, legend["columns"] // 2)  # fits narrow screens
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
