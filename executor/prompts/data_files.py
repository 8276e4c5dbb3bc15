"""Files and folders of data: JSON lines, JSON, tables of `datasets` and plain texts; which are read, and which not.

The content says what a file holds. If its first line is a JSON object, it holds one record per line. If the whole is a
list of objects, these are its records, and a single object with a known field is one. Any other file is a text, but for
`.json` and `.jsonl`, which must hold records. Parquet, arrow and what `save_to_disk` wrote are read with `datasets`
(extra `data`).

A folder is one data set. Where it holds parquet or arrow files, these and JSON lines are the data, and other files are
passed over; elsewhere every text counts. Where files of records are named after splits, the split to train on is read.
What is passed over is reported.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.prompts.conversation_forms import FORMS
from executor.prompts.message_parts import Report
from treeopt.errors import ExecutorError
from treeopt.storage import user_files
from treeopt.storage.user_files import why

JSON, LINES, TABLES = (".json",), (".jsonl", ".ndjson", ".jsonlines"), (".parquet", ".arrow")
CELLS = (".csv", ".tsv", ".xlsx")
PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar")
# Files that `datasets` and its hub write beside the data, and those that `save_to_disk` leaves beside arrow files.
ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
SAVED = ("state.json", "dataset_info.json")
LIST_LIMIT = 2**31  # most bytes of a JSON list
BATCH = 256  # rows of a table that are held at once
TRAIN = "train"
_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-z])", re.IGNORECASE)
_OPENING = b"\xef\xbb\xbf \t\r\n"  # what may stand before the first character

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


def refuse(error: ExecutorError) -> None:
    """Raise the error of a line that is broken."""
    raise error


def items(paths: Sequence[Path], report: Report, *, records: bool = False) -> Iterator[Item]:
    """Yield the records and texts of files and of all files below folders, in order.

    The report gets what was read and passed over. With `records` files that are named must hold records.

    Raises:
        ExecutorError: a file cannot be read, or holds broken JSON; names file and line.
    """
    for path in paths:
        if path.is_dir():
            yield from _folder(path, report)
        else:
            yield from _file(path, report, path.name, records=records)


def items_of(path: Path, broken: Broken = refuse, *, records: bool = False) -> Iterator[Item]:
    """Yield the records of a file, or else its text, unless that is blank.

    Args:
        path: the file.
        broken: gets the error of each line that is not JSON or not UTF-8; raises it, or returns to skip the line.
        records: whether the file must hold records.

    Raises:
        ExecutorError: the file cannot be read, or holds broken records; names file and line.
    """
    suffix = _suffix(path)
    if suffix in TABLES:
        yield from _table_rows(path)
        return
    if suffix in CELLS:
        raise ExecutorError(f"{path}: a table of cells is not read: write its rows as JSON lines or parquet")
    try:
        head = _head(path)
    except OSError as error:
        raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error
    if _holds_lines(path, head):
        yield from _lines(path, broken)
        return
    try:
        value = _json(_text(path, LIST_LIMIT), str(path)) if suffix in JSON or head[:1] in (b"[", b"{") else None
    except ExecutorError:
        if suffix in JSON:
            raise
        value = None  # a text that begins like JSON
    if isinstance(value, dict) and not FORMS.isdisjoint(value):
        value = [value]
    if isinstance(value, list) and (suffix in JSON or any(isinstance(entry, dict) for entry in value)):
        yield from (Item(f"{path}, record {number}", record) for number, record in enumerate(value))
    elif suffix in JSON:
        kind = f"an object with {', '.join(list(value)[:5])}" if isinstance(value, dict) else type(value).__name__
        raise ExecutorError(f"{path}: must be a list of records, or one record per line, found {kind}")
    elif records or suffix in LINES:
        yield from _lines(path, broken)
    elif (text := _text(path)).strip():
        yield Item(str(path), text=text)


def _suffix(path: Path) -> str:
    return path.suffix.lower()


def _head(path: Path) -> bytes:
    """Return the beginning of a file from its first character that is not blank.

    Raises:
        OSError: it cannot be read, is packed, or is neither UTF-8 nor a text without a mark.
    """
    with user_files.open_regular(path) as file:
        head = file.read(4096)
    user_files.check_text(head, path)
    encoding = json.detect_encoding(head) if len(head) > 3 else "utf-8"
    if encoding not in ("utf-8", "utf-8-sig"):
        raise OSError(22, f"a text in {encoding.upper()}: write it in UTF-8")
    return head.lstrip(_OPENING)


def _holds_lines(path: Path, head: bytes) -> bool:
    """Return True if the first line that is not blank is an object by itself."""
    if not head.startswith(b"{"):
        return bool(not head and _suffix(path) in LINES)
    try:
        line = next(user_files.read_text_lines(path))[1]
        return isinstance(json.loads(line), dict)
    except UnicodeDecodeError:
        return True  # reading it will name the line
    except (OSError, ValueError, RecursionError):
        return False


def _text(path: Path, limit: int = user_files.LIMIT) -> str:
    try:
        return user_files.read_text(path, limit=limit)
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f'{where}: not JSON: {error}; a record is a line such as {{"text": "..."}}') from error


def _lines(path: Path, broken: Broken) -> Iterator[Item]:
    lines = user_files.read_text_lines(path, errors="surrogateescape")
    while True:
        try:
            number, line = next(lines)
        except StopIteration:
            return
        except OSError as error:
            raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error
        where = f"{path}, line {number}"
        try:
            line.encode("utf-8", "surrogateescape").decode()  # a byte that is not UTF-8 is half a surrogate pair here
            record = _json(line, where)
        except UnicodeDecodeError as error:
            error.reason += f" (line {number})"
            broken(ExecutorError(f"{path}: text cannot be read: {why(error)}"))
        except ExecutorError as error:
            broken(error)
        else:
            yield Item(where, record)


def _file(file: Path, report: Report, name: str, *, records: bool = False) -> Iterator[Item]:
    empty = True
    for item in items_of(file, report.skip, records=records):
        report.files += empty
        empty = False
        yield item
    if empty:
        report.passed_over.append(("empty", name))


# --- folders


def _folder(folder: Path, report: Report) -> Iterator[Item]:
    if (folder / "dataset_dict.json").is_file() or all((folder / name).is_file() for name in SAVED):
        yield from _saved_rows(folder, report)
        return
    files = _files_below(folder, report)
    tables = any(_suffix(file) in TABLES for file in files)
    reasons = {file: _passed_over(file, tables=tables) for file in files}
    splits = {file: _split_of(file.relative_to(folder)) for file, reason in reasons.items() if reason is None}
    splits = {file: split for file, split in splits.items() if split is not None and _is_data(file)}
    for file, reason in reasons.items():
        name = str(file.relative_to(folder))
        if TRAIN in splits.values() and splits.get(file, TRAIN) != TRAIN:
            reason = "another split than train; name the file to read it"
        if reason is None:
            yield from _file(file, report, name)
        else:
            report.passed_over.append((reason, name))


def _files_below(folder: Path, report: Report) -> list[Path]:
    """Return the files below a folder in order, and report hidden ones and links to folders, which are not read.

    Raises:
        ExecutorError: a link leads nowhere.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = next((number for number, part in enumerate(name.parts, 1) if part.startswith(".")), None)
        if hidden is not None:
            if hidden == len(name.parts):  # what a hidden folder holds is passed over with it
                report.passed_over.append(("hidden; name it to read it", str(name)))
        elif path.is_symlink() and not path.exists():
            raise ExecutorError(
                f"{path}: a link to {path.readlink()}, which does not exist: restore it, or remove the link"
            )
        elif path.is_symlink() and path.is_dir():
            report.passed_over.append(("a link to a folder; name it to read it", str(name)))
        elif path.is_file():
            files.append(path)
        elif not path.is_dir():
            report.passed_over.append(("not a regular file", str(name)))
    return files


