"""Tables of seconds measured at one batch size and context: exact at their points, an error outside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulate.profiles.dynamic_tree_overhead import Growing as Growing
from simulate.profiles.refuse_unmeasured import Points as Points
from simulate.profiles.refuse_unmeasured import check_measured, is_measured
from treeopt.cost_model import StepShape
from treeopt.errors import CostError
from treeopt.policies import growths

SHORTEST_S = 1e-12  # no step or part of one is shorter; far shorter numbers would overflow where they divide

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BatchTimes:
    """Medians measured at one batch size and context.

    Attributes:
        batch: sequences.
        plain_s: seconds of a plain decoding step.
        draft: (depth, seconds) by rising depth, from depth 1: drafting of chains.
        rest: (tokens, seconds) by rising tokens per sequence: everything in a step but drafting.
        widths: (width, seconds) by rising width, from width 1: additional seconds of a level that is fed this number of
            nodes instead of one; empty if the width has no effect or is not known to have one: see `widths_told`.
        context: tokens per sequence in the cache, on average; 0 if contexts were not measured separately.
        commit_s: additional seconds of a step per additional token that each sequence commits.
        relative_error: half-width of the 95 % interval of step / plain step at this batch size, as a share; None if
            too little was measured for an interval of its own.
        growth: kind of dynamic tree, of `treeopt.policies.growths` -> its overhead, as measured at the shortest
            context.
        widths_told: True if enough trees were measured to find the effect of widths; None: not recorded.
    """

    batch: int
    plain_s: float
    draft: Points
    rest: Points
    widths: Points = ()
    context: float = 0.0
    commit_s: float = 0.0
    relative_error: float | None = None
    growth: Mapping[str, Growing] = field(default_factory=dict)
    widths_told: bool | None = None

    def __post_init__(self) -> None:
        """Check signs and order.

        Raises:
            CostError: names the field and the index.
        """
        if self.batch < 1:
            raise CostError(f"batch must be at least 1, found {self.batch}")
        if not (math.isfinite(self.plain_s) and self.plain_s >= SHORTEST_S):
            raise CostError(f"plain_s must be at least {SHORTEST_S:g} seconds, found {self.plain_s}")
        for name in ("context", "commit_s", "relative_error"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise CostError(f"{name} must be 0 or more, found {value}")
        for name in ("draft", "rest"):
            if not getattr(self, name):
                raise CostError(f"{name} is empty")
        for name in ("draft", "rest", "widths"):
            _check_points(name, getattr(self, name), zero=name != "rest")
        for name in self.growth:
            if name not in growths():
                raise CostError(f"growth: {name!r:.40} must be one of {', '.join(growths())}")
        if self.widths and self.widths[0] != (1, 0.0):
            raise CostError(f"widths[0] must be width 1 and 0 seconds, found {list(self.widths[0])}")

    @property
    def deepest(self) -> int:
        """Depth of the deepest tree that was measured."""
        return self.draft[-1][0]

    def rows(self) -> list[tuple[int, float, str, int, str, float]]:
        """Return the measured times as rows: batch, context, part, size, its unit, seconds."""
        parts = (
            ("plain", "tokens", ((1, self.plain_s),)),
            ("draft", "levels", self.draft),
            ("rest", "tokens", self.rest),
            ("width", "nodes", self.widths),
        )
        return [
            (self.batch, self.context, part, size, unit, seconds)
            for part, unit, points in parts
            for size, seconds in points
        ]

    def drafts(self, shapes: Sequence[StepShape]) -> Floats:
        """Return the seconds of drafting, float64 (shapes,).

        Raises:
            CostError: a depth or width outside what was measured.
        """
        depths = np.array([len(shape.widths) for shape in shapes])
        check_measured("depth", depths[depths > 0], self.draft, batch=self.batch)
        seconds = np.where(depths > 0, interpolate(depths, self.draft), 0.0)
        if self.widths:
            fed = np.array([width for shape in shapes for width in shape.widths], dtype=np.int64)
            check_measured("width", fed, self.widths, batch=self.batch)
            np.add.at(seconds, np.repeat(np.arange(len(shapes)), depths), interpolate(fed, self.widths))
        return seconds

    def growing(self, shapes: Sequence[StepShape]) -> Floats:
        """Return the additional seconds of dynamic trees, float64 (shapes,).

        They are 0 for static trees and for kinds of dynamic trees that were not measured.

        Raises:
            CostError: a width outside what was measured.
        """
        seconds = np.zeros(len(shapes))
        for i, shape in enumerate(shapes):
            overhead = None if shape.growth is None else self.growth.get(shape.growth)
            if overhead is not None:
                if max(shape.widths, default=0) > overhead.widest:
                    raise CostError(
                        f"width {max(shape.widths)} at batch {self.batch}: the profile measured dynamic trees "
                        f"({shape.growth}) of width 1 to {overhead.widest}; give the policy a smaller beam, or profile "
                        "again with `treeopt profile --policies`"
                    )
                seconds[i] = overhead.seconds(shape)
        return seconds

    def levels(self, depth: int, width: int) -> Floats:
        """Return the seconds of drafting each level by the nodes fed to it, float64 (depth, width + 1).

        A level costs what one more level adds to the drafting of a chain, and what its width adds; inf outside the
        tables.

        Raises:
            CostError: chains were not measured from depth 1.
        """
        if self.draft[0][0] > 1:
            raise CostError(
                f"drafting at batch {self.batch} was measured from depth {self.draft[0][0]}: measure depth 1"
            )
        known = min(depth, self.deepest)
        seconds = np.full((depth, width + 1), np.inf)
        seconds[:, 0] = 0.0
        chain = np.diff(np.append(0.0, interpolate(np.arange(1, known + 1), self.draft)))
        fed = np.arange(1, width + 1)
        width_s = np.zeros(width)
        if self.widths:
            width_s = np.where(fed <= self.widths[-1][0], interpolate(fed, self.widths), np.inf)
        seconds[:known, 1:] = chain[:, None] + width_s
        return seconds

    def sizes(self, tokens: Floats) -> None:
        """Check token counts against the table.

        Raises:
            CostError: a count lies outside; names it.
        """
        check_measured("tokens", tokens, self.rest, batch=self.batch)

    def inside(self, tokens: Floats) -> NDArray[np.bool_]:
        """Return which token counts the table covers."""
        return is_measured(tokens, self.rest)


def _check_points(name: str, points: Points, *, zero: bool) -> None:
    """Raise CostError unless sizes rise from 1 and seconds are no shorter than `SHORTEST_S` (`zero`: or 0)."""
    for i, (size, seconds) in enumerate(points):
        if size < 1 or (i and size <= points[i - 1][0]):
            raise CostError(f"{name}[{i}] must have a rising size of at least 1, found {size}")
        if not (math.isfinite(seconds) and (seconds >= SHORTEST_S or (zero and seconds == 0))):
            raise CostError(f"{name}[{i}] must have at least {SHORTEST_S:g} seconds, found {seconds}")


def interpolate(sizes: Floats | Ints, points: Sequence[tuple[int, float]]) -> Floats:
    """Return seconds on straight lines between points; of the shape of `sizes`.

    >>> interpolate(np.array([2, 3]), ((2, 1.0), (4, 3.0))).tolist()
    [1.0, 2.0]
    """
    table = np.array(points)
    return np.asarray(np.interp(sizes, table[:, 0], table[:, 1]))
