"""How well predictions agree with what was measured: errors, coverage of intervals, and whether the best is found."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from simulate.validation.predictions import ClosedForms
from simulate.validation.validation_records import ValidationRecord
from treeopt.plans.plan import Choice, Grown
from treeopt.statistics.clustered_estimate import CONFIDENCE, Estimate, share
from treeopt.storage.json_records import check_schema
from treeopt.storage.typed_records import read_record
from treeopt.tree import Tree

SCHEMA = "treeopt.validation/2"
NEAR = 0.02  # of the measured best: top-1 regret that a predicted best may have


@dataclass(frozen=True)
class Figures:
    """tau (tokens a step and sequence), seconds of a step, speedup over plain decoding."""

    tau: Estimate
    step_s: float
    speedup: Estimate

    @classmethod
    def of_run(cls, choice: Choice, *, judged: int, requests: int) -> "Figures":
        """What a plan's choice comes to in a run of other requests, a sample as those are that the plan judged it on.

        Means over R and N requests of variance s² each differ by the variance s² (1 / R + 1 / N).

        Args:
            choice: its intervals are of all requests like those.
            judged: R; 0: the plan does not say, and intervals stay as they are.
            requests: N.
        """
        more = choice.tau.relative * math.sqrt(judged / requests) if judged else 0.0
        tau, speedup = (each.times(1.0, relative_error=more) for each in (choice.tau, choice.speedup))
        return cls(tau, choice.step_s, speedup)


@dataclass(frozen=True)
class Comparison:
    """One way of drafting at one batch size.

    Attributes:
        batch: sequences.
        name: what the plan calls it.
        tree: the topology; None where a policy draws it anew at each step.
        predicted: from the plan, of a run of as many requests: requests held out, profiled times.
        measured: live. The speedup is tau times the centre, over pieces of the run, of (plain step / step), both
            medians over steps with all rows busy; of a policy, whose steps differ, both means.
        end_to_end: measured tokens a second over plain decoding's, prefill and draining included.
        forms: what the closed forms predicted.
        plain_s: seconds of a plain step, predicted and measured; None where the plan does not say.
        grown: what the plan says of the policy.
        whole: what was predicted of `end_to_end`; None: nothing.
    """

    batch: int
    name: str
    tree: Tree | None
    predicted: Figures
    measured: Figures
    end_to_end: float
    forms: ClosedForms = field(default_factory=ClosedForms)
    plain_s: tuple[float, float] | None = None
    grown: Grown | None = None
    whole: Estimate | None = None

    @property
    def error(self) -> float:
        """Predicted speedup over measured, minus 1."""
        return self.predicted.speedup.value / self.measured.speedup.value - 1

    @property
    def covered(self) -> bool:
        """The predicted interval holds the measured speedup."""
        return self.predicted.speedup.low <= self.measured.speedup.value <= self.predicted.speedup.high


def comparison_record(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The figures as JSON values.

    `cells`; mean and largest |predicted / measured − 1| of their speedups, ours and the closed forms', and of whole
    runs (`end_to_end`); `coverage`, the share of cells whose predicted interval holds the measured speedup, with its
    exact binomial interval, cells taken as independent; `best`, for each batch size which tree was predicted to be the
    fastest and how far it lies behind the one that was; `plain`, the seconds of each batch size's plain step, which say
    whether the machine was as it was when it was profiled.
    """
    found = comparisons
    covered = sum(c.covered for c in found)
    return {
        **_errors([c.error for c in found]),
        "closed_forms": {name: _form_errors(found, name) for name in asdict(ClosedForms())},
        "end_to_end": _whole_errors(found),
        "coverage": {
            "nominal": CONFIDENCE,
            "cells": len(found),
            "covered": {"cells": covered, **asdict(share(covered, len(found)))},
        },
        "best": [_best([c for c in found if c.batch == batch]) for batch in dict.fromkeys(c.batch for c in found)],
        "plain": [
            {"batch": batch, "predicted_s": seconds[0], "measured_s": seconds[1]}
            for batch, seconds in {c.batch: c.plain_s for c in found}.items()
            if seconds is not None
        ],
        "cells": [
            {
                "batch": c.batch,
                "name": c.name,
                "tree": c.tree and {"id": c.tree.id, "paths": [list(path) for path in c.tree.paths]},
                "grown": c.grown and {name: getattr(c.grown, name) for name in ("kind", "settings", "nodes", "depth")},
                "predicted": asdict(c.predicted),
                "closed_forms": asdict(c.forms),
                "measured": asdict(c.measured),
                "end_to_end": c.end_to_end,
                "end_to_end_predicted": c.whole and asdict(c.whole),
                "error": c.error,
                "covered": c.covered,
            }
            for c in found
        ],
    }


def check_validation(record: Any) -> None:
    """Check what `treeopt validate` wrote.

    Raises:
        RecordError: names the field that is missing or wrong.
    """
    read_record(check_schema(record, SCHEMA), ValidationRecord)


def _errors(errors: Sequence[float]) -> dict[str, float]:
    sizes = [abs(error) for error in errors]
    return {"mean_error": math.fsum(sizes) / len(sizes), "max_error": max(sizes)}


def _form_errors(comparisons: Sequence[Comparison], name: str) -> dict[str, float] | None:
    """Of one closed form, over the cells that it has a figure for; None if it has none."""
    pairs = [(getattr(c.forms, name), c.measured.speedup.value) for c in comparisons]
    errors = [predicted / measured - 1 for predicted, measured in pairs if predicted is not None]
    return {"cells": len(errors), **_errors(errors)} if errors else None


def _whole_errors(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
    """Of whole runs, and how many of their intervals hold, over cells that they were predicted for; None if none."""
    pairs = [(c.whole, c.end_to_end) for c in comparisons if c.whole is not None]
    if not pairs:
        return None
    covered = sum(whole.low <= measured <= whole.high for whole, measured in pairs)
    errors = _errors([whole.value / measured - 1 for whole, measured in pairs])
    return {"cells": len(pairs), **errors, "covered": covered}


def _best(cells: Sequence[Comparison]) -> dict[str, Any]:
    predicted = max(cells, key=lambda c: c.predicted.speedup.value)
    measured = max(cells, key=lambda c: c.measured.speedup.value)
    behind = 1 - predicted.measured.speedup.value / measured.measured.speedup.value
    return {
        "batch": predicted.batch,
        "predicted": predicted.name,
        "measured": measured.name,
        "behind": behind,
        "near": NEAR,
        "within": behind <= NEAR,
    }
