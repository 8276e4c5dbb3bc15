"""What search needs to know of time: the shape of a step, and a model that prices shapes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import CostError, UsageError
from treeopt.policies import GROWTHS
from treeopt.policies.policy import leading
from treeopt.tree import Tree

# A context so many times as long, and so many tokens longer, is another than the measured one: a choice, no finding.
FAR, APART = 1.5, 64


@dataclass(frozen=True)
class StepShape:
    """One speculative step of a batch.

    Attributes:
        batch: sequences.
        tokens: tokens a sequence that the verify forward sees, nodes + 1.
        widths: nodes that the drafter is fed at each level, 1 (the root) first; its length is the tree's depth.
        context: tokens a sequence already in the cache; None leaves it to the cost model.
        committed: tokens a sequence that the step commits, on average: their keys and values move, and sequential
            drafters read them; None leaves it to the cost model.
        growth: how its trees are drawn anew, one of `treeopt.policies.GROWTHS`; None: a static tree.
    """

    batch: int
    tokens: int
    widths: tuple[int, ...]
    context: int | None = None
    committed: float | None = None
    growth: str | None = None

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            UsageError: batch, tokens or committed below 1, or a growth that there is not.
        """
        if self.batch < 1:
            raise UsageError(f"batch must be at least 1, got {self.batch}")
        if self.tokens < 1:
            raise UsageError(f"tokens must be at least 1, got {self.tokens}")
        if self.growth is not None and self.growth not in GROWTHS:
            raise UsageError(f"growth must be one of {', '.join(GROWTHS)}, got {self.growth!r}")
        if self.committed is not None and not 1 <= self.committed < np.inf:
            raise UsageError(f"committed must be at least 1 and finite, got {self.committed}")

    @classmethod
    def of(cls, tree: Tree, *, batch: int, context: int | None = None, committed: float | None = None) -> "StepShape":
        """The shape of a step with this tree.

        >>> StepShape.of(Tree.chain(2), batch=4)
        StepShape(batch=4, tokens=3, widths=(1, 1), context=None, committed=None, growth=None)
        """
        return cls(batch, tree.nodes + 1, tree.fed_widths, context, committed)


@dataclass(frozen=True, eq=False)
class CostParts:
    """Everything that steps of one batch size and context may cost, as two tables.

    Attributes:
        verify_s: float64 (tokens + 1,), seconds by verified tokens a sequence; inf where they are not known.
        draft_s: float64 (depth, width + 1), seconds of drafting level d + 1 by the nodes fed to it; column 0, a
            level that is not drafted, is 0; inf where they are not known.

    >>> parts = CostParts(np.array([np.inf, 5.0, 6.0]), np.array([[0, 1.0], [0, 2.0]]))
    >>> parts.step_s(np.array([1, 2, 2, 9]), np.array([[0, 0], [1, 0], [1, 1], [1, 1]])).tolist()
    [5.0, 7.0, 9.0, inf]
    """

    verify_s: NDArray[np.float64]
    draft_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check the shapes.

        Raises:
            CostError: names the table.
        """
        if self.verify_s.ndim != 1 or len(self.verify_s) < 1 or np.isnan(self.verify_s).any():
            raise CostError("verify_s must be one row of seconds, inf where they are not known")
        if self.draft_s.ndim != 2 or np.isnan(self.draft_s).any() or not (self.draft_s[:, :1] == 0).all():
            raise CostError("draft_s must hold a row of seconds a level, 0 first, inf where they are not known")

    def step_s(self, tokens: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of each step, float64 (n,): `verify_s` of its tokens and `draft_s` of each of its levels.

        Args:
            tokens: int (n,), verified tokens a sequence.
            widths: int (n, levels), nodes fed to the drafter at each level, 0 where nothing is drafted.

        Returns:
            inf where either lies outside the tables.
        """
        depth, width = self.draft_s.shape
        levels = widths[:, :depth]
        inside = (tokens < len(self.verify_s)) & (levels < width).all(axis=1) & (widths[:, depth:] == 0).all(axis=1)
        seconds = self.verify_s[np.where(inside, tokens, 0)].copy()
        for level in range(levels.shape[1]):
            seconds += self.draft_s[level][np.where(inside, levels[:, level], 0)]
        return np.where(inside, seconds, np.inf)


def covered(
    cost: "CostModel", batches: Sequence[int], *, nodes: int, depth: int, context: int | None = None
) -> tuple[int, int]:
    """Most nodes and most levels, up to these, of trees that have a cost at all batch sizes; (0, 0) where none has.

    Raises:
        CostError: a batch size or context outside what the model was calibrated for.
    """
    known, levels = np.ones(nodes, dtype=bool), np.ones(depth, dtype=bool)
    for batch in batches:
        parts = cost.parts(batch=batch, tokens=nodes + 1, depth=depth, width=1, context=context)
        known &= np.isfinite(parts.verify_s[2:])
        levels &= np.isfinite(parts.draft_s[:, 1])
    found = int(leading(known)), int(leading(levels))
    return found if all(found) else (0, 0)


def far(context: int, other: int) -> bool:
    """Whether step times at one context say little of those at the other.

    >>> far(64, 72), far(13, 25), far(64, 8192)
    (False, False, True)
    """
    longer, shorter = max(context, other), min(context, other)
    return longer > FAR * shorter and longer - shorter > APART


class CostModel(Protocol):
    """Seconds of steps, on one device with one target and drafter."""

    @property
    def separable(self) -> bool:
        """True when a step's time depends on its tokens and depth, not on the widths of its levels."""

    @property
    def growths(self) -> Collection[str]:
        """Ways of drawing trees anew whose own time is known; other steps are priced as static trees of their shape."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """Provenance: what was measured, on what."""

    def step_s(self, shapes: Sequence[StepShape]) -> NDArray[np.float64]:
        """Seconds of one speculative step of each shape, float64 (shapes,).

        Raises:
            CostError: a shape lies outside what the model was calibrated for.
        """

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        """Seconds of one plain decoding step, which commits one token a sequence.

        Raises:
            CostError: as for `step_s`.
        """

    def error(self, shape: StepShape) -> float:
        """Half-width of the 95 % interval of (step time / plain step time) of a shape, as a share."""

    def parts(self, *, batch: int, tokens: int, depth: int, width: int, context: int | None = None) -> CostParts:
        """Seconds of all steps of up to `tokens` verified tokens a sequence, `depth` levels and `width` fed nodes.

        Exact searches need them all at once. Where `step_s` prices a shape, `CostParts.step_s` gives the same;
        where it refuses one for its size, that is inf. What a step commits is left to the cost model.

        Raises:
            CostError: a batch size or context outside what the model was calibrated for.
        """


@runtime_checkable
class Measured(Protocol):
    """A cost model that was measured, and reports what the measurement leaves open."""

    @property
    def widths_known(self) -> bool:
        """True if the measurement covers how the number of nodes fed to a level changes its drafting time."""

    def priced_at(self, context: int | None = None) -> int | None:
        """Return the context, in cached tokens per sequence, that steps are priced at; None where it is unknown."""

    def caveats(self, *, context: int | None = None, trace: Any = None) -> Sequence[str]:
        """Return what it does not know about steps at this context, one sentence each, for a plan's warnings.

        `trace` is the provenance of the trace whose steps are priced.
        """
