"""Settings of a question: frozen dataclasses whose fields carry help, range and default, and are checked once.

The command line makes its options from the class, a Python function takes its fields as keywords, and a record stores
them. Nothing here knows any question.

>>> @dataclass(frozen=True, kw_only=True)
... class Tea(Settings):
...     minutes: int = setting(3, help="How long it draws", least=1, most=10)
>>> Tea(minutes=0)
Traceback (most recent call last):
treeopt.errors.UsageError: minutes must be from 1 to 10, got 0
"""

import dataclasses
import inspect
import operator
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from treeopt.errors import UsageError, brief

META, GROUP = "setting", "group"  # keys in a field's metadata
WIDTH = 118  # of generated docstrings
LARGE = 2.0**63  # a number that no array holds

Result = TypeVar("Result")
Own = TypeVar("Own", bound="Settings")


@dataclass(frozen=True)
class Setting:
    """The meaning of a field.

    Attributes:
        help: one or two sentences, for the help text and the docstring.
        least: smallest value.
        most: largest value.
        above: limit that a value must exceed.
        below: limit that a value must stay below.
        choices: the allowed texts; a function of none where they are a registry's.
        otherwise: what to do about a text that is not allowed.
        option: the command line's option; "": none, only Python has the setting.
        scale: value of the field for an option's value of 1, such as 1e-3 where the option takes milliseconds.
        form: how an option's text is read where its type does not say so, such as "tokens" for 8k.
    """

    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Collection[str] | Callable[[], Iterable[str]] = ()
    otherwise: str = ""
    option: str | None = None
    scale: float = 1.0
    form: str = ""

    @property
    def lowest(self) -> float | None:
        """The lower limit."""
        return self.above if self.least is None else self.least

    @property
    def highest(self) -> float | None:
        """The upper limit."""
        return self.below if self.most is None else self.most

    def names(self) -> tuple[str, ...]:
        """Return the allowed texts."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def allows(self, text: str) -> bool:
        """Return whether a text is allowed; a registry looks into other packages, too."""
        names = self.names()
        return not names or text in names or (not callable(self.choices) and text in self.choices)


def setting(default: Any = MISSING, *, help: str, **meaning: Any) -> Any:  # noqa: A002 (the word that click has)
    """Return a field of a settings class; the arguments are those of `Setting`. Without a default it must be given."""
    return field(default=default, metadata={META: Setting(help, **meaning)})


def group(kind: "type[Settings]") -> Any:
    """Return a field that holds settings which several questions share; their fields count as the question's own."""
    return field(default_factory=kind, metadata={GROUP: kind})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a question. Subclasses are frozen, take keywords alone, and are checked when they are made."""

    def __post_init__(self) -> None:
        """Bring values to the types of their fields, and check them.

        Raises:
            UsageError: names the setting, what it must be, and what it is.
        """
        for each in dataclasses.fields(self):
            if META in each.metadata:
                value = getattr(self, each.name)
                if value is not None or NoneType not in get_args(each.type):
                    object.__setattr__(self, each.name, _checked(value, each))
        self.check()

    def check(self) -> None:
        """Raise UsageError where settings contradict each other."""

    def changed(self: Own, **changes: Any) -> Own:
        """Return the same with other values of fields, also of those in groups."""
        groups: dict[str, Settings] = {}
        taken: set[str] = set()
        for each in dataclasses.fields(self):
            if GROUP in each.metadata and each.name not in changes:
                own = {each.name for each in settings_of(each.metadata[GROUP])} & changes.keys()
                if own:
                    groups[each.name] = getattr(self, each.name).changed(**{name: changes[name] for name in own})
                    taken |= own
        rest = {name: value for name, value in changes.items() if name not in taken}
        return dataclasses.replace(self, **groups, **rest)

    @classmethod
    def of(cls: type[Own], values: Mapping[str, Any]) -> Own:
        """Return settings from the values of fields, also of those in groups; other values are left out."""
        own = {}
        for each in dataclasses.fields(cls):
            if GROUP in each.metadata:
                own[each.name] = each.metadata[GROUP].of(values)
            elif each.name in values:
                own[each.name] = values[each.name]
        return cls(**own)


def settings_of(kind: type[Settings]) -> tuple["dataclasses.Field[Any]", ...]:
    """Return the fields of a settings class and of its groups; one that several groups have counts once."""
    fields: dict[str, dataclasses.Field[Any]] = {}
    for each in dataclasses.fields(kind):
        if GROUP in each.metadata:
            fields = {own.name: own for own in settings_of(each.metadata[GROUP])} | fields
        elif META in each.metadata:
            fields[each.name] = each
    return tuple(fields.values())


def meaning_of(each: "dataclasses.Field[Any]") -> Setting:
    """Return the meaning of a field."""
    meaning: Setting = each.metadata[META]
    return meaning


def option_of(each: "dataclasses.Field[Any]") -> str:
    """Return the option of a field, such as `--max-nodes`; its first name where it also has a `--no-` form."""
    option = meaning_of(each).option
    return f"--{each.name.replace('_', '-')}" if option is None else option.partition("/")[0]


def bare_type(annotation: Any) -> Any:
    """Return a field's type without None.

    >>> bare_type(int | None)
    <class 'int'>
    """
    if get_origin(annotation) in (Union, UnionType):
        others = [kind for kind in get_args(annotation) if kind is not NoneType]
        return others[0] if len(others) == 1 else annotation
    return annotation


def _checked(value: Any, each: "dataclasses.Field[Any]") -> Any:
    """Return a value as its field holds it: several ones as a tuple, a text of a file as its path."""
    kind, name, meaning = bare_type(each.type), each.name, meaning_of(each)
    if get_origin(kind) in (tuple, frozenset):
        several = value if isinstance(value, Collection) and not isinstance(value, str) else (value,)
        return get_origin(kind)(_item(item, get_args(kind)[0], name, meaning) for item in several)
    return _item(value, kind, name, meaning)


def _item(value: Any, kind: Any, name: str, meaning: Setting) -> Any:
    if get_origin(kind) is Literal:
        kind, meaning = str, dataclasses.replace(meaning, choices=get_args(kind))
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    value = tuple(value) if isinstance(value, list) else value
    _check_type(value, kind, name)
    if kind is int or (kind is float and not isinstance(value, int)):
        value = kind(value)
    if kind in (int, float):
        if kind is int and abs(value) >= LARGE:
            raise UsageError(f"{name} must be below {LARGE:.1e}, got {brief(value)}")
        _check_range(value, name, meaning)
    elif isinstance(value, str) and not meaning.allows(value):
        otherwise = f": {meaning.otherwise}" if meaning.otherwise else ""
        raise UsageError(f"{name} must be one of {', '.join(meaning.names())}, got {brief(value)}{otherwise}")
    return value


def typed(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that refuses arguments which are not of their annotated types.

    >>> @typed
    ... def boil(minutes: float | None, eggs: tuple[str, ...] = ()) -> None: ...
    >>> boil("3")
    Traceback (most recent call last):
    treeopt.errors.UsageError: minutes must be a finite number or None, got '3'
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*values: Any, **keywords: Any) -> Result:
        for name, value in signature.bind(*values, **keywords).arguments.items():
            _check_type(value, signature.parameters[name].annotation, name)
        return function(*values, **keywords)

    return call


def _check_type(value: Any, kind: Any, name: str) -> None:
    if not _fits(value, kind):
        raise UsageError(f"{name} must be {_noun(kind)}, got {brief(value)}")


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type, its items too; numbers are finite, and those of numpy count."""
    whole, parts = get_origin(kind) or kind, get_args(kind)
    if whole in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if whole in (int, float):
        number: Any = Integral if whole is int else Real
        return isinstance(value, number) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    known = isinstance(whole, type) and whole not in (Any, inspect.Parameter.empty)
    if not known or not getattr(whole, "_is_runtime_protocol", True):
        return True
    if not isinstance(value, os.PathLike if whole is Path else whole):
        return False
    if not parts or not isinstance(value, Collection):
        return True
    if isinstance(value, Mapping) and len(parts) > 1:
        return all(_fits(key, parts[0]) and _fits(item, parts[1]) for key, item in value.items())
    if whole is tuple and parts[-1] is not ...:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    return all(_fits(item, parts[0]) for item in value)


