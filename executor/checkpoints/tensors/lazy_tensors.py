"""Lazy tensors of a checkpoint: names, shapes and types first, values only when they are known to fit."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from executor.target.load_hf_model import DTYPES
from treeopt.errors import ExecutorError, shorten


@dataclass(frozen=True)
class Entry:
    """A tensor that is not read yet; `key` is its name in the file, `dtype` None for an unknown type."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class Stored:
    """The tensors and the configuration of a checkpoint.

    Attributes:
        path: the file that messages name; for shards, their index.
        entries: the layout's name -> tensor.
        config: config.json beside it, {} if there is none.
        spelt: maps a missing tensor's name to the name that messages use.
        assumptions: what readers assumed where the files say nothing; renamed copies share the list.
    """

    path: Path
    entries: Mapping[str, Entry]
    config: dict[str, Any]
    spelt: Callable[[str], str] = str
    assumptions: list[str] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """See `facts_of`."""
        return facts_of(self.config)

    @property
    def where(self) -> Path:
        """The path of config.json, for messages."""
        return self.path.parent / "config.json"

    def assume(self, sentence: str) -> None:
        """Record an assumption, to be printed: a sentence without a full stop."""
        line = f"{self.where}: {sentence}"
        if line not in self.assumptions:
            self.assumptions.append(line)

    def renamed(self, name_of: Callable[[str], str | None]) -> "Stored":
        """Return the tensors under other names, without those named None; raise ExecutorError if two have one name."""
        renamed: dict[str, Entry] = {}
        for name, entry in self.entries.items():
            new = name_of(name)
            if new is not None and new in renamed:
                raise ExecutorError(f"{self.path}: {renamed[new].key} and {entry.key} name the same tensor")
            if new is not None:
                renamed[new] = entry
        return replace(self, entries=renamed)

    def fit(self, wanted: Mapping[str, tuple[int, ...]], *, ignored: Iterable[str] = ()) -> None:
        """Check that the tensors are these, in these shapes, with floating-point numbers; reads nothing.

        Args:
            wanted: name -> shape.
            ignored: names that may be present; their shapes are not checked.

        Raises:
            ExecutorError: names tensors that differ, are missing or are unknown.
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
            shorten(wrong),
            shorten([f"{self.spelt(n)} {wanted[n]}" for n in missing], f"{len(missing)} missing: "),
            shorten([f"{self.entries[n].key} {self.entries[n].shape}" for n in unknown], f"{len(unknown)} unknown: "),
        ]
        if any(problems):
            raise ExecutorError(f"{self.path}: " + "; ".join(filter(None, problems)))

    def read(self, name: str) -> Tensor:
        """Read the values of one tensor, on the CPU; raise ExecutorError if they are not finite."""
        entry = self.entries[name]
        values = entry.read()
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise ExecutorError(f"{self.path}: {entry.key} holds values that are not finite")
        return values

    def integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of integers or booleans as int64; raise ExecutorError for another shape or type."""
        entry = self.entries[name]
        if entry.shape != shape:
            raise ExecutorError(f"{self.path}: {entry.key} must be {shape}, found {entry.shape}")
        if entry.dtype is None or entry.dtype.is_floating_point:
            raise ExecutorError(f"{self.path}: {entry.key} must hold whole numbers, found {_type(entry)}")
        return entry.read().long()


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that treeopt recorded in a configuration; {} for other projects' files.

    >>> facts_of({"treeopt_drafter": {"kind": "medusa"}, "vocab_size": 4096})
    {'kind': 'medusa'}
    """
    facts = config.get("treeopt_drafter")
    return facts if isinstance(facts, dict) else {}


def _type(entry: Entry) -> str:
    return "an unknown type" if entry.dtype is None else str(entry.dtype)


M = TypeVar("M", bound=nn.Module)
LAYER, DEEPER, STORED_LAYER = "layer.", "deeper.", "layers.0."


def fill_module(
    make: Callable[[], M],
    stored: Stored,
    name_of: Callable[[str], str],
    *,
    ignored: Iterable[str] = (),
    zero: Collection[str] = (),
    given: Mapping[str, Tensor] | None = None,
) -> M:
    """Return the module that `make` makes, with its parameters and buffers read; allocates nothing before all fit.

    Args:
        make: called twice, the first time only for the shapes.
        stored: the tensors.
        name_of: name of a parameter -> name in `stored`.
        ignored: names that may be present and are not read.
        zero: names that are zeros if they are absent.
        given: values for names that are absent.

    Raises:
        ExecutorError: names the tensors that do not fit.
    """
    with torch.device("meta"):
        wanted = {name_of(name): tuple(value.shape) for name, value in make().state_dict().items()}
    given = dict(given or {}) | {name: torch.zeros(()) for name in zero}
    absent = {name for name in given if name not in stored.entries}
    stored.fit({name: shape for name, shape in wanted.items() if name not in absent}, ignored=ignored)
    module = make()
    with torch.no_grad():
        for name, value in module.state_dict().items():
            value.copy_(given[name_of(name)] if name_of(name) in absent else stored.read(name_of(name)))
    return module


def named(module: nn.Module, name_of: Callable[[str], str]) -> dict[str, Tensor]:
    """Return the parameters, and the buffers that are stored, under their names in a file."""
    return {name_of(name): value for name, value in module.state_dict().items()}


def layer_name(name: str) -> str:
    """Return a layer parameter's name as Hugging Face's models call it; other names are unchanged.

    >>> layer_name("layer.mlp.up_proj.weight"), layer_name("fc.weight")
    ('layers.0.mlp.up_proj.weight', 'fc.weight')
    >>> layer_name("deeper.0.mlp.up_proj.weight")
    'layers.1.mlp.up_proj.weight'
    """
    if name.startswith(DEEPER):
        _, number, rest = name.split(".", 2)
        return f"layers.{int(number) + 1}.{rest}"
    return STORED_LAYER + name.removeprefix(LAYER) if name.startswith(LAYER) else name
