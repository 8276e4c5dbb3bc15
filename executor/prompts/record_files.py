"""Records of text files: JSON lines, a list of records, or one record, under any name; and tables of cells.

The content says what a file holds. If its first line is a JSON object, it holds one record per line. If the whole is a
list of objects, these are its records, and a single object with a known field is one. Only a file that is none of these
goes by its name: `.json` and `.jsonl` must hold records, and any other file is a text.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from executor.prompts.record_forms import MARKS, PLAIN
from treeopt.errors import ExecutorError, shorten
from treeopt.storage import user_files
from treeopt.storage.atomic_files import why

JSON, LINES = (".json",), (".jsonl", ".ndjson", ".jsonlines")
CELLS = {".csv": ",", ".tsv": "\t"}  # what stands between cells
LIST_LIMIT = 2**31  # most bytes of a JSON list
HEAD = 4096  # bytes in which a file's encoding and first character are looked for
UTF8 = ("utf-8", "utf-8-sig")
Broken = Callable[[ExecutorError], None]  # what to do about a line that is broken


@dataclass(frozen=True)
class Item:
    """A record, or the text of a whole file.

    Attributes:
        where: file and line, for messages.
        record: parsed JSON, or a row of a table; None for a text.
        text: the text of a file that holds no records.
    """

    where: str
    record: Any = None
    text: str | None = None


def suffix_of(path: Path) -> str:
    """Return a file's suffix in lower case.

    >>> suffix_of(Path("ShareGPT.JSONL"))
    '.jsonl'
    """
    return path.suffix.lower()


def read_text(path: Path, *, limit: int = user_files.LIMIT) -> str:
    """Return a file's text.

    Raises:
        ExecutorError: the file cannot be read, or is neither UTF-8 nor UTF-16 with a byte order mark.
    """
    _check_encoding(path)
    try:
        return user_files.read_text(path, limit=limit)
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error


def refuse(error: ExecutorError) -> None:
    """Raise the error of a line that is broken."""
    raise error


def items_of(path: Path, broken: Broken = refuse) -> Iterator[Item]:
    """Yield the records of a file, or else its text, unless that is blank.

    Args:
        path: the file.
        broken: gets the error of each line that is not JSON or not UTF-8; raises it, or returns to skip the line.

    Raises:
        ExecutorError: the file cannot be read, or holds broken records; names file and line.
    """
    records = _records(path, broken)
    if records is not None:
        yield from records
    elif (text := read_text(path)).strip():
        yield Item(str(path), text=text)


def records_of(path: Path, broken: Broken = refuse) -> Iterator[Item]:
    """Return the records of a file that must hold them; see `items_of`.

    Raises:
        ExecutorError: the file cannot be read, or is something else; names file and line.
    """
    records = _records(path, broken)
    return _lines(path, broken) if records is None else records


def holds_records(path: Path) -> bool:
    """Return True if a file holds records by its name, or has one in its first line."""
    return suffix_of(path) in (*JSON, *LINES, *CELLS) or _holds_lines(path)


def _records(path: Path, broken: Broken) -> Iterator[Item] | None:
    """Return the records of a file; None if it holds a text."""
    if suffix_of(path) in CELLS:
        return _cells(path)
    if _holds_lines(path):
        return _lines(path, broken)
    if suffix_of(path) in JSON:
        return _entries(path, _whole(path))
    value = _whole_or_none(path) if _opening(path) in ("[", "{") else None
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        return _entries(path, value)
    if isinstance(value, dict) and _is_known(value):
        return _entries(path, value)
    return _lines(path, broken) if suffix_of(path) in LINES else None


def _is_known(value: dict[str, Any]) -> bool:
    return not {*PLAIN, *MARKS}.isdisjoint(value)


def _entries(path: Path, value: Any) -> Iterator[Item]:
    """Yield the records of a parsed file, which must be a list or one record."""
    if isinstance(value, dict) and _is_known(value):
        value = [value]
    if not isinstance(value, list):
        raise ExecutorError(f"{path}: must be a list of records, or one record per line, found {_kind(value)}")
    for number, record in enumerate(value):
        yield Item(f"{path}, record {number}", record)


def _kind(value: Any) -> str:
    return f"an object with {', '.join(list(value)[:5])}" if isinstance(value, dict) else type(value).__name__


def _whole(path: Path) -> Any:
    return _json(read_text(path, limit=LIST_LIMIT), str(path))


def _whole_or_none(path: Path) -> Any:
    try:
        return _whole(path)
    except ExecutorError:
        return None  # a text; or reading it will report the error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f"{where}: not JSON: {error}") from error


def _lines(path: Path, broken: Broken) -> Iterator[Item]:
    _check_encoding(path)
    lines = _numbered_lines(path)
    while True:
        try:
            number, line = next(lines)
        except StopIteration:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error
        where = f"{path}, line {number}"
        try:
            _check_utf8(line, f"{path}: text cannot be read", number)
            record = _json(line, where)
        except ExecutorError as error:
            broken(error)
        else:
            yield Item(where, record)


def _check_utf8(line: str, where: str, number: int) -> None:
    """Check that no byte of a line was not UTF-8: `_numbered_lines` reads such a byte as half a surrogate pair."""
    try:
        line.encode("utf-8", "surrogateescape").decode()
    except UnicodeDecodeError as error:
        error.reason += f" (line {number})"
        raise ExecutorError(f"{where}: {why(error)}") from error


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that is not blank, from 1, and its text; of UTF-16 the whole is held."""
    if not _head(path).startswith(user_files.UTF16):
        yield from user_files.read_text_lines(path, errors="surrogateescape")
        return
    for number, line in enumerate(user_files.read_text(path, limit=LIST_LIMIT).split("\n"), 1):
        if line.strip():
            yield number, line


