"""Strict reading of JSON records: one schema, fields of the right type, finite numbers."""

import json
import math
from typing import Any


class RecordError(ValueError):
    """A record that breaks its format; the caller turns it into its own error, which names the file."""


_KINDS = {
    float: "a finite number",
    int: "an integer",
    str: "a string",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


def parse(text: str, *schemas: str) -> dict[str, Any]:
    """Parse a JSON object of one of the given schemas.

    >>> parse('{"schema": "treeopt.plan/1"}', "treeopt.plan/1")
    {'schema': 'treeopt.plan/1'}

    Raises:
        RecordError: not JSON, not an object, or another schema.
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
    """Return a field of a JSON object, checked for its type; numbers are finite, and true and false are not numbers.

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
    """Return `value` after checking its type; integers have 64 bits. See `get`.

    Raises:
        RecordError: names the field, the expected type and the value found.
    """
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    large = type(value) is int and not -(2**63) <= value < 2**63
    if type(value) is not kind or large or (type(value) is float and not math.isfinite(value)):
        found = f"{value}" if type(value) is float else "one too large" if large else type(value).__name__
        raise RecordError(f"{name} must be {_KINDS[kind]}, found {found}")
    return value


def given(record: Any, key: str, where: str) -> bool:
    """Return True if a required field is not null.

    Raises:
        RecordError: the field is missing, or the record is not an object.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{where} must be an object, found {type(record).__name__}")
    if key not in record:
        raise RecordError(f"{where}: `{key}` is missing")
    return record[key] is not None
