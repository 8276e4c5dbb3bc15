"""Results that commands wrote, read and put on one page: what `treeopt report` does."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from treeopt.api.page.result_files import Inputs, ResultFile, read_files
from treeopt.comparison.mismatch_warnings import differing_models
from treeopt.errors import TreeoptError, UsageError
from treeopt.plans.plan import Plan
from treeopt.registry import load
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.report.page_parts import Finding, Page, Problem
from treeopt.report.slider_model import slider_data
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import Trace


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
        try:
            findings.append(_finding(file, inputs, plots=plots))
        except TreeoptError as error:
            inputs.problems.append(Problem(file.name, str(error)))
    run = this_run()
    commit = f", commit {run['commit']}" if run["commit"] else ""
    footer = f"treeopt {run['treeopt']}{commit}, {run['date']}: {run['command']}"
    return Page(title, findings, inputs.problems, footer, _sliders(inputs), inputs.notes)


def _finding(file: ResultFile, inputs: Inputs, *, plots: bool) -> Finding:
    """Return a result with its tables and charts.

    Raises:
        UsageError: numbers of the file that cannot be shown together.
    """
    kind, value = file.kind, file.value
    beside = load(kind.beside)(value, file.name, inputs) if kind.beside else {}
    try:
        answers = tuple((kind.summary or kind.answers)(value, **beside))
        blocks, charts = kind.blocks(value, **beside), kind.all_charts(value, **beside) if plots else []
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError) as error:
        raise UsageError(f"no whole result of `treeopt {kind.command}`: run it again") from error
    return Finding(kind, kind.titled(value), file.source, blocks, charts, answers)


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
    from simulate.profiles.find_profile import profile_of_trace

    for file in inputs.read:
        trace = file.value
        if not isinstance(trace, Trace):
            continue
        given = [profile for profile in inputs.of_kind("profile") if not differing_models(profile.meta, trace.meta)]
        try:
            profile = given[0] if given else profile_of_trace(trace)[0]
            data = slider_data(with_drawn_ranks(trace, 0), profile, name=file.name)
        except TreeoptError:
            continue
        if data is not None:
            return data
    return None
