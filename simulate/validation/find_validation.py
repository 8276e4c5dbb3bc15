"""Validations of a plan, shipped or given: what the live loop measured for the very tree that was chosen."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulate.validation.predicted_vs_measured import SCHEMA, Figures
from simulate.validation.predictions import judged_on
from treeopt.comparison.mismatch_warnings import choosing, differing_models, names_weights
from treeopt.errors import counted
from treeopt.plans.plan import Plan, PlanEntry
from treeopt.results.words import device_words
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.atomic_files import shipped
from treeopt.storage.provenance import GREEDY, look


def live_checks(plan: Plan, records: Sequence[Mapping[str, Any]] = ()) -> dict[int, str]:
    """Return a sentence for each batch size whose chosen tree a validation measured.

    The validation must be of the same models, machine and rule.

    Args:
        plan: the plan.
        records: validations that come before the shipped ones.
    """
    checks: dict[int, str] = {}
    for entry, speedup, meta in _measured(plan, records):
        predicted = Figures.of_run(entry.choice, judged=judged_on(plan), requests=meta["prompts"]).speedup
        checks[entry.batch] = _sentence(speedup, (predicted.low, predicted.high), meta)
    return checks


def live_speedups(plan: Plan, records: Sequence[Mapping[str, Any]] = ()) -> dict[int, Estimate]:
    """Return the measured speedups behind the sentences of `live_checks`, by batch size."""
    return {entry.batch: Estimate(**speedup) for entry, speedup, _ in _measured(plan, records)}


def _measured(
    plan: Plan, records: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[PlanEntry, dict[str, float], Mapping[str, Any]]]:
    """Yield the entries whose tree was measured, the speedup and the validation's `meta`; the one that counts last."""
    shown = (json.loads(path.read_text("utf-8")) for path in sorted(shipped("validations").glob("*.json")))
    for record in (*shown, *reversed(records)):
        if record["schema"] != SCHEMA or record["meta"]["acceptance"] != "live":  # predictions lie beside them
            continue
        if not _fits(record["meta"], plan):
            continue
        measured = {
            (cell["batch"], cell["tree"]["id"]): cell["measured"]["speedup"] for cell in record["cells"] if cell["tree"]
        }
        for entry in plan.entries:
            speedup = measured.get((entry.batch, entry.choice.tree.id)) if entry.choice.tree else None
            if speedup:
                yield entry, speedup, record["meta"]


def _fits(meta: Any, plan: Plan) -> bool:
    """Return whether a validation's models, machine and rule are the plan's."""
    trace = plan.meta["trace"]
    same_models = names_weights(meta) and not differing_models(meta, trace)
    return same_models and _machine(meta) == _machine(plan.meta["cost"]) and choosing(trace) == choosing(GREEDY | meta)


def _sentence(speedup: dict[str, float], predicted: tuple[float, float], meta: Any) -> str:
    low, high = predicted
    outside = (
        "" if low <= speedup["value"] <= high else f", outside the interval predicted for it, [{low:.2f}, {high:.2f}]"
    )
    return (
        f"Checked: the live loop measured {speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}] for "
        f"this tree{outside}, on {device_words(meta)} ({meta['provenance']['processor']}), "
        f"{counted(meta['prompts'], 'prompt')}."
    )


def _machine(meta: Any) -> tuple[Any, Any, bool]:
    return look(meta, "device"), look(meta, "provenance", "processor"), bool(look(meta, "graphs"))
