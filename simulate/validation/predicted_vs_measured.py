"""Predicted beside measured: errors, coverage of intervals, whether the best tree was found; validations of a plan."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta, structs

from simulate.validation.predictions import NO_FORMS, FormsRecord, judged_on
from treeopt.comparison.mismatch_warnings import choosing, differing_models, names_weights
from treeopt.errors import counted
from treeopt.planning.evaluator import PLAIN
from treeopt.plans import (
    Choice,
    EstimateRecord,
    Grown,
    Plan,
    PlanEntry,
    PolicyInWords,
    SpeedupRecord,
    TauRecord,
    TreeRecord,
)
from treeopt.results.words import device_words
from treeopt.statistics import CONFIDENCE, Estimate, share
from treeopt.storage.provenance import GREEDY, look
from treeopt.storage.typed_records import Count, Finite, Index, NotNegative, Positive, Record
from treeopt.storage.user_files import shipped
from treeopt.tree import Tree

SCHEMA = "treeopt.validation/2"
NEAR = 0.02  # share of the best measured speedup that the tree predicted to be the best may lose
Share = Annotated[float, Meta(ge=0, le=1)]
Error = Annotated[NotNegative, Meta(description="|predicted / measured - 1|")]
SpeedupRatio = Annotated[Positive, Meta(description="speedup over plain decoding")]


class FiguresRecord(Record, frozen=True):
    """tau, step time and speedup of one tree."""

    tau: TauRecord
    step_s: Annotated[Positive, Meta(description="seconds per step")]
    speedup: SpeedupRecord


class CellRecord(Record, frozen=True, kw_only=True):
    """One configuration at one batch size, predicted and measured."""

    batch: Count
    name: str
    tree: TreeRecord | None
    grown: PolicyInWords | None = None
    predicted: FiguresRecord
    closed_forms: FormsRecord
    measured: FiguresRecord
    end_to_end: Annotated[SpeedupRatio, Meta(description="measured over the whole run")]
    end_to_end_predicted: EstimateRecord | None = None
    error: Annotated[Finite, Meta(description="predicted speedup / measured speedup - 1")]
    covered: Annotated[bool, Meta(description="whether the predicted interval holds the measured speedup")]


class ErrorsRecord(Record, frozen=True):
    """Mean and largest error over some cells."""

    cells: Count
    mean_error: Error
    max_error: Error


class FormErrorsRecord(Record, frozen=True):
    """Errors of each closed form; null where it has no figure."""

    leviathan: ErrorsRecord | None
    coral: ErrorsRecord | None


class WholeErrorsRecord(ErrorsRecord, frozen=True):
    """Errors over whole runs, and in how many cells the interval holds the measurement."""

    covered: Index


class ShareRecord(EstimateRecord, frozen=True, kw_only=True):
    """A share of cells with its exact binomial 95 % interval."""

    cells: Index


class CoverageRecord(Record, frozen=True):
    """In how many cells the predicted interval holds the measured speedup."""

    nominal: Share
    cells: Count
    covered: ShareRecord


class BestRecord(Record, frozen=True):
    """The tree predicted to be the fastest at one batch size, beside the one measured to be."""

    batch: Count
    predicted: str
    measured: str
    behind: Annotated[Share, Meta(description="measured speedup that the first loses to the second, as a share")]
    near: Share
    within: Annotated[bool, Meta(description="whether `behind` is at most `near`")]


class PlainRecord(Record, frozen=True):
    """Seconds per plain decoding step at one batch size."""

    batch: Count
    predicted_s: Positive
    measured_s: Positive


class ValidationRecord(Record, frozen=True, tag_field="schema", tag=SCHEMA, kw_only=True):
    """Predicted speedups beside measured ones."""

    meta: Annotated[dict[str, Any], Meta(description="provenance: models, device, rule, prompts, predictions")]
    mean_error: Error
    max_error: Error
    closed_forms: FormErrorsRecord
    end_to_end: Annotated[WholeErrorsRecord | None, Meta(description="null: no whole run was predicted")] = None
    coverage: CoverageRecord
    best: tuple[BestRecord, ...]
    plain: tuple[PlainRecord, ...] = ()
    cells: tuple[CellRecord, ...]


@dataclass(frozen=True)
class Figures:
    """tau (tokens per step and sequence), seconds per step, speedup over plain decoding."""

    tau: Estimate
    step_s: float
    speedup: Estimate

    @classmethod
    def of_run(cls, choice: Choice, *, judged: int, requests: int) -> "Figures":
        """Return the figures of a choice for one run of other requests from the same population.

        The means of R and of N requests of variance s² differ with variance s² (1 / R + 1 / N), so that intervals of a
        run are wider than the plan's, which are intervals of the population's mean.

        Args:
            choice: the choice with the plan's intervals.
            judged: R, the requests that the plan judged it on; 0 if not recorded, which leaves intervals as they are.
            requests: N, the requests of the run.
        """
        run_error = choice.tau.relative * math.sqrt(judged / requests) if judged else 0.0
        tau, speedup = (figure.times(1.0, relative_error=run_error) for figure in (choice.tau, choice.speedup))
        return cls(tau, choice.step_s, speedup)


@dataclass(frozen=True)
class Comparison:
    """One configuration at one batch size, predicted and measured.

    Attributes:
        batch: sequences.
        name: name in the plan.
        tree: the static tree; None for a policy.
        predicted: figures from the plan (requests held out, profiled times) for a run of the measured length.
        measured: figures of the live run. The speedup is tau times the centre, over pieces of the run, of plain step /
            step; both are medians over steps with all rows busy, and means for policies, whose steps differ.
        end_to_end: measured tokens per second over those of plain decoding, prefill and draining included.
        forms: speedups by the closed forms.
        plain_s: seconds per plain step, predicted and measured; None if the plan does not record the prediction.
        grown: the dynamic tree of the plan; None for a static tree.
        whole: prediction of `end_to_end`; None if there is none.
    """

    batch: int
    name: str
    tree: Tree | None
    predicted: Figures
    measured: Figures
    end_to_end: float
    forms: FormsRecord = NO_FORMS
    plain_s: tuple[float, float] | None = None
    grown: Grown | None = None
    whole: Estimate | None = None

    @property
    def error(self) -> float:
        """Predicted speedup / measured speedup − 1."""
        return self.predicted.speedup.value / self.measured.speedup.value - 1

    @property
    def covered(self) -> bool:
        """True if the predicted interval holds the measured speedup."""
        return self.predicted.speedup.low <= self.measured.speedup.value <= self.predicted.speedup.high


def comparison_record(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the figures as JSON values; see `ValidationRecord`.

    * mean and largest error |predicted / measured − 1| of the speedups, of the closed forms, and of whole runs
    * `coverage`: the share of cells whose predicted interval holds the measured speedup, with its exact binomial
      interval, cells taken as independent
    * `best`: per batch size, the tree that was predicted to be the fastest, and what it loses to the one that was
    * `plain`: seconds per plain step by batch size, which show whether the machine's speed changed since the profile
    * `cells`: the comparisons
    """
    covered = sum(c.covered for c in comparisons)
    return {
        **_errors([c.error for c in comparisons]),
        "closed_forms": {name: _form_errors(comparisons, name) for name in FormsRecord.__struct_fields__},
        "end_to_end": _whole_errors(comparisons),
        "coverage": {
            "nominal": CONFIDENCE,
            "cells": len(comparisons),
            "covered": {"cells": covered, **asdict(share(covered, len(comparisons)))},
        },
        "best": [
            _best([c for c in comparisons if c.batch == batch]) for batch in dict.fromkeys(c.batch for c in comparisons)
        ],
        "plain": [
            {"batch": batch, "predicted_s": seconds[0], "measured_s": seconds[1]}
            for batch, seconds in {c.batch: c.plain_s for c in comparisons}.items()
            if seconds is not None
        ],
        "cells": [
            {
                "batch": c.batch,
                "name": c.name,
                "tree": c.tree and {"id": c.tree.id, "paths": [list(path) for path in c.tree.paths]},
                "grown": c.grown and {name: getattr(c.grown, name) for name in ("kind", "settings", "nodes", "depth")},
                "predicted": asdict(c.predicted),
                "closed_forms": structs.asdict(c.forms),
                "measured": asdict(c.measured),
                "end_to_end": c.end_to_end,
                "end_to_end_predicted": c.whole and asdict(c.whole),
                "error": c.error,
                "covered": c.covered,
            }
            for c in comparisons
        ],
    }


