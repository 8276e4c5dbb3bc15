"""Predicted beside published speedups, and how far off closed forms and calibrated forms are.

    python -m tests.benchmarks.published_speedups

prints the errors. The closed forms (Leviathan's Theorem 3.8, CORAL's Eq. 1 and 6) fit nothing. A calibrated form takes
rows to learn from and rows to predict, and reads no speedup of the latter. All predictors return float64 (rows,).
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.drafters.eagle import eagle_shape
from simulate.model_sizes.model_shape import Shape
from simulate.paper_formulas import expected_tau, walltime_speedup, weight_speedup
from treeopt.storage.user_files import shipped

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Rows = Sequence["Measured"]
Predictor = Callable[[Rows, Rows], Floats]

LAYER_WIDTH = 4096  # hidden size of the layer that `layer_overhead` counts in: its unit, not a fitted value


@dataclass(frozen=True)
class Measured:
    """A published speedup over plain decoding in the same code, at batch 1.

    Attributes:
        source: paper, a key of `Published.sources`.
        model: target.
        drafter: drafter.
        task: kind of text that was decoded.
        temperature: 0 is greedy.
        gamma: drafter forwards per step.
        speedup: as measured.
        tau: tokens committed per step, where the paper gives it.
        alpha: share of drafted tokens accepted, where the paper gives it.
        c: drafter forward over plain step, where the paper gives it.
    """

    source: str
    model: str
    drafter: str
    task: str
    temperature: float
    gamma: int
    speedup: float
    tau: float | None = None
    alpha: float | None = None
    c: float | None = None


@dataclass(frozen=True)
class Published:
    """All published speedups that predictions are compared with.

    Attributes:
        sources: paper and conditions of each source.
        rows: the measurements.
        shapes: sizes of the models.
        gpus: number of devices that each model was spread over.
        latencies: (drafter forward, plain step) in seconds, for the models of CORAL's Table 1.
        table_weights: (W_d, W_t) of the same models, as printed in the table.
    """

    sources: Mapping[str, str]
    rows: tuple[Measured, ...]
    shapes: Mapping[str, Shape]
    gpus: Mapping[str, int]
    latencies: Mapping[str, tuple[float, float]]
    table_weights: Mapping[str, tuple[int, int]]

    def of(self, source: str, *models: str) -> tuple[Measured, ...]:
        """Return the rows of one source, for the given models or for all."""
        return tuple(row for row in self.rows if row.source == source and (not models or row.model in models))

    def weights(self, model: str) -> tuple[int, int]:
        """Return the weights that an EAGLE drafter's forward and a plain step read, from Table 1 or counted."""
        shape = self.shapes[model]
        return self.table_weights.get(model, (eagle_shape(shape).level.weights, shape.step_parameters))

    def forwards_s(self, model: str) -> tuple[float, float]:
        """Return the seconds of an EAGLE drafter's forward and of a plain step of a model, on CORAL's A6000.

        From Table 1 if it has the model; otherwise weights read times the table's mean seconds per weight.
        """
        if model in self.latencies:
            return self.latencies[model]
        rates = [np.divide(self.latencies[known], self.weights(known)) for known in self.latencies]
        draft_s, plain_s = np.mean(rates, axis=0) * np.array(self.weights(model))
        return float(draft_s), float(plain_s)


@cache
def published_speedups() -> Published:
    """Read the shipped measurements.

    >>> [len(published_speedups().of(source)) for source in published_speedups().sources]
    [12, 108]
    """
    record = json.loads(shipped("published/speedups.json").read_text("utf-8"))
    table = json.loads(shipped("published/coral_table1.json").read_text("utf-8"))["rows"]
    return Published(
        sources=record["sources"],
        rows=tuple(Measured(**row) for row in record["rows"]),
        shapes={name: Shape.from_config(sizes) for name, sizes in record["configs"].items()},
        gpus=record["gpus"],
        latencies={row["model"]: (row["L_d_ms"] / 1000, row["L_t_ms"] / 1000) for row in table},
        table_weights={row["model"]: (row["W_d_M"] << 20, row["W_t_M"] << 20) for row in table},
    )


# --- predictors


def theorem_38(rows: Rows) -> Floats:
    """Predict by Theorem 3.8 with the paper's alpha, gamma and c."""
    alpha, gamma, c = column(rows, "alpha"), column(rows, "gamma"), column(rows, "c")
    return np.asarray(walltime_speedup(alpha=alpha, gamma=gamma, cost_ratio=c))


def scaled_drafting(train: Rows, test: Rows) -> Floats:
    """Predict by Theorem 3.8 with two fitted constants: speedup = exp(b) tau / (a gamma c + 1).

    `a` is the cost of a drafted token in the loop over that of the drafter's traced forward; `b` is how much longer
    accepted runs are than independent acceptance makes them. Fitted by least squares of logarithms.
    """
    from scipy.optimize import least_squares

    def tau_and_drafting(rows: Rows) -> tuple[Floats, Floats]:
        tau = expected_tau(alpha=column(rows, "alpha"), gamma=column(rows, "gamma"))
        return np.asarray(tau), column(rows, "gamma") * column(rows, "c")

    def residuals(constants: Floats) -> Floats:
        tau, drafting = tau_and_drafting(train)
        return np.asarray(constants[1] + np.log(tau / (constants[0] * drafting + 1) / column(train, "speedup")))

    a, b = least_squares(residuals, (1.0, 0.0), bounds=((0, -np.inf), (np.inf, np.inf))).x
    tau, drafting = tau_and_drafting(test)
    return np.asarray(np.exp(b) * tau / (a * drafting + 1))


