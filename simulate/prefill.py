"""What prefill takes: seconds of a prompt by its tokens, for the target alone and with a drafter that reads it too."""

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from simulate.tables import Floats, Points, interpolated
from treeopt.errors import CostError


@dataclass(frozen=True)
class Prefill:
    """Seconds from a free row to a request's first step, of prompts that are admitted one at a time.

    Attributes:
        plain: (tokens of the prompt, seconds) by rising tokens, of plain decoding.
        drafted: the same of speculative decoding, what the drafter makes of the prompt included.
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

    def seconds(self, tokens: ArrayLike, *, drafted: bool) -> Floats:
        """Seconds of prompts, on straight lines between those that are known; float64, of the shape of `tokens`.

        Args:
            tokens: of each prompt.
            drafted: with the drafter.

        Raises:
            CostError: a prompt is shorter or longer than those.

        >>> Prefill(((10, 0.1), (20, 0.3)), ((10, 0.2), (20, 0.4))).seconds([10, 15], drafted=True).tolist()
        [0.2, 0.3]
        """
        asked = np.asarray(tokens, dtype=np.float64)
        points = self.drafted if drafted else self.plain
        low, high = points[0][0], points[-1][0]
        outside = (asked < low) | (asked > high)
        if outside.any():
            raise CostError(
                f"prefill is known for prompts of {low} to {high} tokens, not of {asked[outside].flat[0]:g}"
            )
        return interpolated(asked, points)


def ladder(low: int, high: int) -> tuple[int, ...]:
    """Lengths of prompts to know the prefill of: both ends, and the powers of two between.

    >>> ladder(20, 100)
    (20, 32, 64, 100)
    """
    powers = (1 << power for power in range(high.bit_length()))
    return tuple(sorted({low, high, *(size for size in powers if low < size < high)}))
