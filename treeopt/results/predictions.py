"""Predictions: the plan that was written before anything was measured, with its hash."""

import json
from collections.abc import Mapping
from typing import Any

from treeopt.plans import Plan, from_json
from treeopt.results import plan as plans
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Line
from treeopt.storage.provenance import look


def plan_of(record: Mapping[str, Any]) -> Plan:
    """Return the plan that predictions are of."""
    return from_json(json.dumps(record["plan"]))


ENTRY = ResultKind(
    name="predictions",
    title="Predictions",
    models=lambda record: look(record, "plan", "meta", "trace"),
    question="Which speed was predicted before measuring?",
    place=3,
    command="validate",
    schema="treeopt.predictions/1",
    record="simulate.validation.predictions:PredictionsRecord",
    rows=lambda record: plans.rows(plan_of(record)),
    columns=plans.COLUMNS,
    answers=lambda record: plans.answers(plan_of(record)),
    summary=lambda record, **_: plans.summary(plan_of(record)),
    tables=lambda record, **_: plans.tables(plan_of(record)),
    remarks=lambda record, **_: [
        *plans.remarks(plan_of(record)),
        Line("condition", f"Written before measuring: sha256 {record['sha256'][:16]}."),
    ],
    charts={
        "speedup": "treeopt.charts.trace_charts:predicted_speedups",
        "latency": "treeopt.charts.trace_charts:predicted_latencies",
    },
)
