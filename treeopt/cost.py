"""What search needs to know of time: the shape of a step, and a model that prices shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.tree import Tree


@dataclass(frozen=True)
class StepShape:
    """One speculative step of a batch.

    Attributes:
        batch: sequences.
        tokens: tokens a sequence that the verify forward sees, nodes + 1.
        widths: nodes that the drafter is fed at each level, 1 (the root) first; its length is the tree's depth.
        context: tokens a sequence already in the cache; None leaves it to the cost model.
    """

    batch: int
    tokens: int
    widths: tuple[int, ...]
    context: int | None = None

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            UsageError: batch or tokens below 1.
        """
        if self.batch < 1:
            raise UsageError(f"batch must be at least 1, got {self.batch}")
        if self.tokens < 1:
            raise UsageError(f"tokens must be at least 1, got {self.tokens}")

    @classmethod
    def of(cls, tree: Tree, *, batch: int, context: int | None = None) -> "StepShape":
        """The shape of a step with this tree.

        >>> StepShape.of(Tree.chain(2), batch=4)
        StepShape(batch=4, tokens=3, widths=(1, 1), context=None)
        """
        return cls(batch, tree.nodes + 1, tree.fed_widths, context)


class CostModel(Protocol):
    """Seconds of steps, on one device with one target and drafter."""

    @property
    def separable(self) -> bool:
        """True when a step's time depends on its tokens and depth, not on the widths of its levels."""

    @property
    def relative_error(self) -> float:
        """Half-width of the 95 % interval of (step time / plain step time), as a share."""

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
