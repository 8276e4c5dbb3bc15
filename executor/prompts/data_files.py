"""Files of records and texts: JSON, JSON lines under any name, parquet, arrow, `save_to_disk`, folders, plain texts.

Parquet and arrow are read with the library `datasets` (extra `data`). A folder is one data set: where it holds parquet
or arrow files, these and JSON lines are the data, and other files are passed over; elsewhere every text counts. What is
passed over is reported.
"""

import csv
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from executor.prompts.reading_report import Report
from executor.prompts.record_forms import MARKS
from treeopt.errors import ExecutorError
from treeopt.storage import user_files
from treeopt.storage.atomic_files import why

JSON, LINES, TABLES = (".json",), (".jsonl", ".ndjson"), (".parquet", ".arrow")
CELLS = {".csv": ",", ".tsv": "\t"}  # what stands between cells
PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar")
# Files that `datasets` and its hub write beside the data.
ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
SAVED = ("state.json", "dataset_info.json")  # what `save_to_disk` leaves beside arrow files
FORMS = ("conversations", "messages", "turns", "text", *MARKS)  # fields by which a line is known as a record
LIST_LIMIT = 2**31  # most bytes of a JSON list
BATCH = 256  # rows of a table that are held at once
TRAIN = "train"
_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-z])", re.IGNORECASE)


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


def items(paths: Sequence[Path], report: Report) -> Iterator[Item]:
    """Yield the records and texts of files and of all files below folders, in order.

    Raises:
        ExecutorError: a file cannot be read, or holds broken JSON; names file and line.
    """
    for path in paths:
        if path.is_dir():
            yield from _folder(path, report)
        else:
            yield from _file(path, report)


