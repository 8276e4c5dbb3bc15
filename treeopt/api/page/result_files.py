"""Files of a page, read: each file once, its value, and the name that the page gives it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from treeopt.api.page.unreadable_files import no_trace, not_a_result, not_json
from treeopt.errors import TreeoptError, UsageError
from treeopt.plans.plan_json import BEFORE, SCHEMA, load_plan
from treeopt.report.page_parts import Problem
from treeopt.report.page_sections import PREDICTIONS, PROFILE, RECORDS
from treeopt.storage.atomic_files import checksum, why
from treeopt.storage.user_files import check_pointer, read_bytes
from treeopt.traces.resumable_shards import MANIFEST, ranks_of
from treeopt.traces.trace import load_trace


@dataclass(frozen=True)
class ProfileFile:
    """A profile and the record that it was read from."""

    profile: Any
    record: Mapping[str, Any]


@dataclass(frozen=True)
class ResultFile:
    """A file with its value.

    Attributes:
        name: as the page shows it.
        source: the name with the checksum.
        value: a trace, a plan, a profile, a record or a list of engine checks.
    """

    name: str
    source: str
    value: Any


@dataclass
class Inputs:
    """The files of a page in the order in which they were given, and those that could not be read."""

    read: list[ResultFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, kind: type) -> list[Any]:
        """Return the values of a type."""
        return [file.value for file in self.read if isinstance(file.value, kind)]


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
            inputs.read.append(ResultFile(name, _source(path, name), _value(path)))
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


def _value(path: Path) -> Any:
    """Return a file's content: a trace, a plan, or a record.

    Raises:
        TreeoptError: it is damaged, or of no kind that the page knows.
        OSError: it cannot be read.
    """
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise UsageError(no_trace(path))
        return ranks_of(path)
    if is_zipfile(path):
        return load_trace(path)
    data = read_bytes(path)
    check_pointer(data, path)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(not_json(data, error)) from error
    if isinstance(record, list) and record and isinstance(record[0], dict) and "texts_equal" in record[0]:
        return record
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema in (SCHEMA, BEFORE):
        return load_plan(path)
    if schema == PROFILE:
        return _profile(path, record)
    if schema == PREDICTIONS or (isinstance(schema, str) and schema in RECORDS):
        return record
    raise UsageError(not_a_result(record))


def _profile(path: Path, record: Mapping[str, Any]) -> ProfileFile:
    from simulate.profiles.profile import load_profile

    return ProfileFile(load_profile(path), record)