def _split_of(path: Path) -> str | None:
    """Return the split that a file's name or folder begins with.

    >>> [_split_of(Path(name)) for name in ("data/train-00000-of-00001.parquet", "dev.jsonl", "training.txt", "a.txt")]
    ['train', 'dev', None, None]
    """
    return next((match[1].lower() for part in reversed(path.parts) if (match := _SPLIT.match(part))), None)


def _is_data(file: Path) -> bool:
    """Return True if a file holds records by its name, or has one in its first line."""
    try:
        return _suffix(file) in (*TABLES, *JSON, *LINES) or _holds_lines(file, _head(file))
    except OSError:
        return False  # reading it will report the error


def _passed_over(file: Path, *, tables: bool) -> str | None:
    """Return why a file of a folder is not read; None if it is."""
    suffix = _suffix(file)
    if suffix in TABLES:
        return None
    if suffix in PACKED:
        return "compressed: unpack it to read it"
    try:
        with user_files.open_regular(file) as opened:
            head = opened.read(8000)
    except OSError:
        return None  # reading it will report the error
    if file.name in ABOUT or (file.name == "README.md" and head.startswith(b"---")):
        return "it describes a data set"
    if b"\0" in head and not head.startswith(user_files.UTF16):
        return "binary"
    if suffix in CELLS:
        return "a table of cells: write its rows as JSON lines or parquet"
    return "not a table, as the data of this folder are" if tables and suffix not in LINES else None


