"""Results that commands wrote, read and put on one page: what `treeopt report` does."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from treeopt.api.page.chart_inputs import device_chart, profile_chart
from treeopt.api.page.slider_inputs import slider_data
from treeopt.comparison.mismatch_warnings import differing_models
from treeopt.errors import TreeoptError, UsageError
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import BEFORE, SCHEMA, load_plan
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.report.page_parts import Finding, Page, Problem
from treeopt.report.page_sections import (
    PREDICTIONS,
    PROFILE,
    RECORDS,
    checked,
    engines_finding,
    plan_finding,
    predictions_finding,
    record_finding,
    same_texts,
    trace_finding,
)
from treeopt.storage.atomic_files import checksum, why
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import read_text
from treeopt.traces.resumable_shards import ranks_of
from treeopt.traces.trace import Trace, load_trace


@dataclass
class Inputs:
    """The files of a page, read: values by kind, in the order in which they were given."""

    read: list[tuple[Path, str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def of(self, kind: type) -> list[Any]:
        """Return the values of a type."""
        return [value for _, _, value in self.read if isinstance(value, kind)]


def report_page(files: Iterable[Path | str], *, title: str = "treeopt") -> Page:
    """Read results and return the page that shows them; a file that cannot be read is a problem of the page.

    Args:
        files: traces and their folders, plans, profiles, predictions, and what `compare`, `simulate`, `validate` and
            `whatif` write.
        title: title of the page.
    """
    inputs = Inputs()
    for path in map(Path, files):
        try:
            inputs.read.append((path, _source(path), _value(path)))
        except TreeoptError as error:
            inputs.problems.append(Problem(path.name, _reason(path, error)))
    findings = []
    for path, source, value in inputs.read:
        try:
            findings.append(_finding(value, source, inputs))
        except TreeoptError as error:
            inputs.problems.append(Problem(path.name, _reason(path, error)))
    run = this_run()
    commit = f", commit {run['commit']}" if run["commit"] else ""
    footer = f"treeopt {run['treeopt']}{commit}, {run['date']}: {run['command']}"
    return Page(title, findings, inputs.problems, footer, _sliders(inputs))


def _reason(path: Path, error: Exception) -> str:
    return str(error).removeprefix(f"{path}: ")


def _source(path: Path) -> str:
    if path.is_dir():
        return path.name
    try:
        return f"{path.name}, sha256 {checksum(path)[:16]}"
    except OSError as error:
        raise UsageError(f"cannot be read: {why(error)}") from error


def _value(path: Path) -> Any:
    """Return a file's content: a trace, a plan, or a record.

    Raises:
        TreeoptError: it cannot be read, or is of no kind that the page knows.
    """
    if path.is_dir():
        return ranks_of(path)
    if is_zipfile(path):
        return load_trace(path)
    try:
        record = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"neither a trace (.npz) nor JSON: {error}") from error
    if isinstance(record, list) and record and isinstance(record[0], dict) and "texts_equal" in record[0]:
        return record
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema in (SCHEMA, BEFORE):
        return load_plan(path)
    if schema == PROFILE:
        return _profile(path, record)
    if schema == PREDICTIONS or (isinstance(schema, str) and schema in RECORDS):
        return record
    known = ", ".join((SCHEMA, PREDICTIONS, *RECORDS))
    raise UsageError(f"schema must be {known}, found {schema!r:.80}")


def _profile(path: Path, record: Mapping[str, Any]) -> "ProfileFile":
    from simulate.profiles.profile import load_profile

    return ProfileFile(load_profile(path), record)


@dataclass(frozen=True)
class ProfileFile:
    """A profile and the record that it was read from."""

    profile: Any
    record: Mapping[str, Any]


def _finding(value: Any, source: str, inputs: Inputs) -> Finding:
    if isinstance(value, Trace):
        own = [plan for plan in inputs.of(Plan) if same_texts(value.meta, plan.meta.get("trace"))]
        return trace_finding(value, source, replayed=with_drawn_ranks(value, 0), chosen=_chosen(own))
    if isinstance(value, Plan):
        return _plan(value, source, inputs)
    if isinstance(value, ProfileFile):
        return record_finding(value.record, source, charts=[profile_chart(value.profile)])
    if isinstance(value, list):
        return engines_finding(value, source)
    if value["schema"] == PREDICTIONS:
        return checked(lambda: predictions_finding(value, source), PREDICTIONS)
    found = record_finding(value, source)
    if found.question == "whatif" and (chart := device_chart(value)) is not None:
        return Finding(found.question, found.title, source, found.blocks, [*found.charts, chart])
    return found


def _plan(plan: Plan, source: str, inputs: Inputs) -> Finding:
    from simulate.validation.find_validation import live_checks, live_speedups

    records = [value for value in inputs.of(dict) if value["schema"] == "treeopt.validation/2"]
    return plan_finding(
        plan,
        source,
        checks=live_checks(plan, records),
        measured=live_speedups(plan, records),
        traces=inputs.of(Trace),
    )


def _chosen(plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the chosen trees of plans by name, for the chart of tau."""
    return {
        f"batch {entry.batch}": entry.choice.tree
        for plan in plans
        for entry in plan.entries
        if entry.choice.tree is not None
    }


def _sliders(inputs: Inputs) -> dict[str, Any] | None:
    """Return the data of the sliders for the first trace that has step times: given ones, or found by its models."""
    from simulate.profiles.find_profile import profile_of_trace

    for trace in inputs.of(Trace):
        given = [v.profile for v in inputs.of(ProfileFile) if not differing_models(v.profile.meta, trace.meta)]
        try:
            profile = given[0] if given else profile_of_trace(trace)[0]
            data = slider_data(with_drawn_ranks(trace, 0), profile)
        except TreeoptError:
            continue
        if data is not None:
            return data
    return None
