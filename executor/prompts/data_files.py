"""Files and folders of data: which files are read, and which are passed over.

A folder is one data set. Where it holds parquet or arrow files, these and JSON lines are the data, and other files are
passed over; elsewhere every text counts. Where files of records are named after splits, the split to train on is read.
What is passed over is reported.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from executor.prompts.parquet_files import TABLES, TRAIN, is_saved, saved_rows, split_of, table_rows
from executor.prompts.reading_report import Report
from executor.prompts.record_files import CELLS, LINES, Item, holds_records, items_of, suffix_of
from treeopt.errors import ExecutorError
from treeopt.storage import user_files

PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar")
# Files that `datasets` and its hub write beside the data.
ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


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


def _file(file: Path, report: Report, name: str = "") -> Iterator[Item]:
    empty = True
    for item in table_rows(file) if suffix_of(file) in TABLES else items_of(file, report.skip):
        report.files += empty
        empty = False
        yield item
    if empty:
        report.passed_over.append(("empty", name or file.name))


def _folder(folder: Path, report: Report) -> Iterator[Item]:
    if is_saved(folder):
        yield from saved_rows(folder, report)
        return
    files = _files_below(folder, report)
    tables = any(suffix_of(p) in TABLES for p in files)
    reasons = {file: _passed_over(file, tables=tables) for file in files}
    others = _other_splits(folder, [file for file, reason in reasons.items() if reason is None])
    for file, reason in reasons.items():
        if file in others:
            reason = "another split than train; name the file to read it"
        if reason is None:
            yield from _file(file, report, str(file.relative_to(folder)))
        else:
            report.passed_over.append((reason, str(file.relative_to(folder))))


def _files_below(folder: Path, report: Report) -> list[Path]:
    """Return the files below a folder in order, and report hidden ones and links to folders, which are not read.

    Raises:
        ExecutorError: a link leads nowhere.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = next((number for number, part in enumerate(parts, 1) if part.startswith(".")), None)
        if hidden is not None:
            if hidden == len(parts):  # what a hidden folder holds is passed over with it
                report.passed_over.append(("hidden; name it to read it", str(Path(*parts))))
        elif path.is_symlink() and not path.exists():
            raise ExecutorError(
                f"{path}: a link to {path.readlink()}, which does not exist: restore it, or remove the link"
            )
        elif path.is_symlink() and path.is_dir():
            report.passed_over.append(("a link to a folder; name it to read it", str(Path(*parts))))
        elif path.is_file():
            files.append(path)
        elif not path.is_dir():
            report.passed_over.append(("not a regular file", str(Path(*parts))))
    return files


def _other_splits(folder: Path, files: Sequence[Path]) -> set[Path]:
    """Return the files of records that belong to another split than the one to train on, if there is that one."""
    splits = {file: split_of(file.relative_to(folder)) for file in files}
    named = {file: split for file, split in splits.items() if split is not None and _is_data(file)}
    return {file for file, split in named.items() if split != TRAIN} if TRAIN in named.values() else set()


def _is_data(file: Path) -> bool:
    return suffix_of(file) in TABLES or holds_records(file)


def _passed_over(file: Path, *, tables: bool) -> str | None:
    """Return why a file of a folder is not read; None if it is."""
    suffix = suffix_of(file)
    if file.name in ABOUT:
        return "it describes a data set"
    if suffix in TABLES:
        return None
    if suffix in PACKED:
        return "compressed: unpack it to read it"
    if _binary(file):
        return "binary"
    if suffix in CELLS:
        return "a table of cells; name the file to read it"
    if tables and suffix not in LINES:
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
    """Return True if there is a zero byte near the beginning, as git does, and no mark of UTF-16."""
    try:
        with user_files.open_regular(path) as file:
            head = file.read(8000)
            return b"\0" in head and not head.startswith(user_files.UTF16)
    except OSError:
        return False  # reading it will report the error
