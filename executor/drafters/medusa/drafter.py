"""Medusa heads (Cai et al. 2024, arXiv 2401.10774, §2.1): K small networks on the target's last feature.

Head k (from 0) maps f_t to scores of x_{t+2+k}; z = f, then z = z + SiLU(A z + b) for each layer, then logits
U z. U is the head's own ("version 1" checkpoints) or the target's LM head ("version 2").
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.drafters.base.recipe import Frequent, Recipe
from executor.target.causal_model import keep_last, pick_rows, put_last
from executor.target.target_model import Target
from simulate.model_sizes.model_shape import Shape


@dataclass
class MedusaState:
    """The feature before each sequence's root, (batch, hidden), and the heads' logits of the current step."""

    target: Target
    feature: Tensor
    depth: int
    logits: Tensor | None = None
    level: int = 0


class MedusaHeads(nn.Module):
    """`heads` residual networks of `layers` layers each; weights are stacked, so all heads are one product."""

    kind = "medusa"
    abstains = False
    taps: tuple[int, ...] = ()
    settings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, heads: int, hidden: int, *, layers: int = 1, vocabulary: int | None = None) -> None:
        """Make heads that start as the target's own next-token guess.

        Args:
            heads: number of heads, K.
            hidden: width of a feature.
            layers: residual layers of each head.
            vocabulary: width of the heads' own output layers; None shares the target's LM head.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, layers, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(heads, layers, hidden))
        self.output = None if vocabulary is None else nn.Parameter(torch.zeros(heads, vocabulary, hidden))

    @property
    def max_depth(self) -> int:
        """The number of heads: each drafts a level."""
        return self.weight.shape[0]

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Drafter.facts`."""
        return {"heads": self.max_depth}

    def forward(self, target: Target, features: Tensor, depth: int) -> Tensor:
        """Return logits of the first `depth` heads; features (rows, hidden) -> (depth, rows, vocabulary)."""
        z = features.to(self.weight.dtype).expand(depth, *features.shape)
        for layer in range(self.weight.shape[1]):
            weight, bias = self.weight[:depth, layer], self.bias[:depth, layer, None]
            z = z + nn.functional.silu(torch.baddbmm(bias, z, weight.transpose(1, 2)))
        if self.output is None:
            return target.scored(z)
        return z @ self.output[:depth].transpose(1, 2)

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """Return 0: heads read one feature; see `Drafter.cache_bytes`."""
        return 0

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> MedusaState:
        """See `Drafter.begin`."""
        feature = torch.zeros(batch, target.hidden, dtype=target.dtype, device=target.device)
        if self.output is None:
            target.scored(feature[:1])  # measures the head's scaling now, so that no step has to
        return MedusaState(target, feature, depth)

    def lasting(self, state: MedusaState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return (state.feature,)

    def admit(self, state: MedusaState, admitted: Admitted) -> None:
        """Store the feature before the root, zero for a prompt of one token; see `Drafter.admit`."""
        put_last(state.feature, admitted.rows, admitted.features, admitted.lengths - 1)

    def extend(self, state: MedusaState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Store the feature of the last committed position; see `Drafter.extend`."""
        state.logits, state.level = None, 0
        keep_last(state.feature, committed.features, committed.counts)

    @torch.no_grad()
    def level(self, state: MedusaState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return one row for all nodes of a level: heads do not read drafted tokens; see `Drafter.level`."""
        if state.logits is None:
            state.logits = self(state.target, state.feature, state.depth)
        scores = state.logits[state.level, :, None]
        state.level += 1
        return scores

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`."""
        anchors = pick_rows(features, rows)
        logits = self(target, anchors.flatten(0, 1), depth)
        for scores in logits:
            yield Forced(scores.unflatten(0, anchors.shape[:2]))


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> MedusaHeads:
    """Return heads that start as the target's next-token guess; see `Training.untrained`."""
    vocabulary = target.vocabulary if recipe.own_output else None
    heads = MedusaHeads(recipe.depths, target.hidden, layers=recipe.layers, vocabulary=vocabulary)
    if heads.output is not None:
        weight = target.head.weight
        assert isinstance(weight, Tensor)
        with torch.no_grad():
            heads.output.copy_(weight * target.head_scaling[0])
    return heads


def random_heads(target: Target, count: int, packed: bool) -> MedusaHeads:
    """Return heads of random weights; see `RandomWeights.make`."""
    heads = MedusaHeads(count, target.hidden)
    nn.init.normal_(heads.weight, std=0.02)
    return heads


def weights_read(heads: MedusaHeads, target: Shape) -> int:
    """Return the weights of one head, which a level reads; see `DrafterKind.reads`."""
    return (heads.weight.numel() + heads.bias.numel()) // heads.max_depth + target.vocab * target.hidden
