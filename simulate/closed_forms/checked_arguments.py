"""Arguments of the closed forms: the range of each by its name, checked and broadcast to float64 arrays."""

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


def checked(**arguments: ArrayLike) -> tuple[Floats, ...]:
    """Return the arguments as float64 arrays of one shape, each checked by the rule of its name.

    Raises:
        UsageError: names the argument, its index, the rule and the value.

    >>> [array.tolist() for array in checked(alpha=0.5, gamma=[1, 2])]
    [[0.5, 0.5], [1.0, 2.0]]
    """
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


def float_or_array(value: Any) -> float | Floats:
    """Return a float for a value without dimensions, else the float64 array."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value, dtype=np.float64)
