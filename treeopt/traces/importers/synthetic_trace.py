"""Traces made up of counts or rates: as many of each outcome as they say, in an order drawn by chance."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.traces.trace import Trace
from treeopt.traces.trace_checks import PAST_END

MAX_BYTES = 2**28  # of the arrays of a trace that is drawn


def apportioned(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """`total` things in these proportions, by largest remainders; ties go to the first.

    >>> apportioned(np.array([0.5, 0.3, 0.2]), 9).tolist()
    [4, 3, 2]
    """
    exact = shares / shares.sum() * total
    # Counts that add up to the total come back as they are, whatever the division rounded.
    exact = np.where(np.abs(exact - np.rint(exact)) < 1e-6, np.rint(exact), exact)
    counts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def dealt(shares: NDArray[np.float64], total: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`total` outcomes 0, 1, ..., as many of each as `apportioned` says, shuffled."""
    outcomes: NDArray[np.int64] = np.repeat(np.arange(len(shares)), apportioned(shares, total))
    rng.shuffle(outcomes)
    return outcomes


def with_lengths(rank: NDArray[Any], lengths: Sequence[int], *, width: int, meta: Mapping[str, Any]) -> Trace:
    """A trace of requests of these lengths; what of `rank` (P, D) lies past their ends is marked so."""
    sizes = np.asarray(lengths)
    position = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.repeat(sizes, sizes) - position
    return Trace(
        request=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        position=position.astype(np.int32),
        rank=np.where(np.arange(rank.shape[1]) < left[:, None], rank, PAST_END).astype(np.int16),
        width=width,
        meta=meta,
    )
