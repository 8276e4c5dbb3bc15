"""Strict JSON records: one schema, fields of the right type, finite numbers."""

import json
import math
import reprlib
from typing import Any

# The largest number that is read: sums and products of a few stay finite.
LARGEST_NUMBER = 1e100


class RecordError(ValueError):
    """A record that breaks its format. The reader raises its own error, which names the file."""


_KINDS = {
    float: "a finite number",
    int: "an integer",
    str: "a string",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


class _Brief(reprlib.Repr):
    """Writes values whose whole text would be too long, such as lists that hold one list many times."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict, self.maxstring, self.maxother = 3, 6, 6, 4, 60, 60

    def repr_int(self, x: int, level: int) -> str:
        """Return the number; Python does not write those of thousands of digits."""
        return repr(x) if x.bit_length() <= 128 else "one too large"


def brief(value: Any) -> str:
    """Return the beginning of a value's text for an error, at most 60 characters, whatever the value is.

    >>> brief([[0, 1], "x"]), brief(16**5000)
    ("[[0, 1], 'x']", 'one too large')
    """
    text = _BRIEF.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_BRIEF = _Brief()


def parse(text: str, *schemas: str) -> dict[str, Any]:
    """Return the JSON object that a text holds, which must be of one of the schemas.

    Raises:
        RecordError: not JSON, not an object, or another schema.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    return check_schema(record, *schemas)


def check_schema(record: Any, *schemas: str, where: str = "") -> dict[str, Any]:
    """Return a JSON value that must be an object of one of the schemas.

    >>> check_schema({"schema": "treeopt.plan/1"}, "treeopt.plan/3", where="plan")
    Traceback (most recent call last):
    treeopt.storage.json_records.RecordError: plan: schema must be 'treeopt.plan/3', found 'treeopt.plan/1'

    Raises:
        RecordError: no object, or of another schema.
    """
    schema = record.get("schema") if isinstance(record, dict) else type(record).__name__
    if schema not in schemas:
        place = f"{where}: " if where else ""
        raise RecordError(f"{place}schema must be {' or '.join(map(repr, schemas))}, found {schema!r:.80}")
    assert isinstance(record, dict)
    return record


def get(record: Any, key: str, kind: type, where: str) -> Any:
    """Return a field of a JSON object, which must be of this type.

    Numbers must be finite; true and false are not numbers. Formats of several fields are typed records instead: see
    `treeopt.storage.typed_records`.

    >>> get({"batch": 4}, "batch", float, "entries[0]")
    4.0

    Raises:
        RecordError: names the field, the expected type and the value found.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{where} must be an object, found {type(record).__name__}")
    if key not in record:
        raise RecordError(f"{where}: `{key}` is missing")
    return of_kind(record[key], kind, f"{where}: `{key}`")


def of_kind(value: Any, kind: type[Any], name: str) -> Any:
    """Return a JSON value, which must be of this type; integers must fit into 64 bits. See `get`."""
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    large = type(value) is int and not -(2**63) <= value < 2**63
    if type(value) is float and math.isfinite(value) and abs(value) > LARGEST_NUMBER:
        raise RecordError(f"{name} must be at most {LARGEST_NUMBER:g}, found {value:g}")
    if type(value) is not kind or large or (type(value) is float and not math.isfinite(value)):
        found = f"{value}" if type(value) is float else "one too large" if large else type(value).__name__
        raise RecordError(f"{name} must be {_KINDS[kind]}, found {found}")
    return value
