"""Recorded candidate trees: everything a drafter proposed at each anchor, for policies that choose at run time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError


@dataclass(frozen=True, eq=False)
class Candidates:
    """The whole drafted candidate tree of each anchor (CSR); P anchors, C candidates.

    Attributes:
        offset: int64 (P + 1,), candidates of anchor t are offset[t] .. offset[t + 1] − 1.
        parent: int16 (C,), index of the parent among the anchor's own candidates, −1 for the root; before the child.
        rank: uint8 (C,), candidate rank below the parent.
        logprob: float32 (C,), drafter's log-probability given the parent, at most 0; half precision would turn
            close ones into ties.
        hit: bool (C,), the target's text continues through this candidate.
    """

    offset: NDArray[np.int64]
    parent: NDArray[np.int16]
    rank: NDArray[np.uint8]
    logprob: NDArray[np.float32]
    hit: NDArray[np.bool_]

    def select(self, anchors: NDArray[np.bool_]) -> "Candidates":
        """Return the candidates of the anchors that are true, bool (P,)."""
        sizes = np.diff(self.offset)
        chosen = np.repeat(anchors, sizes)
        return Candidates(
            offset=np.append(0, np.cumsum(sizes[anchors])),
            parent=self.parent[chosen],
            rank=self.rank[chosen],
            logprob=self.logprob[chosen],
            hit=self.hit[chosen],
        )


def concatenate(parts: Sequence[Candidates]) -> Candidates:
    """Return the candidates of all anchors of several traces, one trace after the other."""
    sizes = np.concatenate([np.diff(part.offset) for part in parts])
    return Candidates(
        np.append(0, sizes.cumsum()),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("parent", "rank", "logprob", "hit")),
    )


def check_candidates(candidates: Candidates, anchors: int) -> None:
    """Check the values of all arrays against the format of a trace.

    Raises:
        TraceError: names the field and the index of the first wrong value.
    """
    offset, count = candidates.offset, len(candidates.parent)
    if offset.shape != (anchors + 1,) or offset[0] != 0 or offset[-1] != count or (np.diff(offset) < 0).any():
        raise TraceError(f"`candidates_offset` must rise from 0 to {count} in {anchors + 1} entries")
    for name in ("rank", "logprob", "hit"):
        if getattr(candidates, name).shape != (count,):
            raise TraceError(f"`candidates_{name}` must have {count} entries")
    begin = np.repeat(offset[:-1], np.diff(offset))  # index of the first candidate of the same anchor
    bad = (candidates.parent < -1) | (candidates.parent >= np.arange(count) - begin)
    if bad.any():
        first = int(np.argmax(bad))
        raise TraceError(f"candidates_parent[{first}] must stand before its child, found {candidates.parent[first]}")
    bad = ~(candidates.logprob <= 0)
    if bad.any():
        first = int(np.argmax(bad))
        raise TraceError(f"candidates_logprob[{first}] must be at most 0, found {candidates.logprob[first]}")
    inner = candidates.parent >= 0
    parent = np.where(inner, begin + candidates.parent, 0)
    bad = candidates.hit & inner & ~candidates.hit[parent] if count else np.zeros(0, dtype=bool)
    if bad.any():
        raise TraceError(f"candidates_hit[{int(np.argmax(bad))}] is true below a parent that is not hit")
