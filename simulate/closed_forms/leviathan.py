"""Closed forms for the speed of a drafted chain: Leviathan et al. 2023 and CORAL (Weng et al. 2025).

Good for a first look, not for a plan: they know no batch, context, host time or tree, and all but CORAL's
Eq. 1 take verifying to cost one plain step. Against the speedups measured in their own papers, Theorem 3.8
errs by 17.7 % on average (12 rows) and Eq. 6 by 14.6 % (54 rows).

Every function takes scalars or arrays (broadcast, computed in float64) and returns a float for scalars alone,
else a float64 array. `UsageError` names an argument without meaning, what must hold and what was found.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treeopt.errors import UsageError

Floats = NDArray[np.float64]
Rule = tuple[str, Callable[[Floats], NDArray[np.bool_]]]

_SHARE: Rule = ("a number in [0, 1]", lambda x: (x >= 0) & (x <= 1))
_COUNT: Rule = ("a whole number, 0 to 2**53", lambda x: (x >= 0) & (x <= 2**53) & (np.floor(x) == x))
_RATIO: Rule = ("a finite number, 0 or more", lambda x: np.isfinite(x) & (x >= 0))
_POSITIVE: Rule = ("a finite number above 0", lambda x: np.isfinite(x) & (x > 0))
_COMMITTED: Rule = ("a finite number, 1 or more (bonus counted)", lambda x: np.isfinite(x) & (x >= 1))

_RULES: dict[str, Rule] = {
    "alpha": _SHARE,
    "gamma": _COUNT,
    "max_gamma": _COUNT,
    "cost_ratio": _RATIO,
    "operations_ratio": _RATIO,
    "tau": _COMMITTED,
    "draft_s": _POSITIVE,
    "plain_s": _POSITIVE,
    "verify_s": _POSITIVE,
    "draft_weights": _POSITIVE,
    "target_weights": _POSITIVE,
}


def expected_tau(*, alpha: ArrayLike, gamma: ArrayLike) -> float | Floats:
    """Tokens committed a step by a chain, (1 - alpha**(gamma + 1)) / (1 - alpha); gamma + 1 at alpha = 1.

    Assumes that every drafted token is accepted with the same probability, independently of the others.

    Args:
        alpha: P(a drafted token is accepted | those before it were), in [0, 1].
        gamma: drafted tokens a step.

    Source: Leviathan et al. 2023, eq. 1.

    >>> expected_tau(alpha=0.5, gamma=2)
    1.75
    >>> expected_tau(alpha=[0.0, 0.5, 1.0], gamma=2).tolist()
    [1.0, 1.75, 3.0]
    """
    alpha, gamma = _checked(alpha=alpha, gamma=gamma)
    return _result(_tau(alpha, gamma))


def walltime_speedup(*, alpha: ArrayLike, gamma: ArrayLike, cost_ratio: ArrayLike) -> float | Floats:
    """Speedup over plain decoding, tau / (gamma * cost_ratio + 1); verifying is taken to cost one plain step.

    Args:
        alpha: acceptance probability of one drafted token, in [0, 1].
        gamma: drafted tokens a step.
        cost_ratio: c, seconds of one drafter forward / seconds of one plain target forward.

    Source: Leviathan et al. 2023, Theorem 3.8.

    >>> walltime_speedup(alpha=0.5, gamma=2, cost_ratio=0.125)
    1.4
    """
    alpha, gamma, cost_ratio = _checked(alpha=alpha, gamma=gamma, cost_ratio=cost_ratio)
    return _result(_tau(alpha, gamma) / (gamma * cost_ratio + 1))


def operations_factor(*, alpha: ArrayLike, gamma: ArrayLike, operations_ratio: ArrayLike) -> float | Floats:
    """Arithmetic operations a token relative to plain decoding, (gamma * (operations_ratio + 1) + 1) / tau.

    Args:
        alpha: acceptance probability of one drafted token, in [0, 1].
        gamma: drafted tokens a step.
        operations_ratio: c-hat, operations a token of the drafter / operations a token of the target.

    Source: Leviathan et al. 2023, Theorem 3.11.

    >>> operations_factor(alpha=0.5, gamma=2, operations_ratio=0.25)
    2.0
    """
    alpha, gamma, ratio = _checked(alpha=alpha, gamma=gamma, operations_ratio=operations_ratio)
    return _result((gamma * ratio + gamma + 1) / _tau(alpha, gamma))


def best_gamma(*, alpha: ArrayLike, cost_ratio: ArrayLike, max_gamma: ArrayLike) -> int | NDArray[np.int64]:
    """Chain length, 0 (do not draft) to `max_gamma`, of the greatest `walltime_speedup`; of equals the least.

    Exact up to float64 rounding. Drafting one token more pays while
    alpha**(gamma + 1) * (gamma * c + 1) > c * tau(gamma). Left minus right never rises with gamma, so its
    sign changes at most once and bisection finds where. At gamma = 0 the condition reads alpha > c: if and
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
    alpha, cost, high = _checked(alpha=alpha, cost_ratio=cost_ratio, max_gamma=max_gamma)
    high = np.where(alpha > cost, high, 0.0)
    low = np.minimum(high, 1.0)
    while np.any(low < high):
        middle = low + np.floor((high - low) / 2)
        pays = (low < high) & ((cost == 0) | _one_more_pays(alpha, cost, middle))
        low, high = np.where(pays, middle + 1, low), np.where(pays, high, middle)
    return int(low) if np.ndim(low) == 0 else low.astype(np.int64)


