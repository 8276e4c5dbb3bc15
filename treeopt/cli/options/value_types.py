"""Values of options: numbers, lists of them, files for tables, names that a shell completes, trees and policies."""

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from treeopt.api.file_loading import load_tree
from treeopt.engines import ENGINES, GONE, replacement
from treeopt.errors import TreeError, TreeoptError, UsageError
from treeopt.policies import DynamicTree, OptTree, Policy
from treeopt.policies.policy import setting_names
from treeopt.registry import Registry
from treeopt.settings import meaning_of
from treeopt.storage.json_records import LARGEST_NUMBER
from treeopt.storage.table_files import check_table_file
from treeopt.storage.user_files import address_of
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import holds_a_tree, named_tree, published_trees
from treeopt.tree_files.tree_text import value_in_text

LARGEST = 2**31  # whole number of a list
UNITS = {"k": 1024, "m": 1024**2}
DIGITS = 10  # of a number of tokens


class Real(click.FloatRange):
    """A finite number within bounds; click's own comparison lets NaN pass any bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if self.min is not None and number == self.min and self.min_open:
            self.fail(f"{value} must be above {self.min:g}", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        if abs(number) > LARGEST_NUMBER:
            self.fail(f"{value} is more than {LARGEST_NUMBER:g}", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number within bounds, at most `LARGEST`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if number > LARGEST and self.max is None:
            self.fail(f"{str(value)[:40]} is more than {LARGEST}", param, ctx)
        return number


class Tokens(Whole):
    """A number of tokens within bounds, such as 8192, 8k or 1M (k: 1024, M: 1024 k)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        try:
            value = count(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"{value!r} is not a number of tokens such as 512, 8k or 1M", param, ctx)
        return super().convert(value, param, ctx)


def count(text: str) -> int:
    """Return a number of tokens; raise ValueError for another text.

    >>> count("512"), count("8k"), count("8K"), count("1M")
    (512, 8192, 8192, 1048576)
    """
    text = text.strip()
    unit = UNITS.get(text[-1:].lower(), 1)
    digits = text[:-1] if unit > 1 else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS):
        raise ValueError(text)
    return int(digits) * unit


class Text(click.ParamType):  # type: ignore[type-arg]  # which click takes from 8.4 on
    """A text that a function reads."""

    def __init__(
        self,
        name: str,
        read: Callable[[str], Any],
        made: Any,
        *,
        complete: Callable[[str], list[CompletionItem]] = lambda text: [],
        whole: bool = False,
    ) -> None:
        """Take a function that reads texts.

        Args:
            name: of the value in help texts.
            read: returns the value of a text; raises ValueError with what is wrong.
            made: the class of its values; those that are given, such as defaults, stay.
            complete: returns what a shell offers for the beginning of a text.
            whole: one text holds all values of a field.
        """
        self.name, self.read, self.made, self.complete, self.whole = name, read, made, complete, whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        try:
            return value if isinstance(value, self.made) else self.read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return what begins as typed."""
        return self.complete(incomplete)


def files(incomplete: str) -> list[CompletionItem]:
    """Return the completion by files."""
    return [CompletionItem(incomplete, type="file")]


def items(names: Iterable[str], incomplete: str, *, prefix: str = "") -> list[CompletionItem]:
    """Return the completions of a text by names."""
    return [CompletionItem(prefix + name) for name in names if name.lower().startswith(incomplete.lower())]


def _duration(text: str) -> float:
    """Return the seconds of a time above 0, in seconds or such as 90s, 15m or 1h."""
    text = text.strip()
    scale = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        seconds = float(text[:-1] if scale else text) * (scale or 1)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text[:40]!r} is not a time such as 900, 15m or 1h")
    return seconds


DURATION = Text("time", _duration, float)


def numbers(noun: str = "batch sizes") -> Text:
    """Return the type of whole numbers such as `1,2,8`, `512,8k` (k: 1024) or `1-64`, which doubles; each once.

    >>> numbers().read("4,1-10,8k")
    (4, 1, 2, 8, 10, 8192)
    """

    def read(text: str) -> tuple[int, ...]:
        found: list[int] = []
        try:
            for part in text.split(","):
                first, dash, last = part.partition("-")
                found += _doubled(_number(first), _number(last)) if dash else [_number(first)]
        except ValueError:
            form = f"whole numbers in 1..{LARGEST} such as 1,2,8 or 512,8k or 1-64"
            raise ValueError(f"{text!r} is not a list of {noun}, {form}") from None
        return tuple(dict.fromkeys(found))

    return Text("sizes", read, tuple)


def _address(text: str) -> tuple[int, str]:
    """Return the draft length of a server and its address."""
    length, equals, url = text.partition("=")
    if not equals or not (length.isascii() and length.isdigit()) or len(length) > 3:
        raise ValueError(f"{text!r} must be like 3=http://127.0.0.1:8000, the draft length and the address")
    return int(length), url


ADDRESS = Text("k=url", _address, tuple)


def names_of(choices: Collection[str], noun: str) -> Text:
    """Return the type of names between commas, each of them a choice; the noun stands for them in help texts."""

    def read(text: str) -> frozenset[str]:
        names = frozenset(name.strip() for name in text.split(",") if name.strip())
        if unknown := sorted(names - set(choices)):
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(choices)}")
        return names

    return Text(noun, read, frozenset)


def numbers_text(numbers: tuple[int, ...]) -> str:
    """Return numbers as `numbers` reads them, for defaults.

    >>> numbers_text((1, 2, 4))
    '1,2,4'
    """
    return ",".join(map(str, numbers))


def _number(text: str) -> int:
    number = count(text)
    if not 1 <= number <= LARGEST:
        raise ValueError
    return number


def _doubled(low: int, high: int) -> list[int]:
    if low > high:
        raise ValueError
    numbers = [low]
    while numbers[-1] * 2 < high:
        numbers.append(numbers[-1] * 2)
    return numbers if low == high else [*numbers, high]


class TableFile(click.Path):
    """The name of a file for a table, which must end in .csv or .parquet."""

    def __init__(self) -> None:
        """Take files only."""
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = Path(str(super().convert(value, param, ctx)))
        try:
            check_table_file(path)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return path


class Model(click.Path):
    """A folder of a model or its config.json, or a shape such as `8b`."""

    def __init__(self) -> None:
        """Return paths; whether one exists is checked where it is read."""
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return shapes that begin as typed, and files."""
        from simulate.drafter_kinds import DRAFTERS
        from simulate.model_sizes.hf_config import SHAPES, known_models

        kinds = [kind.name for kind in DRAFTERS.values() if kind.named]
        names = kinds if param.name == "drafter" else [*SHAPES, *known_models()]
        return [*items(names, incomplete), *files(incomplete)]


