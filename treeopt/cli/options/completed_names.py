"""Names that a shell completes: models and shapes, devices of data/hardware.json, published trees."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from treeopt.engines import ENGINES, GONE, replacement


class Model(click.Path):
    """A folder of a model or its config.json, or a shape such as `8b`."""

    def __init__(self) -> None:
        """Return paths; whether one exists is checked where it is read."""
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return shapes that begin as typed, and files."""
        from simulate.model_sizes.named_shapes import SHAPES

        names = () if param.name == "drafter" else SHAPES
        more: tuple[str, ...] = ()
        if param.name == "drafter":
            from simulate.model_sizes.drafter_kinds import DRAFTERS

            more = tuple(kind.name for kind in DRAFTERS.values() if kind.named)
        return [*_items((*names, *more), incomplete), CompletionItem(incomplete, type="file")]


class Devices(click.ParamType):  # type: ignore[type-arg]
    """The name of a device; or several between commas, such as `h100,4xh100`."""

    name = "text"

    def __init__(self, *, several: bool = False) -> None:
        """Take one name, or several between commas."""
        self.several = self.whole = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or the names."""
        return tuple(value.split(",")) if self.several and isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return devices whose names begin as the last one that was typed."""
        before, comma, last = incomplete.rpartition(",") if self.several else ("", "", incomplete)
        return _items(device_names(), last, prefix=before + comma)


class EngineName(click.Choice):  # type: ignore[type-arg]
    """The name of an engine; one that treeopt no longer knows is refused with what to use."""

    def __init__(self, names: Callable[[], tuple[str, ...]]) -> None:
        """Take the names that `names` returns."""
        self._names = names
        super().__init__(())

    @property
    def choices(self) -> tuple[str, ...]:
        """The names."""
        return self._names()

    @choices.setter
    def choices(self, names: Sequence[str]) -> None:
        """Leave the names to the registry."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name."""
        if value not in ENGINES and value in GONE:  # looks into other packages, too
            self.fail(replacement(value), param, ctx)
        return super().convert(value, param, ctx)


LIMITING = EngineName(ENGINES.limiting)


def device_names() -> list[str]:
    """Return the names of the data sheets as commands take them.

    >>> "h100" in device_names()
    True
    """
    from simulate.roofline.data_sheets import load_hardware

    words = [name.split() for name in load_hardware()]
    firsts = [word[0].lower() for word in words]
    return [
        first if firsts.count(first) == 1 else " ".join(word).lower() for first, word in zip(firsts, words, strict=True)
    ]


def _items(names: Iterable[str], incomplete: str, *, prefix: str = "") -> list[CompletionItem]:
    return [CompletionItem(prefix + name) for name in names if name.lower().startswith(incomplete.lower())]
