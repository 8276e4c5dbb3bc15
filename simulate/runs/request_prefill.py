"""Prefill seconds of each request: one value for all, one per request, or a share of prompts read together."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulate.runs.timeline import Floats, Ints
from treeopt.errors import UsageError

Together = Callable[[Floats], Floats]  # tokens of all prompts that are read at once -> seconds


def per_request(value: float | NDArray[np.float64] | NDArray[np.int64], requests: int, name: str) -> Floats:
    """Return one value for every request, float64 (R,).

    Raises:
        UsageError: another number of values, or a value that is negative or not finite; says `name`.

    >>> per_request(0.5, 2, "prefill_s").tolist()
    [0.5, 0.5]
    """
    values = np.asarray(value, dtype=np.float64)
    if values.shape not in ((), (requests,)):
        raise UsageError(f"{name} must be one number or {requests}, found shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        place = f"[{int(wrong.argmax())}]" if values.ndim else ""
        raise UsageError(f"{name}{place} must be 0 or more and finite, got {values[wrong].flat[0]}")
    return np.broadcast_to(values, (requests,))


def divide_prefill(together: Together, tokens: Floats | Ints, group: Ints, *, padded: bool = False) -> Floats:
    """Return each request's share, by tokens, of the prefill that its group is read in; float64 (R,).

    Args:
        together: seconds by total tokens.
        tokens: prompt tokens of each request, (R,).
        group: requests with the same number are read together, (R,).
        padded: all of a group are read as if they were as long as its longest.

    >>> divide_prefill(lambda tokens: tokens + 4.0, np.array([1, 3, 2]), np.array([0, 0, 1])).tolist()
    [2.0, 6.0, 6.0]
    """
    totals: Floats = np.bincount(group, tokens).astype(np.float64)
    read = totals
    if padded:
        longest = np.zeros_like(totals)
        np.maximum.at(longest, group, tokens)
        read = longest * np.bincount(group)
    seconds = np.zeros_like(totals)
    seconds[totals > 0] = together(read[totals > 0])
    return np.asarray(seconds[group] * tokens / np.maximum(totals, 1.0)[group])
