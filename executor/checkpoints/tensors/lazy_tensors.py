"""Tensors that were not read yet: names, shapes and types first, values when they are known to fit."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from executor.target.load_hf_model import DTYPES
from treeopt.errors import ExecutorError

SHOWN = 3


@dataclass(frozen=True)
class Entry:
    """One tensor that was not read yet; `key` is its name in the file, `dtype` None for a type unknown here."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class Stored:
    """What a checkpoint holds.

    Attributes:
        path: the file that messages name; of shards, their index.
        entries: name, as a layout calls it -> tensor.
        config: config.json beside it, {} if there is none.
        spelt: how messages call a tensor that is missing.
    """

    path: Path
    entries: Mapping[str, Entry]
    config: dict[str, Any]
    spelt: Callable[[str], str] = str

    @property
    def facts(self) -> dict[str, Any]:
        """See `facts_of`."""
        return facts_of(self.config)

    @property
    def where(self) -> Path:
        """The configuration's file, for messages."""
        return self.path.parent / "config.json"

    def renamed(self, name_of: Callable[[str], str | None]) -> "Stored":
        """The same under other names; None leaves a tensor out.

        Raises:
            ExecutorError: two tensors come to have one name.
        """
        found: dict[str, Entry] = {}
        for name, entry in self.entries.items():
            new = name_of(name)
            if new is not None and new in found:
                raise ExecutorError(f"{self.path}: {found[new].key} and {entry.key} name the same tensor")
            if new is not None:
                found[new] = entry
        return replace(self, entries=found)

    def fit(self, wanted: Mapping[str, tuple[int, ...]], *, ignored: Iterable[str] = ()) -> None:
        """Refuse tensors that are not these, in these shapes, of floating-point numbers; nothing is read.

        Args:
            wanted: name -> shape.
            ignored: names that may be there; their shapes are not looked at.

        Raises:
            ExecutorError: names what differs, what is missing and what nobody knows.
        """
        unknown = [n for n in self.entries if n not in wanted and n not in set(ignored)]
        missing = [n for n in wanted if n not in self.entries]
        wrong = []
        for name, shape in wanted.items():
            entry = self.entries.get(name)
            if entry is not None and entry.shape != shape:
                wrong.append(f"{entry.key} must be {shape}, found {entry.shape}")
            elif entry is not None and entry.dtype not in DTYPES.values():
                wrong.append(f"{entry.key} must hold floating-point numbers, found {_type(entry)}")
        problems = [
            some(wrong),
            some([f"{self.spelt(n)} {wanted[n]}" for n in missing], f"{len(missing)} missing: "),
            some([f"{self.entries[n].key} {self.entries[n].shape}" for n in unknown], f"{len(unknown)} unknown: "),
        ]
        if any(problems):
            raise ExecutorError(f"{self.path}: " + "; ".join(filter(None, problems)))

    def read(self, name: str) -> Tensor:
        """The values of one tensor, on the CPU.

        Raises:
            ExecutorError: they are not finite.
        """
        entry = self.entries[name]
        values = entry.read()
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise ExecutorError(f"{self.path}: {entry.key} holds values that are not finite")
        return values

    def integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of whole numbers or truth values, as int64.

        Raises:
            ExecutorError: it has another shape, or holds other things.
        """
        entry = self.entries[name]
        if entry.shape != shape:
            raise ExecutorError(f"{self.path}: {entry.key} must be {shape}, found {entry.shape}")
        if entry.dtype is None or entry.dtype.is_floating_point:
            raise ExecutorError(f"{self.path}: {entry.key} must hold whole numbers, found {_type(entry)}")
        return entry.read().long()


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What treeopt itself said in a configuration; {} of other projects' files.

    >>> facts_of({"treeopt_drafter": {"kind": "medusa"}, "vocab_size": 4096})
    {'kind': 'medusa'}
    """
    found = config.get("treeopt_drafter")
    return found if isinstance(found, dict) else {}


def some(items: list[str], lead: str = "") -> str:
    """The first few of a list, and how many more there are; nothing for none.

    >>> some(["a", "b", "c", "d", "e"], "5 missing: ")
    '5 missing: a, b, c and 2 more'
    """
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"{lead}{', '.join(items[:SHOWN])}{more}" if items else ""


def _type(entry: Entry) -> str:
    return "a type unknown here" if entry.dtype is None else str(entry.dtype)
