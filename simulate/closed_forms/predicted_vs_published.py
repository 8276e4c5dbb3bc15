"""What closed forms and calibrated forms make of published speedups, and how far off they are.

The closed forms (Leviathan's Theorem 3.8, CORAL's Eq. 1 and 6) fit nothing. A calibrated form is fitted to the speedups
of some rows and predicts others; which rows it never sees is what `left_out` is told to group by. All predictors
take (rows to learn from, rows to predict), read no speedup of the latter, and return float64 (rows to predict,).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.closed_forms.leviathan import expected_tau, latency_speedup, walltime_speedup, weight_speedup
from simulate.closed_forms.paper_speedups import Measured, Published, published_speedups
from treeopt.errors import CostError, UsageError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Rows = Sequence[Measured]
Predictor = Callable[[Rows, Rows], Floats]

LAYER_WIDTH = 4096  # hidden size of the layer that `layer_overhead` counts in: its unit, not a fitted value


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
        """The errors of predictions against measurements, both (n,).

        Raises:
            UsageError: of different shapes, empty, or measured values that are not above 0.

        >>> Errors.of([3.0, 1.0], [2.0, 2.0])
        Errors(count=2, mean=0.5, median=0.5, p90=0.5, max=0.5, bias=0.0)
        """
        asked, true = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
        if asked.shape != true.shape or asked.ndim != 1 or not asked.size:
            raise UsageError(f"predicted and measured must be of one length above 0, got {asked.shape}, {true.shape}")
        if not np.all(true > 0):
            raise UsageError(f"measured must be above 0, got {true.min():g}")
        errors = asked / true - 1
        size = np.abs(errors)
        summary = (size.mean(), np.median(size), np.quantile(size, 0.9), size.max(), errors.mean())
        return cls(asked.size, *map(float, summary))


def left_out(rows: Rows, group: Callable[[Measured], Hashable], predict: Predictor) -> Floats:
    """Predictions of every row, from a fit to the rows of other groups alone; float64 (rows,).

    Raises:
        CostError: the rows are all of one group.
    """
    groups = [group(row) for row in rows]
    predicted = np.empty(len(rows))
    for held in dict.fromkeys(groups):
        train = [row for row, of in zip(rows, groups, strict=True) if of != held]
        if not train:
            raise CostError(f"nothing is left to learn from: all rows are of {held!r}")
        held_rows = [i for i, of in enumerate(groups) if of == held]
        predicted[held_rows] = predict(train, [rows[i] for i in held_rows])
    return predicted


def theorem_38(rows: Rows) -> Floats:
    """Theorem 3.8 with the paper's alpha, gamma and c."""
    alpha, gamma, c = _column(rows, "alpha"), _column(rows, "gamma"), _column(rows, "c")
    return np.asarray(walltime_speedup(alpha=alpha, gamma=gamma, cost_ratio=c))


def scaled_drafting(train: Rows, test: Rows) -> Floats:
    """Theorem 3.8 with two fitted constants: speedup = exp(b) tau / (a gamma c + 1), least squares of logarithms.

    `a` is how much more a drafted token costs in the loop than the drafter's traced forward, `b` how much longer
    accepted runs are than independent acceptance makes them.
    """
    from scipy.optimize import least_squares

    def shares(rows: Rows) -> tuple[Floats, Floats]:
        tau = expected_tau(alpha=_column(rows, "alpha"), gamma=_column(rows, "gamma"))
        return np.asarray(tau), _column(rows, "gamma") * _column(rows, "c")

    def residuals(constants: Floats) -> Floats:
        tau, drafting = shares(train)
        return np.asarray(constants[1] + np.log(tau / (constants[0] * drafting + 1) / _column(train, "speedup")))

    a, b = least_squares(residuals, (1.0, 0.0), bounds=((0, -np.inf), (np.inf, np.inf))).x
    tau, drafting = shares(test)
    return np.asarray(np.exp(b) * tau / (a * drafting + 1))


def coral_eq6(rows: Rows, published: Published) -> Floats:
    """CORAL's Eq. 6 with the weights of its Table 1, counted where it has none."""
    both = np.array([published.weights(row.model) for row in rows])
    tau, gamma = _column(rows, "tau"), _column(rows, "gamma")
    return np.asarray(weight_speedup(tau=tau, gamma=gamma, draft_weights=both[:, 0], target_weights=both[:, 1]))


def coral_eq1(rows: Rows, published: Published) -> Floats:
    """CORAL's Eq. 1 with the latencies of its Table 1, verification taken to cost a plain step."""
    draft_s, plain_s = _forwards_s(rows, published)
    tau, gamma = _column(rows, "tau"), _column(rows, "gamma")
    return np.asarray(latency_speedup(tau=tau, gamma=gamma, draft_s=draft_s, plain_s=plain_s, verify_s=plain_s))


def speedup_over_tau(train: Rows, test: Rows) -> Floats:
    """One constant per model and temperature, the mean of speedup / tau over the rows to learn from."""
    kinds = [(row.model, row.temperature) for row in train]
    ratios = _column(train, "speedup") / _column(train, "tau")
    means = {kind: ratios[[other == kind for other in kinds]].mean() for kind in kinds}
    return np.array([row.tau * means[row.model, row.temperature] for row in test if row.tau is not None])


def one_overhead(published: Published) -> Predictor:
    """CORAL's Eq. 1 with one more constant: seconds a step that it leaves out, their mean over the rows learnt from."""

    def predict(train: Rows, test: Rows) -> Floats:
        return _with_overhead(test, published, np.mean(_overhead_s(train, published)))

    return predict


