"""Agreement of predictions with measurements: errors, coverage of intervals, and whether the best tree was found."""

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
NEAR = 0.02  # share of the best measured speedup that the tree predicted to be the best may lose


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
    forms: ClosedForms = field(default_factory=ClosedForms)
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
        "closed_forms": {name: _form_errors(comparisons, name) for name in asdict(ClosedForms())},
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
                "closed_forms": asdict(c.forms),
                "measured": asdict(c.measured),
                "end_to_end": c.end_to_end,
                "end_to_end_predicted": c.whole and asdict(c.whole),
                "error": c.error,
                "covered": c.covered,
            }
            for c in comparisons
        ],
    }


def check_validation(record: Any) -> None:
    """Check the JSON object of a validation file.

    Raises:
        RecordError: names the field that is missing or wrong.
    """
    read_record(check_schema(record, SCHEMA), ValidationRecord)


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
