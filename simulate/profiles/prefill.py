"""Prefill: seconds by the prompt tokens that are read at once, with and without a drafter."""

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from simulate.profiles.step_tables import Floats, Points, interpolate
from treeopt.errors import CostError


@dataclass(frozen=True)
class Prefill:
    """Seconds from free rows to the first step of the requests that join, whose prompts are read together.

    Attributes:
        plain: (total tokens of these prompts, seconds) by rising tokens, for plain decoding.
        drafted: the same for speculative decoding, including the drafter's reading of the prompts.
    """

    plain: Points
    drafted: Points

    def __post_init__(self) -> None:
        """Check order and signs.

        Raises:
            CostError: names the field and the index.
        """
        for entry in fields(self):
            points = getattr(self, entry.name)
            if not points:
                raise CostError(f"prefill.{entry.name} is empty")
            for i, (tokens, seconds) in enumerate(points):
                if tokens < 1 or (i and tokens <= points[i - 1][0]):
                    raise CostError(f"prefill.{entry.name}[{i}] must have rising tokens of at least 1, found {tokens}")
                if not (math.isfinite(seconds) and seconds >= 0):
                    raise CostError(f"prefill.{entry.name}[{i}] must have seconds of 0 or more, found {seconds}")

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