def _holds_lines(path: Path) -> bool:
    """Return True if the first line that is not blank is an object by itself."""
    try:
        line = next(_numbered_lines(path), (0, ""))[1]
        if not line.isascii():
            line.encode()
        record = json.loads(line)
    except UnicodeError:
        return _opening(path) == "{"  # reading it will name the line
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict)


def _head(path: Path) -> bytes:
    try:
        with user_files.open_regular(path) as file:
            return file.read(HEAD)
    except OSError:
        return b""  # reading it will report the error


def _opening(path: Path) -> str:
    """Return the first character of a file that is not blank."""
    return _head(path).lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1].decode("ascii", "replace")


def _check_encoding(path: Path) -> None:
    """Raise ExecutorError for UTF-32, and for UTF-16 without a byte order mark."""
    head = _head(path)
    encoding = json.detect_encoding(head) if len(head) > 3 else UTF8[0]
    if encoding not in UTF8 and not (encoding == "utf-16" and head.startswith(user_files.UTF16)):
        raise ExecutorError(f"{path}: text cannot be read: a text in {encoding.upper()}: write it in UTF-8")


def _cells(path: Path) -> Iterator[Item]:
    """Yield the rows of a table with a head; empty cells are left out."""
    rows = csv.DictReader(StringIO(read_text(path)), delimiter=CELLS[suffix_of(path)])
    names: Sequence[str] = ()
    while True:
        where = f"{path}, line {rows.line_num + 1}"
        usual = csv.field_size_limit(user_files.LIMIT)  # a cell may be as long as the file
        try:
            row: dict[str | None, Any] | None = next(rows, None)
        except csv.Error as error:
            raise ExecutorError(f"{where}: not a table: {error}") from error
        finally:
            csv.field_size_limit(usual)
        if row is None:
            return
        if not names:
            names = _head_of(path, rows.fieldnames or ())
        if any(beyond := row.pop(None, [])):
            wide = len(names) + len(beyond)
            raise ExecutorError(f"{path}, line {rows.line_num}: {wide} cells, but the head names {wide - len(beyond)}")
        yield Item(f"{path}, line {rows.line_num}", {str(key): cell for key, cell in row.items() if cell})


def _head_of(path: Path, names: Sequence[str]) -> Sequence[str]:
    """Return the names of a table's columns; refuse one that two columns have, of which the second would win."""
    twice = shorten([name for name, count in Counter(names).items() if name.strip() and count > 1])
    if twice:
        raise ExecutorError(f"{path}: the head names {twice} more than once: rename or remove a column")
    return names