def _folder(folder: Path, report: Report) -> Iterator[Item]:
    if (folder / "dataset_dict.json").is_file() or all((folder / name).is_file() for name in SAVED):
        yield from _saved(folder, report)
        return
    below = sorted(p for p in folder.rglob("*") if p.is_file())
    files = [p for p in below if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    tables = [p for p in files if p.suffix in TABLES]
    is_train = {p: _split(p.relative_to(folder)) in (None, TRAIN) for p in files}
    several = any(_split(p.relative_to(folder)) == TRAIN for p in files)
    for file in files:
        reason = _passed_over(file, tables=bool(tables))
        if reason is None and tables and several and not is_train[file]:
            reason = "another split than train; name the file to read it"
        if reason is None:
            yield from _file(file, report)
        else:
            report.passed_over.append((reason, str(file.relative_to(folder))))


def _split(path: Path) -> str | None:
    """Return the split that a file's name or folder begins with.

    >>> [_split(Path(name)) for name in ("data/train-00000-of-00001.parquet", "dev.jsonl", "training.txt", "a.txt")]
    ['train', 'dev', None, None]
    """
    for part in reversed(path.parts):
        if match := _SPLIT.match(part):
            return match[1].lower()
    return None


def _passed_over(file: Path, *, tables: bool) -> str | None:
    """Return why a file of a folder is not read; None if it is."""
    if file.name in ABOUT:
        return "it describes a data set"
    if file.suffix in TABLES:
        return None
    if file.suffix in PACKED:
        return "compressed: unpack it to read it"
    if _binary(file):
        return "binary"
    if file.suffix in CELLS:
        return "a table of cells; name the file to read it"
    if tables and file.suffix not in LINES:
        return "not a table, as the data of this folder are"
    if file.name == "README.md" and _begins(file, b"---"):
        return "it describes a data set"
    return None


def _begins(file: Path, mark: bytes) -> bool:
    try:
        with user_files.open_regular(file) as opened:
            return opened.read(len(mark)) == mark
    except OSError:
        return False  # reading it will report the error


def _binary(path: Path) -> bool:
    """Return True if there is a zero byte near the beginning, as git does."""
    try:
        with user_files.open_regular(path) as file:
            return b"\0" in file.read(8000)
    except OSError:
        return False  # reading it will report the error


def _file(file: Path, report: Report) -> Iterator[Item]:
    report.files += 1
    if file.suffix in TABLES:
        yield from _table(file)
    elif file.suffix in LINES:
        yield from _lines(file)
    elif file.suffix in (*JSON, *CELLS):
        yield from json_records(file)
    elif _holds_lines(file):
        yield from _lines(file)
    else:
        text = read_text(file)
        if text.strip():
            yield Item(str(file), text=text)


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        ExecutorError: the file cannot be read, or is not UTF-8.
    """
    try:
        return user_files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error


def json_records(path: Path) -> Iterator[Item]:
    """Yield the records of a file that must hold them: a list (`.json`), rows (`.csv`, `.tsv`), or lines of JSON.

    Raises:
        ExecutorError: the file cannot be read, or is something else; names file and line.
    """
    if path.suffix in CELLS:
        return _cells(path)
    return _document(path) if path.suffix in JSON else _lines(path)


def _cells(path: Path) -> Iterator[Item]:
    """Yield the rows of a table with a head; empty cells are left out."""
    rows = csv.DictReader(StringIO(read_text(path)), delimiter=CELLS[path.suffix])
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise ExecutorError(f"{path}, line {rows.line_num + 1}: not a table: {error}") from error
        yield Item(f"{path}, line {rows.line_num}", {str(key): cell for key, cell in row.items() if cell})


def _lines(path: Path) -> Iterator[Item]:
    lines = user_files.read_text_lines(path)
    while True:
        try:
            number, line = next(lines)
        except StopIteration:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error
        where = f"{path}, line {number}"
        yield Item(where, _json(line, where))


def _document(path: Path) -> Iterator[Item]:
    """Yield the records of a `.json` file, which holds a list, or lines all the same."""
    if _begins_with_object(path):
        yield from _lines(path)
        return
    try:
        content = user_files.read_text(path, limit=LIST_LIMIT)
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error
    entries = _json(content, str(path))
    if isinstance(entries, dict) and set(FORMS) & set(entries):
        entries = [entries]
    if not isinstance(entries, list):
        raise ExecutorError(f"{path}: must be a list of records, or one record per line, found {_kind(entries)}")
    for number, record in enumerate(entries):
        yield Item(f"{path}, record {number}", record)


def _kind(value: Any) -> str:
    return f"an object with {', '.join(list(value)[:5])}" if isinstance(value, dict) else type(value).__name__


def _first_line(path: Path) -> str:
    try:
        return next(user_files.read_text_lines(path), (0, ""))[1]
    except (OSError, UnicodeDecodeError):
        return ""  # reading it will report the error


def _first_record(path: Path) -> dict[str, Any] | None:
    """Return the object that the first line is by itself; None if it is something else."""
    try:
        record = json.loads(_first_line(path))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _begins_with_object(path: Path) -> bool:
    return _first_record(path) is not None


def _holds_lines(path: Path) -> bool:
    """Return True if the first line of a file of any name is a record."""
    return bool(set(FORMS) & set(_first_record(path) or ()))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f"{where}: not JSON: {error}") from error


def _saved(folder: Path, report: Report) -> Iterator[Item]:
    """Yield the rows of what `datasets` saved to disk; of several splits the one to train on."""
    datasets = _library(folder)
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # it raises classes of its own and pyarrow's
        raise ExecutorError(f"{folder}: `datasets` cannot read it: {_reason(error)}") from error
    splits = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
    chosen = [TRAIN] if TRAIN in splits else list(splits)
    for name in splits:
        if name not in chosen:
            report.passed_over.append(("another split than train; name its folder to read it", name))
    for name in chosen:
        report.files += 1
        yield from _rows(splits[name], str(folder / name) if name else str(folder))


def _table(file: Path) -> Iterator[Item]:
    datasets = _library(file)
    try:
        user_files.check_file(file)
        rows = datasets.load_dataset(file.suffix[1:], data_files=str(file), split="train", streaming=True)
    except OSError as error:
        raise ExecutorError(f"{file}: cannot be read: {why(error)}") from error
    except Exception as error:  # it raises classes of its own and pyarrow's
        raise ExecutorError(f"{file}: `datasets` cannot read it: {_reason(error)}") from error
    yield from _rows(rows, str(file))


def _rows(rows: Any, where: str) -> Iterator[Item]:
    """Yield the rows of a data set, undecoded: fields that other rows have, and are null here, are left out."""
    number = 0
    batches = iter(rows.with_format("arrow").iter(batch_size=BATCH))
    while True:
        try:
            batch = next(batches).to_pylist()
        except StopIteration:
            return
        except Exception as error:  # pyarrow's classes
            raise ExecutorError(f"{where}: `datasets` cannot read it: {_reason(error)}") from error
        for row in batch:
            yield Item(f"{where}, row {number}", without_nulls(row))
            number += 1


def without_nulls(value: Any) -> Any:
    """Return a value of a table without the fields that are null, at any depth: a table gives every row all fields.

    >>> without_nulls({"a": None, "b": [{"c": None, "d": 1}]})
    {'b': [{'d': 1}]}
    """
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def _library(path: Path) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ExecutorError(f"{path}: parquet and arrow need `datasets`: pip install 'treeopt[data]'") from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)  # its errors are raised too
    return datasets


def _reason(error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    line = (str(cause).splitlines() or [type(cause).__name__])[0][:200]
    return f"it lacks {line}" if isinstance(cause, KeyError) else line
