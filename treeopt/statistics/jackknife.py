"""Jackknife+: intervals of predictions from models that each left one observation out."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treeopt.errors import UsageError

Floats = NDArray[np.float64]


def jackknife_plus(predicted: ArrayLike, residual: ArrayLike, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the lower and upper ends of the predictions' intervals, float64 (m,) each.

    The ends are the floor(alpha (n + 1))-th smallest of predicted[i] - residual[i] and the ceil((1 - alpha)
    (n + 1))-th of predicted[i] + residual[i], alpha = 1 - level. At least 1 - 2 alpha of new observations lie inside
    for any model, and close to 1 - alpha if it is stable. With fewer than 1 / alpha - 1 observations no finite interval
    guarantees that; the outermost ends are returned then.

    Source: Barber, Candes, Ramdas and Tibshirani 2021, Predictive inference with the jackknife+, eq. 1.4.

    Args:
        predicted: (n, m), the predictions of the model without observation i at each of m places.
        residual: (n,), |observation i - the prediction of the model without it|.
        level: nominal coverage.

    Raises:
        UsageError: no observation, or a level outside (0, 1).

    >>> low, high = jackknife_plus([[10.0]] * 4, [1.0, 2.0, 3.0, 4.0], level=0.5)
    >>> low.tolist(), high.tolist()
    ([7.0], [13.0])
    """
    values, errors = np.asarray(predicted, dtype=np.float64), np.asarray(residual, dtype=np.float64)
    if errors.ndim != 1 or len(errors) == 0 or values.ndim != 2 or len(values) != len(errors):
        raise UsageError(
            f"predicted must be (n, m) and residual (n,), n at least 1, got {values.shape}, {errors.shape}"
        )
    if not 0 < level < 1:
        raise UsageError(f"level must be in (0, 1), got {level}")
    count = len(errors)
    # The share of a count is rounded before its floor: 0.05 x 20 is 1.
    below = max(1, math.floor(round((1 - level) * (count + 1), 9)))
    above = min(count, math.ceil(round(level * (count + 1), 9)))
    low = np.sort(values - errors[:, None], axis=0)[below - 1]
    high = np.sort(values + errors[:, None], axis=0)[above - 1]
    return low, high