def latency_speedup(
    *, tau: ArrayLike, gamma: ArrayLike, draft_s: ArrayLike, plain_s: ArrayLike, verify_s: ArrayLike
) -> float | Floats:
    """Speedup from three latencies, tau * plain_s / (gamma * draft_s + verify_s).

    The paper prints the target's two latencies exchanged, so that slower verification would mean more speed.

    Args:
        tau: tokens committed a step, the bonus token included.
        gamma: drafter forwards a step.
        draft_s: seconds of one drafter forward, L_d.
        plain_s: seconds of one plain decoding step of the target, L_t.
        verify_s: seconds of the target forward over all drafted tokens, L_t'.

    Source: CORAL (Weng et al. 2025), Eq. 1, corrected.

    >>> latency_speedup(tau=4.0, gamma=6, draft_s=0.001, plain_s=0.024, verify_s=0.026)
    3.0
    """
    tau, gamma, draft_s, plain_s, verify_s = _checked(
        tau=tau, gamma=gamma, draft_s=draft_s, plain_s=plain_s, verify_s=verify_s
    )
    return _result(tau * plain_s / (gamma * draft_s + verify_s))


def latency_ratio(*, draft_weights: ArrayLike, target_weights: ArrayLike) -> float | Floats:
    """Drafter forward over plain step in seconds, taken to be the ratio of the weights that the two read.

    Holds where both forwards are bound by reading weights; launches and small matrices make a drafter slower.

    Args:
        draft_weights: weights that one drafter forward reads, W_d: LM head counted, embedding not.
        target_weights: the same of one plain decoding step of the target, W_t, in the same unit.

    Source: CORAL (Weng et al. 2025), Eq. 5; `simulate.model_sizes.hf_config` counts the weights.

    >>> latency_ratio(draft_weights=350, target_weights=7000)
    0.05
    """
    draft_weights, target_weights = _checked(draft_weights=draft_weights, target_weights=target_weights)
    return _result(draft_weights / target_weights)


def weight_speedup(
    *, tau: ArrayLike, gamma: ArrayLike, draft_weights: ArrayLike, target_weights: ArrayLike
) -> float | Floats:
    """Speedup from weight counts, tau * W_t / (gamma * W_d + W_t); verifying is taken to cost one plain step.

    Args:
        tau: tokens committed a step, the bonus token included.
        gamma: drafter forwards a step.
        draft_weights: weights that one drafter forward reads, W_d.
        target_weights: weights that one plain decoding step of the target reads, W_t, in the same unit.

    Source: CORAL (Weng et al. 2025), Eq. 6.

    >>> weight_speedup(tau=4.0, gamma=6, draft_weights=500, target_weights=7000)
    2.8
    """
    tau, gamma, draft_weights, target_weights = _checked(
        tau=tau, gamma=gamma, draft_weights=draft_weights, target_weights=target_weights
    )
    return _result(tau * target_weights / (gamma * draft_weights + target_weights))


def _tau(alpha: Floats, gamma: Floats) -> Floats:
    """Leviathan's eq. 1 without the cancellation of 1 - alpha**(gamma + 1) near alpha = 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = -np.expm1((gamma + 1) * np.log(alpha)) / (1 - alpha)
    return np.where(alpha == 1, gamma + 1, grown)


def _one_more_pays(alpha: Floats, cost: Floats, gamma: Floats) -> NDArray[np.bool_]:
    """True where a chain of gamma + 1 is faster than one of gamma; bool, broadcast."""
    with np.errstate(over="ignore", invalid="ignore"):
        pays: NDArray[np.bool_] = alpha ** (gamma + 1) * (gamma * cost + 1) > cost * _tau(alpha, gamma)
    return pays


def _checked(**arguments: ArrayLike) -> tuple[Floats, ...]:
    """The arguments as float64 arrays of one shape, each held against the rule of its name."""
    arrays = []
    for name, value in arguments.items():
        must, holds = _RULES[name]
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{name} must be {must}, got {value!r}") from error
        wrong = np.argwhere(~holds(array))
        if len(wrong):
            index = tuple(wrong[0].tolist())
            where = f"[{', '.join(map(str, index))}]" if index else ""
            raise UsageError(f"{name}{where} must be {must}, got {array[index]:g}")
        arrays.append(array)
    try:
        return tuple(np.broadcast_arrays(*arrays))
    except ValueError as error:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(arguments, arrays, strict=True))
        raise UsageError(f"arguments must have shapes that broadcast, got {shapes}") from error


def _result(value: Any) -> float | Floats:
    """A float for a value without dimensions, else the float64 array."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value, dtype=np.float64)
