"""Hydra heads (Ankner et al. 2024, arXiv 2402.05109): each head also reads the tokens drafted before it.

Head i (from 0) reads u = [h; E(x_{t+1}); ...; E(x_{t+1+i})], h the target's feature f_t and E its input embeddings:
z = S u + s + SiLU(A u + a), then z = z + SiLU(B z + b) for each further layer (as in the published code, all of them
share B and b), then logits U z + c. In Hydra++, h is the output of the drafter's own decoder layer over f_0 ... f_t.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from executor.drafters.base.decoder_layer import Attend, Layer, LayerCache, Unrolled, layer_config
from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.drafters.base.recipe import Frequent, Recipe
from executor.target.causal_model import keep_last, pick_rows, put_last
from executor.target.target_model import Target


class Head(nn.Module):
    """A head; `inputs` is the number of vectors side by side in its input."""

    def __init__(self, inputs: int, hidden: int, vocabulary: int, *, layers: int, dropout: float) -> None:
        """Initialise A with zeros and S at random, as published."""
        super().__init__()
        self.first = nn.Linear(inputs * hidden, hidden)
        self.skip = nn.Linear(inputs * hidden, hidden)
        self.block = nn.Linear(hidden, hidden) if layers > 1 else None
        self.output = nn.Linear(hidden, vocabulary)
        self.layers, self.dropout = layers, dropout
        for linear in (self.first, self.block):
            if linear is not None:
                nn.init.zeros_(linear.weight)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """Map (..., inputs x hidden) to logits (..., vocabulary) and z (..., hidden)."""
        given = self._dropped(given)
        z = self.skip(given) + F.silu(self.first(given))
        for _ in range(self.layers - 1):
            assert self.block is not None
            z = self._dropped(z)
            z = z + F.silu(self.block(z))
        return self.output(self._dropped(z)), z

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Prefix(Layer):
    """Hydra++'s layer over the target's features, before the heads: causal, normalised before and after."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make an untrained one-layer Llama without embeddings."""
        super().__init__(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def read(self, features: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Map features (b, tokens, hidden) to the inputs of the heads."""
        out: Tensor = self.norm(self(features, self.input_layernorm(features), positions, attention))
        return out


@dataclass
class HydraState:
    """The inputs of the heads.

    Attributes:
        target: the model whose embeddings are read.
        given: (batch, hidden), h before each root.
        cache: of Hydra++'s layer.
        above: (batch, nodes, inputs x hidden), the inputs of the last level's nodes.
        level: levels drafted in this step.
    """

    target: Target
    given: Tensor
    cache: LayerCache | None
    above: Tensor = field(default_factory=lambda: torch.zeros(0))
    level: int = 0


class Hydra(nn.Module):
    """Sequentially dependent heads."""

    kind = "hydra"
    abstains = False
    taps: tuple[int, ...] = ()

    def __init__(
        self,
        hidden: int,
        vocabulary: int,
        *,
        heads: int = 4,
        layers: int = 1,
        prefix: LlamaConfig | None = None,
        grounded: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """Make untrained heads.

        Args:
            hidden: width of a feature.
            vocabulary: of the target.
            heads: number of heads, one per level.
            layers: layers of each head; all from the second on are the same one.
            prefix: shape of Hydra++'s layer; None for Hydra.
            grounded: heads read drafted tokens; False makes them Medusa-like.
            dropout: dropout probability before each layer, in training.
        """
        super().__init__()
        self.hidden, self.grounded, self.dropout, self.layers = hidden, grounded, dropout, layers
        self.heads = nn.ModuleList(
            Head(i + 2 if grounded else 1, hidden, vocabulary, layers=layers, dropout=dropout) for i in range(heads)
        )
        self.config = prefix
        self.prefix = None if prefix is None else Prefix(prefix)

    @property
    def max_depth(self) -> int:
        """The number of heads: each drafts a level."""
        return len(self.heads)

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        return {"config": self.config, "grounded": self.grounded}

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        if self.prefix is None:
            return 0
        return self.prefix.self_attn.layout(self.prefix.norm.weight.dtype).bytes(batch, capacity)

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> HydraState:
        """See `Drafter.begin`."""
        given = torch.zeros(batch, self.hidden, dtype=target.dtype, device=target.device)
        cache = None if self.prefix is None else LayerCache([self.prefix.self_attn], batch, capacity, given)
        return HydraState(target, given, cache)

    def lasting(self, state: HydraState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return (state.given,) if state.cache is None else (state.given, state.cache.lengths)

    @torch.no_grad()
    def admit(self, state: HydraState, admitted: Admitted) -> None:
        """Store h before the root, zero for a prompt of one token; see `Drafter.admit`."""
        rows, features, lengths = admitted.rows, admitted.features, admitted.lengths
        if self.prefix is not None and state.cache is not None:
            (attention,) = state.cache.prompts(rows, lengths - 1)
            if features.shape[1]:
                positions = torch.arange(features.shape[1], device=rows.device)[None]
                features = self.prefix.read(features, positions, attention)
        put_last(state.given, rows, features, lengths - 1)

    @torch.no_grad()
    def extend(self, state: HydraState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Store h of the last committed position; see `Drafter.extend`."""
        features, counts = committed.features, committed.counts
        if self.prefix is not None and state.cache is not None:
            positions, (attention,) = state.cache.committed(features.shape[1], view)
            features = self.prefix.read(features, positions, attention)
            state.cache.advance(counts)
        keep_last(state.given, features, counts)
        state.above, state.level = state.given[:, None], 0

    @torch.no_grad()
    def level(self, state: HydraState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Run one head over the level's nodes; see `Drafter.level`."""
        if self.grounded:
            place = parents.expand(len(tokens), -1)[..., None].expand(-1, -1, state.above.shape[2])
            state.above = torch.cat([state.above.gather(1, place), state.target.embed(tokens)], 2)
        scores: Tensor = self.heads[state.level](state.above)[0]
        state.level += 1
        return scores

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`."""
        given = features.to(self.heads[0].first.weight.dtype)  # type: ignore[union-attr, arg-type]
        if self.prefix is not None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
            given = self.prefix.read(given, positions, Unrolled())
        given = pick_rows(given, rows)
        for k, head in enumerate(list(self.heads)[:depth], 1):
            if self.grounded:
                read = pick_rows(tokens.roll(-k, 1), rows)
                given = torch.cat([given, target.embed(read).to(given.dtype)], 2)
            yield Forced(*head(given))


@torch.no_grad()
def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> Hydra:
    """Return heads whose output layers are the target's LM head, as published; see `Training.untrained`."""
    heads = Hydra(
        target.hidden,
        target.vocabulary,
        heads=recipe.depths,
        layers=recipe.layers,
        prefix=layer_config(target.model.config) if recipe.prefix else None,
        grounded=recipe.grounded,
        dropout=recipe.dropout,
    )
    factor, own = target.head_scaling[0], cast(Any, target.head)
    bias = torch.zeros(target.vocabulary) if getattr(own, "bias", None) is None else own.bias * factor
    for head in heads.heads:
        output: Any = head.output
        output.weight.copy_(own.weight * factor)
        output.bias.copy_(bias)
    return heads


def resumed(recipe: Recipe, heads: Hydra) -> Hydra:
    """Set the recipe's dropout, which files do not record; see `Training.resumed`."""
    for part in (heads, *heads.heads):
        part.dropout = recipe.dropout
    return heads
