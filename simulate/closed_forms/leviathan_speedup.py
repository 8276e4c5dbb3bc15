"""Leviathan et al. 2023: expected tokens per step of a drafted chain, its speedup (Theorem 3.8), its best length.

Good for a first look, not for a plan: the formulas know no batch, context, host time or tree, and assume that
verifying costs one plain step. On the speedups measured in the paper Theorem 3.8 errs by 17.7 % on average (12 rows).

Every function takes scalars or arrays (broadcast, computed in float64) and returns a float for scalars alone,
else a float64 array. `UsageError` names an argument out of range, its range and its value.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.closed_forms.checked_arguments import Floats, checked, float_or_array


def expected_tau(*, alpha: ArrayLike, gamma: ArrayLike) -> float | Floats:
    """Return the tokens that a chain commits per step, (1 - alpha**(gamma + 1)) / (1 - alpha); gamma + 1 at alpha = 1.

    Assumes that every drafted token is accepted with the same probability, independently of the others.

    Args:
        alpha: P(a drafted token is accepted | those before it were), in [0, 1].
        gamma: drafted tokens per step.

    Source: Leviathan et al. 2023, eq. 1.

    >>> expected_tau(alpha=0.5, gamma=2)
    1.75
    >>> expected_tau(alpha=[0.0, 0.5, 1.0], gamma=2).tolist()
    [1.0, 1.75, 3.0]
    """
    alpha, gamma = checked(alpha=alpha, gamma=gamma)
    return float_or_array(_tau(alpha, gamma))


def walltime_speedup(*, alpha: ArrayLike, gamma: ArrayLike, cost_ratio: ArrayLike) -> float | Floats:
    """Return the speedup over plain decoding, tau / (gamma * cost_ratio + 1); verifying counts as one plain step.

    Args:
        alpha: acceptance probability of one drafted token, in [0, 1].
        gamma: drafted tokens per step.
        cost_ratio: c, seconds of one drafter forward / seconds of one plain target forward.

    Source: Leviathan et al. 2023, Theorem 3.8.

    >>> walltime_speedup(alpha=0.5, gamma=2, cost_ratio=0.125)
    1.4
    """
    alpha, gamma, cost_ratio = checked(alpha=alpha, gamma=gamma, cost_ratio=cost_ratio)
    return float_or_array(_tau(alpha, gamma) / (gamma * cost_ratio + 1))


def operations_factor(*, alpha: ArrayLike, gamma: ArrayLike, operations_ratio: ArrayLike) -> float | Floats:
    """Return the operations per token relative to plain decoding, (gamma * (operations_ratio + 1) + 1) / tau.

    Args:
        alpha: acceptance probability of one drafted token, in [0, 1].
        gamma: drafted tokens per step.
        operations_ratio: c-hat, operations per token of the drafter / operations per token of the target.

    Source: Leviathan et al. 2023, Theorem 3.11.

    >>> operations_factor(alpha=0.5, gamma=2, operations_ratio=0.25)
    2.0
    """
    alpha, gamma, ratio = checked(alpha=alpha, gamma=gamma, operations_ratio=operations_ratio)
    return float_or_array((gamma * ratio + gamma + 1) / _tau(alpha, gamma))


def best_gamma(*, alpha: ArrayLike, cost_ratio: ArrayLike, max_gamma: ArrayLike) -> int | NDArray[np.int64]:
    """Return the chain length, 0 (no drafting) to `max_gamma`, of the greatest `walltime_speedup`; ties: the shorter.

    Exact up to float64 rounding. Drafting one token more pays while
    alpha**(gamma + 1) * (gamma * c + 1) > c * tau(gamma). Left minus right never rises with gamma, so its
    sign changes at most once and bisection finds the place. At gamma = 0 the condition reads alpha > c: if and
    only if that holds, some chain is faster than plain decoding (Corollary 3.9 is the "if").

    Args:
        alpha: acceptance probability of one drafted token, in [0, 1].
        cost_ratio: c, seconds of one drafter forward / seconds of one plain target forward.
        max_gamma: the longest chain to consider.

    Returns:
        An int for scalars alone, else an int64 array.

    Source: Leviathan et al. 2023, Theorem 3.8 and Corollary 3.9.

    >>> best_gamma(alpha=0.8, cost_ratio=0.05, max_gamma=64)
    8
    >>> best_gamma(alpha=[0.1, 0.8], cost_ratio=0.2, max_gamma=64).tolist()
    [0, 4]
    """
    alpha, cost, high = checked(alpha=alpha, cost_ratio=cost_ratio, max_gamma=max_gamma)
    high = np.where(alpha > cost, high, 0.0)
    low = np.minimum(high, 1.0)
    while np.any(low < high):
        middle = low + np.floor((high - low) / 2)
        pays = (low < high) & ((cost == 0) | _one_more_pays(alpha, cost, middle))
        low, high = np.where(pays, middle + 1, low), np.where(pays, high, middle)
    return int(low) if np.ndim(low) == 0 else low.astype(np.int64)


def _tau(alpha: Floats, gamma: Floats) -> Floats:
    """Return tau by eq. 1 without the cancellation of 1 - alpha**(gamma + 1) near alpha = 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = -np.expm1((gamma + 1) * np.log(alpha)) / (1 - alpha)
    return np.where(alpha == 1, gamma + 1, grown)


def _one_more_pays(alpha: Floats, cost: Floats, gamma: Floats) -> NDArray[np.bool_]:
    """Return whether a chain of gamma + 1 is faster than one of gamma; bool, broadcast."""
    with np.errstate(over="ignore", invalid="ignore"):
        pays: NDArray[np.bool_] = alpha ** (gamma + 1) * (gamma * cost + 1) > cost * _tau(alpha, gamma)
    return pays
