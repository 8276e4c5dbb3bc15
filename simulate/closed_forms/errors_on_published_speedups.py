"""Predicted beside published speedups, and how far off closed forms and calibrated forms are."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from simulate.closed_forms.paper_speedups import Measured, Published, published_speedups
from simulate.closed_forms.speedup_predictors import (
    Floats,
    Predictor,
    Rows,
    column,
    coral_eq1,
    coral_eq6,
    layer_overhead,
    one_overhead,
    scaled_drafting,
    speedup_over_tau,
    theorem_38,
)
from treeopt.errors import CostError, UsageError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Errors:
    """Relative errors, predicted / measured - 1, of some predictions, as shares.

    Attributes:
        count: predictions.
        mean: mean of |error|.
        median: median of |error|.
        p90: 90th percentile of |error|, interpolated linearly.
        max: largest |error|.
        bias: mean error; above 0: too optimistic.
    """

    count: int
    mean: float
    median: float
    p90: float
    max: float
    bias: float

    @classmethod
    def of(cls, predicted: ArrayLike, measured: ArrayLike) -> "Errors":
        """Return the errors of predictions against measurements, both (n,).

        Raises:
            UsageError: different shapes, empty arrays, or measured values that are not above 0.

        >>> Errors.of([3.0, 1.0], [2.0, 2.0])
        Errors(count=2, mean=0.5, median=0.5, p90=0.5, max=0.5, bias=0.0)
        """
        guess, true = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
        if guess.shape != true.shape or guess.ndim != 1 or not guess.size:
            raise UsageError(f"predicted and measured must be of one length above 0, got {guess.shape}, {true.shape}")
        if not np.all(true > 0):
            raise UsageError(f"measured must be above 0, got {true.min():g}")
        errors = guess / true - 1
        size = np.abs(errors)
        summary = (size.mean(), np.median(size), np.quantile(size, 0.9), size.max(), errors.mean())
        return cls(guess.size, *map(float, summary))


def predict_left_out(rows: Rows, group: Callable[[Measured], Hashable], predict: Predictor) -> Floats:
    """Predict every row from a fit to the rows of other groups alone; float64 (rows,).

    Raises:
        CostError: all rows belong to one group.
    """
    groups = [group(row) for row in rows]
    predicted = np.empty(len(rows))
    for held_out in dict.fromkeys(groups):
        train = [row for row, row_group in zip(rows, groups, strict=True) if row_group != held_out]
        if not train:
            raise CostError(f"nothing is left to learn from: all rows belong to {held_out!r}")
        test = [i for i, row_group in enumerate(groups) if row_group == held_out]
        predicted[test] = predict(train, [rows[i] for i in test])
    return predicted


@dataclass(frozen=True)
class Reproduction:
    """Predictions beside the measurements that they are for.

    Attributes:
        name: the baseline's name in the table of errors; "ours" for a calibrated form of this project.
        form: the form that predicts.
        left_out: field by which rows are grouped: a group is predicted by a fit to the others; "" if nothing is fitted.
        rows: the measurements.
        predicted: speedups, float64 (rows,).
    """

    name: str
    form: str
    left_out: str
    rows: tuple[Measured, ...]
    predicted: Floats

    @property
    def errors(self) -> Errors:
        """Errors of the predictions."""
        return Errors.of(self.predicted, column(self.rows, "speedup"))


def reproductions(published: Published | None = None) -> tuple[Reproduction, ...]:
    """Predict the rows of Leviathan's and CORAL's tables by the closed forms and by calibrated forms.

    CORAL's rows are those of the three models of its Table 1, whose latencies were measured; then two larger models on
    the same device, with latencies from weights; Llama3-70B, spread over four devices, enters E2c alone.

    >>> {c.name: round(100 * c.errors.mean, 1) for c in reproductions()[:3]}
    {'E1': 17.7, 'ours': 9.5, 'E2': 14.6}
    """
    published = published or published_speedups()
    leviathan, all_coral = published.of("Leviathan"), published.of("CORAL")
    coral = published.of("CORAL", *published.latencies)
    single = tuple(row for row in all_coral if published.gpus[row.model] == 1)
    larger = tuple(row for row in single if row.model not in published.latencies)
    layers, one = layer_overhead(published), one_overhead(published)

    def held_out(name: str, form: str, group: str, rows: tuple[Measured, ...], predict: Predictor) -> Reproduction:
        return Reproduction(name, form, group, rows, predict_left_out(rows, lambda row: getattr(row, group), predict))

    return (
        Reproduction("E1", "Theorem 3.8", "", leviathan, theorem_38(leviathan)),
        held_out("ours", "Theorem 3.8, scaled drafting", "drafter", leviathan, scaled_drafting),
        Reproduction("E2", "Eq. 6", "", coral, coral_eq6(coral, published)),
        Reproduction("E2", "Eq. 1", "", coral, coral_eq1(coral, published)),
        Reproduction("E2c", "Eq. 6, six models", "", all_coral, coral_eq6(all_coral, published)),
        held_out("E2e", "speedup over tau", "task", coral, speedup_over_tau),
        held_out("E2f", "one overhead", "model", coral, one),
        held_out("ours", "overhead by layers", "model", coral, layers),
        Reproduction("E2f", "one overhead, larger models", "model", larger, one(coral, larger)),
        Reproduction("ours", "overhead by layers, larger models", "model", larger, layers(coral, larger)),
        held_out("ours", "overhead by layers, five models", "model", single, layers),
    )


def reproduction_frame(compared: Sequence[Reproduction]) -> "pd.DataFrame":
    """Return the reproductions as a table; errors in percent of the measured speedup."""
    import pandas as pd

    percent = ("mean", "median", "p90", "max", "bias")
    return pd.DataFrame(
        {"name": c.name, "form": c.form, "paper": c.rows[0].source, "left out": c.left_out, "rows": len(c.rows)}
        | {name: 100 * getattr(c.errors, name) for name in percent}
        for c in compared
    )
