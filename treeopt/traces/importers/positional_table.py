"""Positional tables: how often the candidate of each rank is the right one, at each depth or at any.

Such a table has lost which position a figure comes from. A trace made of it has the table's frequencies to the last
anchor, and chance in place of everything else: depths are independent, positions are alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, UsageError
from treeopt.traces.importers.synthetic_trace import MAX_BYTES, dealt, with_lengths
from treeopt.traces.trace import Trace
from treeopt.traces.trace_checks import MAX_DEPTH, MAX_WIDTH, MISSED

COLUMNS = ("rank", "recall")
ROUNDED = 1e-3  # what decimals and half precision may add to a sum
WHOLE = 1e-5  # how near to 1 a vector's sum must be to hold every outcome, and how far below not to
ASSUMED = (
    "depths are independent of each other",
    "every position of a text is like every other",
    "intervals are of the drawn sample, not of the source",
)
VECTOR = (
    "the vector, measured below the root, holds at every depth",
    "a rank's value presumes that all lower ranks are drafted too, as in sampling without replacement",
)


def rank_table(values: NDArray[np.float64], *, column: str) -> NDArray[np.float64]:
    """P(the candidate of rank r is right at depth d + 1), float64 (D, W).

    Args:
        values: (D, W), or one row.
        column: `rank` for the probability of each rank, `recall` for that of this rank or a better one.

    >>> rank_table(np.array([[0.5, 0.75, 0.75]]), column="recall").tolist()
    [[0.5, 0.25, 0.0]]

    Raises:
        TraceError: values that are no probabilities, a recall that falls, ranks that sum to more than 1.
    """
    table: NDArray[np.float64] = np.atleast_2d(values)
    if table.shape[0] > MAX_DEPTH or table.shape[1] > MAX_WIDTH:
        raise TraceError(f"a table has at most {MAX_DEPTH} rows of {MAX_WIDTH} ranks, found {table.shape}")
    _check_range(table)
    if column == "recall":
        falls = np.diff(table, axis=1) < 0
        if falls.any():
            row, rank = np.argwhere(falls)[0].tolist()
            raise TraceError(
                f"recall must not fall, row {row} has {table[row, rank]:.4g} at rank {rank} and "
                f"{table[row, rank + 1]:.4g} at the next: is each rank counted by itself (--column rank)?"
            )
        return np.diff(table, axis=1, prepend=0.0)
    sums = table.sum(axis=1)
    if (sums > 1 + ROUNDED).any():
        row = int(np.argmax(sums > 1 + ROUNDED))
        raise TraceError(
            f"the ranks of row {row} sum to {sums[row]:.4g}, at most one can be right: is it recall, "
            "of this rank or better (--column recall)?"
        )
    scaled: NDArray[np.float64] = table / np.maximum(sums, 1.0)[:, None]
    return scaled


def rises(table: NDArray[np.float64]) -> bool:
    """Whether every row of a table of ranks rises, which ranks do not do and recall does."""
    return table.shape[1] > 2 and bool((np.diff(table, axis=1) >= 0).all() and (table[:, -1] > table[:, 0]).all())


def vector_table(values: NDArray[np.float64], *, depth: int, reject_slot: bool | None = None) -> NDArray[np.float64]:
    """Sequoia's acceptance vector as a table of `depth` equal rows, float64 (depth, W).

    Entry 0 is 0, entry j the probability that the j-th drawn child is the accepted one. `tests/test_accept.py`
    appends the probability that none is, so that all sum to 1; `tests/fast_test.py` does not.

    Args:
        values: W + 2 entries with the reject slot, W + 1 without.
        depth: rows.
        reject_slot: whether it is there; None: found from the sum.

    >>> vector_table(np.array([0, 0.6, 0.3, 0.1]), depth=1).tolist()
    [[0.6, 0.3]]

    Raises:
        TraceError: no such vector, or the sum does not tell.
    """
    if values.ndim != 1 or len(values) < 3 or values[0] != 0:
        raise TraceError(
            f"an acceptance vector is one row that begins with 0, found {values.shape} beginning with "
            f"{values.flat[0]:.4g}; another table is --format table"
        )
    if not 1 <= depth <= MAX_DEPTH:
        raise TraceError(f"depth must be in 1..{MAX_DEPTH}, found {depth}")
    _check_range(values[None])
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


def drawn_trace(
    table: NDArray[np.float64], *, requests: int, length: int, rng: np.random.Generator, meta: Mapping[str, Any]
) -> Trace:
    """A trace with the table's frequencies: at each depth as many of each rank as it says, shuffled by themselves.

    Args:
        table: P(the candidate of rank r is right at depth d + 1), float64 (D, W).
        requests: how many.
        length: tokens of each.
        rng: draws the order.
        meta: of the trace.

    Raises:
        UsageError: a trace of more than `MAX_BYTES`.
    """
    depth, width = table.shape
    size = requests * length * (2 * depth + 8)  # ranks; request and position
    if size > MAX_BYTES:
        raise UsageError(
            f"--requests {requests} of --length {length} at {depth} depths are {size / 2**20:.0f} MiB, "
            f"at most {MAX_BYTES / 2**20:.0f} are drawn"
        )
    rank = np.empty((requests * length, depth), dtype=np.int16)
    for level, row in enumerate(table):
        found = dealt(np.append(row, max(1 - row.sum(), 0.0)), len(rank), rng)
        rank[:, level] = np.where(found < width, found, MISSED)
    return with_lengths(rank, [length] * requests, width=width, meta=meta)


def _check_range(table: NDArray[np.float64]) -> None:
    bad = (table < 0) | (table > 1)
    if bad.any():
        row, rank = np.argwhere(bad)[0].tolist()
        raise TraceError(f"row {row}, rank {rank} must be a probability in [0, 1], found {table[row, rank]:.4g}")
