"""Refuse to price what was not measured: a CostError for sizes outside a table, instead of an extrapolation."""

from bisect import bisect_left
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import CostError

Sizes = NDArray[np.float64] | NDArray[np.int64]
Points = tuple[tuple[int, float], ...]


def check_measured(name: str, sizes: Sizes, points: Points, *, batch: int) -> None:
    """Raise CostError for the first size that lies outside the points of a table.

    Args:
        name: the quantity, for the message: tokens, depth or width.
        sizes: sizes to price.
        points: (size, seconds) by rising size.
        batch: batch size of the table, for the message.

    Raises:
        CostError: names the size and the range that was measured.

    >>> check_measured("tokens", np.array([9]), ((2, 0.5), (8, 0.7)), batch=1)
    Traceback (most recent call last):
    treeopt.errors.CostError: tokens 9 at batch 1: the profile measured tokens 2 to 8
    """
    outside = ~is_measured(sizes, points)
    if outside.any():
        low, high = points[0][0], points[-1][0]
        raise CostError(f"{name} {sizes[outside][0]:g} at batch {batch}: the profile measured {name} {low} to {high}")


def is_measured(sizes: Sizes, points: Points) -> NDArray[np.bool_]:
    """Return which sizes lie within the points of a table; bool, of the shape of `sizes`."""
    return np.asarray((sizes >= points[0][0]) & (sizes <= points[-1][0]))


def batch_shares(batch: int, sizes: Collection[int]) -> tuple[tuple[float, int], ...]:
    """Return the measured batch sizes that price a batch size, with their shares: itself, or the two around it.

    Seconds are interpolated on a straight line in the batch size, at the same tokens per sequence.

    Args:
        batch: batch size to price.
        sizes: batch sizes that were measured.

    Raises:
        CostError: the batch size lies outside those that were measured.

    >>> batch_shares(2, (1, 4)), batch_shares(4, (1, 4))
    (((0.6666666666666667, 1), (0.3333333333333333, 4)), ((1.0, 4),))
    """
    measured = sorted(set(sizes))
    if batch in measured:
        return ((1.0, batch),)
    above = bisect_left(measured, batch)
    if not 0 < above < len(measured):
        known = ", ".join(map(str, measured))
        raise CostError(
            f"batch {batch} lies outside the profile, which measured batch {known}: profile it too "
            f"(`treeopt profile --batch {known.replace(' ', '')},{batch}`), or price it from sizes (`treeopt whatif`)"
        )
    low, high = measured[above - 1], measured[above]
    share = (batch - low) / (high - low)
    return ((1 - share, low), (share, high))
