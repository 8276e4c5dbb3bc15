"""Registries: the entries of one kind, such as drafters or engines, known by name without being listed anywhere.

An entry of treeopt's own is `ENTRY` of a module in the kind's folder, or one of `ENTRIES` of the folder, which may also
be a single module. Other packages register theirs through an entry point of the kind's group; those are scanned only
when a name is not found. Nothing here knows any kind.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from typing import Any, Protocol, TypeVar

from treeopt.errors import UsageError


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str:
        """The name that users write."""


Entry = TypeVar("Entry", bound=Named)


@cache
def entry_points(group: str) -> metadata.EntryPoints:
    """Return what installed packages offer, read once per process: it takes 10 ms, and paths of models are no names."""
    return metadata.entry_points(group=group)


class Registry(Mapping[str, Entry]):
    """The entries of one kind by name, sorted; treeopt's own are imported when the first of them is asked for.

    A module of the folder without an `ENTRY` is no entry. Entries must not import torch: what needs it is named as
    `module:name` and loaded with `load`.
    """

    def __init__(self, kind: str, folder: str, *, group: str) -> None:
        """Name a registry.

        Args:
            kind: what an entry is, for messages, such as `drafter`.
            folder: the package whose modules define entries, such as `executor.drafters`, or the module of all entries.
            group: the group of entry points by which other packages add entries.
        """
        self.kind, self.folder, self.group = kind, folder, group
        self._own: dict[str, Entry] | None = None
        self._added: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        """Return an entry; entry points are scanned where treeopt itself has none of this name.

        Raises:
            UsageError: no entry of this name; lists the names.
        """
        entries = self._entries()
        if name not in entries:
            self._scan(name)
            entries = self._entries()
        if name not in entries:
            raise UsageError(f"{self.kind} must be one of {', '.join(self)}; got {name!r:.60}")
        return entries[name]

    def __contains__(self, name: object) -> bool:
        """Return whether an entry has this name."""
        if name not in self._entries():
            self._scan(name)
        return name in self._entries()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(sorted(self._entries()))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries())

    def find(self, holds: Callable[[Entry], bool]) -> Entry | None:
        """Return an entry of which this holds, None without one; entry points are scanned where no known one does."""
        entry = next(filter(holds, self.values()), None)
        if entry is None:
            self._scan(None)
            entry = next(filter(holds, self.values()), None)
        return entry

    def all(self) -> list[Entry]:
        """Return all entries, also those of other packages."""
        self._scan(None)
        return list(self.values())

    def register(self, entry: Entry) -> None:
        """Add an entry for as long as this process runs; a later one of the same name replaces it."""
        self._added[entry.name] = entry

    @contextmanager
    def registered(self, *entries: Entry) -> Iterator[None]:
        """Add entries within a `with` statement."""
        before = dict(self._added)
        for entry in entries:
            self.register(entry)
        try:
            yield
        finally:
            self._added = before

    def _entries(self) -> dict[str, Entry]:
        if self._own is None:
            package = import_module(self.folder)
            found = pkgutil.iter_modules(getattr(package, "__path__", ()))
            modules = [import_module(f"{self.folder}.{module.name}") for module in found]
            own: list[Entry] = [module.ENTRY for module in modules if hasattr(module, "ENTRY")]
            own += getattr(package, "ENTRIES", ())
            self._own = {entry.name: entry for entry in own}
        return self._own | self._added

    def _scan(self, wanted: object) -> None:
        """Add the entries of other packages; a broken one is an error only where its own name is asked for."""
        for point in entry_points(group=self.group):
            if point.name in self._added:
                continue
            try:
                entry = point.load()
                fault = "" if hasattr(entry, "name") else f"is no {self.kind}: it has no `name`"
            except Exception as error:  # noqa: BLE001 (another package's code can fail in any way)
                fault = f"cannot be imported: {' '.join(str(error).split()) or type(error).__name__}"
            if not fault:
                self._added[point.name] = entry
            elif point.name == wanted:
                raise UsageError(
                    f"{self.kind} {point.name}: {point.value}, an entry point of {self.group}, {fault}; "
                    "repair or uninstall its package"
                )


def load(reference: str) -> Any:
    """Import what an entry names as `module:name`.

    >>> load("treeopt.tree:Tree").__name__
    'Tree'
    """
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