def _errors(errors: Sequence[float]) -> dict[str, float]:
    sizes = [abs(error) for error in errors]
    return {"mean_error": math.fsum(sizes) / len(sizes), "max_error": max(sizes)}


def _form_errors(comparisons: Sequence[Comparison], name: str) -> dict[str, float] | None:
    """Return the errors of one closed form over the cells that it predicts; None if it predicts none."""
    pairs = [(getattr(c.forms, name), c.measured.speedup.value) for c in comparisons]
    errors = [predicted / measured - 1 for predicted, measured in pairs if predicted is not None]
    return {"cells": len(errors), **_errors(errors)} if errors else None


def _whole_errors(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
    """Return the errors over predicted whole runs and the number of intervals that hold; None if none was predicted."""
    pairs = [(c.whole, c.end_to_end) for c in comparisons if c.whole is not None]
    if not pairs:
        return None
    covered = sum(whole.low <= measured <= whole.high for whole, measured in pairs)
    errors = _errors([whole.value / measured - 1 for whole, measured in pairs])
    return {"cells": len(pairs), **errors, "covered": covered}


def _best(cells: Sequence[Comparison]) -> dict[str, Any]:
    """Compare what was predicted to be the fastest with what was; plain decoding is one of the choices."""
    speedups = [(PLAIN, 1.0, 1.0), *((c.name, c.predicted.speedup.value, c.measured.speedup.value) for c in cells)]
    predicted, measured = (max(speedups, key=lambda each: each[side]) for side in (1, 2))
    behind = 1 - predicted[2] / measured[2]
    return {
        "batch": cells[0].batch,
        "predicted": predicted[0],
        "measured": measured[0],
        "behind": behind,
        "near": NEAR,
        "within": behind <= NEAR,
    }


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
    trace, cost = look(plan.meta, "trace"), look(plan.meta, "cost")
    same_models = names_weights(meta) and not differing_models(meta, trace)
    return same_models and _machine(meta) == _machine(cost) and choosing(trace) == choosing(GREEDY | meta)


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
