"""Files to download: the plan, the engine's configuration, the report; each as the commands write it."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from treeopt.api.page.read_results import report_page
from treeopt.engines import ENGINES
from treeopt.engines.export import Export
from treeopt.errors import TreeoptError, UsageError
from treeopt.explore.answers import Answer
from treeopt.plans.plan_json import to_json

PLAN_FILE = "plan.json"
REPORT_FILE = "report.html"
TITLE = "treeopt explore"  # of the report


def plan_text(answer: Answer) -> str:
    """Return the content of the plan's file."""
    return to_json(answer.plan) + "\n"


def report_text(answer: Answer) -> str:
    """Return the report of the plan, its trace and its profile, as `treeopt report` writes it."""
    from treeopt.report.html_page import as_html

    with TemporaryDirectory() as folder:
        plan = Path(folder) / PLAN_FILE
        plan.write_text(plan_text(answer), "utf-8")
        return as_html(report_page((plan, *answer.files), title=TITLE))


def exported(answer: Answer, *, method: str | None = None, model: str = "", batch: int | None = None) -> Export:
    """Return the plan for the engine of the question, as `treeopt export` writes it.

    Args:
        answer: the answer.
        method: how the engine drafts; None: by the plan's drafter.
        model: the drafter's checkpoint; empty: not named.
        batch: one of the plan's batch sizes; None: all of them.

    Raises:
        UsageError: no exporter for this engine, or it lacks a setting.
        EngineError: the engine cannot run the plan.
    """
    engine = answer.question.engine
    if engine is None or engine not in ENGINES.exporting():
        raise UsageError(f"there is no exporter for {engine}: download the plan")
    entry = ENGINES[engine]
    method = method if "method" in entry.takes else None
    return entry.export(answer.plan, method=method, model=model or None, batch=batch)


def attempt_export(answer: Answer, **choices: Any) -> Export | TreeoptError:
    """Return the export, or its error."""
    try:
        return exported(answer, **choices)
    except TreeoptError as error:
        return error


def export_file(export: Export, engine: str) -> str:
    """Return the name of an export's file.

    >>> export_file(Export("{}", ".json", "", ()), "vllm")
    'treeopt_vllm.json'
    """
    return export.file or f"treeopt_{engine.replace('.', '_').replace('-', '_')}{export.suffix}"
