"""Tables of seconds measured at one batch size and context: exact at their points, an error outside them."""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from treeopt.cost_model import StepShape
from treeopt.errors import CostError
from treeopt.policies import growths
from treeopt.storage.typed_records import Count, Finite, NotNegative, Positive

SHORTEST_S = 1e-12  # no step or part of one is shorter; far shorter numbers would overflow where they divide
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Sizes = NDArray[np.float64] | NDArray[np.int64]
Points = tuple[tuple[int, float], ...]
PointRecords = tuple[tuple[Count, Finite], ...]


@dataclass(frozen=True)
class Growing:
    """Additional seconds of a dynamic tree over a static tree of the same shape, fitted to a few shapes."""

    step_s: Annotated[NotNegative, Meta(description="per step")]
    level_s: Annotated[NotNegative, Meta(description="per drafted level")]
    node_s: Annotated[NotNegative, Meta(description="per node that the drafter is fed")]
    token_s: Annotated[NotNegative, Meta(description="per verified token of a sequence")]
    widest: Annotated[Count, Meta(description="widest level that was measured")]
    spread: Annotated[NotNegative, Meta(description="error on shapes that a fit had not seen, as a share of a step")]

    def seconds(self, shape: StepShape) -> float:
        """Return the additional seconds of a step of this shape.

        >>> Growing(1.0, 0.5, 0.25, 0.0, widest=4, spread=0.0).seconds(StepShape(1, 4, (1, 2)))
        2.75
        """
        drafting_s = self.level_s * len(shape.widths) + self.node_s * sum(shape.widths)
        return self.step_s + drafting_s + self.token_s * shape.tokens


def fit_growing(
    shapes: Sequence[StepShape], more_s: ArrayLike, step_s: ArrayLike
) -> tuple[Growing, NDArray[np.float64]]:
    """Fit by least squares of relative errors, no coefficient below 0 (Lawson and Hanson 1974, by scipy).

    Args:
        shapes: (n,) shapes of dynamic trees, 2 or more, at one batch size.
        more_s: additional seconds of each step over a static tree's, (n,).
        step_s: seconds of each whole step, (n,).

    Returns:
        The fit, its spread left 0; and the error of each shape by a fit to the others, as a share of its step,
        float64 (n,).

    >>> shapes = [StepShape(1, tokens, widths) for tokens, widths in ((2, (1,)), (3, (1, 1)), (5, (1, 4)), (9, (1, 4)))]
    >>> fit, missed = fit_growing(shapes, [6.0, 9.0, 14.0, 18.0], [90.0, 100.0, 110.0, 120.0])
    >>> [round(value, 6) for value in (fit.step_s, fit.level_s, fit.node_s, fit.token_s)], fit.widest
    ([2.0, 1.0, 1.0, 1.0], 4)
    """
    from scipy.optimize import nnls

    more, steps = (np.asarray(values, dtype=np.float64) for values in (more_s, step_s))
    amounts = np.array([[1.0, len(shape.widths), sum(shape.widths), shape.tokens] for shape in shapes])
    columns, shares = amounts / steps[:, None], more / steps
    others = ~np.eye(len(shapes), dtype=bool)
    missed = np.abs([shares[i] - columns[i] @ nnls(columns[rows], shares[rows])[0] for i, rows in enumerate(others)])
    step, level, node, token = nnls(columns, shares)[0].tolist()
    return Growing(step, level, node, token, max(max(shape.widths) for shape in shapes), 0.0), missed


@dataclass(frozen=True)
class BatchTimes:
    """Medians measured at one batch size and context.

    In `draft`, `rest` and `widths` sizes rise, the first and the last from 1. `widths` is empty if the width has no
    effect or is not known to have one.
    """

    batch: Count
    plain_s: Annotated[Positive, Meta(description="seconds per plain decoding step")]
    draft: Annotated[PointRecords, Meta(description="[depth, seconds of drafting a chain], depth rising")]
    rest: Annotated[
        PointRecords, Meta(description="[tokens per sequence, seconds of a step except drafting], tokens rising")
    ]
    widths: Annotated[
        PointRecords,
        Meta(description="[nodes fed to a level, seconds more than for one node], from [1, 0.0]; empty: no difference"),
    ] = ()
    context: Annotated[
        NotNegative, Meta(description="mean tokens per sequence in the cache; 0: contexts are mixed")
    ] = 0.0
    commit_s: Annotated[NotNegative, Meta(description="seconds more per further committed token of a sequence")] = 0.0
    relative_error: Annotated[
        NotNegative | None,
        Meta(description="half-width of the 95 % interval of step / plain step; null: see the profile's"),
    ] = None
    errors: Annotated[
        PointRecords,
        Meta(description="[tokens per sequence, `relative_error` from there on], tokens rising; empty: one for all"),
    ] = ()
    growth: Annotated[Mapping[str, Growing], Meta(description="by how dynamic trees are drafted")] = field(
        default_factory=dict
    )
    widths_told: Annotated[
        bool | None, Meta(description="whether enough trees were measured to know `widths`; null: not recorded")
    ] = None

    def __post_init__(self) -> None:
        """Check what the types of a file's fields leave open: order, and that there is something.

        Raises:
            CostError: names the field and the index.
        """
        if not self.plain_s >= SHORTEST_S:
            raise CostError(f"plain_s must be at least {SHORTEST_S:g} seconds, found {self.plain_s}")
        for name in ("draft", "rest", "widths", "errors"):
            _check_points(name, getattr(self, name), zero=name != "rest", some=name in ("draft", "rest"))
        for name in self.growth:
            if name not in growths():
                raise CostError(f"growth: {name!r:.40} must be one of {', '.join(growths())}")
        if self.widths and self.widths[0] != (1, 0.0):
            raise CostError(f"widths[0] must be width 1 and 0 seconds, found {list(self.widths[0])}")

    def error(self, tokens: int) -> float | None:
        """Return the half-width of the 95 % interval of step / plain step, by tokens per sequence; None: not known."""
        return next((error for size, error in reversed(self.errors) if size <= tokens), self.relative_error)

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


