"""Typed JSON records: msgspec structs, and errors that name the field, what must hold and what was found.

A file format is a struct. Reading converts parsed JSON into it; `make schemas` writes its JSON Schema. This module is
loaded when a file is read, so that `import treeopt` does not load msgspec.
"""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from treeopt.storage.json_records import LARGEST_NUMBER, RecordError

# Limits that mean "finite", "positive" and "64 bits". The JSON Schemas leave them out.
LARGEST = LARGEST_NUMBER
SMALLEST = 1 / LARGEST  # so that a quotient is finite
INTEGERS = (-(2**63), 2**63 - 1)

Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Meta(ge=SMALLEST, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
AtLeastOne = Annotated[float, Meta(ge=1, le=LARGEST)]
Integer = Annotated[int, Meta(ge=INTEGERS[0], le=INTEGERS[1])]
Index = Annotated[int, Meta(ge=0, le=INTEGERS[1])]
Count = Annotated[int, Meta(ge=1, le=INTEGERS[1])]

T = TypeVar("T")
Step = str | int  # a field or key, or an index


class Record(msgspec.Struct, frozen=True):
    """Base class of records. Unknown fields are ignored, so that older readers can read newer files.

    A `__post_init__` may check what concerns several fields. It raises ValueError with a sentence about them, or with
    one that begins with "must", whose subject is the record.
    """


def read_record(record: Any, kind: type[T], where: str = "") -> T:
    """Return parsed JSON as a record.

    Args:
        record: what `json.loads` returned.
        kind: the type to read.
        where: path of the record in its file; empty for a whole file.

    Raises:
        RecordError: names the field, what must hold and what was found.

    >>> class Pair(Record, frozen=True):
    ...     sizes: tuple[Count, ...]
    >>> read_record({"sizes": [3, 0]}, Pair)
    Traceback (most recent call last):
    treeopt.storage.json_records.RecordError: sizes[1] must be at least 1, found 0
    """
    try:
        return msgspec.convert(record, kind)
    except msgspec.ValidationError as error:
        raise RecordError(_sentence(str(error), record, kind, where)) from error
    except UnicodeEncodeError as error:
        raise RecordError(f"{_subject([where])} holds a name that is not Unicode: {error.object!r:.40}") from error


def _sentence(text: str, record: Any, kind: Any, where: str) -> str:
    """Return msgspec's finding as a sentence that names the place and the value."""
    reason, _, place = text.partition(" - at `$")
    steps, value = _followed(place.removesuffix("`"), record, kind, text)
    inside = _inside([where, *steps])
    if match := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return f"{inside}`{match[1]}` is missing"
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", reason):
        return f"{inside}`{match[1]}` is not a field of {value.get('kind', 'this record')}"
    must = _must(reason, value, steps, kind)
    if must is not None:
        return f"{_subject([where, *steps])} must be {must}, found {shown(value)}"
    return f"{_subject([where, *steps])} {reason}" if reason.startswith("must") else f"{inside}{reason}"


def _must(reason: str, value: Any, steps: Sequence[Step], kind: Any) -> str | None:
    """Return what a value must be; None where the reason is not one of msgspec's own."""
    unbounded = isinstance(value, float) and not math.isfinite(value)
    if reason == "Number out of range" or (unbounded and reason.startswith("Expected `float")):
        return "a finite number"
    if reason.startswith(("Invalid value", "Invalid enum value")):
        return f"one of {', '.join(_choices(kind, steps))}"
    match = re.fullmatch(r"Expected `(.+?)`(?:, got `.*`| (>=|>|<=|<) (\S+)| of length (?:(>=|<=) )?(\d+).*)", reason)
    if match is None:
        return None
    names, sign, limit, length_sign, length = match.groups()
    if length is not None:
        least = {">=": "at least ", "<=": "at most "}.get(length_sign or "", "")
        return f"a list of length {least}{length}"
    if limit is None:
        return " or ".join(_NOUNS.get(name, name) for name in names.split(" | "))
    if float(limit) in map(float, INTEGERS):
        return "an integer of 64 bits"
    if (sign, float(limit)) == (">", 0.0) or (float(limit) == SMALLEST and value <= 0):
        return "positive"
    return f"{_SIGNS[sign]} {float(limit):g}"


_SIGNS = {">=": "at least", ">": "above", "<=": "at most", "<": "below"}
_NOUNS = {
    "int": "an integer",
    "float": "a finite number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def shown(value: Any) -> str:
    """Return a JSON value for an error: numbers and short strings as they are, else the type.

    >>> [shown(value) for value in (None, True, -1, 10**40, "x", [1, 2], {})]
    ['null', 'true', '-1', 'one too large', "'x'", '[1, 2]', 'an object']
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return "one too large" if isinstance(value, int) and abs(value) >= 2**63 else str(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and (len(value) > 8 or any(isinstance(part, list | dict) for part in value)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _subject(steps: Sequence[Step]) -> str:
    """Return a place as ``entries[0].choice: `step_s` ``, or as `entries[0]` where it is an index."""
    last = _path(steps[-1:])
    if not last:
        return "the record"
    return _path(steps) if last.endswith("]") else f"{_inside(steps[:-1])}`{last}`"


def _inside(steps: Sequence[Step]) -> str:
    """Return a path as the beginning of a sentence about what is in it."""
    path = _path(steps)
    return path and f"{path}: "


def _path(steps: Sequence[Step]) -> str:
    """Return a path, such as `entries[0].choice.tau`; keys of other characters are quoted."""
    plain = re.compile(r"[\w.\[\]-]*")
    return "".join(
        f"[{step!r:.60}]" if isinstance(step, int) or not plain.fullmatch(step) else f".{step}" if step else ""
        for step in steps
    ).removeprefix(".")


def _followed(path: str, record: Any, kind: Any, text: str) -> tuple[list[Step], Any]:
    """Return the steps of a path of msgspec's and the value at its end; keys, which it writes as `[...]`, are found."""
    steps: list[Step] = []
    value = record
    for name, index in re.findall(r"\.(\w[\w-]*)|\[(\d+|\.\.\.)\]", path):
        step: Step = name or (_guilty(record, steps, value, kind, text) if index == "..." else int(index))
        steps.append(step)
        value = value[step]
    return steps, value


def _guilty(record: Any, steps: Sequence[Step], holder: dict[str, Any], kind: Any, text: str) -> str:
    """Return the key of `holder` whose value by itself is refused with the same text."""
    for key in holder:
        try:
            msgspec.convert(_replaced(record, steps, {key: holder[key]}), kind)
        except msgspec.ValidationError as error:
            if str(error) == text:
                return key
        except UnicodeEncodeError:  # beyond this key, in a name that is not Unicode
            continue
    raise AssertionError(text)


def _replaced(record: Any, steps: Sequence[Step], value: Any) -> Any:
    """Return a record with another value at a place."""
    if not steps:
        return value
    copy = record.copy()
    copy[steps[0]] = _replaced(record[steps[0]], steps[1:], value)
    return copy


def _choices(kind: Any, steps: Sequence[Step]) -> list[str]:
    """Return what a field of few values, or the tag of a union, may be."""
    inspect = msgspec.inspect
    options = _alternatives(inspect.type_info(kind))
    for step in steps:
        inner: list[Any] = []
        for option in options:
            if isinstance(option, inspect.StructType):
                inner += [field.type for field in option.fields if field.encode_name == step]
                inner += [inspect.LiteralType((option.tag,))] if option.tag_field == step else []
            elif isinstance(option, inspect.DictType):
                inner.append(option.value_type)
            elif isinstance(option, inspect.ListType | inspect.VarTupleType):
                inner.append(option.item_type)
            elif isinstance(option, inspect.TupleType) and isinstance(step, int):
                inner.append(option.item_types[step])
        options = [part for option in inner for part in _alternatives(option)]
    return [str(value) for option in options if isinstance(option, inspect.LiteralType) for value in option.values]


def _alternatives(kind: Any) -> list[Any]:
    """Return the parts of a union, or the type itself, without what annotates them."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return [part for option in kind.types for part in _alternatives(option)]
    return [kind]