def layer_overhead(published: Published) -> Predictor:
    """CORAL's Eq. 1 with two more constants: seconds a layer of width 4096, and seconds a sampled step.

    What Eq. 1 leaves out of a step are many small kernels in every layer of the target: attention of 61 tree tokens
    under a mask, activations 61 wide, launches. Their number grows with the layers, their size with the hidden size,
    so a step is given `a` seconds for each layer x hidden size / 4096, and `b` more at temperature > 0, where every
    node is sampled. Both are fitted by non-negative least squares of the relative error of the step's time.
    """

    def features(rows: Rows) -> Floats:
        shapes = [published.shapes[row.model] for row in rows]
        widths = np.array([shape.layers * shape.hidden / LAYER_WIDTH for shape in shapes])
        return np.stack((widths, _column(rows, "temperature") > 0), axis=1)

    def predict(train: Rows, test: Rows) -> Floats:
        from scipy.optimize import nnls

        weights = 1 / _cycle_s(train, published)
        constants, _ = nnls(features(train) * weights[:, None], _overhead_s(train, published) * weights)
        return _with_overhead(test, published, features(test) @ constants)

    return predict


@dataclass(frozen=True)
class Reproduction:
    """Predictions beside the measurements that they are for.

    Attributes:
        name: the baseline's name in the table of errors; "ours" for a calibrated form of this project.
        form: what predicts.
        left_out: which rows the fit never sees, those predicted among them; "" where nothing is fitted.
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
        """How far off the predictions are."""
        return Errors.of(self.predicted, _column(self.rows, "speedup"))


def reproductions(published: Published | None = None) -> tuple[Reproduction, ...]:
    """The closed forms and what beats them, on rows of Leviathan's and CORAL's tables.

    CORAL's rows are those of the three models of its Table 1, whose latencies were measured; then two larger models on
    the same device, with latencies from weights; Llama3-70B, spread over four devices, enters E2c alone.

    >>> {c.name: round(100 * c.errors.mean, 1) for c in reproductions()[:3]}
    {'E1': 17.7, 'ours': 9.5, 'E2': 14.6}
    """
    published = published or published_speedups()
    leviathan, every = published.of("Leviathan"), published.of("CORAL")
    coral = published.of("CORAL", *published.latencies)
    single = tuple(row for row in every if published.gpus[row.model] == 1)
    larger = tuple(row for row in single if row.model not in published.latencies)
    layers, one = layer_overhead(published), one_overhead(published)

    def held(name: str, form: str, group: str, rows: tuple[Measured, ...], predict: Predictor) -> Reproduction:
        return Reproduction(name, form, group, rows, left_out(rows, lambda row: getattr(row, group), predict))

    return (
        Reproduction("E1", "Theorem 3.8", "", leviathan, theorem_38(leviathan)),
        held("ours", "Theorem 3.8, scaled drafting", "drafter", leviathan, scaled_drafting),
        Reproduction("E2", "Eq. 6", "", coral, coral_eq6(coral, published)),
        Reproduction("E2", "Eq. 1", "", coral, coral_eq1(coral, published)),
        Reproduction("E2c", "Eq. 6, six models", "", every, coral_eq6(every, published)),
        held("E2e", "speedup over tau", "task", coral, speedup_over_tau),
        held("E2f", "one overhead", "model", coral, one),
        held("ours", "overhead by layers", "model", coral, layers),
        Reproduction("E2f", "one overhead, larger models", "model", larger, one(coral, larger)),
        Reproduction("ours", "overhead by layers, larger models", "model", larger, layers(coral, larger)),
        held("ours", "overhead by layers, five models", "model", single, layers),
    )


def reproduction_frame(compared: Sequence[Reproduction]) -> "pd.DataFrame":
    """Reproductions as a table; errors in percent of the measured speedup."""
    import pandas as pd

    percent = ("mean", "median", "p90", "max", "bias")
    return pd.DataFrame(
        {"name": c.name, "form": c.form, "paper": c.rows[0].source, "left out": c.left_out, "rows": len(c.rows)}
        | {name: 100 * getattr(c.errors, name) for name in percent}
        for c in compared
    )


def _forwards_s(rows: Rows, published: Published) -> tuple[Floats, Floats]:
    """Seconds of a drafter forward and of a plain step, each float64 (rows,)."""
    both = np.array([published.forwards_s(row.model) for row in rows])
    return both[:, 0], both[:, 1]


def _cycle_s(rows: Rows, published: Published) -> Floats:
    """Seconds of a whole step, as the measured speedup implies them."""
    return np.asarray(_column(rows, "tau") * _forwards_s(rows, published)[1] / _column(rows, "speedup"))


def _overhead_s(rows: Rows, published: Published) -> Floats:
    """Seconds of a step that Eq. 1 leaves out."""
    draft_s, plain_s = _forwards_s(rows, published)
    return _cycle_s(rows, published) - _column(rows, "gamma") * draft_s - plain_s


def _with_overhead(rows: Rows, published: Published, overhead_s: ArrayLike) -> Floats:
    """Speedups of Eq. 1 with these seconds a step added."""
    draft_s, plain_s = _forwards_s(rows, published)
    cycle_s = _column(rows, "gamma") * draft_s + plain_s + np.asarray(overhead_s)
    return np.asarray(_column(rows, "tau") * plain_s / cycle_s)


def _column(rows: Rows, name: str) -> Floats:
    """A field of all rows; float64 (rows,).

    Raises:
        CostError: a row does not have it.
    """
    values = [getattr(row, name) for row in rows]
    if None in values:
        raise CostError(f"row {values.index(None)} ({rows[values.index(None)].source}) has no {name}")
    return np.array(values, dtype=np.float64)
