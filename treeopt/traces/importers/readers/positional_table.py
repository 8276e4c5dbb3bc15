"""A trace from a positional table: how often the candidate of each rank is right, at each depth or at any depth.

Such a table does not record which position a figure comes from. A trace made of it has exactly the table's frequencies,
and chance in place of everything else: depths are independent, positions are alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, UsageError
from treeopt.traces.importers.synthetic_trace import MAX_BYTES, shuffled_outcomes, trace_from_ranks
from treeopt.traces.trace import Trace
from treeopt.traces.trace_checks import MAX_DEPTH, MAX_WIDTH, MISSED

COLUMNS = ("rank", "recall")
ROUNDED = 1e-3  # what decimals and half precision may add to a sum
ASSUMED = (
    "depths are independent of each other",
    "every position of a text is like every other",
    "intervals describe the drawn sample, not the source",
)


def rank_table(values: NDArray[np.float64], *, column: str) -> NDArray[np.float64]:
    """Return P(the candidate of rank r is right at depth d + 1), float64 (D, W).

    Args:
        values: (D, W), or one row.
        column: `rank` for the probability of each rank, `recall` for the probability of this rank or a better one.

    >>> rank_table(np.array([[0.5, 0.75, 0.75]]), column="recall").tolist()
    [[0.5, 0.25, 0.0]]

    Raises:
        TraceError: values that are not probabilities, a recall that falls, or ranks that sum to more than 1.
    """
    table: NDArray[np.float64] = np.atleast_2d(values)
    if table.shape[0] > MAX_DEPTH or table.shape[1] > MAX_WIDTH:
        raise TraceError(f"a table has at most {MAX_DEPTH} rows of {MAX_WIDTH} ranks, found {table.shape}")
    check_probabilities(table)
    if column == "recall":
        falls = np.diff(table, axis=1) < 0
        if falls.any():
            row, rank = np.argwhere(falls)[0].tolist()
            raise TraceError(
                f"recall must not fall, row {row} has {table[row, rank]:.4g} at rank {rank} and "
                f"{table[row, rank + 1]:.4g} at the next: is each rank counted separately (--column rank)?"
            )
        return np.diff(table, axis=1, prepend=0.0)
    sums = table.sum(axis=1)
    if (sums > 1 + ROUNDED).any():
        row = int(np.argmax(sums > 1 + ROUNDED))
        raise TraceError(
            f"the ranks of row {row} sum to {sums[row]:.4g}, at most one can be right: is it recall, "
            "for this rank or better (--column recall)?"
        )
    scaled: NDArray[np.float64] = table / np.maximum(sums, 1.0)[:, None]
    return scaled


def rises(table: NDArray[np.float64]) -> bool:
    """Return True if every row of a table of ranks rises, as recall does and ranks do not."""
    return table.shape[1] > 2 and bool((np.diff(table, axis=1) >= 0).all() and (table[:, -1] > table[:, 0]).all())


def drawn_trace(
    table: NDArray[np.float64], *, requests: int, length: int, rng: np.random.Generator, meta: Mapping[str, Any]
) -> Trace:
    """Return a trace with the table's frequencies: at each depth, every rank as often as it says, in random order.

    Args:
        table: P(the candidate of rank r is right at depth d + 1), float64 (D, W).
        requests: number of requests.
        length: tokens per request.
        rng: draws the order.
        meta: `meta` of the trace.

    Raises:
        UsageError: the trace would exceed `MAX_BYTES`.
    """
    depth, width = table.shape
    size = requests * length * (2 * depth + 8)  # ranks; request and position
    if size > MAX_BYTES:
        raise UsageError(
            f"--requests {requests} of --length {length} at {depth} depths take {size / 2**20:.0f} MiB, "
            f"at most {MAX_BYTES / 2**20:.0f} are drawn"
        )
    rank = np.empty((requests * length, depth), dtype=np.int16)
    for level, row in enumerate(table):
        outcomes = shuffled_outcomes(np.append(row, max(1 - row.sum(), 0.0)), len(rank), rng)
        rank[:, level] = np.where(outcomes < width, outcomes, MISSED)
    return trace_from_ranks(rank, [length] * requests, width=width, meta=meta)


def check_probabilities(table: NDArray[np.float64]) -> None:
    """Check that all values (D, W) are probabilities.

    Raises:
        TraceError: names the row and rank of the first that is not.
    """
    bad = (table < 0) | (table > 1)
    if bad.any():
        row, rank = np.argwhere(bad)[0].tolist()
        raise TraceError(f"row {row}, rank {rank} must be a probability in [0, 1], found {table[row, rank]:.4g}")
