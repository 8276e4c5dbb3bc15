"""Ratios of sums with confidence intervals clustered by request, because steps of one request are not independent.

The formula is the linearised ratio estimator (`ratio`), with variants for paired counts.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, UsageError

CONFIDENCE = 0.95
WIDEST = 100.0  # half-width in logarithms at which nothing is known

Counts = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """The relative half-width of the interval."""
        return (self.high - self.low) / 2 / abs(self.value)

    def times(self, factor: float, *, relative_error: float = 0.0) -> "Estimate":
        """Return the estimate times a positive factor with an independent relative error (95 % half-width).

        >>> Estimate(2.0, 1.5, 2.5).times(4.0)
        Estimate(value=8.0, low=6.0, high=10.0)
        """
        value = self.value * factor
        half = math.hypot((self.high - self.low) / 2 * factor, value * relative_error)
        return Estimate(value, value - half, value + half)


def ratio(numerator: Counts, denominator: Counts) -> Estimate:
    """Return Σ numerator / Σ denominator over clusters (requests), each array (R,), with a clustered interval.

    The interval is that of the linearised ratio estimator, Student t with R − 1 degrees of freedom (Cochran,
    Sampling Techniques, 3rd ed., §2.11 and §9A.2, without the finite-population factor): half-width
    t · sqrt(R / (R − 1) Σ e_i²) with e_i = (n_i − r d_i) / Σ d. One cluster gives an infinite interval.

    Raises:
        TraceError: no clusters, or a denominator that is not positive.

    >>> tokens, steps = np.array([4, 6, 5]), np.array([2, 3, 2])
    >>> estimate = ratio(tokens, steps)
    >>> f"{estimate.value:.2f} in {estimate.low:.2f} .. {estimate.high:.2f}"
    '2.14 in 1.48 .. 2.81'
    """
    value, influence = _influence(numerator, denominator)
    half = _half_width(influence)
    return Estimate(value, value - half, value + half)


def paired_difference(first: tuple[Counts, Counts], second: tuple[Counts, Counts]) -> Estimate:
    """Return ratio(*first) − ratio(*second) for counts of the same requests, whose errors are correlated."""
    a, a_influence, b, b_influence = _pair(first, second)
    half = _half_width(a_influence - b_influence)
    return Estimate(a - b, a - b - half, a - b + half)


def paired_ratio(first: tuple[Counts, Counts], second: tuple[Counts, Counts]) -> Estimate:
    """Return ratio(*first) / ratio(*second) for counts of the same requests; the interval is linearised in logarithms.

    The result does not depend on the order: the interval of 1 / x is the inverse of that of x.

    >>> tokens, steps, fewer = np.array([4, 6]), np.array([4, 6]), np.array([2, 3])
    >>> paired_ratio((tokens, fewer), (tokens, steps))
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    a, a_influence, b, b_influence = _pair(first, second)
    return in_logs(a / b, _half_width(a_influence / a - b_influence / b))


def in_logs(value: float, relative: float) -> Estimate:
    """Return the estimate of a positive value with a relative error (95 % half-width of its logarithm).

    >>> in_logs(2.0, 0.0)
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    half = min(relative, WIDEST)
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def share(successes: int, trials: int) -> Estimate:
    """Return the share of independent trials that succeeded, with its exact interval (Clopper and Pearson 1934).

    Raises:
        UsageError: no trials, or successes outside 0 .. `trials`.

    >>> share(0, 1).high
    0.975
    """
    from scipy.special import betaincinv  # slow to import, needed only here

    if not 0 <= successes <= trials or trials < 1:
        raise UsageError(f"successes must be in 0 .. trials, with at least 1 trial, got {successes} of {trials}")
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return Estimate(successes / trials, low, high)


def quantile(clusters: int) -> float:
    """Return the standard errors in a 95 % half-width for this number of clusters (Student's t).

    >>> round(quantile(31), 3)
    2.042
    """
    from scipy.special import stdtrit  # 0.2 s to import, needed only here

    return float(stdtrit(clusters - 1, (1 + CONFIDENCE) / 2))


def _pair(
    first: tuple[Counts, Counts], second: tuple[Counts, Counts]
) -> tuple[float, NDArray[np.float64], float, NDArray[np.float64]]:
    """Return both ratios, each with the influence of every cluster."""
    a, a_influence = _influence(*first)
    b, b_influence = _influence(*second)
    if len(a_influence) != len(b_influence):
        raise TraceError(f"paired counts must have the same length, found {len(a_influence)} and {len(b_influence)}")
    return a, a_influence, b, b_influence


def _influence(numerator: Counts, denominator: Counts) -> tuple[float, NDArray[np.float64]]:
    """Return the ratio and the influence of each cluster, (n_i − r d_i) / Σ d."""
    if len(numerator) == 0 or len(numerator) != len(denominator):
        raise TraceError(f"a ratio needs counts of the same clusters, found {len(numerator)} and {len(denominator)}")
    total = float(denominator.sum())
    if total <= 0:
        raise TraceError(f"a ratio needs a positive denominator, found {total}")
    value = float(numerator.sum()) / total
    return value, np.asarray((numerator - value * denominator) / total, dtype=np.float64)


def _half_width(influence: NDArray[np.float64]) -> float:
    """Return the 95 % half-width from the influences of all clusters."""
    clusters = len(influence)
    if clusters < 2:
        return math.inf
    variance = clusters / (clusters - 1) * float(np.square(influence).sum())
    return quantile(clusters) * math.sqrt(variance)
