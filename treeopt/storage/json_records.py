"""JSON records of a schema, and the error of those that break their format; `typed_records` checks their fields."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from treeopt.errors import TreeoptError
from treeopt.storage.user_files import why

# The largest number that is read: sums and products of a few stay finite.
LARGEST_NUMBER = 1e100


class RecordError(ValueError):
    """A record that breaks its format. The reader raises its own error, which names the file."""


@contextmanager
def reading(path: Path, refusal: type[TreeoptError]) -> Iterator[None]:
    """Raise what is wrong with a file, or with reading it, as one kind of error, which names the file."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path}: cannot be read: {why(error)}") from error
    except (RecordError, refusal) as error:
        raise refusal(f"{path}: {error}") from error


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
