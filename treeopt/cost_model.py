"""The cost model that a search needs: the shape of a step, and a protocol that gives its time in seconds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import CostError, UsageError
from treeopt.policies import growths
from treeopt.policies.policy import leading
from treeopt.tree import Tree

# Step times do not carry over to a context more than FAR times as long and more than APART tokens longer than the
# measured one. The two numbers were chosen, not measured.
FAR, APART = 1.5, 64


@dataclass(frozen=True)
class StepShape:
    """The shape of a speculative step of a batch.

    Attributes:
        batch: sequences.
        tokens: tokens per sequence in the verify forward, nodes + 1.
        widths: nodes fed to the drafter at each level, 1 (the root) first; its length is the tree's depth.
        context: tokens per sequence already in the cache; None leaves it to the cost model.
        committed: mean number of tokens per sequence that the step commits: their keys and values move, and sequential
            drafters read them; None leaves it to the cost model.
        growth: kind of dynamic drafting, one of `treeopt.policies.growths`; None: a static tree.
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
            UsageError: batch, tokens or committed below 1, or an unknown growth.
        """
        if self.batch < 1:
            raise UsageError(f"batch must be at least 1, got {self.batch}")
        if self.tokens < 1:
            raise UsageError(f"tokens must be at least 1, got {self.tokens}")
        if self.growth is not None and self.growth not in growths():
            raise UsageError(f"growth must be one of {', '.join(growths())}, got {self.growth!r}")
        if self.committed is not None and not 1 <= self.committed < np.inf:
            raise UsageError(f"committed must be at least 1 and finite, got {self.committed}")

    @classmethod
    def of(cls, tree: Tree, *, batch: int, context: int | None = None, committed: float | None = None) -> "StepShape":
        """Return the shape of a step with this tree.

        >>> StepShape.of(Tree.chain(2), batch=4)
        StepShape(batch=4, tokens=3, widths=(1, 1), context=None, committed=None, growth=None)
        """
        return cls(batch, tree.nodes + 1, tree.fed_widths, context, committed)


@dataclass(frozen=True, eq=False)
class CostParts:
    """Tables with the costs of all steps of one batch size and context.

    Attributes:
        verify_s: float64 (tokens + 1,), seconds by verified tokens per sequence; inf where unknown.
        draft_s: float64 (depth, width + 1), seconds of drafting level d + 1 by the nodes fed to it; column 0, a
            level that is not drafted, is 0; inf where unknown.

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
            raise CostError("verify_s must be one row of seconds, inf where unknown")
        if self.draft_s.ndim != 2 or np.isnan(self.draft_s).any() or not (self.draft_s[:, :1] == 0).all():
            raise CostError("draft_s must have one row of seconds per level, 0 first, inf where unknown")

    @property
    def separable(self) -> bool:
        """True if a step's time depends on its tokens and depth, not on the widths of its levels."""
        return bool((self.draft_s[:, 1:] == self.draft_s[:, 1:2]).all())

    def step_s(self, tokens: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds of each step, float64 (n,): `verify_s` of its tokens plus `draft_s` of its levels.

        Args:
            tokens: int (n,), verified tokens per sequence.
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


def covered_limits(
    cost: "CostModel", batches: Sequence[int], *, nodes: int, depth: int, context: int | None = None
) -> tuple[int, int]:
    """Return the most nodes and levels, up to these limits, of trees that have a cost at all batch sizes.

    Returns (0, 0) if no tree has one.

    Raises:
        CostError: a batch size or context outside what the model was calibrated for.
    """
    known, levels = np.ones(nodes, dtype=bool), np.ones(depth, dtype=bool)
    for batch in batches:
        parts = cost.parts(batch=batch, tokens=nodes + 1, depth=depth, width=1, context=context)
        known &= np.isfinite(parts.verify_s[2:])
        levels &= np.isfinite(parts.draft_s[:, 1])
    limits = int(leading(known)), int(leading(levels))
    return limits if all(limits) else (0, 0)


def far(context: float, other: float) -> bool:
    """Return True if step times at one context do not carry over to the other.

    >>> far(64, 72), far(13, 25), far(64, 8192)
    (False, False, True)
    """
    longer, shorter = max(context, other), min(context, other)
    return longer > FAR * shorter and longer - shorter > APART


class CostModel(Protocol):
    """A model of step times in seconds, for one device, target and drafter."""

    @property
    def separable(self) -> bool:
        """True if a step's time depends on its tokens and depth, not on the widths of its levels."""

    @property
    def growths(self) -> Collection[str]:
        """The kinds of dynamic drafting with a known overhead; others are priced as static trees of their shape."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The provenance: models, device and conditions of the measurement."""

    def step_s(self, shapes: Sequence[StepShape]) -> NDArray[np.float64]:
        """Return the seconds of one speculative step of each shape, float64 (shapes,).

        Raises:
            CostError: a shape lies outside what the model was calibrated for.
        """

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        """Return the seconds of one plain decoding step, which commits one token per sequence.

        Raises:
            CostError: as for `step_s`.
        """

    def error(self, shape: StepShape) -> float:
        """Return the relative half-width of the 95 % interval of (step time / plain step time) of a shape."""

    def parts(self, *, batch: int, tokens: int, depth: int, width: int, context: int | None = None) -> CostParts:
        """Return the costs of all steps of up to `tokens` verified tokens, `depth` levels and `width` fed nodes.

        Exact searches need them all at once. `CostParts.step_s` equals `step_s` wherever that prices a shape, and is
        inf where `step_s` raises an error because of the size. The committed tokens are left to the cost model.

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

    def unmeasured(self, batches: Sequence[int]) -> Sequence[int]:
        """Return those of these batch sizes that were not measured, and are priced between two that were."""

    def outside(self, batches: Sequence[int]) -> Sequence[int]:
        """Return those of these batch sizes that lie outside the measured ones, and have no price."""

    def way_to(self, batches: Sequence[int]) -> tuple[str, str]:
        """Return that these batch sizes lie outside and how to price them, in words, and the command that does it.

        The words have no full stop; the command is empty where it takes more than one.
        """

    def caveats(self, *, context: int | None = None, trace: Any = None, batches: Sequence[int] = ()) -> Sequence[str]:
        """Return what it does not know about steps at this context, one sentence each, for a plan's warnings.

        `trace` is the provenance of the trace whose steps are priced, `batches` are the batch sizes.
        """
