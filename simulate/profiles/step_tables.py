"""What was measured at one batch size and context: tables of seconds, exact at their points, refused outside."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import StepShape
from treeopt.errors import CostError
from treeopt.policies import GROWTHS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Growing:
    """What drawing trees anew takes, beyond a static tree of the same shape; seconds, fitted to a few shapes.

    Attributes:
        step_s: a step.
        level_s: each drafted level.
        node_s: each node that the drafter is fed.
        token_s: each verified token of a sequence.
        widest: level that was measured.
        spread: what shapes that a fit had not seen were off by, root mean square over all fits, as a share of a step.
    """

    step_s: float
    level_s: float
    node_s: float
    token_s: float
    widest: int
    spread: float

    def __post_init__(self) -> None:
        """Check signs.

        Raises:
            CostError: names the field.
        """
        for name in ("step_s", "level_s", "node_s", "token_s", "spread"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise CostError(f"{name} must be 0 or more, found {value}")
        if self.widest < 1:
            raise CostError(f"widest must be at least 1, found {self.widest}")

    def seconds(self, shape: StepShape) -> float:
        """Of a step."""
        drafting_s = self.level_s * len(shape.widths) + self.node_s * sum(shape.widths)
        return self.step_s + drafting_s + self.token_s * shape.tokens


@dataclass(frozen=True)
class BatchTimes:
    """Medians measured at one batch size and context.

    Attributes:
        batch: sequences.
        plain_s: seconds of a plain decoding step.
        draft: (depth, seconds) by rising depth, from depth 1: drafting of chains.
        rest: (tokens, seconds) by rising tokens a sequence; everything in a step but drafting.
        widths: (width, seconds) by rising width, from width 1: how much longer a level takes that is fed so many nodes
            instead of one; empty where that makes no difference, or where nothing tells: see `widths_told`.
        context: tokens a sequence in the cache, on average; 0 where it was not told apart.
        commit_s: seconds that a step takes longer for each further token a sequence that it commits.
        relative_error: half-width of the 95 % interval of step / plain step at this batch size, as a share; None where
            too little was measured to tell it from that of the others.
        growth: how trees are drawn anew, of `treeopt.policies.GROWTHS` -> what that takes, as measured at the shortest
            context.
        widths_told: whether enough trees were measured to tell what the widths of levels take; None: nobody says.
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
        if not (math.isfinite(self.plain_s) and self.plain_s > 0):
            raise CostError(f"plain_s must be positive, found {self.plain_s}")
        for name in ("context", "commit_s", "relative_error"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise CostError(f"{name} must be 0 or more, found {value}")
        for name in ("draft", "rest"):
            if not getattr(self, name):
                raise CostError(f"{name} is empty")
        for name in ("draft", "rest", "widths"):
            points = getattr(self, name)
            for i, (size, seconds) in enumerate(points):
                if size < 1 or (i and size <= points[i - 1][0]):
                    raise CostError(f"{name}[{i}] must have a rising size of at least 1, found {size}")
                if not (math.isfinite(seconds) and (seconds > 0 or (name != "rest" and seconds == 0))):
                    raise CostError(f"{name}[{i}] must have positive seconds, found {seconds}")
        for name in self.growth:
            if name not in GROWTHS:
                raise CostError(f"growth: there is none called {name!r:.40}, only {', '.join(GROWTHS)}")
        if self.widths and self.widths[0] != (1, 0.0):
            raise CostError(f"widths[0] must be width 1 and 0 seconds, found {list(self.widths[0])}")

    @property
    def deepest(self) -> int:
        """The deepest tree that was measured."""
        return self.draft[-1][0]

    def drafts(self, shapes: Sequence[StepShape]) -> Floats:
        """Seconds of drafting, float64 (shapes,).

        Raises:
            CostError: a depth or width outside what was measured.
        """
        depths = np.array([len(shape.widths) for shape in shapes])
        self._covers("depth", depths[depths > 0], self.draft)
        found = np.where(depths > 0, interpolated(depths, self.draft), 0.0)
        if self.widths:
            fed = np.array([width for shape in shapes for width in shape.widths], dtype=np.int64)
            self._covers("width", fed, self.widths)
            np.add.at(found, np.repeat(np.arange(len(shapes)), depths), interpolated(fed, self.widths))
        return found

    def growing(self, shapes: Sequence[StepShape]) -> Floats:
        """Seconds of drawing trees anew, float64 (shapes,); 0 of static trees, and of ways that were not measured.

        Raises:
            CostError: a width outside what was measured.
        """
        found = np.zeros(len(shapes))
        for i, shape in enumerate(shapes):
            known = None if shape.growth is None else self.growth.get(shape.growth)
            if known is not None:
                if max(shape.widths, default=0) > known.widest:
                    raise CostError(
                        f"width {max(shape.widths)} at batch {self.batch}: the profile measured trees drawn anew "
                        f"({shape.growth}) of width 1 to {known.widest}"
                    )
                found[i] = known.seconds(shape)
        return found

    def levels(self, depth: int, width: int) -> Floats:
        """Seconds of drafting each level by the nodes fed to it, float64 (depth, width + 1); inf outside the tables.

        A level costs what one more level adds to the drafting of a chain, and what its width adds.
        """
        if self.draft[0][0] > 1:
            raise CostError(
                f"drafting at batch {self.batch} was measured from depth {self.draft[0][0]}: measure depth 1"
            )
        known = min(depth, self.deepest)
        found = np.full((depth, width + 1), np.inf)
        found[:, 0] = 0.0
        chain = np.diff(np.append(0.0, interpolated(np.arange(1, known + 1), self.draft)))
        fed = np.arange(1, width + 1)
        more = np.zeros(width)
        if self.widths:
            more = np.where(fed <= self.widths[-1][0], interpolated(fed, self.widths), np.inf)
        found[:known, 1:] = chain[:, None] + more
        return found

    def sizes(self, tokens: Floats) -> None:
        """Refuse token counts outside the table.

        Raises:
            CostError: names one.
        """
        self._covers("tokens", tokens, self.rest)

    def inside(self, tokens: Floats) -> NDArray[np.bool_]:
        """Which token counts the table covers."""
        return (tokens >= self.rest[0][0]) & (tokens <= self.rest[-1][0])

    def _covers(self, name: str, asked: Floats | Ints, points: Points) -> None:
        low, high = points[0][0], points[-1][0]
        outside = (asked < low) | (asked > high)
        if outside.any():
            raise CostError(
                f"{name} {asked[outside][0]:g} at batch {self.batch}: the profile measured {name} {low} to {high}"
            )


def interpolated(sizes: Floats | Ints, points: Sequence[tuple[int, float]]) -> Floats:
    """Seconds between points, on straight lines; of the shape of `sizes`."""
    table = np.array(points)
    return np.asarray(np.interp(sizes, table[:, 0], table[:, 1]))
