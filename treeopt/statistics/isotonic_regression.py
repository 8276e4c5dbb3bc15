"""Isotonic regression: non-decreasing curves fitted to noisy points, for calibrating scores to frequencies."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError


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
