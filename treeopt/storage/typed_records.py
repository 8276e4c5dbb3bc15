"""Typed JSON records: msgspec structs, and its errors with the place in the file and the value found.

A file format is a struct. Reading converts parsed JSON into it; `make schemas` writes its JSON Schema. This module is
loaded when a file is read, so that `import treeopt` does not load msgspec.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from treeopt.errors import brief
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


class Record(msgspec.Struct, frozen=True):
    """Base class of records. Unknown fields are ignored, so that older readers can read newer files.

    A `__post_init__` may check what concerns several fields. It raises ValueError with a sentence about them.
    """


def read_record(record: Any, kind: type[T], where: str = "") -> T:
    """Return parsed JSON as a record.

    Args:
        record: what `json.loads` returned.
        kind: the type to read.
        where: place of the record in its file; empty for a whole file.

    Raises:
        RecordError: names the field, what is wrong and what was found.

    >>> class Pair(Record, frozen=True):
    ...     sizes: tuple[Count, ...]
    >>> read_record({"sizes": [3, 0]}, Pair)
    Traceback (most recent call last):
    treeopt.storage.json_records.RecordError: sizes[1]: Expected `int` >= 1, found 0
    """
    try:
        return msgspec.convert(record, kind)
    except msgspec.ValidationError as error:
        raise RecordError(_sentence(str(error), record, kind, where)) from error
    except UnicodeEncodeError as error:
        raise RecordError(f"{where}{where and ': '}a name is not Unicode: {error.object!r:.40}") from error


def read_field(record: Any, name: str, kind: type[T], where: str = "") -> T:
    """Return one field of parsed JSON, whose others are not read; see `read_record`."""
    value: T = getattr(read_record(record, msgspec.defstruct("Field", [(name, kind)]), where), name)
    return value


def _sentence(text: str, record: Any, kind: Any, where: str) -> str:
    """Return msgspec's words behind the place that they are about, and the value found there."""
    reason, _, path = text.partition(" - at `$")
    place, value = _followed(path.removesuffix("`"), record, kind, text)
    if reason.startswith("Expected "):
        reason = f"{reason.partition(', got ')[0]}, found {brief(value)}"
    return ": ".join(part for part in (where, place, reason) if part)


def _followed(path: str, record: Any, kind: Any, text: str) -> tuple[str, Any]:
    """Return a path of msgspec's with the keys that it writes as `[...]`, and the value at its end."""
    steps: list[str | int] = []
    value = record
    for name, index in re.findall(r"\.(\w[\w-]*)|\[(\d+|\.\.\.)\]", path):
        steps.append(name or (_guilty(record, steps, value, kind, text) if index == "..." else int(index)))
        value = value[steps[-1]]
    plain = re.compile(r"[\w.-]+")
    places = (f".{step}" if isinstance(step, str) and plain.fullmatch(step) else f"[{step!r:.60}]" for step in steps)
    return "".join(places).removeprefix("."), value


def _guilty(record: Any, steps: Sequence[str | int], holder: dict[str, Any], kind: Any, text: str) -> str:
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


def _replaced(record: Any, steps: Sequence[str | int], value: Any) -> Any:
    """Return a record with another value at a place."""
    if not steps:
        return value
    copy = record.copy()
    copy[steps[0]] = _replaced(record[steps[0]], steps[1:], value)
    return copy
