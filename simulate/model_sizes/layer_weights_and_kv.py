"""Groups of like layers and their experts: what they multiply, read and keep. No family, no time."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treeopt.errors import CostError


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

        Source: MoESD (arXiv 2505.19645) for spread 1.

        >>> Experts(count=8, active=2).touched([1, 2, 100]).tolist()[:2]
        [2.0, 3.5]
        """
        rows = np.asarray(tokens, dtype=np.float64)
        independent = np.minimum(sequences, rows)
        exponent = independent + spread * (rows - independent)
        return np.asarray(self.count * (1 - (1 - self.active / self.count) ** exponent))


@dataclass(frozen=True)
class LayerMatrix:
    """A matrix of a layer.

    Attributes:
        outputs: rows.
        inputs: columns.
        stored: bytes of a weight as stored, with its scales; None: as those of the model.
    """

    outputs: int
    inputs: int
    stored: float | None = None


@dataclass(frozen=True)
class LayerAttention:
    """The attention of a layer, as decoding computes it: latent attention is absorbed, one key serves all heads.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads; 1 for latent attention.
        key_dim: width of the product with a key.
        value_dim: width of the product with a value.
        kv_dim: numbers of a token and key head in the cache.
        window: tokens whose keys are kept and seen; None for all. Chunks count as windows of their length.
        picked: tokens that attention picks from those (sparse attention); None for all.
        index_heads: heads of the indexer that picks them.
        index_dim: numbers of a token that the indexer keeps, and reads for all tokens.

    >>> LayerAttention(heads=4, kv_heads=2, key_dim=8, value_dim=8, kv_dim=16, window=100).kept(150.0).item()
    100.0
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    kv_dim: int
    window: int | None = None
    picked: int | None = None
    index_heads: int = 0
    index_dim: int = 0

    @property
    def kv_width(self) -> int:
        """Numbers of one token in the cache."""
        return self.kv_heads * self.kv_dim + self.index_dim

    def kept(self, tokens: Any) -> Any:
        """Return how many of the tokens of a sequence are in the cache."""
        return np.minimum(tokens, np.inf if self.window is None else self.window)

    def _attended(self, tokens: Any) -> Any:
        return np.minimum(self.kept(tokens), np.inf if self.picked is None else self.picked)

    def read(self, tokens: Any) -> Any:
        """Return the numbers of a sequence's cache that a forward reads, by tokens in it."""
        return self.kv_heads * self.kv_dim * self._attended(tokens) + self.index_dim * self.kept(tokens)

    def products(self, tokens: Any) -> Any:
        """Return the multiply-adds of one token with a sequence's keys and values, by tokens in it."""
        attention = self.heads * (self.key_dim + self.value_dim) * self._attended(tokens)
        return attention + self.index_heads * self.index_dim * self.kept(tokens)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are alike.

    Attributes:
        count: layers.
        matrices: applied to every token.
        other: weights of a layer beside them: norms, biases, convolutions.
        attention: None without keys and values.
        state_bytes: bytes of the recurrent state of a sequence, in one layer.
        experts: None without.
        expert_matrices: those of one expert.
        expert_other: biases of one expert.
    """

    count: int
    matrices: tuple[LayerMatrix, ...]
    other: int = 0
    attention: LayerAttention | None = None
    state_bytes: int = 0
    experts: Experts | None = None
    expert_matrices: tuple[LayerMatrix, ...] = ()
    expert_other: int = 0

    def products(self, *, active: bool = False) -> int:
        """Return the weights of a layer's matrices; with `active` of the experts that one token picks."""
        experts = 0 if self.experts is None else self.experts.active if active else self.experts.count
        return _weights(self.matrices) + experts * _weights(self.expert_matrices)

    def divided(self, devices: int) -> "LayerGroup":
        """Return the group with the part of each expert that one of several devices has."""
        parts = tuple(replace(each, outputs=-(-each.outputs // devices)) for each in self.expert_matrices)
        return replace(self, expert_matrices=parts)

    def weights(self, *, active: bool = False) -> int:
        """Return the weights of one layer; with `active` of the experts that one token picks."""
        experts = 0 if self.experts is None else self.experts.active if active else self.experts.count
        return self.products(active=active) + self.other + experts * self.expert_other


def _weights(matrices: Iterable[LayerMatrix]) -> int:
    return sum(matrix.outputs * matrix.inputs for matrix in matrices)
