"""A trace from a positional table: how often the candidate of each rank is right, at each depth or at any depth.

Such a table does not record which position a figure comes from. A trace made of it has exactly the table's frequencies,
and chance in place of everything else: depths are independent, positions are alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.defaults import IMPORTED_DEPTH, IMPORTED_LENGTH, IMPORTED_REQUESTS
from treeopt.errors import TraceError, UsageError
from treeopt.traces.importers.chain_counts import Chain
from treeopt.traces.importers.source_file import read_numbers, source_meta
from treeopt.traces.importers.synthetic_trace import MAX_BYTES, shuffled_outcomes, trace_from_ranks
from treeopt.traces.importers.trace_source import ImportedFile, TraceSource
from treeopt.traces.trace import MAX_DEPTH, MAX_WIDTH, MISSED, Trace

COLUMNS = ("rank", "recall", "survival")
ROUNDED = 1e-3  # what decimals and half precision may add to a sum
ASSUMED = (
    "depths are independent of each other",
    "every position of a text is like every other",
    "intervals describe the drawn sample, not the source",
)


def read_table(
    file: ImportedFile, *, column: str | None = None, depth: int | None = None, steps: int | None = None
) -> Trace:
    """Return the trace of a file of a table: `.pt`, `.npy`, `.json` or `.csv`.

    Raises:
        UsageError: no column, or a depth for several rows.
        TraceError: no such table.
    """
    if column is None:
        raise UsageError(
            "give --column: rank if the table has the acceptance of each rank, recall if it has sums over ranks, "
            "survival if it has shares of all steps by position, as vLLM prints them"
        )
    values = read_numbers(file.path, file.saved)
    if column == "survival":
        if depth is not None or file.length != IMPORTED_LENGTH or (values.ndim > 1 and min(values.shape) > 1):
            raise UsageError("--column survival takes one rate for each position, and no --depth or --length")
        return file.of_chain(Chain(tuple(values.ravel().tolist())), file.kind, steps=steps)
    if steps is not None:
        raise UsageError("--steps is for --column survival")
    if values.ndim == 1 and len(values) > 2 and values[0] == 0:
        raise TraceError("rank 0 is never right: of an acceptance vector, leave out the 0 in front and the rejections")
    table = rank_table(values, column=column)
    assumed = list(ASSUMED)
    if table.shape[1] == 1 and len(table) > 1:
        shares = ", ".join(f"{share:.3g}" for share in table[:, 0])
        assumed.insert(0, f"{shares} are each given the one before; if they are shares of all steps: --column survival")
    rises = (np.diff(table, axis=1) >= 0).all() and (table[:, -1] > table[:, 0]).all()
    if column == "rank" and table.shape[1] > 2 and rises:
        assumed.insert(0, "ranks do get better from left to right, as recall does: was --column recall meant?")
    if depth is not None and len(table) > 1:
        raise UsageError(f"--depth is for a single row, the table has {len(table)}")
    if len(table) == 1 and depth != 1:
        table = np.tile(table, (depth or IMPORTED_DEPTH, 1))
        assumed.insert(0, f"the one row holds at each of {len(table)} depths")
    meta = source_meta(file.path, file.kind, assumed, seed=file.seed)
    return drawn_trace(table, requests=file.requests or IMPORTED_REQUESTS, length=file.length, rng=file.rng, meta=meta)


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
    bad = (table < 0) | (table > 1)
    if bad.any():
        row, rank = np.argwhere(bad)[0].tolist()
        raise TraceError(f"row {row}, rank {rank} must be a probability in [0, 1], found {table[row, rank]:.4g}")
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


ENTRY = TraceSource(
    name="table",
    title="acceptance by depth and rank",
    settings={
        "column": "acceptance of each rank by itself (rank), or of this rank or a better one (recall), each given the "
        "rows before; or the share of all steps that accept each position (survival)",
        "steps": "survival: number of steps that the rates cover",
        "depth": f"number of depths that a single row describes, default {IMPORTED_DEPTH}",
        "requests": f"number of requests drawn, default {IMPORTED_REQUESTS}",
        "length": f"rank, recall: tokens of each request, default {IMPORTED_LENGTH}",
    },
    trace=read_table,
)
