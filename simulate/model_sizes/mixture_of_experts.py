"""Mixtures of experts: the number of a layer's experts that the tokens of a batch need between them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treeopt.errors import CostError, UsageError


@dataclass(frozen=True)
class Experts:
    """The experts of a layer, of which every token picks some.

    Attributes:
        count: experts of a layer.
        active: experts that a token picks, all different; at most `count`.

    Raises:
        CostError: names the field that is wrong.
    """

    count: int
    active: int

    def __post_init__(self) -> None:
        """Check both counts."""
        for name in ("count", "active"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value < 2**63:
                raise CostError(f"experts: {name} must be a positive integer, got {value!r:.80}")
        if self.active > self.count:
            raise CostError(f"experts: active must be at most count, {self.count}, got {self.active}")

    def touched(self, tokens: ArrayLike, *, spread: float = 1.0, sequences: float = 1) -> NDArray[np.float64]:
        """Return the expected number of experts that `tokens` tokens need between them; float64, of their shape.

        count (1 - (1 - active / count)**(sequences + spread (tokens - sequences))).
        At spread 1 every token picks independently and uniformly, which spreads over as many experts as possible on
        average. Tokens that follow each other pick alike, so a further token of a sequence counts as `spread` of one.
        A single token always needs `active`.

        Args:
            tokens: tokens of the batch that pass the layer, 1 or more, any shape.
            spread: lambda, above 0 and at most 1; fitted.
            sequences: sequences that the tokens are of; no more count than there are tokens.

        Raises:
            UsageError: tokens below 1, or a spread outside its range.

        Source: MoESD (arXiv 2505.19645) for spread 1.

        >>> Experts(count=8, active=2).touched([1, 2, 100]).tolist()[:2]
        [2.0, 3.5]
        """
        rows = np.asarray(tokens, dtype=np.float64)
        if not np.all(rows >= 1):
            raise UsageError(f"tokens must be 1 or more, got {rows.min():g}")
        if not 0 < spread <= 1:
            raise UsageError(f"spread must be above 0 and at most 1, got {spread}")
        independent = np.minimum(sequences, rows)
        exponent = independent + spread * (rows - independent)
        return np.asarray(self.count * (1 - (1 - self.active / self.count) ** exponent))