def _noun(kind: Any) -> str:
    """Return the values of a type in words."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_noun, get_args(kind)))
    known = {bool: "True or False", int: "an integer", float: "a finite number", str: "a text", NoneType: "None"}
    return known.get(kind) or f"a {(get_origin(kind) or kind).__name__}"


def _check_range(value: float, name: str, meaning: Setting) -> None:
    rules = (
        ("at least", meaning.least, operator.ge),
        ("above", meaning.above, operator.gt),
        ("at most", meaning.most, operator.le),
        ("below", meaning.below, operator.lt),
    )
    if not all(limit is None or keeps(value, limit) for _, limit, keeps in rules):
        limits = " and ".join(f"{word} {limit}" for word, limit, _ in rules if limit is not None)
        if meaning.least is not None and meaning.most is not None:
            limits = f"from {meaning.least} to {meaning.most}"
        raise UsageError(f"{name} must be {limits}, got {brief(value)}")


def takes(kind: type[Settings], *positional: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator of a function of `settings`, whose callers give the fields of `kind` as keywords.

    They may also give `settings` itself, and keywords that change it. Signature and docstring show every field; an
    unknown keyword is a TypeError.

    Args:
        kind: the settings class.
        positional: fields that may also be given by position, in this order.
    """
    own = settings_of(kind)
    names = {each.name for each in own}

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(function)
        def call(*subjects: Any, settings: Settings | None = None, **keywords: Any) -> Result:
            fields = dict(zip(positional, subjects, strict=False))
            if twice := fields.keys() & keywords.keys():
                raise TypeError(f"{function.__name__}() got multiple values for argument {min(twice)!r}")
            fields |= {name: keywords.pop(name) for name in names & keywords.keys()}
            missing = [each.name for each in own if each.default is MISSING and each.name not in fields]
            if missing and settings is None:
                raise TypeError(f"{function.__name__}() needs {', '.join(missing)}")
            asked = kind.of(fields) if settings is None else settings.changed(**fields) if fields else settings
            return function(*subjects[len(positional) :], settings=asked, **keywords)

        before = inspect.signature(function)
        parameters = [parameter for name, parameter in before.parameters.items() if name != "settings"]
        parameters += [_parameter(each, by_position=each.name in positional) for each in own]
        order = {name: place for place, name in enumerate(positional)}
        parameters.sort(key=lambda each: (each.kind, each.default is not each.empty, order.get(each.name, 0)))
        call.__signature__ = before.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__doc__ = _documented(function.__doc__ or "", own)
        return call

    return decorate


def _parameter(each: "dataclasses.Field[Any]", *, by_position: bool) -> inspect.Parameter:
    """Return a field as a parameter of a signature."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if by_position else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if each.default is MISSING else each.default
    return inspect.Parameter(each.name, kind, default=default, annotation=each.type)


def _documented(text: str, own: Iterable["dataclasses.Field[Any]"]) -> str:
    """Return a docstring with the fields at the end of its arguments."""
    lines = []
    for each in own:
        meaning = meaning_of(each)
        text_of = f"{each.name}: {meaning.help[0].lower()}{meaning.help[1:]}"
        lines += textwrap.wrap(text_of, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12)
    head, mark, tail = text.partition("\n    Args:\n")
    listed, blank, rest = tail.partition("\n\n")
    return f"{head}{mark}{listed}\n" + "\n".join(lines) + f"{blank}{rest}" if mark else text
