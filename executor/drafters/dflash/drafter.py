"""DFlash (arXiv 2602.06036): a block of tokens from one forward, with the target's features as keys and values.

Context features c_s = norm(W [h^{l1}_s; ...; h^{lm}_s]) stand for the text's positions. The block's queries are the
embeddings of the last token x_{n+1} and of masks, at their true positions; in every layer they see the keys and values
of c_0 .. c_n and those of the whole block, in both directions. Slot k scores x_{n+1+k}.

DSpark (arXiv 2607.05147) also lets the slot of the last token score: slot k - 1 scores x_{n+1+k}. Its Markov head adds
W2 W1[x_{n+k}] to the scores, so that they depend on the drafted token before. Its confidence head predicts from the
slot, and from W1[x_{n+k}] where it is as wide, whether the token is accepted; it changes no draft.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from executor.drafters.base.decoder_layer import LayerCache, PlainLayer, layer_config
from executor.drafters.base.drafter import Admitted, Committed, Forced, mask_token
from executor.drafters.base.recipe import Frequent, Recipe
from executor.drafters.dflash import LAYERS
from executor.target.causal_model import pick_rows
from executor.target.target_model import Target

SCORES = 2**27  # attention scores of a teacher-forced pass at once


@dataclass
class BlockState:
    """The keys and values of the context, and the block of the current step, (batch, slots, hidden)."""

    target: Target
    cache: LayerCache
    block: Tensor = field(default_factory=lambda: torch.zeros(0))
    level: int = 0


class DFlash(nn.Module):
    """DFlash, and DSpark.

    Attributes:
        taps: the target's layers that are read, numbered as Hugging Face's `hidden_states`.
        mask: the token whose embedding fills the block.
        slots: positions of the block, that of the last token included.
        from_anchor: the slot of the last token scores too.
        configs: the shape of each layer.
        windows: positions that each layer's queries see; None for all.
        causal: for each layer, whether a slot sees only the slots before it.
        draft_ids: int64 (drafted,), token of each row of the LM head, increasing; None for all tokens in order.
    """

    abstains = False
    draft_ids: Tensor | None

    def __init__(
        self,
        configs: Sequence[LlamaConfig],
        *,
        taps: Sequence[int],
        vocabulary: int,
        mask: int,
        slots: int,
        from_anchor: bool = False,
        windows: Sequence[int | None] = (),
        causal: Sequence[bool] = (),
        draft_ids: Tensor | None = None,
        own_head: bool = False,
        own_embeddings: bool = False,
        markov: int = 0,
        confidence: int = 0,
        confidence_bias: bool = True,
    ) -> None:
        """Make an untrained drafter, see the attributes; `markov` is the rank of W1 and W2, `confidence` the width that
        the confidence head reads, 0 without.
        """
        super().__init__()
        self.configs, self.taps, self.vocabulary = tuple(configs), tuple(taps), vocabulary
        self.mask, self.slots, self.from_anchor = mask, slots, from_anchor
        self.windows = tuple(windows) or (None,) * len(self.configs)
        self.causal = tuple(causal) or (False,) * len(self.configs)
        config = self.configs[0]
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(self.taps) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = LlamaRMSNorm(hidden, eps=eps), LlamaRMSNorm(hidden, eps=eps)
        self.layers = nn.ModuleList(
            PlainLayer(shape, head_norms=True, window=window)
            for shape, window in zip(self.configs, self.windows, strict=True)
        )
        rows = vocabulary if draft_ids is None else len(draft_ids)
        self.lm_head = nn.Linear(hidden, rows, bias=False) if own_head or draft_ids is not None else None
        self.embed_tokens = nn.Embedding(vocabulary, hidden) if own_embeddings else None
        self.markov_w1 = nn.Embedding(vocabulary, markov) if markov else None
        self.markov_w2 = nn.Linear(markov, rows, bias=False) if markov else None
        self.confidence_head = nn.Linear(confidence, 1, bias=confidence_bias) if confidence else None
        self.register_buffer("draft_ids", draft_ids, persistent=False)

    @property
    def kind(self) -> str:
        """Dspark with its Markov head, else dflash."""
        return "dflash" if self.markov_w1 is None else "dspark"

    @property
    def config(self) -> LlamaConfig:
        """The shape of the first layer."""
        return self.configs[0]

    @property
    def max_depth(self) -> int:
        """The slots that score."""
        return self.slots - 1 + self.from_anchor

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Drafter.facts`."""
        return {"slots": self.slots}

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        names = ("taps", "mask", "slots", "from_anchor", "windows", "causal")
        ids = None if self.draft_ids is None else self.draft_ids.tolist()
        layers = {f"config of layer {n}": config for n, config in enumerate(self.configs)}
        return {name: getattr(self, name) for name in names} | {"draft_ids": ids} | layers

    @property
    def _attentions(self) -> list[Any]:
        return [layer.self_attn for layer in self.layers]

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        layout = self._attentions[0].layout(self.fc.weight.dtype, layers=len(self.layers))
        size: int = layout.bytes(batch, capacity + self.slots)
        return size

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> BlockState:
        """See `Drafter.begin`."""
        like = self.fc.weight[:1]
        self._head(target, like[:, : self.config.hidden_size])  # measures its scaling now, so that no step has to
        return BlockState(target, LayerCache(self._attentions, batch, capacity + self.slots, like))

    def lasting(self, state: BlockState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return (state.cache.lengths,)

    @torch.no_grad()
    def admit(self, state: BlockState, admitted: Admitted) -> None:
        """Store the keys and values of the prompts' features; see `Drafter.admit`."""
        state.cache.prompts(admitted.rows, admitted.lengths - 1)
        if count := admitted.features.shape[1]:
            self._store(state, admitted.features, torch.arange(count, device=admitted.rows.device)[None])

    @torch.no_grad()
    def extend(self, state: BlockState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Store the keys and values of the new features; see `Drafter.extend`."""
        positions, _ = state.cache.committed(committed.tokens.shape[1], view + self.slots)
        self._store(state, committed.features, positions)
        state.cache.advance(committed.counts)
        state.level = 0

    @torch.no_grad()
    def level(self, state: BlockState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Run the block at the root; see `Drafter.level`."""
        if state.level == 0:
            positions, attention = state.cache.block(self.slots, self.causal)
            x = self._block(state.target, tokens)
            for layer, attend in zip(self.layers, attention, strict=True):
                x = layer(x, layer.input_layernorm(x), positions, attend)  # type: ignore[operator]
            state.block = self.norm(x)
        state.level += 1
        hidden = state.block[:, self._slot(state.level), None]
        return self._forced(state.target, hidden, tokens).scores

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; a block for each anchor, some anchors at a time."""
        batch, length = tokens.shape
        anchors = torch.arange(length, device=tokens.device).expand(batch, -1) if rows is None else rows
        context, places = self._context(features), torch.arange(length, device=tokens.device)[None]
        stored = [attention.keys(context, places) for attention in self._attentions]
        some = max(1, SCORES // (batch * self.config.num_attention_heads * self.slots * length))
        blocks = [self._blocks(target, tokens, stored, part) for part in anchors.split(some, 1)]
        hidden = torch.cat(blocks, 1)
        for k in range(1, depth + 1):
            before, at = pick_rows(tokens, (anchors + k).clamp(max=length - 1)), hidden[:, :, self._slot(k)]
            yield replace(self._forced(target, at, before), confidence=self.confidence(at, before))

    @torch.no_grad()
    def confidences(self, state: BlockState, before: Tensor) -> Tensor:
        """Return the predicted acceptance of depths 1, 2, ... of the step's block, (batch, depths).

        `before`, int64 (batch, depths), is the token before each: the root, then those drafted. Needs the head.
        """
        logits = self.confidence(state.block[:, self._slot(1) :][:, : before.shape[1]], before)
        assert logits is not None
        return logits.sigmoid()

    def _slot(self, depth: int) -> int:
        """Return the slot that scores depth 1, 2, ...."""
        return depth - self.from_anchor

    def _context(self, features: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))  # type: ignore[no-any-return]

    def _store(self, state: BlockState, features: Tensor, positions: Tensor) -> None:
        context = self._context(features)
        for number, attention in enumerate(self._attentions):
            state.cache.store(number, *attention.keys(context, positions))

    def _block(self, target: Target, roots: Tensor) -> Tensor:
        """Return the input of the blocks that begin with these tokens: (b, n) -> (b, n * slots, hidden)."""
        masks = roots.new_full((*roots.shape, self.slots - 1), self.mask)
        tokens = torch.cat([roots[..., None], masks], -1).flatten(1)
        embeddings: Tensor = target.embed(tokens) if self.embed_tokens is None else self.embed_tokens(tokens)
        return embeddings.to(self.fc.weight.dtype)

    def _blocks(self, target: Target, tokens: Tensor, stored: Sequence[tuple[Tensor, Tensor]], at: Tensor) -> Tensor:
        """Return the output of the blocks of anchors, int64 (batch, n), over a text: (batch, n, slots, hidden)."""
        x = self._block(target, pick_rows(tokens, (at + 1).clamp(max=tokens.shape[1] - 1)))
        positions = ((at + 1)[..., None] + torch.arange(self.slots, device=at.device)).flatten(1)
        for layer, (key, value), window, causal in zip(self.layers, stored, self.windows, self.causal, strict=True):
            attend = partial(block_attention, key, value, at, window, causal)
            x = layer(x, layer.input_layernorm(x), positions, attend)  # type: ignore[operator]
        normed: Tensor = self.norm(x).unflatten(1, (-1, self.slots))
        return normed

    def _head(self, target: Target, hidden: Tensor) -> Tensor:
        scores: Tensor = target.scored(hidden) if self.lm_head is None else self.lm_head(hidden)
        return scores

    def _forced(self, target: Target, hidden: Tensor, before: Tensor) -> Forced:
        """Return the scores of a slot, given the token before what it scores: (b, n or 1, hidden), int64 (b, n)."""
        scores = self._head(target, hidden)
        if self.markov_w1 is not None and self.markov_w2 is not None:
            scores = scores + self.markov_w2(self.markov_w1(before))
        return Forced(scores, None, self.draft_ids, self.vocabulary)

    def confidence(self, hidden: Tensor, before: Tensor) -> Tensor | None:
        """Return log-odds of acceptance: (b, n, hidden), int64 (b, n) -> (b, n); None without the head."""
        if self.confidence_head is None:
            return None
        if self.markov_w1 is not None and self.confidence_head.in_features > hidden.shape[-1]:
            hidden = torch.cat([hidden, self.markov_w1(before)], -1)
        return self.confidence_head(hidden)[..., 0]  # type: ignore[no-any-return]


def block_attention(
    keys: Tensor, values: Tensor, anchors: Tensor, window: int | None, causal: bool, *block: Tensor
) -> Tensor:
    """Return the attention of blocks over a text and over themselves, (b, n * slots, heads, width).

    Args:
        keys: of the text, (b, key heads, length, width).
        values: correspondingly.
        anchors: int64 (b, n); the block of anchor t sees the text up to t and begins at t + 1.
        window: positions that a query sees, its own included; None for all.
        causal: a slot sees only the slots before it.
        block: queries (b, heads, n * slots, width), keys and values of the blocks.
    """
    (batch, count), (_, shared, length, width) = anchors.shape, keys.shape
    query, own_keys, own_values = (each.unflatten(2, (count, -1)) for each in block)
    slots, place = query.shape[3], torch.arange(length, device=keys.device)
    grouped = query.reshape(batch, shared, -1, count, slots, width) * width**-0.5
    back = anchors[..., None] - place  # (b, n, length)
    hidden = (back < 0)[:, :, None].expand(-1, -1, slots, -1)
    if window is not None:
        ahead = torch.arange(1, slots + 1, device=keys.device)[:, None]
        hidden = hidden | (back[:, :, None] + ahead >= window)
    text = torch.einsum("bgrnsw,bglw->bgrnsl", grouped, keys).masked_fill(hidden[:, None, None], -torch.inf)
    own = grouped @ own_keys[:, :, None].transpose(-1, -2)
    if causal:
        own = own.masked_fill(torch.ones(slots, slots, dtype=torch.bool, device=keys.device).triu(1), -torch.inf)
    weights = torch.cat([text, own], -1).softmax(-1, dtype=torch.float32).to(query.dtype)
    out: Tensor = torch.einsum("bgrnsl,bglw->bgrnsw", weights[..., :length], values)
    out = out + weights[..., length:] @ own_values[:, :, None]
    return out.reshape(batch, -1, count * slots, values.shape[-1]).transpose(1, 2)


def spread_taps(layers: int, count: int) -> tuple[int, ...]:
    """Return `count` layers spread evenly from the output of layer 1 to that of layer L - 3, as DFlash's code does.

    >>> spread_taps(36, 5)
    (2, 10, 18, 26, 34)
    """
    last = max(1, layers - 3)
    return tuple(1 + round(1 + n * (last - 1) / max(1, count - 1)) for n in range(count))


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> DFlash:
    """Return an untrained drafter, which reads five layers as the published ones; see `Training.untrained`."""
    layers = int(target.model.config.get_text_config().num_hidden_layers)
    return DFlash(
        [layer_config(target.model.config) for _ in range(recipe.layers)],
        taps=spread_taps(layers, min(LAYERS, max(1, layers - 3))),
        vocabulary=target.vocabulary,
        mask=mask_token(target),
        slots=recipe.depths + (not recipe.markov_rank),
        from_anchor=bool(recipe.markov_rank),
        markov=recipe.markov_rank,
        confidence=(target.hidden + recipe.markov_rank) * (recipe.confidence_weight > 0),
    )
