"""Predictors of published speedups: closed forms, and forms calibrated on the speedups of some rows.

The closed forms (Leviathan's Theorem 3.8, CORAL's Eq. 1 and 6) fit nothing. A calibrated form takes rows to learn from
and rows to predict, and reads no speedup of the latter. All predictors return float64 (rows to predict,).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.closed_forms.coral_speedup import latency_speedup, weight_speedup
from simulate.closed_forms.leviathan_speedup import expected_tau, walltime_speedup
from simulate.closed_forms.paper_speedups import Measured, Published
from treeopt.errors import CostError

Floats = NDArray[np.float64]
Rows = Sequence[Measured]
Predictor = Callable[[Rows, Rows], Floats]

LAYER_WIDTH = 4096  # hidden size of the layer that `layer_overhead` counts in: its unit, not a fitted value


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
    """Predict by CORAL's Eq. 1 with the latencies of its Table 1; verification counts as one plain step."""
    draft_s, plain_s = _forwards_s(rows, published)
    tau, gamma = column(rows, "tau"), column(rows, "gamma")
    return np.asarray(latency_speedup(tau=tau, gamma=gamma, draft_s=draft_s, plain_s=plain_s, verify_s=plain_s))


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
    """Return a field of all rows; float64 (rows,).

    Raises:
        CostError: a row does not have it.
    """
    values = [getattr(row, name) for row in rows]
    if None in values:
        raise CostError(f"row {values.index(None)} ({rows[values.index(None)].source}) has no {name}")
    return np.array(values, dtype=np.float64)
