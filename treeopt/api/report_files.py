"""Results that commands wrote, read and put on one page: what `treeopt report` does."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from treeopt.comparison.mismatch_warnings import differing_models
from treeopt.errors import TreeoptError, UsageError, visible
from treeopt.plans import Plan
from treeopt.registry import load
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.report.html_page import Finding, Page, Problem
from treeopt.report.slider_model import slider_data
from treeopt.results.kinds import RESULTS, ResultKind
from treeopt.storage.json_records import RecordError
from treeopt.storage.provenance import look, this_run
from treeopt.storage.user_files import check_pointer, checksum, open_regular, read_bytes, why
from treeopt.traces.resumable_shards import MANIFEST, ranks_of
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace

COLUMNS = re.compile(r"[\w ./%-]+(,[\w ./%-]+)+\s*")  # first line of a CSV


@dataclass(frozen=True)
class ResultFile:
    """A file: its name on the page, the same with the checksum, its kind, and its value as the kind describes it."""

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
    inputs, given = Inputs(), dict[str, list[Path]]()
    for path in map(Path, files):
        given.setdefault(os.path.realpath(path), []).append(path)
    names = [visible(paths[0].name or str(paths[0])) for paths in given.values()]
    for (path, *others), short in zip(given.values(), names, strict=True):
        name = short if names.count(short) == 1 else visible(str(path))
        if (count := 1 + len(others)) > 1:
            inputs.notes.append(f"{name} was given {'twice' if count == 2 else f'{count} times'} and is shown once.")
        try:
            kind, value = _read(path)
            source = name if path.is_dir() else f"{name}, sha256 {checksum(path)[:16]}"
            inputs.read.append(ResultFile(name, source, kind, value))
        except FileNotFoundError:
            inputs.problems.append(Problem(name, "there is no such file"))
        except OSError as error:
            inputs.problems.append(Problem(name, f"cannot be read: {why(error)}"))
        except TreeoptError as error:
            inputs.problems.append(Problem(name, str(error).removeprefix(f"{visible(str(path))}: ")))
    return inputs


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
    with open_regular(path) as file:
        packed = is_zipfile(file)
    if packed:
        return RESULTS["trace"], load_trace(path)
    data = read_bytes(path)
    check_pointer(data, path)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(_not_json(data, error)) from error
    schema, kind = look(record, "schema"), None
    if isinstance(schema, str):
        kind = RESULTS.find(lambda kind: schema == kind.schema)
    elif isinstance(record, list) and record and isinstance(record[0], dict) and "texts_equal" in record[0]:
        kind = RESULTS["acceptance"]
    if kind is None:
        raise UsageError(_no_result(schema))
    if kind.read:
        return kind, load(kind.read)(path)
    try:
        return kind, kind.of_record(record)
    except RecordError as error:
        reason = f"no whole result of `treeopt {kind.command}`: {error}; run it again"
        raise UsageError(reason) from error


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


def _no_result(schema: Any) -> str:
    """Return what JSON of a schema is that is no result."""
    if not isinstance(schema, str):
        return "JSON, but no result of treeopt: it names no schema"
    for kind in RESULTS.values():
        if kind.schema and schema.rpartition("/")[0] == kind.schema.rpartition("/")[0]:
            return f"written by another version of treeopt ({schema:.40}): run `treeopt {kind.command}` again"
    return f"a file of another kind ({schema:.60}), which a page does not show"


def report_page(files: Iterable[Path | str], *, title: str = "treeopt", plots: bool = True) -> Page:
    """Read results and return the page that shows them; a file that cannot be read is a problem of the page.

    Args:
        files: traces and their folders, plans, profiles, predictions, and what `compare`, `simulate`, `validate` and
            `whatif` write. A file that is given several times is read once.
        title: title of the page.
        plots: make the charts, which needs altair.
    """
    inputs = read_files(files)
    findings = []
    for file in inputs.read:
        kind, value = file.kind, file.value
        try:
            beside = load(kind.beside)(value, file.name, inputs) if kind.beside else {}
            answers = tuple((kind.summary or kind.answers)(value, **beside))
            blocks, charts = kind.blocks(value, **beside), kind.all_charts(value, **beside) if plots else []
        except TreeoptError as error:
            inputs.problems.append(Problem(file.name, str(error)))
        except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError):
            # Numbers of the file that cannot be shown together.
            inputs.problems.append(Problem(file.name, f"no whole result of `treeopt {kind.command}`: run it again"))
        else:
            findings.append(Finding(kind, kind.titled(value), file.source, blocks, charts, answers))
    run = this_run()
    commit = f", commit {run['commit']}" if run["commit"] else ""
    footer = f"treeopt {run['treeopt']}{commit}, {run['date']}: {run['command']}"
    return Page(title, findings, inputs.problems, footer, _sliders(inputs), inputs.notes)


def beside_plan(plan: Plan, file: str, inputs: Inputs) -> dict[str, Any]:
    """Return what is known beside a plan on a page: live checks of its choices, and the trace that it was made from."""
    from simulate.validation.predicted_vs_measured import live_checks, live_speedups

    validations = inputs.of_kind("validation")
    own = (trace for trace in inputs.of_kind("trace") if _same_texts(trace.meta, plan.meta.get("trace")))
    return {
        "file": file,
        "checks": live_checks(plan, validations),
        "measured": live_speedups(plan, validations),
        "trace": next(own, None),
    }


def beside_trace(trace: Trace, file: str, inputs: Inputs) -> dict[str, Any]:
    """Return the trees that plans of a page chose for a trace, by name."""
    own = [plan for plan in inputs.of_kind("plan") if _same_texts(trace.meta, plan.meta.get("trace"))]
    entries = (entry for plan in own for entry in plan.entries)
    return {"chosen": {f"batch {entry.batch}": entry.choice.tree for entry in entries if entry.choice.tree is not None}}


def _same_texts(meta: Mapping[str, Any], other: Any) -> bool:
    """Return True if two descriptions of traces name the same texts and drafter."""
    keys = ("text_sha256", "drafter")
    return isinstance(other, Mapping) and "text_sha256" in meta and all(meta.get(k) == other.get(k) for k in keys)


def _sliders(inputs: Inputs) -> dict[str, Any] | None:
    """Return the data of the sliders for the first trace that has step times: given ones, or found by its models."""
    from simulate.profiles.profile import profile_of_trace

    for file in inputs.read:
        trace = file.value
        if not isinstance(trace, Trace):
            continue
        given = [profile for profile in inputs.of_kind("profile") if not differing_models(profile.meta, trace.meta)]
        try:
            profile = given[0] if given else profile_of_trace(trace.meta)[0]
            data = slider_data(with_drawn_ranks(trace, 0), profile, name=file.name)
        except TreeoptError:
            continue
        if data is not None:
            return data
    return None
