"""Measured cells: median step times of one configuration at one batch size and context, and what committing costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cell:
    """Median step times of one configuration at one batch size and context.

    Attributes:
        batch: sequences.
        context: tokens per sequence in the cache, on average.
        tokens: verified tokens per sequence; 1 for plain decoding.
        widths: nodes fed to the drafter at each level; () for plain decoding.
        draft_s: seconds of drafting.
        rest_s: seconds of everything else in a step.
        committed: tokens per sequence and step.
        error: relative standard error of the step's seconds.
        forced: measured only to find what committing more tokens costs.
        growth: kind of dynamic tree, one of `treeopt.policies.growths`; None: a static tree.
    """

    batch: int
    context: float
    tokens: int
    widths: tuple[int, ...]
    draft_s: float
    rest_s: float
    committed: float = 1.0
    error: float = 0.0
    forced: bool = False
    growth: str | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.draft_s + self.rest_s


def over_plain(cell: Cell, cells: Sequence[Cell]) -> float:
    """Return the cell's step time over the median plain step at its batch size and context."""
    plain = [c.step_s for c in cells if not c.widths and (c.batch, c.context) == (cell.batch, cell.context)]
    return cell.step_s / float(np.median(plain))


def commit_seconds(cells: Sequence[Cell]) -> dict[int, float]:
    """Return the seconds of each additional committed token per sequence, by batch size.

    A batch size at which this was not measured takes the value of the nearest one; 0.0 if none was measured.
    """
    measured = {
        batch: _slope_over_committed([c for c in cells if c.batch == batch])
        for batch in {c.batch for c in cells if c.forced}
    }
    by_batch = dict.fromkeys((cell.batch for cell in cells), 0.0)
    if measured:
        by_batch = {batch: measured[_nearest(batch, measured)] for batch in by_batch}
    return by_batch


def _nearest(batch: int, measured: dict[int, float]) -> int:
    """Return the measured batch size nearest to `batch` on a logarithmic scale; of two the smaller."""
    return min(measured, key=lambda size: (abs(np.log(size / batch)), size))


def _slope_over_committed(cells: Sequence[Cell]) -> float:
    """Return the seconds per additional committed token, fitted to runs that differ in nothing else; at least 0."""
    covariance = variance = 0.0
    alike: dict[Any, list[Cell]] = {}
    for cell in cells:
        if cell.forced:
            alike.setdefault((cell.context, cell.tokens, cell.widths), []).append(cell)
    for same in alike.values():
        committed, seconds = (np.array([getattr(c, name) for c in same]) for name in ("committed", "step_s"))
        centred = committed - committed.mean()
        covariance, variance = covariance + float(centred @ seconds), variance + float(centred @ centred)
    return max(0.0, covariance / variance) if variance > 0 else 0.0


def at_committed(cell: Cell, committed: float, per_token: float) -> Cell:
    """Return the cell as if it had committed `committed` tokens; a plain step is unchanged, it commits one."""
    if not cell.widths:
        return cell
    rest_s = max(cell.rest_s - (cell.committed - committed) * per_token, 0.5 * cell.rest_s)
    return replace(cell, rest_s=rest_s, committed=committed)
