"""Methods that values of the Python API share: HTML for notebooks, plots, files. Rooms above provide the functions.

Values stand at the bottom of the house, drawing and writing above them. `treeopt/__init__.py`, which Python runs before
any module of a room, says where the functions are; each is loaded when it is first called.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from matplotlib.axes import Axes

Loader = Callable[[str], Callable[..., Any]]
_LOADERS: dict[str, Loader] = {}


def provide(names: tuple[str, ...], loader: Loader) -> None:
    """Register a loader of the functions that methods call, by name."""
    _LOADERS.update(dict.fromkeys(names, loader))


class ValueMethods:
    """Base class of trees, traces, plans, profiles and records of results."""

    def __init_subclass__(cls) -> None:
        """Give each class an entry of its own, which IPython prefers to the class's `__repr__`."""
        super().__init_subclass__()
        cls._repr_pretty_ = ValueMethods._repr_pretty_  # type: ignore[method-assign]

    def save(self, path: Path | str) -> None:
        """Write the value to a file, whole or not at all; `treeopt.load_*` reads it.

        Raises:
            TraceError, TreeError: a trace whose `meta` uses a key of the file's own header; a tree without nodes.
            OSError: the file cannot be written.
        """
        _LOADERS["save_value"]("save_value")(self, path)

    def frame(self) -> "pd.DataFrame":
        """Return the main table: one row per configuration, or per what the value holds several of.

        Names end in their unit: `_s` is seconds, but `tokens_s`, `requests_s` and `goodput_s` are rates per second.
        Estimates such as `tau` have their 95 % interval in `tau_low` and `tau_high`.
        """
        frame: pd.DataFrame = _LOADERS["frame_of"]("frame_of")(self)
        return frame

    def plot(self, ax: "Axes | None" = None, *, chart: str | None = None) -> "alt.LayerChart | Axes":
        """Return a chart of the value, as the HTML report has it; needs altair.

        Args:
            ax: matplotlib's axes to draw into, for the speedup of a plan and the tau of a trace.
            chart: name of the chart, where a value has several; default the first. An unknown name lists them.

        Returns:
            The chart, which notebooks show; `ax` if that is given.

        Raises:
            UsageError: the value has no chart, or none of this name; the message lists those that it has.
        """
        drawn: alt.LayerChart | Axes = _LOADERS["plot_value"]("plot_value")(self, ax, chart=chart)
        return drawn

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print a summary that IPython shows in place of `repr`."""
        printer.text(_LOADERS["text_of"]("text_of")(self))

    def _repr_html_(self) -> str:
        """Return a summary that notebooks show in place of `repr`."""
        return str(_LOADERS["html_of"]("html_of")(self))