# --- tables, read with `datasets`


def _saved_rows(folder: Path, report: Report) -> Iterator[Item]:
    """Yield the rows of what `datasets` saved to disk; of several splits the one to train on."""
    loaded = _loaded(folder, lambda library: library.load_from_disk(str(folder)))
    splits = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
    chosen = [name for name in splits if _split_of(Path(name)) == TRAIN] or list(splits)
    for name in splits:
        if name not in chosen:
            report.passed_over.append(("another split than train; name its folder to read it", name))
    for name in chosen:
        report.files += 1
        yield from _rows(splits[name], folder / name if name else folder)


def _table_rows(file: Path) -> Iterator[Item]:
    """Yield the rows of a parquet or arrow file."""
    kind = _suffix(file)[1:]
    options: dict[str, Any] = {"data_files": str(file), "split": "train", "streaming": True}
    options |= {"batch_size": BATCH} if kind == "parquet" else {}  # else its first group's rows, which may be none
    try:
        user_files.check_file(file)
    except OSError as error:
        raise ExecutorError(f"{file}: cannot be read: {why(error)}") from error
    yield from _rows(_loaded(file, lambda library: library.load_dataset(kind, **options)), file)


def _rows(rows: Any, path: Path) -> Iterator[Item]:
    """Yield the rows of a data set, undecoded: fields that other rows have, and are null here, are left out."""
    batches = iter(rows.with_format("arrow").iter(batch_size=BATCH))
    number = 0
    while (batch := _loaded(path, lambda _: next(batches, None))) is not None:
        for row in batch.to_pylist():
            yield Item(f"{path}, row {number}", without_nulls(row))
            number += 1


def without_nulls(value: Any) -> Any:
    """Return a value of a table without the fields that are null, at any depth: a table gives every row all fields.

    >>> without_nulls({"a": None, "b": [{"c": None, "d": 1}]})
    {'b': [{'d': 1}]}
    """
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def _loaded(path: Path, load: Callable[[Any], Any]) -> Any:
    """Return what `datasets` loads.

    Raises:
        ExecutorError: it is not installed, or cannot read the path; names the first cause.
    """
    try:
        import datasets
    except ImportError as error:
        raise ExecutorError(f"{path}: parquet and arrow need `datasets`: pip install 'treeopt[data]'") from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)  # its errors are raised too
    try:
        return load(datasets)
    except Exception as error:  # it raises classes of its own and pyarrow's
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        line = (str(cause).splitlines() or [type(cause).__name__])[0][:200]
        reason = f"it lacks {line}" if isinstance(cause, KeyError) else line
        raise ExecutorError(f"{path}: `datasets` cannot read it: {reason}") from error
