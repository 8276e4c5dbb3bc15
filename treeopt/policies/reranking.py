"""Re-ranking: shortlists of the best drafted candidates after each level, in the order in which they are verified.

A drafting may be narrower than the recording, and may expand candidates whose children were not recorded. `doubt`
bounds the probability of such children: a child is no more probable than its parent.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.policies.beam import Drafted, Drafting, drafted_candidates
from treeopt.statistics import Curve, isotonic
from treeopt.traces.trace import Trace

BINS = 2048  # points that a calibration curve is fitted to
FINENESS = 64  # of them span a factor e
# For each depth and rank, a curve from the drafter's probability given the parent to the frequency with which such a
# candidate is true if its parent is.
Calibration = tuple[tuple[Curve, ...], ...]
LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True, eq=False)
class Shortlists:
    """The candidates that policies choose from, for any anchors (...); D levels, the N best candidates.

    Entry d of an axis D describes the state after d + 1 drafted levels and nothing deeper. All arrays but `place` are
    known at run time.

    Attributes:
        log: float32 (..., D, N), log-probability of acceptance by the drafter or its calibration, best first; NaN
            where there are fewer candidates.
        place: int16 (..., D, D), position in that order of the true candidate of depth 1, 2, ...; N if it is absent.
        best: float32 (..., D), the highest log-probability on the deepest drafted level.
        doubt: float32 (..., D), the highest log-probability of an expanded candidate whose children were not all
            recorded; −inf if there is none.
    """

    log: NDArray[np.float32]
    place: NDArray[np.int16]
    best: NDArray[np.float32]
    doubt: NDArray[np.float32]

    def __getitem__(self, index: Any) -> "Shortlists":
        """Return the shortlists of some anchors."""
        return Shortlists(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def blank(cls, *anchors: int, depth: int, nodes: int) -> "Shortlists":
        """Return shortlists of this shape of anchors, without candidates and without doubt."""
        return cls(
            np.full((*anchors, depth, nodes), np.nan, dtype=np.float32),
            np.full((*anchors, depth, depth), nodes, dtype=np.int16),
            np.full((*anchors, depth), -np.inf, dtype=np.float32),
            np.full((*anchors, depth), -np.inf, dtype=np.float32),
        )

    def accepted(self, levels: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the accepted tokens if the best `nodes` after `levels` levels are verified; all int64 (...)."""
        place = np.take_along_axis(self.place, levels[..., None, None] - 1, -2)[..., 0, :]
        return np.asarray((place < nodes[..., None]).sum(-1))


def shortlists(trace: Trace, drafting: Drafting, *, nodes: int, calibration: Calibration | None = None) -> Shortlists:
    """Return the best `nodes` candidates of all anchors, (P,).

    Args:
        trace: a trace with candidates.
        drafting: the extent to which they are drafted.
        nodes: N, the length of a shortlist.
        calibration: replaces the drafter's probabilities; default: use them as they are.

    Raises:
        TraceError: the trace holds no candidates.
    """
    depth = drafting.depth
    lists = Shortlists.blank(trace.anchors, depth=depth, nodes=nodes)
    lists.doubt[:] = 0  # anchors without candidates: nothing is known
    for part, trees in drafted_candidates(trace, drafting):
        log = trees.value if calibration is None else _calibrated_log(trees, calibration)
        rows = np.arange(len(part))[:, None]
        for level in range(1, depth + 1):
            order = _order(trees, log, calibration, level)[:, :nodes]
            present = trees.within(level)[rows, order]
            lists.log[part, level - 1, : order.shape[1]] = np.where(present, log[rows, order], np.nan)
            row, place = np.nonzero(present & trees.hit[rows, order])
            lists.place[part[row], level - 1, trees.level[row, order[row, place]] - 1] = place
            lists.best[part, level - 1] = np.where(trees.level == level, log, -np.inf).max(1)
            lacking = trees.lacking & trees.within(level - 1)
            doubt = np.where(lacking, np.maximum(log, LOWEST), -np.inf).max(1)
            lists.doubt[part, level - 1] = np.where(trees.rootless, 0, doubt)
    return lists


def calibrate(trace: Trace, drafting: Drafting) -> Calibration:
    """Fit how often a drafted candidate below a true one is true itself, over all anchors of the trace.

    Each depth and rank gets one isotonic curve over the drafter's probability given the parent, gathered in steps of
    1 / 64 of its logarithm. The rank adds information: under greedy verification the best candidate is often right
    where the drafter is unsure. Where nothing was drafted, the curve of the depth above is used, or 0. Candidates
    beyond the end of the text are not counted.

    Raises:
        TraceError: the trace holds no candidates.
    """
    sums = np.zeros((3, drafting.depth, drafting.width, BINS))  # candidates, their probabilities, true candidates
    for part, trees in drafted_candidates(trace, drafting):
        row = np.arange(len(part))[:, None]
        below = np.where(trees.parent >= 0, trees.hit[row, trees.parent], True)
        counted = (trees.level > 0) & below & (trace.left[part, None] >= trees.level)
        log = trees.log[counted].astype(np.float64)
        place = np.minimum(-log * FINENESS, BINS - 1).astype(np.int64)
        level, rank = trees.level[counted].astype(np.int64), trees.rank[counted].astype(np.int64)
        cell = ((level - 1) * drafting.width + rank) * BINS + place
        for total, weights in zip(sums, (None, np.exp(log), trees.hit[counted]), strict=True):
            total += np.bincount(cell, weights, minlength=total.size).reshape(total.shape)
    curves: list[tuple[Curve, ...]] = [(Curve((0.0,), (0.0,)),) * drafting.width]
    for candidates, promised, true in np.moveaxis(sums, 1, 0):
        curves.append(tuple(map(_curve, candidates, promised, true, curves[-1])))
    return tuple(curves[1:])


def _curve(
    candidates: NDArray[np.float64], promised: NDArray[np.float64], true: NDArray[np.float64], otherwise: Curve
) -> Curve:
    filled = candidates > 0
    if not filled.any():
        return otherwise
    return isotonic(promised[filled] / candidates[filled], true[filled] / candidates[filled], candidates[filled])


def _calibrated_log(trees: Drafted, calibration: Calibration) -> NDArray[np.float32]:
    """Return the calibrated log-probabilities of the paths of drafted candidates."""
    log = np.zeros_like(trees.value)
    for level, curves in enumerate(calibration, 1):
        for rank, curve in enumerate(curves):
            row, column = np.nonzero((trees.level == level) & (trees.rank == rank))
            with np.errstate(divide="ignore"):
                step = np.log(curve.at(np.exp(trees.log[row, column].astype(np.float64)))).astype(np.float32)
            log[row, column] = step if level == 1 else step + log[row, trees.parent[row, column]]
    return log


def ranked_places(trees: Drafted, calibration: Calibration | None, level: int) -> NDArray[np.int64]:
    """Return the places of candidates in the order of the shortlist after some levels, then all others."""
    log = trees.value if calibration is None else _calibrated_log(trees, calibration)
    return _order(trees, log, calibration, level)


def _order(trees: Drafted, log: NDArray[np.float32], calibration: Calibration | None, level: int) -> NDArray[np.int64]:
    """Return the order of each anchor's candidates: those of the first levels, best first, then all others."""
    present = trees.within(level)
    value = np.where(present, -trees.value, np.nan)
    if calibration is None:
        return value.argsort(1, kind="stable")
    return np.lexsort((value, np.where(present, -log, np.nan)), axis=1)