def _check_points(name: str, points: Points, *, zero: bool, some: bool) -> None:
    """Raise CostError unless sizes rise from 1 and seconds are no shorter than `SHORTEST_S` (`zero`: or 0).

    `some`: there must be a point.
    """
    if some and not points:
        raise CostError(f"{name} is empty")
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


def batch_shares(batch: int, sizes: Collection[int]) -> tuple[tuple[float, int], ...]:
    """Return the measured batch sizes that price a batch size, with their shares: itself, or the two around it.

    Shares are those of a straight line in the batch size.

    >>> batch_shares(2, (1, 4)), batch_shares(4, (1, 4))
    (((0.6666666666666667, 1), (0.3333333333333333, 4)), ((1.0, 4),))
    """
    measured = sorted(set(sizes))
    if batch in measured:
        return ((1.0, batch),)
    above = bisect_left(measured, batch)
    low, high = measured[above - 1], measured[above]
    share = (batch - low) / (high - low)
    return ((1 - share, low), (share, high))


@dataclass(frozen=True)
class Prefill:
    """Seconds from free rows to the first step of the requests that join, whose prompts are read together.

    Sizes are the tokens of these prompts together, rising.
    """

    plain: Annotated[PointRecords, Meta(description="before plain decoding")]
    drafted: Annotated[PointRecords, Meta(description="before speculative decoding, the drafter's work included")]

    def __post_init__(self) -> None:
        """Check order and signs.

        Raises:
            CostError: names the field and the index.
        """
        for name in ("plain", "drafted"):
            _check_points(f"prefill.{name}", getattr(self, name), zero=True, some=True)

    @property
    def reach(self) -> tuple[int, int]:
        """Fewest and most tokens for which both are known."""
        return max(self.plain[0][0], self.drafted[0][0]), min(self.plain[-1][0], self.drafted[-1][0])

    def seconds(self, tokens: ArrayLike, *, drafted: bool) -> Floats:
        """Return seconds on straight lines between known sizes; more tokens are read in equal parts, one after another.

        Args:
            tokens: tokens that are read at once.
            drafted: the drafter reads the prompts too.

        Returns:
            float64, of the shape of `tokens`.

        Raises:
            CostError: fewer tokens than were measured.

        >>> Prefill(((16, 0.5), (32, 1.5)), ((16, 1.0), (32, 2.0))).seconds([16, 24, 48], drafted=True).tolist()
        [1.0, 1.5, 3.0]
        """
        sizes = np.asarray(tokens, dtype=np.float64)
        points = self.drafted if drafted else self.plain
        low, high = points[0][0], points[-1][0]
        if (sizes < low).any():
            raise CostError(
                f"prefill was measured for {low} tokens and more, not for {sizes[sizes < low].flat[0]:g}; give the "
                "seconds with --prefill-s, or longer prompts"
            )
        parts = np.ceil(sizes / high)
        return np.asarray(parts * interpolate(np.maximum(sizes / parts, low), points))


def ladder(low: int, high: int) -> tuple[int, ...]:
    """Return the prompt sizes to measure prefill at: both ends, and the powers of two between.

    >>> ladder(20, 100)
    (20, 32, 64, 100)
    """
    powers = (1 << power for power in range(high.bit_length()))
    return tuple(sorted({low, high, *(size for size in powers if low < size < high)}))


def check_measured(name: str, sizes: Sizes, points: Points, *, batch: int) -> None:
    """Raise CostError for the first size that lies outside the points of a table.

    Args:
        name: the quantity, for the message: tokens, depth or width.
        sizes: sizes to price.
        points: (size, seconds) by rising size.
        batch: batch size of the table, for the message.

    Raises:
        CostError: names the size and the range that was measured.

    >>> check_measured("tokens", np.array([9]), ((2, 0.5), (8, 0.7)), batch=1)
    Traceback (most recent call last):
    treeopt.errors.CostError: tokens 9 at batch 1: the profile measured tokens 2 to 8
    """
    outside = ~is_measured(sizes, points)
    if outside.any():
        low, high = points[0][0], points[-1][0]
        raise CostError(f"{name} {sizes[outside][0]:g} at batch {batch}: the profile measured {name} {low} to {high}")


def is_measured(sizes: Sizes, points: Points) -> NDArray[np.bool_]:
    """Return which sizes lie within the points of a table; bool, of the shape of `sizes`."""
    return np.asarray((sizes >= points[0][0]) & (sizes <= points[-1][0]))
