"""Import Sequoia's acceptance vector as a positional table with equal rows at every depth."""

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.traces.importers.readers.positional_table import ROUNDED, check_probabilities, rank_table
from treeopt.traces.trace_checks import MAX_DEPTH

WHOLE = 1e-5  # a vector that holds every outcome sums to 1 within this; any other sums to less
ASSUMED = (
    "the vector, measured below the root, holds at every depth",
    "a rank's value presumes that all lower ranks are drafted too, as in sampling without replacement",
)


def vector_table(values: NDArray[np.float64], *, depth: int, reject_slot: bool | None = None) -> NDArray[np.float64]:
    """Return Sequoia's acceptance vector as a table of `depth` equal rows, float64 (depth, W).

    Entry 0 is 0, entry j the probability that the j-th drawn child is the accepted one. Sequoia's
    `tests/test_accept.py` appends the probability of a rejection, so that all sum to 1; `tests/fast_test.py` does not.

    Args:
        values: W + 2 entries with the reject slot, W + 1 without.
        depth: rows.
        reject_slot: True if the last entry is the rejections; None: decide by the sum.

    >>> vector_table(np.array([0, 0.6, 0.3, 0.1]), depth=1).tolist()
    [[0.6, 0.3]]

    Raises:
        TraceError: not such a vector, or the sum leaves the reject slot open.
    """
    if values.ndim != 1 or len(values) < 3 or values[0] != 0:
        raise TraceError(
            f"an acceptance vector is one row that begins with 0, found {values.shape} beginning with "
            f"{values.flat[0]:.4g}; import other tables with --format table"
        )
    if not 1 <= depth <= MAX_DEPTH:
        raise TraceError(f"depth must be in 1..{MAX_DEPTH}, found {depth}")
    check_probabilities(values[None])
    total = float(values.sum())
    if reject_slot is None:
        if WHOLE < abs(1 - total) <= ROUNDED:
            raise TraceError(
                f"the vector sums to {total:.6g}: the last entry may be the rejections (--reject-slot) or the last "
                "rank (--no-reject-slot)"
            )
        reject_slot = total > 1 - WHOLE
    elif reject_slot and abs(1 - total) > ROUNDED:
        raise TraceError(f"with the rejections the vector must sum to 1, found {total:.6g}")
    return np.tile(rank_table(values[1:-1] if reject_slot else values[1:], column="rank"), (depth, 1))
