"""Shortlists: of every anchor the best drafted candidates after each level, in the order in which they are verified.

A drafting may be narrower than the recording, and expand candidates whose children were not recorded: `doubt` bounds
what was missed, for a child is no more probable than its parent.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.policies.beam import Drafted, Drafting, drafted
from treeopt.statistics.isotonic_regression import Curve, isotonic
from treeopt.traces.trace import Trace

BINS = 2048  # of a fitted curve, and how many of them make a factor e
FINENESS = 64
# Of each depth and rank: from the drafter's probability given the parent to the frequency with which such a candidate
# is true if its parent is.
Calibration = tuple[tuple[Curve, ...], ...]
LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True, eq=False)
class Shortlists:
    """What policies choose from, of any anchors (...); D levels, the N best candidates.

    Entry d of an axis D tells of d + 1 drafted levels and of nothing that lies deeper. All but `place` is known at
    run time.

    Attributes:
        log: float32 (..., D, N), logarithm of the probability that the candidate is accepted, as the drafter or a
            calibration has it, best first; NaN where there are fewer.
        place: int16 (..., D, D), where in that order the true candidate of depth 1, 2, ... stands; N if it does not.
        best: float32 (..., D), the highest logarithm on the deepest drafted level.
        mass: float32 (..., D), sum of the probabilities of those that would be expanded on the deepest drafted level.
        doubt: float32 (..., D), the highest logarithm of an expanded candidate whose children were not all recorded;
            −inf if there is none.
    """

    log: NDArray[np.float32]
    place: NDArray[np.int16]
    best: NDArray[np.float32]
    mass: NDArray[np.float32]
    doubt: NDArray[np.float32]

    def __getitem__(self, index: Any) -> "Shortlists":
        """Those of some anchors."""
        return Shortlists(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def blank(cls, *anchors: int, depth: int, nodes: int) -> "Shortlists":
        """Of so many anchors, without candidates, and none in doubt."""
        return cls(
            np.full((*anchors, depth, nodes), np.nan, dtype=np.float32),
            np.full((*anchors, depth, depth), nodes, dtype=np.int16),
            np.full((*anchors, depth), -np.inf, dtype=np.float32),
            np.zeros((*anchors, depth), dtype=np.float32),
            np.full((*anchors, depth), -np.inf, dtype=np.float32),
        )

    def accepted(self, levels: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Drafted tokens kept when the best `nodes` of `levels` drafted levels are verified; each int64 (...)."""
        place = np.take_along_axis(self.place, levels[..., None, None] - 1, -2)[..., 0, :]
        return np.asarray((place < nodes[..., None]).sum(-1))


def shortlists(trace: Trace, drafting: Drafting, *, nodes: int, calibration: Calibration | None = None) -> Shortlists:
    """The best `nodes` candidates of all anchors, (P,).

    Args:
        trace: with candidates.
        drafting: how far they are drafted.
        nodes: N.
        calibration: what probabilities are replaced by; default the drafter's own.

    Raises:
        TraceError: the trace holds no candidates.
    """
    depth = drafting.depth
    found = Shortlists.blank(trace.anchors, depth=depth, nodes=nodes)
    found.doubt[:] = 0  # of anchors without candidates nothing is known
    for part, trees in drafted(trace, drafting):
        log = trees.value if calibration is None else _calibrated(trees, calibration)
        rows = np.arange(len(part))[:, None]
        for level in range(1, depth + 1):
            order = _order(trees, log, calibration, level)[:, :nodes]
            there = trees.within(level)[rows, order]
            found.log[part, level - 1, : order.shape[1]] = np.where(there, log[rows, order], np.nan)
            row, place = np.nonzero(there & trees.hit[rows, order])
            found.place[part[row], level - 1, trees.level[row, order[row, place]] - 1] = place
            own = trees.level == level
            found.best[part, level - 1] = np.where(own, log, -np.inf).max(1)
            onward = np.where(own & trees.expanded, np.exp(log, dtype=np.float64), 0)
            found.mass[part, level - 1] = onward.sum(1)
            lacking = trees.lacking & trees.within(level - 1)
            doubt = np.where(lacking, np.maximum(log, LOWEST), -np.inf).max(1)
            found.doubt[part, level - 1] = np.where(trees.rootless, 0, doubt)
    return found


def calibrate(trace: Trace, drafting: Drafting) -> Calibration:
    """How often a drafted candidate below a true one is true itself, over all anchors of the trace.

    Of each depth and rank one isotonic curve over the drafter's probability given the parent, gathered in steps of
    1 / 64 of its logarithm. The rank says what the probability does not: under greedy verification the best candidate
    is often right where the drafter is unsure. Where nothing was drafted a curve is that of the depth above, or 0.
    Candidates beyond the end of the text are not counted.

    Raises:
        TraceError: the trace holds no candidates.
    """
    sums = np.zeros((3, drafting.depth, drafting.width, BINS))  # of candidates, of probabilities, of true ones
    for part, trees in drafted(trace, drafting):
        row = np.arange(len(part))[:, None]
        below = np.where(trees.parent >= 0, trees.hit[row, trees.parent], True)
        own = (trees.level > 0) & below & (trace.left[part, None] >= trees.level)
        log = trees.log[own].astype(np.float64)
        place = np.minimum(-log * FINENESS, BINS - 1).astype(np.int64)
        level, rank = trees.level[own].astype(np.int64), trees.rank[own].astype(np.int64)
        cell = ((level - 1) * drafting.width + rank) * BINS + place
        for total, weights in zip(sums, (None, np.exp(log), trees.hit[own]), strict=True):
            total += np.bincount(cell, weights, minlength=total.size).reshape(total.shape)
    curves: list[tuple[Curve, ...]] = [(Curve((0.0,), (0.0,)),) * drafting.width]
    for candidates, promised, true in np.moveaxis(sums, 1, 0):
        curves.append(tuple(map(_curve, candidates, promised, true, curves[-1])))
    return tuple(curves[1:])


def _curve(
    candidates: NDArray[np.float64], promised: NDArray[np.float64], true: NDArray[np.float64], otherwise: Curve
) -> Curve:
    some = candidates > 0
    if not some.any():
        return otherwise
    return isotonic(promised[some] / candidates[some], true[some] / candidates[some], candidates[some])


def _calibrated(trees: Drafted, calibration: Calibration) -> NDArray[np.float32]:
    """Logarithms that replace the values of drafted candidates."""
    log = np.zeros_like(trees.value)
    for level, curves in enumerate(calibration, 1):
        for rank, curve in enumerate(curves):
            row, column = np.nonzero((trees.level == level) & (trees.rank == rank))
            with np.errstate(divide="ignore"):
                own = np.log(curve.at(np.exp(trees.log[row, column].astype(np.float64)))).astype(np.float32)
            log[row, column] = own if level == 1 else own + log[row, trees.parent[row, column]]
    return log


def _order(trees: Drafted, log: NDArray[np.float32], calibration: Calibration | None, level: int) -> NDArray[np.int64]:
    """Of each anchor the candidates of the first levels, best first: the others after them."""
    there = trees.within(level)
    value = np.where(there, -trees.value, np.nan)
    if calibration is None:
        return value.argsort(1, kind="stable")
    return np.lexsort((value, np.where(there, -log, np.nan)), axis=1)
