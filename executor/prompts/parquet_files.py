"""Tables of records: parquet, arrow, and what `datasets` saved to disk, read with that library (extra `data`)."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executor.prompts.reading_report import Report
from executor.prompts.record_files import Item, suffix_of
from treeopt.errors import ExecutorError
from treeopt.storage import user_files
from treeopt.storage.atomic_files import why

TABLES = (".parquet", ".arrow")
SAVED = ("state.json", "dataset_info.json")  # what `save_to_disk` leaves beside arrow files
BATCH = 256  # rows of a table that are held at once
TRAIN = "train"
_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-z])", re.IGNORECASE)


def is_saved(folder: Path) -> bool:
    """Return True for a folder that `datasets` saved to disk."""
    return (folder / "dataset_dict.json").is_file() or all((folder / name).is_file() for name in SAVED)


def split_of(path: Path) -> str | None:
    """Return the split that a file's name or folder begins with.

    >>> [split_of(Path(name)) for name in ("data/train-00000-of-00001.parquet", "dev.jsonl", "training.txt", "a.txt")]
    ['train', 'dev', None, None]
    """
    for part in reversed(path.parts):
        if match := _SPLIT.match(part):
            return match[1].lower()
    return None


def saved_rows(folder: Path, report: Report) -> Iterator[Item]:
    """Yield the rows of what `datasets` saved to disk; of several splits the one to train on."""
    datasets = _library(folder)
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # it raises classes of its own and pyarrow's
        raise ExecutorError(f"{folder}: `datasets` cannot read it: {_reason(error)}") from error
    splits = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
    chosen = [name for name in splits if split_of(Path(name)) == TRAIN] or list(splits)
    for name in splits:
        if name not in chosen:
            report.passed_over.append(("another split than train; name its folder to read it", name))
    for name in chosen:
        report.files += 1
        yield from _rows(splits[name], str(folder / name) if name else str(folder))


def table_rows(file: Path) -> Iterator[Item]:
    """Yield the rows of a parquet or arrow file."""
    datasets, kind = _library(file), suffix_of(file)[1:]
    try:
        user_files.check_file(file)
        options = {"batch_size": BATCH} if kind == "parquet" else {}  # else its first group's rows, which may be none
        rows = datasets.load_dataset(kind, data_files=str(file), split="train", streaming=True, **options)
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
