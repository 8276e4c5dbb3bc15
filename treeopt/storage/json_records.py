"""JSON records read strictly: fields of the right type, finite numbers, one schema."""

import json
import math
from typing import Any


class RecordError(ValueError):
    """A record that breaks its format; the reader turns it into an error of its own that names the file."""


_KINDS = {
    float: "a finite number",
    int: "an integer",
    str: "a string",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


def parse(text: str, *schemas: str) -> dict[str, Any]:
    """The object that `text` holds, of one of the schemas asked for.

    Raises:
        RecordError: not JSON, no object, or of another schema.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    found = record.get("schema") if isinstance(record, dict) else type(record).__name__
    if found not in schemas:
        raise RecordError(f"schema must be {' or '.join(map(repr, schemas))}, found {found!r}")
    assert isinstance(record, dict)
    return record


def get(record: Any, key: str, kind: type, where: str) -> Any:
    """A field of a JSON object, of the type asked for; numbers are finite, and true and false are no numbers.

    >>> get({"batch": 4}, "batch", float, "entries[0]")
    4.0

    Raises:
        RecordError: names the field, what it must be and what was found.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{where} must be an object, found {type(record).__name__}")
    if key not in record:
        raise RecordError(f"{where}: `{key}` is missing")
    return of_kind(record[key], kind, f"{where}: `{key}`")


def of_kind(value: Any, kind: type[Any], name: str) -> Any:
    """`value`, of the type asked for, integers of 64 bits; see `get`."""
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    large = type(value) is int and not -(2**63) <= value < 2**63
    if type(value) is not kind or large or (type(value) is float and not math.isfinite(value)):
        found = f"{value}" if type(value) is float else "one too large" if large else type(value).__name__
        raise RecordError(f"{name} must be {_KINDS[kind]}, found {found}")
    return value


def given(record: Any, key: str, where: str) -> bool:
    """Whether a field that must be there is not null.

    Raises:
        RecordError: it is missing, or there is no object that could have it.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{where} must be an object, found {type(record).__name__}")
    if key not in record:
        raise RecordError(f"{where}: `{key}` is missing")
    return record[key] is not None
