"""What drawing trees anew takes beyond steps of static trees of their shape: candidates scored, pooled, sorted."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.profiles.step_tables import Growing
from treeopt.cost_model import StepShape


def fit_growing(
    shapes: Sequence[StepShape], more_s: ArrayLike, step_s: ArrayLike
) -> tuple[Growing, NDArray[np.float64]]:
    """Least squares of relative errors, no coefficient below 0 (Lawson and Hanson 1974, by scipy).

    Args:
        shapes: of (n,) ways to decode, 2 or more, at one batch size.
        more_s: how much longer a step took than one of a static tree, (n,).
        step_s: of the whole step, (n,).

    Returns:
        What was fitted, its spread left 0, and by which share of its step each way is missed by a fit to the others,
        float64 (n,).

    >>> shapes = [StepShape(1, tokens, widths) for tokens, widths in ((2, (1,)), (3, (1, 1)), (5, (1, 4)), (9, (1, 4)))]
    >>> found, missed = fit_growing(shapes, [6.0, 9.0, 14.0, 18.0], [90.0, 100.0, 110.0, 120.0])
    >>> [round(value, 6) for value in (found.step_s, found.level_s, found.node_s, found.token_s)], found.widest
    ([2.0, 1.0, 1.0, 1.0], 4)
    """
    from scipy.optimize import nnls

    more, steps = (np.asarray(values, dtype=np.float64) for values in (more_s, step_s))
    amounts = np.array([[1.0, len(shape.widths), sum(shape.widths), shape.tokens] for shape in shapes])
    columns, due = amounts / steps[:, None], more / steps
    kept = ~np.eye(len(shapes), dtype=bool)
    missed = np.abs([due[i] - columns[i] @ nnls(columns[rows], due[rows])[0] for i, rows in enumerate(kept)])
    step, level, node, token = nnls(columns, due)[0].tolist()
    return Growing(step, level, node, token, max(max(shape.widths) for shape in shapes), 0.0), missed
