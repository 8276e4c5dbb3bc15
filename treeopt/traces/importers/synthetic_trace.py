"""Synthetic traces from counts or rates: each outcome as often as they say, in random order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.traces.trace import PAST_END, Trace

MAX_BYTES = 2**28  # limit for the arrays of a drawn trace


def apportion(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Divide `total` items in these proportions, by largest remainders; ties go to the first.

    >>> apportion(np.array([0.5, 0.3, 0.2]), 9).tolist()
    [4, 3, 2]
    """
    exact = shares / shares.sum() * total
    # Counts that add up to the total come back unchanged, in spite of rounding in the division.
    exact = np.where(np.abs(exact - np.rint(exact)) < 1e-6, np.rint(exact), exact)
    counts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def shuffled_outcomes(shares: NDArray[np.float64], total: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `total` outcomes 0, 1, ... in random order, each as often as `apportion` says."""
    outcomes: NDArray[np.int64] = np.repeat(np.arange(len(shares)), apportion(shares, total))
    rng.shuffle(outcomes)
    return outcomes


def drawn_by_text(shares: NDArray[np.float64], lengths: Sequence[int], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an outcome 0, 1, ... for every token of texts of these lengths, in random order.

    Within a text each outcome occurs as often as the text's row of `shares`, (R, outcomes), says, but for rounding.

    >>> drawn_by_text(np.array([[1.0, 1.0], [0.0, 1.0]]), [4, 2], np.random.default_rng(0)).sum()
    np.int64(4)
    """
    sizes = np.asarray(lengths)
    text = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((rng.random(len(text)), text))
    place = np.arange(len(text)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    quantile = np.empty(len(text))
    quantile[order] = (place + rng.random(len(sizes))[text]) / sizes[text]  # systematic sampling
    below = np.cumsum(shares, axis=1) / shares.sum(axis=1, keepdims=True)
    outcomes = np.zeros(len(text), dtype=np.int64)
    for level in range(shares.shape[1] - 1):
        outcomes += quantile >= below[text, level]
    return outcomes


def trace_from_ranks(
    rank: NDArray[Any],
    lengths: Sequence[int],
    *,
    width: int,
    meta: Mapping[str, Any],
    drafted: NDArray[Any] | None = None,
    **others: Any,
) -> Trace:
    """Return a trace of requests of these lengths; entries of `rank` (P, D) past their ends are marked PAST_END.

    `others` are further arrays of `Trace`, and their names.
    """
    sizes = np.asarray(lengths)
    position = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.repeat(sizes, sizes) - position
    return Trace(
        request=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        position=position.astype(np.int32),
        rank=np.where(np.arange(rank.shape[1]) < left[:, None], rank, PAST_END).astype(np.int16),
        width=width,
        meta=meta,
        drafted=None if drafted is None else drafted.astype(np.int16),
        **others,
    )
