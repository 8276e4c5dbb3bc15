"""Overhead of dynamic trees over static trees of the same shape: scoring, pooling and sorting candidates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treeopt.cost_model import StepShape
from treeopt.errors import CostError


@dataclass(frozen=True)
class Growing:
    """Additional seconds of a dynamic tree over a static tree of the same shape, fitted to a few shapes.

    Attributes:
        step_s: seconds per step.
        level_s: seconds per drafted level.
        node_s: seconds per node that the drafter is fed.
        token_s: seconds per verified token of a sequence.
        widest: widest level that was measured.
        spread: error on shapes that a fit had not seen, root mean square over all fits, as a share of a step.
    """

    step_s: float
    level_s: float
    node_s: float
    token_s: float
    widest: int
    spread: float

    def __post_init__(self) -> None:
        """Check signs.

        Raises:
            CostError: names the field.
        """
        for name in ("step_s", "level_s", "node_s", "token_s", "spread"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise CostError(f"{name} must be 0 or more, found {value}")
        if self.widest < 1:
            raise CostError(f"widest must be at least 1, found {self.widest}")

    def seconds(self, shape: StepShape) -> float:
        """Return the additional seconds of a step of this shape.

        >>> Growing(1.0, 0.5, 0.25, 0.0, widest=4, spread=0.0).seconds(StepShape(1, 4, (1, 2)))
        2.75
        """
        drafting_s = self.level_s * len(shape.widths) + self.node_s * sum(shape.widths)
        return self.step_s + drafting_s + self.token_s * shape.tokens


def fit_growing(
    shapes: Sequence[StepShape], more_s: ArrayLike, step_s: ArrayLike
) -> tuple[Growing, NDArray[np.float64]]:
    """Fit by least squares of relative errors, no coefficient below 0 (Lawson and Hanson 1974, by scipy).

    Args:
        shapes: (n,) shapes of dynamic trees, 2 or more, at one batch size.
        more_s: additional seconds of each step over a static tree's, (n,).
        step_s: seconds of each whole step, (n,).

    Returns:
        The fit, its spread left 0; and the error of each shape by a fit to the others, as a share of its step,
        float64 (n,).

    >>> shapes = [StepShape(1, tokens, widths) for tokens, widths in ((2, (1,)), (3, (1, 1)), (5, (1, 4)), (9, (1, 4)))]
    >>> fit, missed = fit_growing(shapes, [6.0, 9.0, 14.0, 18.0], [90.0, 100.0, 110.0, 120.0])
    >>> [round(value, 6) for value in (fit.step_s, fit.level_s, fit.node_s, fit.token_s)], fit.widest
    ([2.0, 1.0, 1.0, 1.0], 4)
    """
    from scipy.optimize import nnls

    more, steps = (np.asarray(values, dtype=np.float64) for values in (more_s, step_s))
    amounts = np.array([[1.0, len(shape.widths), sum(shape.widths), shape.tokens] for shape in shapes])
    columns, shares = amounts / steps[:, None], more / steps
    others = ~np.eye(len(shapes), dtype=bool)
    missed = np.abs([shares[i] - columns[i] @ nnls(columns[rows], shares[rows])[0] for i, rows in enumerate(others)])
    step, level, node, token = nnls(columns, shares)[0].tolist()
    return Growing(step, level, node, token, max(max(shape.widths) for shape in shapes), 0.0), missed
