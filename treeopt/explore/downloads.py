"""Files to download: the plan, the engine's configuration, the report; each as the commands write it."""

import inspect
from dataclasses import dataclass
from typing import Any

from treeopt.engines import ENGINES, METHODS
from treeopt.engines.export import Export
from treeopt.errors import UsageError
from treeopt.explore.answers import Answer
from treeopt.plans.plan_json import to_json

PLAN_FILE = "plan.json"
REPORT_FILE = "report.html"


@dataclass(frozen=True)
class Handover:
    """Choices of an export.

    Attributes:
        engine: the engine, as in `treeopt export --format`.
        method: how it drafts; None: by the plan's drafter.
        model: the drafter's checkpoint; None: not named.
        batch: one of the plan's batch sizes; None: all of them.
    """

    engine: str
    method: str | None = None
    model: str | None = None
    batch: int | None = None


def plan_text(answer: Answer) -> str:
    """Return the content of the plan's file."""
    return to_json(answer.plan) + "\n"


def exported(answer: Answer, handover: Handover) -> Export:
    """Return the plan for an engine.

    Raises:
        UsageError: no exporter for this engine, or it lacks a setting.
        EngineError: the engine cannot run the plan.
    """
    if handover.engine not in ENGINES:
        raise UsageError(f"there is no exporter for {handover.engine}: download the plan instead")
    export = ENGINES[handover.engine]
    known = inspect.signature(export).parameters
    given: dict[str, Any] = {"method": handover.method, "model": handover.model, "batch": handover.batch}
    return export(answer.plan, **{name: value for name, value in given.items() if value and name in known})


def export_file(export: Export, engine: str) -> str:
    """Return the name of an export's file.

    >>> export_file(Export("{}", ".json", "", ()), "vllm")
    'treeopt_vllm.json'
    """
    return export.file or f"treeopt_{engine.replace('.', '_').replace('-', '_')}{export.suffix}"


def methods_of(engine: str | None) -> tuple[str, ...]:
    """Return the names of an engine's drafting methods; none without an exporter."""
    return METHODS.get(engine, ()) if engine else ()
