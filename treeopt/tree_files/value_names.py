"""Values by name: one name may be given several values, and a program may change a value after it is assigned."""

from collections.abc import Hashable, Iterable
from typing import Any


class Names(dict[Any, Any]):
    """Values by name, as a text gives them.

    Attributes:
        changed: line of the assignment, by the dotted name of what is changed after it.
    """

    def __init__(self, values: Any = (), changed: dict[str, int] | None = None) -> None:
        """Hold the values, and the lines after which some are changed."""
        super().__init__(values)
        self.changed = changed or {}


def numbered(pairs: Iterable[tuple[Hashable, Any]]) -> Names:
    """Return values by name; if those of one name differ, each has its number before the name.

    >>> numbered([("a", 1), ("b", 2), ("a", 1)]), numbered([("a", 1), ("a", 2)])
    ({'a': 1, 'b': 2}, {'1.a': 1, '2.a': 2})
    """
    values: dict[Hashable, list[Any]] = {}
    for name, value in pairs:
        others = values.setdefault(name, [])
        if value not in others:
            others.append(value)
    single = {name: held[0] for name, held in values.items() if len(held) == 1}
    several = {f"{i}.{name}": held for name, all_ in values.items() if len(all_) > 1 for i, held in enumerate(all_, 1)}
    return Names(single | several)


def changed_line(values: Any, name: str) -> int | None:
    """Return the line of the assignment after which a program changes a value; None if it does not."""
    changed = values.changed if isinstance(values, Names) else {}
    return next((line for other, line in changed.items() if related(other, name)), None)


def related(changed: str, name: str) -> bool:
    """Return True if changing one name changes another: the same, what holds it, or what it holds.

    >>> related("cfg", "cfg.tree"), related("config.choices", "choices"), related("cfg.other", "cfg.tree")
    (True, True, False)
    """
    return (
        changed == name
        or name.startswith(f"{changed}.")
        or changed.startswith(f"{name}.")
        or changed.endswith(f".{name}")
    )
