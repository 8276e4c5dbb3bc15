"""Beam drafting on a trace: the recorded candidates that a beam of a given depth and width would draft at each anchor.

Candidates are drafted as in the live loop (EAGLE-2, Li et al. 2024, arXiv 2406.16858, section 4): values are the
drafter's log-probabilities, summed in single precision from the root on. Each level expands the candidates of the best
values; ties go to the candidate that is recorded first. Nothing is chosen here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.traces.candidates import Candidates
from treeopt.traces.trace import Trace

CHUNK = 2**21  # candidates processed together


@dataclass(frozen=True)
class Drafting:
    """The depth and width to which candidates are drafted.

    Attributes:
        depth: levels.
        beam: nodes expanded on each level below the root.
        width: children considered per expanded node.
    """

    depth: int
    beam: int
    width: int

    @property
    def expanded(self) -> tuple[int, ...]:
        """The number of nodes expanded on each level, starting with the root.

        >>> Drafting(depth=3, beam=4, width=2).expanded
        (1, 2, 4)
        """
        counts = [1]
        for _ in range(self.depth - 1):
            counts.append(min(self.beam, counts[-1] * self.width))
        return tuple(counts)

    @property
    def candidates(self) -> int:
        """The number of candidates drafted per sequence.

        >>> Drafting(depth=3, beam=4, width=2).candidates
        14
        """
        return self.width * sum(self.expanded)


@dataclass(frozen=True, eq=False)
class Drafted:
    """Drafted candidates of anchors with the same number of recorded ones; all arrays (anchors, size) but `rootless`.

    Attributes:
        parent: index of the parent among the anchor's candidates, −1 for the root.
        rank: candidate rank below the parent.
        log: log-probability given the parent.
        hit: True where the text continues through the candidate.
        value: log-probability of the path; meaningless for candidates that are not drafted.
        level: 1, 2, ...; 0 for candidates that are not drafted.
        expanded: True where the children would be drafted by another level.
        lacking: True for an expanded candidate whose children were not all recorded.
        rootless: bool (anchors,), True where children of the root were not all recorded.
    """

    parent: NDArray[np.int16]
    rank: NDArray[np.uint8]
    log: NDArray[np.float32]
    hit: NDArray[np.bool_]
    value: NDArray[np.float32]
    level: NDArray[np.int8]
    expanded: NDArray[np.bool_]
    lacking: NDArray[np.bool_]
    rootless: NDArray[np.bool_]

    def within(self, level: int) -> NDArray[np.bool_]:
        """Return the candidates drafted on the first `level` levels, bool (anchors, size)."""
        return (self.level > 0) & (self.level <= level)


def drafted_candidates(trace: Trace, drafting: Drafting) -> Iterator[tuple[NDArray[np.int64], Drafted]]:
    """Yield anchors, int64 (n,), with their drafted candidates, chunk by chunk; anchors without any are left out.

    Raises:
        TraceError: the trace holds no candidates.
    """
    candidates = _recorded(trace)
    sizes = np.diff(candidates.offset)
    for size in np.unique(sizes[sizes > 0]):
        anchors = np.flatnonzero(sizes == size)
        for part in np.array_split(anchors, -(-len(anchors) * size // CHUNK)):
            place = candidates.offset[part, None] + np.arange(size)
            logs = candidates.logprob[place].astype(np.float32, copy=False)
            yield part, _levels(candidates.parent[place], candidates.rank[place], logs, candidates.hit[place], drafting)


def reach(trace: Trace) -> Drafting:
    """Return the extent of the recording: the deepest level, the most nodes expanded on a level, the most children.

    Raises:
        TraceError: the trace holds no candidates.
    """
    candidates = _recorded(trace)
    sizes = np.diff(candidates.offset)
    anchor = np.repeat(np.arange(trace.anchors), sizes)
    inner = candidates.parent >= 0
    above = np.where(inner, candidates.offset[anchor] + candidates.parent, -1)
    parents = np.zeros(len(above) + 1, dtype=bool)
    parents[above[inner]] = True
    depth, beam, level = 0, 1, ~inner
    while level.any():
        depth += 1
        beam = max(beam, int(np.bincount(anchor[level & parents[:-1]], minlength=1).max()))
        level = inner & level[above]
    return Drafting(max(depth, 1), beam, int(candidates.rank.max(initial=0)) + 1)


def _recorded(trace: Trace) -> Candidates:
    if trace.candidates is None:
        raise TraceError(
            "replaying dynamic trees needs recorded candidates, the trace has none: record them with `treeopt trace "
            "collect --candidates`"
        )
    return trace.candidates


def _levels(
    parent: NDArray[np.int16],
    rank: NDArray[np.uint8],
    log: NDArray[np.float32],
    hit: NDArray[np.bool_],
    drafting: Drafting,
) -> Drafted:
    """Draft level by level; all arrays (anchors, size)."""
    anchors, size = parent.shape
    row = np.arange(anchors)[:, None]
    value = np.zeros((anchors, size), dtype=np.float32)
    level = np.zeros((anchors, size), dtype=np.int8)
    expanded, lacking = np.zeros((2, anchors, size), dtype=bool)
    rootless = np.zeros(anchors, dtype=bool)
    on_level = parent < 0  # recorded on this level
    for depth, most_expanded in enumerate((*drafting.expanded[1:], drafting.beam), 1):
        columns = np.flatnonzero(on_level.any(0))
        recorded, above = on_level[:, columns], parent[:, columns]
        drafted = recorded & (rank[:, columns] < drafting.width) & ((depth == 1) | expanded[row, above])
        children = np.bincount((row * size + above)[drafted] if depth > 1 else [], minlength=anchors * size)
        if depth == 1:
            rootless = drafted.sum(1) != drafting.width
        else:
            lacking |= expanded & (level == depth - 1) & (children.reshape(anchors, size) != drafting.width)
        start = value[row, above] if depth > 1 else np.float32(0)
        path_log = start + log[:, columns]
        value[:, columns] = np.where(recorded, path_log, value[:, columns])
        level[:, columns] = np.where(drafted, depth, level[:, columns])
        best = np.where(drafted, -path_log, np.nan).argsort(1, kind="stable")[:, :most_expanded]
        expanded[row, columns[best]] = drafted[row, best]
        on_level = (parent >= 0) & on_level[row, parent]
    return Drafted(parent, rank, log, hit, value, level, expanded, lacking, rootless)
