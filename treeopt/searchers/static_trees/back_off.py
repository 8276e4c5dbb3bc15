"""The back-off distribution of the next rank, by depth and kind of path, for paths with too few counts of their own.

Knows nothing about trees. Ranks fall off in much the same way below all paths of one kind, so their anchors are
counted together, and the result is made to fall with the rank, as a drafter's order promises.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Kinds of path: all ranks 0 (also the root), a last rank of 0 after others, a last rank of 1, 2-3, 4-7, 8 or more.
KINDS = 6
PRIOR = 20.0  # pseudo-anchors


def kinds_below(kind: NDArray[np.int8], rank: NDArray[np.integer]) -> NDArray[np.int8]:
    """Return the kind of each path of the given kind once it is extended by the given rank, 0 or more.

    >>> kinds_below(np.int8([0, 0, 3, 1]), np.int16([0, 1, 0, 5])).tolist()
    [0, 2, 1, 4]
    """
    by_rank = np.array([1, 2, 3, 3, 4, 4, 4, 4, 5], dtype=np.int8)[np.minimum(rank, 8)]
    return np.where((rank == 0) & (kind == 0), np.int8(0), by_rank)


@dataclass(frozen=True, eq=False)
class BackOff:
    """Shares of the ranks below paths of each depth and kind.

    Attributes:
        share: float64 (depth, KINDS, width), at most 1 in sum over ranks, not rising with the rank.
    """

    share: NDArray[np.float64]

    @classmethod
    def of(
        cls, rank: NDArray[np.int16], *, depth: int, width: int, weights: NDArray[np.float64] | None = None
    ) -> "BackOff":
        """Count over all anchors that follow a path, whichever path it is.

        A rare kind has few anchors at a depth. To these `PRIOR` pseudo-anchors are added, distributed as at that depth
        overall; to those again `PRIOR`, distributed as at all depths; to those `PRIOR` spread evenly, so that every
        rank has a share.

        Args:
            rank: int16 (P, D) of a trace.
            depth: levels wanted.
            width: number of ranks.
            weights: float64 (P,), number of anchors that each one counts for; None for 1.
        """
        counts = _counts(rank, depth, width, weights)
        share = np.full(width, 1 / (width + 1))
        for counted in (counts.sum(axis=(0, 1)), counts.sum(axis=1)[:, None], counts):
            share = falling((counted[..., :width] + PRIOR * share) / (counted.sum(axis=-1, keepdims=True) + PRIOR))
        return cls(share)


def _counts(
    rank: NDArray[np.int16], depth: int, width: int, weights: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return anchors by depth, kind of path and next rank, float64 (depth, KINDS, width + 1); last column: no rank."""
    counts = np.zeros((depth, KINDS, width + 1))
    alive = np.arange(len(rank), dtype=np.int32)
    kind = np.zeros(len(rank), dtype=np.int8)
    for level in range(depth):
        next_rank = rank[alive, level]
        follows = next_rank >= 0
        cell = kind * np.int32(width + 1) + np.where(follows, next_rank, np.int16(width))
        cells = np.bincount(cell, None if weights is None else weights[alive], minlength=KINDS * (width + 1))
        counts[level] = cells.reshape(KINDS, width + 1)
        alive = alive[follows]
        kind = kinds_below(kind[follows], next_rank[follows])
    return counts


def falling(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest values, in squares, that do not rise along the last axis: adjacent violators are pooled.

    Source: Ayer et al. 1955, "An empirical distribution function for sampling with incomplete information".

    >>> falling(np.array([4.0, 1.0, 2.0, 0.0])).tolist()
    [4.0, 1.5, 1.5, 0.0]
    """
    result = np.empty_like(values)
    for index in np.ndindex(values.shape[:-1]):
        means: list[float] = []
        sizes: list[int] = []
        for value in values[index].tolist():
            mean, size = value, 1
            while means and means[-1] < mean:
                joined = size + sizes[-1]
                mean, size = (mean * size + means.pop() * sizes.pop()) / joined, joined
            means.append(mean)
            sizes.append(size)
        result[index] = np.repeat(means, sizes)
    return result
