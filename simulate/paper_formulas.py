"""Speedup formulas of papers: Leviathan et al. 2023 (Theorem 3.8) and CORAL (Weng et al. 2025, Eq. 6).

Good for a first look, not for a plan: the formulas know no batch, context, host time or tree, and assume that
verifying costs one plain step. On the speedups measured in the papers Theorem 3.8 errs by 17.7 % on average (12 rows),
Eq. 6 by 14.6 % (54 rows); `tests/benchmarks/published_speedups.py` computes both.

Every function takes scalars or arrays (broadcast, computed in float64) and returns a float for scalars alone,
else a float64 array. `UsageError` names an argument out of range, its range and its value.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treeopt.errors import UsageError

Floats = NDArray[np.float64]
Rule = tuple[str, Callable[[Floats], NDArray[np.bool_]]]

_POSITIVE: Rule = ("a finite number above 0", lambda x: np.isfinite(x) & (x > 0))
_RULES: dict[str, Rule] = {
    "alpha": ("a number in [0, 1]", lambda x: (x >= 0) & (x <= 1)),
    "gamma": ("a whole number, 0 to 2**53", lambda x: (x >= 0) & (x <= 2**53) & (np.floor(x) == x)),
    "cost_ratio": ("a finite number, 0 or more", lambda x: np.isfinite(x) & (x >= 0)),
    "tau": ("a finite number, 1 or more (bonus counted)", lambda x: np.isfinite(x) & (x >= 1)),
    "draft_weights": _POSITIVE,
    "target_weights": _POSITIVE,
}


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
    alpha, gamma = _checked(alpha=alpha, gamma=gamma)
    return _float_or_array(_tau(alpha, gamma))


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
    alpha, gamma, cost_ratio = _checked(alpha=alpha, gamma=gamma, cost_ratio=cost_ratio)
    return _float_or_array(_tau(alpha, gamma) / (gamma * cost_ratio + 1))


def weight_speedup(
    *, tau: ArrayLike, gamma: ArrayLike, draft_weights: ArrayLike, target_weights: ArrayLike
) -> float | Floats:
    """Return the speedup from weight counts, tau * W_t / (gamma * W_d + W_t); verifying counts as one plain step.

    Args:
        tau: tokens committed per step, the bonus token included.
        gamma: drafter forwards per step.
        draft_weights: weights that one drafter forward reads, W_d: LM head counted, embedding not.
        target_weights: weights that one plain decoding step of the target reads, W_t, in the same unit.

    Source: CORAL (Weng et al. 2025), Eq. 6; `simulate.drafter_kinds` counts the weights.

    >>> weight_speedup(tau=4.0, gamma=6, draft_weights=500, target_weights=7000)
    2.8
    """
    tau, gamma, draft_weights, target_weights = _checked(
        tau=tau, gamma=gamma, draft_weights=draft_weights, target_weights=target_weights
    )
    return _float_or_array(tau * target_weights / (gamma * draft_weights + target_weights))


def _tau(alpha: Floats, gamma: Floats) -> Floats:
    """Return tau by eq. 1 without the cancellation of 1 - alpha**(gamma + 1) near alpha = 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = -np.expm1((gamma + 1) * np.log(alpha)) / (1 - alpha)
    return np.where(alpha == 1, gamma + 1, grown)


def _checked(**arguments: ArrayLike) -> tuple[Floats, ...]:
    """Return the arguments as float64 arrays of one shape, each checked by the rule of its name."""
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


def _float_or_array(value: Any) -> float | Floats:
    """Return a float for a value without dimensions, else the float64 array."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value, dtype=np.float64)
