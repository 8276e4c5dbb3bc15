"""Work files: what a long command has finished so far, so that the same command resumes after an interruption.

A work file has a head line with all settings that results depend on, then one JSON record per finished piece. It lies
beside the output until the output is written. If the writer is interrupted, the file holds whole records and at most
one torn line at its end, which readers leave out and the next writer cuts off.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from treeopt.errors import UsageError
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.typed_records import read_field, read_record
from treeopt.storage.user_files import address_of, read_bytes, why

SCHEMA = "treeopt.work/1"
T = TypeVar("T")


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
        if torn and not torn.startswith(f'{{"schema": "{schema}"'):
            raise RecordError("line 1 has no end")
        return None  # a writer was interrupted before its first record
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


def beside(output: Path) -> Path:
    """Return the work file of an output; that of an object is in the working directory."""
    if address_of(output) is not None:
        return Path(f"{output.name}.work")
    return output.with_name(f"{output.name}.work")


def check_same_settings(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that what was begun under a path is continued with the same settings.

    Raises:
        UsageError: names the first setting that differs.
    """
    for name in dict.fromkeys([*now, *before]):
        if before.get(name) != now.get(name):
            values = [json.dumps(settings.get(name)) for settings in (before, now)]
            raise UsageError(
                f"{path} was begun with {name} {values[0]}, not {values[1]}: give the same settings, or remove it to "
                "start again"
            )


class WorkFile:
    """The finished pieces of a command, as a context; each is a record of one field, whose name says what it is.

    Attributes:
        path: the file; None: nothing is kept.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        """Read what an interrupted command left.

        Args:
            path: the file; None: keep nothing.
            settings: all that the pieces depend on.

        Raises:
            UsageError: the file was begun with other settings, or is not a work file.
        """
        self.path = path
        self._head = json.loads(json.dumps({"schema": SCHEMA, "settings": settings}))  # tuples are lists, as in files
        self._records = [] if path is None else self._read(path)
        self._stack = ExitStack()
        self._put: Any = None
        self._empty = not self._records

    def _read(self, path: Path) -> list[Any]:
        try:
            lines = read_lines(path, SCHEMA)
            if lines is None or not lines[1]:
                path.unlink(missing_ok=True)  # nothing was kept
                return []
            before = read_field(lines[0], "settings", dict[str, Any], "line 1")
        except RecordError as error:
            raise UsageError(f"{path}: {error}; remove it to start again") from error
        check_same_settings(path, before, self._head["settings"])
        return lines[1]

    def __enter__(self) -> Self:
        """Open the file to append to it."""
        if self.path is not None:
            self._put = self._stack.enter_context(appended(self.path, self._head))
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; remove it if it holds no piece that is worth keeping."""
        self._stack.close()
        self._put = None
        if self.path is not None and self._empty:
            self.path.unlink(missing_ok=True)

    def put(self, name: str, value: Any, *, worth_keeping: bool = True) -> None:
        """Append a finished piece, JSON values; a file in which no piece is worth keeping is removed at the end."""
        if self._put is not None:
            self._put({name: value})
            self._empty = self._empty and not worth_keeping

    def pieces(self, name: str, kind: type[T]) -> list[T]:
        """Return the pieces of a name that the file held when it was read, each as a `kind` that msgspec knows.

        Raises:
            UsageError: a piece is damaged; names the line and the field.
        """
        found: list[T] = []
        for line, record in enumerate(self._records, 2):
            try:
                if not isinstance(record, dict) or len(record) != 1:
                    raise RecordError("must be an object of one field")
                if name in record:
                    found.append(read_record(record[name], kind, name))
            except RecordError as error:
                raise self.damaged(f"line {line}: {error}") from error
        return found

    def damaged(self, sentence: str) -> UsageError:
        """Return the error of a piece that does not fit the command."""
        return UsageError(f"{self.path}: {sentence}; remove the file to start again")

    def remove(self) -> None:
        """Remove the file, when the output is written."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
