"""Ratios of sums with confidence intervals clustered by request, because steps of one request are not independent.

The formula is the linearised ratio estimator (`ratio`), with variants for paired counts. Where a few clusters hold most
of the denominator, the jackknife takes its place, with as many degrees of freedom as clusters count. No formula helps
where rare clusters decide and none was drawn: `evidence` measures how many clusters an interval rests on.

Isotonic regression fits non-decreasing curves to noisy points, to calibrate scores to frequencies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, UsageError

CONFIDENCE = 0.95
WIDEST = 100.0  # half-width in logarithms at which nothing is known
SETTLED = 60.0  # effective clusters from which on the linearised interval covers: data/benchmarks/coverage.json
MANY = 20.0
FEW_GROUPS = 5  # fewer do not show how far groups differ: `make coverage`
BY_CHANCE = 0.95  # share of groups that are alike whose spread passes for chance
ROUNDING = 1e-9  # share of a ratio by which a cluster that is like the others may differ
EVEN = 0.999  # share of the clusters that count if all are equally large, but for rounding

Counts = NDArray[np.int64] | NDArray[np.float64]
Floats = NDArray[np.float64]
Groups = NDArray[np.integer] | None


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

        Where the whole value is in doubt, the interval is one of its logarithm, which holds nothing below 0.

        >>> Estimate(2.0, 1.5, 2.5).times(4.0)
        Estimate(value=8.0, low=6.0, high=10.0)
        >>> Estimate(2.0, 1.5, 2.5).times(1.0, relative_error=1.5).low > 0
        True
        """
        value = self.value * factor
        half = math.hypot((self.high - self.low) / 2 * factor, value * relative_error)
        if 0 < value <= half < math.inf:
            return in_logs(value, half / value)
        return Estimate(value, value - half, value + half)


def ratio(numerator: Counts, denominator: Counts, group: Groups = None) -> Estimate:
    """Return Σ numerator / Σ denominator over clusters (requests), each array (R,), with a clustered interval.

    The interval is that of the linearised ratio estimator, Student t with R − 1 degrees of freedom (Cochran,
    Sampling Techniques, 3rd ed., §2.11 and §9A.2, without the finite-population factor): half-width
    t · sqrt(R / (R − 1) Σ e_i²) with e_i = (n_i − r d_i) / Σ d. One cluster gives an infinite interval.

    With shares w_i = d_i / Σ d, the effective number of clusters is G = 1 / Σ w_i² (Kish, Survey Sampling, 1965,
    §11.7). If it is below `SETTLED` and clusters differ in size, the half-width is that of the jackknife with G − 1
    degrees of freedom, at least 1, if that is larger: t · sqrt((R − 1) / R Σ (e_i / (1 − w_i))²). A large cluster pulls
    the ratio towards itself, so that its e_i is too small; leaving it out shows how far it does.

    With `group`, int (R,), such as the domains of requests, the interval is that of whole groups where it is wider:
    where there are `FEW_GROUPS` or more, and they differ by more than chance explains.

    Raises:
        TraceError: no clusters, or a denominator that is not positive.

    >>> tokens, steps = np.array([4, 6, 5]), np.array([2, 3, 2])
    >>> estimate = ratio(tokens, steps)
    >>> f"{estimate.value:.2f} in {estimate.low:.2f} .. {estimate.high:.2f}"
    '2.14 in 1.44 .. 2.84'
    """
    value, influence, shares = _influence(numerator, denominator)
    half = _half_width(influence, shares, group)
    return Estimate(value, value - half, value + half)


def evidence(numerator: Counts, denominator: Counts) -> float:
    """Return the number of clusters that the interval of a ratio rests on, (Σ v_i)² / Σ v_i² with v_i = e_i².

    The e_i are those of the jackknife. About R / 3 where they are normal, few where some clusters that are far from the
    others make up the variance; 0 if it is no more than rounding, because clusters that differ may be missing.

    Raises:
        TraceError: see `ratio`.

    >>> tokens = np.array([20, 21, 19, 20, 50])
    >>> round(evidence(tokens, np.full(5, 10)), 1), round(evidence(tokens[:4], np.full(4, 10)), 1)
    (1.5, 2.0)
    """
    value, influence, shares = _influence(numerator, denominator)
    squares = np.square(influence / np.maximum(1 - shares, np.finfo(np.float64).tiny))
    top = float(squares.max())
    alike = math.sqrt(top) * len(shares) <= ROUNDING * abs(value)
    return 0.0 if alike else float((squares / top).sum() ** 2 / np.square(squares / top).sum())