class EntryName(click.Choice):  # type: ignore[type-arg]
    """The name of an entry of a registry; an unknown one is looked for in other packages."""

    def __init__(
        self, registry: Registry[Any], names: Callable[[], Sequence[str]] | None = None, *, otherwise: str = ""
    ) -> None:
        """Take the names that `names` returns, by default all of the registry, and what to do about other names."""
        self._registry, self._names, self._otherwise = registry, names or (lambda: list(registry)), otherwise
        super().__init__(())

    @property
    def choices(self) -> tuple[str, ...]:
        """The names."""
        return tuple(self._names())

    @choices.setter
    def choices(self, names: Sequence[str]) -> None:
        """Leave the names to the registry."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; case and marks do not count: `vLLM`, `EAGLE-3`."""
        value = {_letters(name): name for name in self.choices}.get(_letters(value), value)
        if value not in self.choices and value not in self._registry:  # looks into other packages
            self.unknown(value, param, ctx)
        return super().convert(value, param, ctx)

    def unknown(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> None:
        """Refuse a name that no package has, if there is more to say than which names there are."""
        if self._otherwise:
            self.fail(f"{value!r} is not one of {', '.join(self.choices)}: {self._otherwise}", param, ctx)


def _letters(name: Any) -> str:
    return "".join(filter(str.isalnum, str(name))).lower()


class EngineName(EntryName):
    """The name of an engine; one that treeopt no longer knows is refused with what to use."""

    def __init__(self, names: Callable[[], tuple[str, ...]], *, versions: bool = False) -> None:
        """Take the names that `names` returns; with `versions` also such as vllm==0.10.2."""
        super().__init__(ENGINES, names)
        self._versions = versions

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, with its version."""
        name, equals, version = str(value).partition("==") if self._versions else (value, "", "")
        return super().convert(name, param, ctx) + equals + version

    def unknown(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> None:
        """Say what to use in place of an engine that is gone."""
        if value in GONE:
            self.fail(replacement(value), param, ctx)


LIMITING = EngineName(ENGINES.limiting)


def device_names() -> list[str]:
    """Return the names of the data sheets as commands take them.

    >>> {"h100", "rtx-5090", "m4", "m4-max"} <= set(device_names())
    True
    """
    from simulate.roofline.data_sheets import load_hardware

    words = [name.split() for name in load_hardware()]
    firsts = [word[0].lower() for word in words]
    return [
        first if firsts.count(first) == 1 else "-".join(word).lower() for first, word in zip(firsts, words, strict=True)
    ]


def _devices(incomplete: str) -> list[CompletionItem]:
    """Return devices whose names begin as the last one that was typed."""
    before, comma, last = incomplete.rpartition(",")
    return items(device_names(), last, prefix=before + comma)


DEVICE = Text("text", str, str, complete=lambda text: items(device_names(), text))
DEVICES = Text("text", lambda text: tuple(text.split(",")), tuple, complete=_devices, whole=True)
SETTINGS = {kind: setting_names(kind) for kind in (DynamicTree, OptTree)}
SPELLED = frozenset("[({\n")  # characters of a tree that is given itself: of lists, and of YAML over several lines


def static_tree(text: str) -> Tree:
    """Return the tree of `5`, `[[0,0],[1]]`, `[(0,), (1,)]`, `FILE`, `FILE:NAME` or `medusa/mc_sim_7b_63`.

    Whatever a file may hold may also be given itself: an assignment, an option, an engine's configuration.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        path, _, name = text.rpartition(":")
        if any(map(os.path.isfile, (text, path))):
            try:
                return load_tree(text) if os.path.exists(text) else load_tree(path, name=name)
            except TreeoptError as error:
                raise ValueError(error) from error
        if text in published_trees():
            return published_trees()[text]
        if not set(text) & SPELLED:
            forms = "the length of a chain, rank paths such as [[0,0],[1]], a file of them, nor a published tree"
            raise ValueError(f"{text[:80]!r} is neither {forms} ({', '.join(published_trees())})") from None
        content = ""
    try:
        if type(content) is int:
            return Tree.chain(content)
        inner, suffix = (content or text, "") if isinstance(content, str) else (text, ".json")
        return named_tree(value_in_text(inner, suffix, fits=holds_a_tree)).tree
    except (TreeError, TypeError) as error:
        raise ValueError(f"{text[:80]!r}: {error}") from error


STATIC = Text("tree", static_tree, Tree, complete=lambda text: [*items(published_trees(), text), *files(text)])
NAMED_TREE = Text("tree", lambda text: (text, static_tree(text)), tuple)  # with the name that it was given by


def dynamic(**fixed: Any) -> Text:
    """Return the type of settings of a dynamic policy but those `fixed`; with a threshold they are `OptTree`'s."""
    required = [name for name in ("nodes", "depth") if name not in fixed]

    def read(text: str) -> DynamicTree | OptTree:
        words = [part.partition("=") for part in text.split(",")]
        names = [name for name, _, _ in words]
        kind: type[DynamicTree | OptTree] = OptTree if "threshold" in names and not fixed else DynamicTree
        optional = [name for name in SETTINGS[kind] if name not in (*fixed, *required)]
        if not set(required) <= set(names) <= {*required, *optional} or len(set(names)) < len(names):
            form = ",".join(f"{name}=N" for name in required)
            raise ValueError(f"{text!r} must be {form} and may add {', '.join(optional)}, each once")
        given: dict[str, Any] = dict(fixed)
        for name, _, number in words:
            try:
                given[name] = float(number) if name in ("min_probability", "threshold") else int(number)
            except ValueError:
                raise ValueError(f"{name} must be a number, got {number!r}") from None
        try:
            return kind(**given)
        except TreeError as error:
            raise ValueError(f"{text!r}: {error}") from error

    return Text("settings", read, DynamicTree | OptTree)


class LocalFolder(click.Path):
    """A file or folder of this machine, where a folder may be made."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse addresses of objects, which have no folders."""
        if address_of(value) is not None:
            self.fail("must be on this machine: addresses are for single files", param, ctx)
        return super().convert(value, param, ctx)


def item_of(kind: Any) -> Any:
    """Return the type of the items of a tuple, or the type itself.

    >>> item_of(tuple[int, ...]), item_of(str)
    (<class 'int'>, <class 'str'>)
    """
    return get_args(kind)[0] if get_origin(kind) is tuple else kind


def type_of(each: "Field[Any]", kind: Any) -> Any:
    """Return how the text of an option is read."""
    meaning, item = meaning_of(each), item_of(kind)
    if get_origin(item) is Literal:
        return click.Choice(get_args(item))
    if get_origin(kind) is frozenset:
        return names_of(meaning.names(), meaning.form)
    if isinstance(meaning.choices, Registry):
        return EntryName(meaning.choices, otherwise=meaning.otherwise)
    if names := meaning.names():
        return click.Choice(names)
    if item is int and get_origin(kind) is tuple:
        return numbers(meaning.form or "batch sizes")
    if item is int:
        least, most = (None if limit is None else int(limit) for limit in (meaning.least, meaning.most))
        return (Tokens if meaning.form == "tokens" else Whole)(min=least, max=most)
    if item is float:
        if meaning.form == "duration":
            return DURATION
        low, high = (limit and limit / meaning.scale for limit in (meaning.lowest, meaning.highest))
        return Real(low, high, min_open=meaning.above is not None, max_open=meaning.below is not None)
    if item is Path:
        return LocalFolder(path_type=Path) if meaning.form == "folder" else click.Path(path_type=Path, dir_okay=False)
    return {Tree: STATIC, Policy: dynamic()}.get(item, click.STRING)
