"""EAGLE-3's drafter (Li et al. 2025, arXiv 2503.01840): it reads three of the target's layers and has its own LM head.

g_t = W [h_low; h_mid; h_high]_t takes the place of the feature; a decoder layer attends over
[norm(E(x_{t+1})); norm(g_t)] around the residual g_t. Its output is the next pair's g, before the last norm; after the
norm, the head scores a reduced vocabulary. Variants have more decoder layers, which read the output of the one before,
or no W: then g_t is the target's last feature, after its norm.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from executor.drafters.base.decoder_layer import Attend, Layer, PlainLayer, SelfAttention, layer_config
from executor.drafters.base.drafter import Forced
from executor.drafters.base.feature_recurrence import Recurrent
from executor.drafters.base.recipe import Frequent, Recipe
from executor.target.target_model import Target


class PairLayer(Layer):
    """A decoder layer over pairs; each side has its own norm."""

    def __init__(self, config: LlamaConfig, *, head_norms: bool = False, window: int | None = None) -> None:
        """Make a layer of `config`'s shape, whose attention input is twice as wide."""
        super().__init__(config, 2 * config.hidden_size, head_norms=head_norms, window=window)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Eagle3(Recurrent):
    """EAGLE-3, with the variants found in checkpoints.

    Attributes:
        draft_ids: int64 (drafted,), token of each row of the LM head, increasing; None for all tokens in order.
        configs: the shape of each layer.
        windows: positions that each layer's queries see; None for all.
    """

    kind = "eagle3"
    abstains = False
    draft_ids: Tensor | None

    def __init__(
        self,
        config: LlamaConfig,
        *,
        taps: tuple[int, ...],
        target_hidden: int,
        vocabulary: int,
        draft_ids: Tensor | None = None,
        norm_before_residual: bool = False,
        feeds_normed: bool = False,
        own_embeddings: bool = False,
        norms: Literal["none", "fc", "input"] = "none",
        deeper: Sequence[LlamaConfig] = (),
        windows: Sequence[int | None] = (),
        head_norms: bool = False,
        fused: bool = True,
    ) -> None:
        """Make an untrained drafter.

        Args:
            config: the first layer's shape.
            taps: the target's layers that are read, numbered as Hugging Face's `hidden_states`; () for the input of
                its LM head.
            target_hidden: width of each tapped layer.
            vocabulary: of the target.
            draft_ids: the tokens that can be drafted; None for all.
            norm_before_residual: the residual is the normalised feature (speculators' option).
            feeds_normed: the next pair reads the output after the last norm (speculators' `norm_output`).
            own_embeddings: the drafter has its own embeddings instead of the target's.
            norms: "fc": each tapped layer has its own norm (`fc_norm`); "input": one norm for all (`input_norm`).
            deeper: the shapes of the layers after the first.
            windows: positions that each layer's queries see, None for all; default all.
            head_norms: the layers normalise the queries and keys of each head.
            fused: there is an `fc`; without it the features are taken as they are.
        """
        super().__init__()
        self.config, self.taps, self.vocabulary = config, tuple(taps), vocabulary
        self.configs = (config, *deeper)
        self.windows = tuple(windows) or (None,) * len(self.configs)
        self.head_norms, self.sources, self.target_hidden = head_norms, max(1, len(taps)), target_hidden
        self.norm_before_residual, self.feeds_normed, self.norms = norm_before_residual, feeds_normed, norms
        hidden, eps, wide = config.hidden_size, config.rms_norm_eps, self.sources * target_hidden
        self.fc = nn.Linear(wide, hidden, bias=False) if fused else None
        if norms == "fc":
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(target_hidden, eps=eps) for _ in range(self.sources))
        elif norms == "input":
            self.input_norm = LlamaRMSNorm(wide, eps=eps)
        self.layer = PairLayer(config, head_norms=head_norms, window=self.windows[0])
        self.deeper = nn.ModuleList(
            PlainLayer(shape, head_norms=head_norms, window=window)
            for shape, window in zip(deeper, self.windows[1:], strict=True)
        )
        self.norm = LlamaRMSNorm(hidden, eps=eps)
        self.lm_head = nn.Linear(hidden, vocabulary if draft_ids is None else len(draft_ids), bias=False)
        self.embed_tokens = nn.Embedding(vocabulary, hidden) if own_embeddings else None
        self.register_buffer("draft_ids", draft_ids, persistent=False)

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`; variants that few drafters have are named only where they are in use."""
        variants: dict[str, Any] = {f"config of layer {n}": config for n, config in enumerate(self.configs) if n}
        if any(window is not None for window in self.windows):
            variants["windows"] = self.windows
        variants |= {"head_norms": True} if self.head_norms else {}
        variants |= {"fused": False} if self.fc is None else {}
        return variants | {
            "config": self.config,
            "taps": self.taps,
            "draft_ids": None if self.draft_ids is None else self.draft_ids.tolist(),
            "norm_before_residual": self.norm_before_residual,
            "feeds_normed": self.feeds_normed,
            "norms": self.norms,
        }

    @property
    def extensions(self) -> dict[str, bool]:
        """The variants that few programs read, by their names in messages, and whether this drafter has them."""
        return {
            "layers that attend to a window": any(window is not None for window in self.windows),
            "norms of queries and keys": self.head_norms,
            f"{len(self.configs)} layers": len(self.configs) > 1,
            "a drafter without fc": self.fc is None,
        }

    @property
    def attentions(self) -> Sequence[SelfAttention]:
        """See `Recurrent.attentions`."""
        return [self.layer.self_attn, *(layer.self_attn for layer in self.deeper)]  # type: ignore[list-item]

    def given(self, features: Tensor) -> Tensor:
        """Merge the tapped layers, side by side, into one feature."""
        features = features.to(self.norm.weight.dtype)
        if self.norms == "fc":
            parts = features.chunk(self.sources, -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        elif self.norms == "input":
            features = self.input_norm(features)
        return features if self.fc is None else self.fc(features)

    def guess(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attention: Sequence[Attend]) -> Tensor:
        """See `Recurrent.guess`."""
        normed = self.layer.hidden_norm(hidden)
        pair = torch.cat([self.layer.input_layernorm(embeddings), normed], -1)
        out: Tensor = self.layer(normed if self.norm_before_residual else hidden, pair, positions, attention[0])
        for layer, attend in zip(self.deeper, attention[1:], strict=True):
            out = layer(out, layer.input_layernorm(out), positions, attend)  # type: ignore[operator]
        return out

    def scores(self, target: Target, guess: Tensor) -> Tensor:
        """See `Recurrent.scores`; tokens that cannot be drafted score -inf."""
        return self.forced(target, guess).scores

    def forced(self, target: Target, guess: Tensor) -> Forced:
        """See `Recurrent.forced`; scores only the tokens that can be drafted."""
        return Forced(self.lm_head(self.norm(guess)), guess, self.draft_ids, self.vocabulary)

    def carried(self, guess: Tensor) -> Tensor:
        """See `Recurrent.carried`."""
        return self.norm(guess) if self.feeds_normed else guess

    def embed(self, target: Target, tokens: Tensor) -> Tensor:
        """See `Recurrent.embed`."""
        if self.embed_tokens is None:
            return super().embed(target, tokens)
        embeddings: Tensor = self.embed_tokens(tokens)
        return embeddings


def usual_taps(layers: int) -> tuple[int, int, int]:
    """Return EAGLE-3's usual taps for L layers: (2, L // 2, L - 3), for L < 7 (1, L // 2, L - 1).

    >>> usual_taps(32)
    (2, 16, 29)
    """
    return (2, layers // 2, layers - 3) if layers >= 7 else (1, layers // 2, layers - 1)


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> Eagle3:
    """Return an untrained drafter, which proposes the tokens that are most often learnt; see `Training.untrained`."""
    ids = None
    if 0 < recipe.draft_vocabulary < target.vocabulary:
        ids = torch.tensor(frequent(recipe.draft_vocabulary))
    return Eagle3(
        layer_config(target.model.config),
        taps=usual_taps(target.model.config.get_text_config().num_hidden_layers),
        target_hidden=target.hidden,
        vocabulary=target.vocabulary,
        draft_ids=ids,
    )
