"""Refuse to price what was not measured: a CostError for sizes outside a table, instead of an extrapolation."""

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
