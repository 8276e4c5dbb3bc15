"""What drawing trees anew takes beyond steps of static trees of their shape: candidates scored, pooled, sorted."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.tables import Growing

FEWEST = 3  # steps, for as many coefficients


def fit_growing(
    widths: Sequence[tuple[int, ...]], more_s: ArrayLike, step_s: ArrayLike
) -> tuple[Growing, NDArray[np.float64]]:
    """Least squares of relative errors, no coefficient below 0 (Lawson and Hanson 1974, by scipy).

    Args:
        widths: nodes fed to the drafter at each level, of (n,) ways to decode, `FEWEST` at least.
        more_s: how much longer a step took than one of a static tree, (n,).
        step_s: of the whole step, (n,).

    Returns:
        What was fitted, and by which share of its step each way lies off it, float64 (n,).

    >>> found, off = fit_growing([(1,), (1, 1), (1, 4)], [4.0, 6.0, 9.0], [90.0, 100.0, 110.0])
    >>> [round(value, 6) for value in (found.step_s, found.level_s, found.node_s)], found.widest
    ([2.0, 1.0, 1.0], 4)
    """
    from scipy.optimize import nnls

    more, steps = (np.asarray(values, dtype=np.float64) for values in (more_s, step_s))
    amounts = np.array([[1.0, len(levels), sum(levels)] for levels in widths])
    seconds, _ = nnls(amounts / steps[:, None], more / steps)
    step, level, node = seconds.tolist()
    return Growing(step, level, node, max(map(max, widths))), np.abs(more - amounts @ seconds) / steps
