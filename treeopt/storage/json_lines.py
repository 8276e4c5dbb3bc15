"""Append-only JSON lines: a head line with the schema, then one record per line.

If the writer is interrupted, the file holds whole records and at most one torn line at its end. Readers leave the torn
line out, and the next writer cuts it off.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from treeopt.storage.atomic_files import why
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.user_files import read_bytes


def read_lines(path: Path, schema: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Return the head line and the records, or None if the file does not exist or is empty.

    Raises:
        RecordError: not a file that `appended` wrote, or another schema.
    """
    if not path.exists():
        return None
    if not path.is_file():
        raise RecordError("not a regular file")
    try:
        text = read_bytes(path, limit=2**31)
        *whole, torn = text.decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise RecordError(why(error)) from error
    if not whole:
        if torn:
            raise RecordError("line 1 has no end")
        return None
    head, records = parse(whole[0], schema), []
    for number, line in enumerate(whole[1:], 2):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"line {number}: not JSON: {error}") from error
    return head, records


@contextmanager
def appended(path: Path, head: dict[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that appends a record; a new file begins with `head`.

    Raises:
        OSError: a record could not be written; the records before it stay.
    """
    with path.open("ab", buffering=0) as file:
        end = path.read_bytes().rfind(b"\n") + 1
        file.truncate(end)

        def put(record: dict[str, Any]) -> None:
            nonlocal end
            line = memoryview((json.dumps(record, ensure_ascii=False) + "\n").encode())
            size = len(line)
            try:
                while line:
                    line = line[file.write(line) :]
            except BaseException as error:
                file.truncate(end)
                if isinstance(error, OSError):
                    raise OSError(error.errno, error.strerror, str(path)) from error
                raise
            end += size

        if end == 0:
            put(head)
        yield put
