"""The field of a record at which reading it fails, found by reading it again and noting each field that is read."""

from collections.abc import Callable, Iterator
from typing import Any


class NotedObject(dict[str, Any]):
    """An object that notes the path of each field that is read."""

    def __init__(self, record: dict[str, Any], path: str, noted: list[str]) -> None:
        """Take a record, its path in its file, and where paths are noted."""
        super().__init__(record)
        self.path, self.noted = path, noted

    def __getitem__(self, key: str) -> Any:
        """Return a field."""
        path = f"{self.path}.{key}" if self.path else key
        self.noted.append(path)  # also of a field that is missing
        return _noted(super().__getitem__(key), path, self.noted)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default."""
        return self[key] if key in self else default  # noqa: SIM401  # dict's get would note nothing

    def items(self) -> Any:
        """Return the fields with their names."""
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        """Return the fields."""
        return [self[key] for key in self]


class NotedList(list[Any]):
    """A list that notes the path of each item that is read."""

    def __init__(self, record: list[Any], path: str, noted: list[str]) -> None:
        """Take a record, its path in its file, and where paths are noted."""
        super().__init__(record)
        self.path, self.noted = path, noted

    def __getitem__(self, place: Any) -> Any:
        """Return an item, or a part as it is."""
        item = super().__getitem__(place)
        if not isinstance(place, int):
            return item
        self.noted.append(f"{self.path}[{place}]")
        return _noted(item, self.noted[-1], self.noted)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""
        return (self[place] for place in range(len(self)))


def last_field(read: Callable[[Any], object], record: Any) -> str | None:
    """Return the path of the field that was read last, or was missing, when reading failed; None if it does not fail.

    >>> last_field(lambda record: [cell["tau"] + 1 for cell in record["cells"]], {"cells": [{"tau": 1}, {"tau": "x"}]})
    'cells[1].tau'
    """
    noted: list[str] = []
    try:
        read(_noted(record, "", noted))
    except Exception:  # noqa: BLE001  # the caller knows the error
        return noted[-1] if noted else None
    return None


def _noted(value: Any, path: str, noted: list[str]) -> Any:
    if isinstance(value, dict):
        return NotedObject(value, path, noted)
    if isinstance(value, list):
        return NotedList(value, path, noted)
    return value
