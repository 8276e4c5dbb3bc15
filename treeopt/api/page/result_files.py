"""Files of a page, read: each file once, its value, and the name that the page gives it."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from treeopt.errors import TreeoptError, UsageError
from treeopt.registry import load
from treeopt.report.page_parts import Problem
from treeopt.results.kinds import RESULTS, ResultKind
from treeopt.storage.atomic_files import checksum, why
from treeopt.storage.json_records import RecordError
from treeopt.storage.user_files import check_pointer, read_bytes
from treeopt.traces.resumable_shards import MANIFEST, ranks_of
from treeopt.traces.trace import load_trace

COLUMNS = re.compile(r"[\w ./%-]+(,[\w ./%-]+)+\s*")  # first line of a CSV


@dataclass(frozen=True)
class ResultFile:
    """A file with its value.

    Attributes:
        name: as the page shows it.
        source: the name with the checksum.
        kind: the kind of result.
        value: its value, as the kind describes it.
    """

    name: str
    source: str
    kind: ResultKind
    value: Any


@dataclass
class Inputs:
    """The files of a page in the order in which they were given, and those that could not be read."""

    read: list[ResultFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of_kind(self, name: str) -> list[Any]:
        """Return the values of a kind of result."""
        return [file.value for file in self.read if file.kind.name == name]


def read_files(files: Iterable[Path | str]) -> Inputs:
    """Read files, each once; one that cannot be read is a problem."""
    inputs, times = Inputs(), dict[Path, int]()
    given = dict[Path, Path]()
    for path in map(Path, files):
        place = path.resolve()
        given.setdefault(place, path)
        times[place] = times.get(place, 0) + 1
    for path, name in _names(list(given.values())).items():
        if (count := times[path.resolve()]) > 1:
            inputs.notes.append(f"{name} was given {'twice' if count == 2 else f'{count} times'} and is shown once.")
        try:
            inputs.read.append(ResultFile(name, _source(path, name), *_read(path)))
        except FileNotFoundError:
            inputs.problems.append(Problem(name, "there is no such file"))
        except OSError as error:
            inputs.problems.append(Problem(name, f"cannot be read: {why(error)}"))
        except TreeoptError as error:
            inputs.problems.append(Problem(name, str(error).removeprefix(f"{path}: ")))
    return inputs


def _names(paths: list[Path]) -> dict[Path, str]:
    """Return files with the names that the page gives them: with the folder where two files share a name."""
    names = [path.name or str(path) for path in paths]
    return {path: name if names.count(name) == 1 else str(path) for path, name in zip(paths, names, strict=True)}


def _source(path: Path, name: str) -> str:
    return name if path.is_dir() else f"{name}, sha256 {checksum(path)[:16]}"


def _read(path: Path) -> tuple[ResultKind, Any]:
    """Return the kind and the value of a file.

    Raises:
        TreeoptError: it is damaged, or of no kind that the page knows.
        OSError: it cannot be read.
    """
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise UsageError(f"a folder without parts of a trace (it has no {MANIFEST}): name the files")
        return RESULTS["trace"], ranks_of(path)
    if is_zipfile(path):
        return RESULTS["trace"], load_trace(path)
    data = read_bytes(path)
    check_pointer(data, path)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(_not_json(data, error)) from error
    kind = _kind(record)
    if kind is None:
        raise UsageError(_no_result(record))
    if kind.read:
        return kind, load(kind.read)(path)
    try:
        return kind, kind.of_record(record)
    except RecordError as error:
        reason = f"no whole result of `treeopt {kind.command}`: {error}; run it again"
        raise UsageError(reason) from error


def _kind(record: Any) -> ResultKind | None:
    """Return the kind of a file's JSON: by its schema, or a list of engine checks."""
    if isinstance(record, list) and record and isinstance(record[0], dict) and "texts_equal" in record[0]:
        return RESULTS["acceptance"]
    schema = record.get("schema") if isinstance(record, dict) else None
    return next((kind for kind in RESULTS.values() if isinstance(schema, str) and schema in kind.schemas), None)


def _not_json(data: bytes, error: Exception) -> str:
    """Return what a file is that is neither a trace nor JSON."""
    first = data.decode("utf-8-sig", "replace").strip().partition("\n")[0]
    if not first:
        return "empty"
    for kind, known in (("Parquet", data.startswith(b"PAR1")), ("CSV", COLUMNS.fullmatch(first))):
        if known:
            return f"a table of results ({kind}): give the .json that the same command wrote with --output"
    if data.startswith(b"PK"):
        return "an archive that is not complete, such as a trace that was cut: copy or record it again"
    if first[0] in "{[" and isinstance(error, json.JSONDecodeError) and error.msg != "Extra data":
        return f"damaged JSON, at line {error.lineno}, column {error.colno}: write the file again"
    return "neither a trace (.npz) nor JSON: give what a command wrote with --output"


def _no_result(record: Any) -> str:
    """Return what JSON is that is no result."""
    schema = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(schema, str):
        return "JSON, but no result of treeopt: it names no schema"
    for kind in RESULTS.values():
        if schema.rpartition("/")[0] in {known.rpartition("/")[0] for known in kind.schemas}:
            return f"written by another version of treeopt ({schema:.40}): run `treeopt {kind.command}` again"
    return f"a file of another kind ({schema:.60}), which a page does not show"