def coral_eq6(rows: Rows, published: Published) -> Floats:
    """Predict by CORAL's Eq. 6 with the weights of its Table 1; weights that the table lacks are counted."""
    both = np.array([published.weights(row.model) for row in rows])
    tau, gamma = column(rows, "tau"), column(rows, "gamma")
    return np.asarray(weight_speedup(tau=tau, gamma=gamma, draft_weights=both[:, 0], target_weights=both[:, 1]))


def coral_eq1(rows: Rows, published: Published) -> Floats:
    """Predict by CORAL's Eq. 1, tau * L_t / (gamma * L_d + L_t'), with the latencies of its Table 1; L_t' is L_t.

    The paper prints the target's two latencies exchanged, so that slower verification would mean more speed.
    """
    return _with_overhead(rows, published, 0.0)


def speedup_over_tau(train: Rows, test: Rows) -> Floats:
    """Predict by one constant per model and temperature, the mean of speedup / tau over the rows to learn from."""
    kinds = [(row.model, row.temperature) for row in train]
    ratios = column(train, "speedup") / column(train, "tau")
    means = {kind: ratios[[other == kind for other in kinds]].mean() for kind in kinds}
    return np.array([row.tau * means[row.model, row.temperature] for row in test if row.tau is not None])


def one_overhead(published: Published) -> Predictor:
    """Return CORAL's Eq. 1 with one fitted constant: the mean seconds per step that it leaves out."""

    def predict(train: Rows, test: Rows) -> Floats:
        return _with_overhead(test, published, np.mean(_overhead_s(train, published)))

    return predict


def layer_overhead(published: Published) -> Predictor:
    """Return CORAL's Eq. 1 with two more constants: seconds per layer of width 4096, and seconds per sampled step.

    Eq. 1 leaves out many small kernels in every layer of the target: attention of 61 tree tokens under a mask,
    activations 61 wide, launches. Their number grows with the layers, their size with the hidden size. A step therefore
    takes `a` more seconds for each layer x hidden size / 4096, and `b` more at temperature > 0, where every node is
    sampled. Both are fitted by non-negative least squares of the relative error of the step's time.
    """

    def features(rows: Rows) -> Floats:
        shapes = [published.shapes[row.model] for row in rows]
        widths = np.array([shape.layers * shape.hidden / LAYER_WIDTH for shape in shapes])
        return np.stack((widths, column(rows, "temperature") > 0), axis=1)

    def predict(train: Rows, test: Rows) -> Floats:
        from scipy.optimize import nnls

        weights = 1 / _cycle_s(train, published)
        constants, _ = nnls(features(train) * weights[:, None], _overhead_s(train, published) * weights)
        return _with_overhead(test, published, features(test) @ constants)

    return predict


def _forwards_s(rows: Rows, published: Published) -> tuple[Floats, Floats]:
    """Return the seconds of a drafter forward and of a plain step, each float64 (rows,)."""
    both = np.array([published.forwards_s(row.model) for row in rows])
    return both[:, 0], both[:, 1]


def _cycle_s(rows: Rows, published: Published) -> Floats:
    """Return the seconds of a whole step, as the measured speedup implies them."""
    return np.asarray(column(rows, "tau") * _forwards_s(rows, published)[1] / column(rows, "speedup"))


def _overhead_s(rows: Rows, published: Published) -> Floats:
    """Return the seconds of a step that Eq. 1 leaves out."""
    draft_s, plain_s = _forwards_s(rows, published)
    return _cycle_s(rows, published) - column(rows, "gamma") * draft_s - plain_s


def _with_overhead(rows: Rows, published: Published, overhead_s: ArrayLike) -> Floats:
    """Return the speedups of Eq. 1 with these seconds per step added."""
    draft_s, plain_s = _forwards_s(rows, published)
    cycle_s = column(rows, "gamma") * draft_s + plain_s + np.asarray(overhead_s)
    return np.asarray(column(rows, "tau") * plain_s / cycle_s)


def column(rows: Rows, name: str) -> Floats:
    """Return a field of all rows; float64 (rows,)."""
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


# --- errors


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

        >>> Errors.of([3.0, 1.0], [2.0, 2.0])
        Errors(count=2, mean=0.5, median=0.5, p90=0.5, max=0.5, bias=0.0)
        """
        guess, true = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
        errors = guess / true - 1
        size = np.abs(errors)
        summary = (size.mean(), np.median(size), np.quantile(size, 0.9), size.max(), errors.mean())
        return cls(guess.size, *map(float, summary))


def predict_left_out(rows: Rows, group: Callable[[Measured], Hashable], predict: Predictor) -> Floats:
    """Predict every row from a fit to the rows of other groups alone; float64 (rows,)."""
    groups = [group(row) for row in rows]
    predicted = np.empty(len(rows))
    for held_out in dict.fromkeys(groups):
        train = [row for row, row_group in zip(rows, groups, strict=True) if row_group != held_out]
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


if __name__ == "__main__":
    print(reproduction_frame(reproductions()).round(1).to_string(index=False))