def paired_difference(first: tuple[Counts, Counts], second: tuple[Counts, Counts], group: Groups = None) -> Estimate:
    """Return ratio(*first) − ratio(*second) for counts of the same requests, whose errors are correlated."""
    a, a_influence, b, b_influence, shares = _pair(first, second)
    half = _half_width(a_influence - b_influence, shares, group)
    return Estimate(a - b, a - b - half, a - b + half)


def paired_ratio(first: tuple[Counts, Counts], second: tuple[Counts, Counts], group: Groups = None) -> Estimate:
    """Return ratio(*first) / ratio(*second) for counts of the same requests; the interval is linearised in logarithms.

    The result does not depend on the order: the interval of 1 / x is the inverse of that of x.

    >>> tokens, steps, fewer = np.array([4, 6]), np.array([4, 6]), np.array([2, 3])
    >>> paired_ratio((tokens, fewer), (tokens, steps))
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    a, a_influence, b, b_influence, shares = _pair(first, second)
    return in_logs(a / b, _half_width(a_influence / a - b_influence / b, shares, group))


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


def quantile(clusters: float, comparisons: int = 1) -> float:
    """Return the standard errors in a 95 % half-width for this number of clusters, above 1 (Student's t).

    All of several `comparisons` hold together with 95 % (Bonferroni). Above `MANY` clusters by the series of Abramowitz
    and Stegun 26.7.5, which is right to 2e-7 there for one comparison.

    >>> round(quantile(31), 3), round(quantile(3), 3), round(quantile(31, comparisons=4), 3)
    (2.042, 4.303, 2.657)
    """
    freedom, place = clusters - 1, 1 - (1 - CONFIDENCE) / 2 / comparisons
    if clusters <= MANY:
        from scipy.special import stdtrit  # 0.3 s to import: needed for few clusters only

        return float(stdtrit(freedom, place))
    z = NormalDist().inv_cdf(place)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _pair(first: tuple[Counts, Counts], second: tuple[Counts, Counts]) -> tuple[float, Floats, float, Floats, Floats]:
    """Return both ratios, each with the influence of every cluster, and the clusters' mean shares."""
    a, a_influence, a_shares = _influence(*first)
    b, b_influence, b_shares = _influence(*second)
    if len(a_influence) != len(b_influence):
        raise TraceError(f"paired counts must have the same length, found {len(a_influence)} and {len(b_influence)}")
    return a, a_influence, b, b_influence, (a_shares + b_shares) / 2


def _influence(numerator: Counts, denominator: Counts) -> tuple[float, Floats, Floats]:
    """Return the ratio, the influence of each cluster, (n_i − r d_i) / Σ d, and its share d_i / Σ d."""
    if len(numerator) == 0 or len(numerator) != len(denominator):
        raise TraceError(f"a ratio needs counts of the same clusters, found {len(numerator)} and {len(denominator)}")
    total = float(denominator.sum())
    if total <= 0:
        raise TraceError(f"a ratio needs a positive denominator, found {total}")
    value = float(numerator.sum()) / total
    influence = np.asarray((numerator - value * denominator) / total, dtype=np.float64)
    return value, influence, np.asarray(denominator / total, dtype=np.float64)


def group_factor(numerator: Counts, denominator: Counts, group: NDArray[np.integer]) -> float | None:
    """Return the width of the interval of `ratio` with these groups, over that without them.

    Returns:
        None if groups are alike or there is only one; infinity if there are fewer than `FEW_GROUPS`.

    Raises:
        TraceError: see `ratio`.

    >>> steps, tokens = np.full(40, 10), np.tile([20, 21], 20) + 10 * (np.arange(40) // 20)
    >>> group_factor(tokens, steps, np.arange(40) // 4) > 1.5, group_factor(tokens, steps, np.arange(40) % 10)
    (True, None)
    """
    number = len(np.unique(group))
    if 2 <= number < min(FEW_GROUPS, len(group)):
        return math.inf
    wide, narrow = ratio(numerator, denominator, group), ratio(numerator, denominator)
    return None if wide == narrow else (wide.high - wide.low) / (narrow.high - narrow.low)


def _half_width(influence: Floats, shares: Floats, group: Groups = None) -> float:
    """Return the 95 % half-width from the influences and shares of all clusters, or of all groups if that is wider.

    Groups are alike if the ratio of the two linearised variances, which is about χ² / degrees of freedom then, is no
    larger than chance explains: χ² by Wilson and Hilferty (1931).
    """
    by_cluster = _student(influence, shares)
    if group is None:
        return by_cluster
    labels, place = np.unique(group, return_inverse=True)
    if not FEW_GROUPS <= len(labels) < len(group):
        return by_cluster
    grouped, grouped_shares = (np.asarray(np.bincount(place, part), np.float64) for part in (influence, shares))
    cube = 2 / (9 * (len(labels) - 1))
    chance = (1 - cube + NormalDist().inv_cdf(BY_CHANCE) * math.sqrt(cube)) ** 1.5
    if not _linearised(grouped) > chance * _linearised(influence):
        return by_cluster
    return max(by_cluster, _student(grouped, grouped_shares))


def _student(influence: Floats, shares: Floats) -> float:
    clusters = len(influence)
    if clusters < 2:
        return math.inf
    effective = 1 / float(np.square(shares).sum())
    linear = quantile(clusters) * _linearised(influence)
    if effective >= min(SETTLED, EVEN * clusters) or not influence.any():
        return linear
    if shares.max() >= 1:  # nothing is left without this cluster
        return math.inf
    variance = (clusters - 1) / clusters * float(np.square(influence / (1 - shares)).sum())
    return max(linear, quantile(max(effective, 2.0)) * math.sqrt(variance))


def _linearised(influence: Floats) -> float:
    clusters = len(influence)
    variance = clusters / (clusters - 1) * float(np.square(influence).sum())
    return math.sqrt(variance)


CUT = 1 / 3  # of the values at either end: of three the median is left
TRIMMED_ERROR = 1.12  # standard error of the trimmed mean over that of the mean, for normal values


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest third of the values.

    >>> trimmed_mean([1.0, 2.0, 90.0])
    2.0
    """
    from scipy.stats import trim_mean

    return float(trim_mean(values, CUT))


@dataclass(frozen=True)
class Curve:
    """A non-decreasing function: straight between its knots, constant beyond the outer ones.

    Attributes:
        x: knots, strictly rising.
        y: values at the knots, not falling.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the order of the knots.

        Raises:
            UsageError: no knots, or knots that do not rise.
        """
        if not self.x or len(self.x) != len(self.y):
            raise UsageError(f"a curve needs one y for each x, and at least one, got {len(self.x)} and {len(self.y)}")
        if not ((np.diff(self.x) > 0).all() and (np.diff(self.y) >= 0).all()):
            raise UsageError("a curve needs rising x and y that do not fall")

    def at(self, x: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the values at `x`, of the same shape.

        >>> Curve((0.0, 1.0), (0.0, 0.5)).at(np.array([-1.0, 0.5, 2.0])).tolist()
        [0.0, 0.25, 0.5]
        """
        return np.asarray(np.interp(x, *self._knots))

    @cached_property
    def _knots(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.asarray(self.x), np.asarray(self.y)


def isotonic(x: NDArray[np.floating], y: NDArray[np.floating], weights: NDArray[np.floating] | None = None) -> Curve:
    """Fit the non-decreasing curve of least weighted squared distance to the points.

    The curve has a knot at each end of its steps. Points of equal x count as one. Source: pooling of adjacent violators
    (Barlow et al. 1972), in SciPy's implementation.

    Args:
        x: float (n,), in any order.
        y: float (n,).
        weights: float (n,), positive; default 1 each.

    Raises:
        UsageError: no points.

    >>> isotonic(np.array([3.0, 1, 2, 4]), np.array([0.5, 0, 0.7, 2]))
    Curve(x=(1.0, 2.0, 3.0, 4.0), y=(0.0, 0.6, 0.6, 2.0))
    """
    from scipy.optimize import isotonic_regression  # 0.3 s to import, needed only here

    if len(x) == 0:
        raise UsageError("a curve needs at least one point")
    weights = np.ones(len(x)) if weights is None else weights
    places, group = np.unique(np.asarray(x, dtype=np.float64), return_inverse=True)
    mass = np.bincount(group, weights)
    means = np.bincount(group, weights * y) / mass
    fit = isotonic_regression(means, weights=mass)
    ends = np.unique(np.concatenate([fit.blocks[:-1], fit.blocks[1:] - 1]))
    return Curve(tuple(places[ends].tolist()), tuple(fit.x[ends].tolist()))
