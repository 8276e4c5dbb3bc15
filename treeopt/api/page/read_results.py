"""Results that commands wrote, read and put on one page: what `treeopt report` does."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from treeopt.api.page.device_charts import device_chart, profile_chart
from treeopt.api.page.result_files import Inputs, ProfileFile, ResultFile, read_files
from treeopt.api.page.slider_inputs import slider_data
from treeopt.comparison.mismatch_warnings import differing_models
from treeopt.errors import TreeoptError
from treeopt.plans.plan import Plan
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.report.page_parts import Finding, Page, Problem
from treeopt.report.page_sections import (
    PREDICTIONS,
    engines_finding,
    plan_finding,
    predictions_finding,
    record_finding,
    same_texts,
)
from treeopt.report.trace_section import trace_finding
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import Trace


def report_page(files: Iterable[Path | str], *, title: str = "treeopt") -> Page:
    """Read results and return the page that shows them; a file that cannot be read is a problem of the page.

    Args:
        files: traces and their folders, plans, profiles, predictions, and what `compare`, `simulate`, `validate` and
            `whatif` write. A file that is given several times is read once.
        title: title of the page.
    """
    inputs = read_files(files)
    findings = []
    for file in inputs.read:
        try:
            findings.append(_finding(file, inputs))
        except TreeoptError as error:
            inputs.problems.append(Problem(file.name, str(error)))
    run = this_run()
    commit = f", commit {run['commit']}" if run["commit"] else ""
    footer = f"treeopt {run['treeopt']}{commit}, {run['date']}: {run['command']}"
    return Page(title, findings, inputs.problems, footer, _sliders(inputs), inputs.notes)


def _finding(file: ResultFile, inputs: Inputs) -> Finding:
    value, source = file.value, file.source
    if isinstance(value, Trace):
        own = [plan for plan in inputs.of(Plan) if same_texts(value.meta, plan.meta.get("trace"))]
        return trace_finding(value, source, replayed=with_drawn_ranks(value, 0), chosen=_chosen(own))
    if isinstance(value, Plan):
        return _plan(value, file, inputs)
    if isinstance(value, ProfileFile):
        return record_finding(value.record, source, charts=[profile_chart(value.profile)])
    if isinstance(value, list):
        return engines_finding(value, source)
    if value["schema"] == PREDICTIONS:
        return predictions_finding(value, source)
    found = record_finding(value, source)
    if found.question == "whatif" and (chart := device_chart(value)) is not None:
        return Finding(found.question, found.title, source, found.blocks, [*found.charts, chart])
    return found


def _plan(plan: Plan, file: ResultFile, inputs: Inputs) -> Finding:
    from simulate.validation.find_validation import live_checks, live_speedups

    records = [value for value in inputs.of(dict) if value["schema"] == "treeopt.validation/2"]
    return plan_finding(
        plan,
        file.source,
        file=file.name,
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

    for file in inputs.read:
        trace = file.value
        if not isinstance(trace, Trace):
            continue
        given = [v.profile for v in inputs.of(ProfileFile) if not differing_models(v.profile.meta, trace.meta)]
        try:
            profile = given[0] if given else profile_of_trace(trace)[0]
            data = slider_data(with_drawn_ranks(trace, 0), profile, name=file.name)
        except TreeoptError:
            continue
        if data is not None:
            return data
    return None
