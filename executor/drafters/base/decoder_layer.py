"""A Llama decoder layer as drafters use it: fed with features, with its own key/value cache.

The layer makes projections; the caller passes the attention for the task: reading prompts and committed tokens or
drafting a level of a tree (`LayerCache`), or all depths of a text (`Unrolled`, EAGLE-3's training-time test).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from executor.target.kv_cache import Layout, TreeCache
from executor.target.tree_attention_mask import TreeMasks, additive, attend, chunk_seen, fold_heads, tree_seen
from executor.verification.tree_tensors import below

# Queries (b, heads, tokens, width), keys and values (b, key heads, tokens, width) -> (b, tokens, heads, width).
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class SelfAttention(nn.Module):
    """Projections with rotary positions.

    Attributes:
        window: positions that a query sees, its own included; None for all.
    """

    is_causal = True

    def __init__(
        self, config: LlamaConfig, width: int | None = None, *, head_norms: bool = False, window: int | None = None
    ) -> None:
        """Make `config.num_attention_heads` heads; `attention_bias` gives queries, keys and values a bias.

        Args:
            config: the layer's shape.
            width: the input's width; default the layer's.
            head_norms: the queries and keys of each head are normalised before the rotary positions (Qwen3's).
            window: positions that a query sees, its own included; None for all.
        """
        super().__init__()
        self.window = window
        self.heads = int(config.num_attention_heads)
        self.key_heads = int(config.num_key_value_heads or self.heads)
        self.head_width = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.num_key_value_groups = self.heads // self.key_heads
        width, bias = width or config.hidden_size, bool(config.attention_bias)
        self.q_proj = nn.Linear(width, self.heads * self.head_width, bias=bias)
        self.k_proj = nn.Linear(width, self.key_heads * self.head_width, bias=bias)
        self.v_proj = nn.Linear(width, self.key_heads * self.head_width, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_width, config.hidden_size, bias=False)
        self.q_norm = LlamaRMSNorm(self.head_width, eps=config.rms_norm_eps) if head_norms else None
        self.k_norm = LlamaRMSNorm(self.head_width, eps=config.rms_norm_eps) if head_norms else None
        self._rotary = [
            LlamaRotaryEmbedding(config)
        ]  # in a list: a cast of the drafter does not change its frequencies

    def forward(self, x: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Attend over x (b, tokens, width) at positions int64 (b or 1, tokens)."""
        query = self._heads(self.q_proj(x), positions, self.q_norm)
        out: Tensor = self.o_proj(attention(query, *self.keys(x, positions)).flatten(2))
        return out

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of x, (b, key heads, tokens, width) each; see `forward`."""
        value = self.v_proj(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        return self._heads(self.k_proj(x), positions, self.k_norm), value

    def _heads(self, projected: Tensor, positions: Tensor, norm: nn.Module | None) -> Tensor:
        """Divide into heads, normalise them and rotate them."""
        heads = projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        heads = heads if norm is None else norm(heads)
        rotary = self._rotary[0]
        if rotary.inv_freq.device != heads.device:  # once: copied in each step, they would make the host wait
            rotary.to(heads.device)
        rotated: Tensor = apply_rotary_pos_emb(heads, heads[:, :0], *rotary(heads, positions))[0]
        return rotated

    def layout(self, dtype: torch.dtype, *, layers: int = 1) -> Layout:
        """Return the cache entries of one token in `layers` layers like this one."""
        return Layout(layers, self.key_heads, self.head_width, self.head_width, dtype)


class Layer(nn.Module):
    """Attention and MLP around a residual; the drafter normalises the inputs."""

    def __init__(
        self, config: LlamaConfig, width: int | None = None, *, head_norms: bool = False, window: int | None = None
    ) -> None:
        """Make a layer with Llama's parameter names; for the arguments see `SelfAttention`."""
        super().__init__()
        self.self_attn = SelfAttention(config, width, head_norms=head_norms, window=window)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, residual: Tensor, x: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Add to `residual`, (b, tokens, hidden), the attention over `x`, then the MLP."""
        residual = residual + self.self_attn(x, positions, attention)
        out: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class PlainLayer(Layer):
    """A layer with a norm before its attention, as Llama and Qwen3 have it."""

    def __init__(self, config: LlamaConfig, *, head_norms: bool = False, window: int | None = None) -> None:
        """Make a layer of `config`'s shape; for the other arguments see `SelfAttention`."""
        super().__init__(config, head_norms=head_norms, window=window)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class LayerCache:
    """Keys and values of a drafter's layers: those of committed positions, and after them those of a step's nodes.

    Every forward gets an attention for each layer, in order.

    Attributes:
        lengths: int64 (batch,), committed positions.
    """

    def __init__(self, attentions: Sequence[SelfAttention], batch: int, capacity: int, like: Tensor) -> None:
        """Make room for `batch` x `capacity` positions in layers of equal key heads; `like` gives type and device."""
        self._modules = tuple(attentions)
        first = self._modules[0]
        self._group, self._dtype = first.num_key_value_groups, like.dtype
        self._masks = TreeMasks(like.dtype, self._group)
        layout = first.layout(like.dtype, layers=len(self._modules))
        self.cache = TreeCache(layout, batch, capacity, like.device)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=like.device)
        self._view = capacity
        self._chains: dict[int, Tensor] = {}
        self._blocks: dict[tuple[int, bool], Tensor] = {}
        self._start = torch.zeros(1, 1, 0, dtype=torch.bool, device=like.device)
        self._above, self._fed, self._level = self._start, 0, 0
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def prompts(self, rows: Tensor, lengths: Tensor) -> tuple[Attend, ...]:
        """Restart these rows with prompts of `lengths` positions, padded on the right; return their attention."""
        self.cache.fill(rows, 0, 0)
        self.lengths[rows] = lengths
        return tuple(partial(self._read, number) for number in range(len(self._modules)))

    def committed(self, steps: int, view: int) -> tuple[Tensor, tuple[Attend, ...]]:
        """Read up to `steps` more positions, of which `advance` sets how many count; return positions and attention."""
        self._view = view
        self._above, self._fed, self._level = self._start, 0, 0
        if torch.compiler.is_compiling():
            chain = self._chain(steps)
        else:
            if steps not in self._chains:
                self._chains[steps] = self._chain(steps)
            chain = self._chains[steps]
        return self._placed(0, chain, None)

    def store(self, number: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's keys and values of the positions read last, without attending."""
        self.cache.update(key, value, number)

    def block(self, slots: int, causal: Sequence[bool]) -> tuple[Tensor, tuple[Attend, ...]]:
        """Read `slots` positions after the committed ones at once; layers that are `causal` see earlier ones alone."""
        for one_way in set(causal):
            if (slots, one_way) not in self._blocks:
                seen = self._chain(slots)
                self._blocks[slots, one_way] = seen if one_way else torch.ones_like(seen)
        positions, attention = self._placed(0, self._blocks[slots, causal[0]], None)
        if len(set(causal)) > 1:
            kinds = {(m.window, way) for m, way in zip(self._modules, causal, strict=True)}
            masks = {kind: self._mask(kind[0], self._blocks[slots, kind[1]], None) for kind in kinds}
            pairs = enumerate(zip(self._modules, causal, strict=True))
            attention = tuple(partial(self._attend, n, masks[m.window, way]) for n, (m, way) in pairs)
        return positions, attention

    def advance(self, counts: Tensor) -> None:
        """Commit the first `counts`, int64 (batch,), of the positions read last."""
        self.lengths.add_(counts)

    def nodes(self, parents: Tensor) -> tuple[Tensor, tuple[Attend, ...]]:
        """Read the next level of trees; parents, int64 (b, nodes), are places in the level before. See `committed`."""
        compiling = torch.compiler.is_compiling()
        known = None if compiling else self._known.get(self._level)
        if known is None or known[0] is not parents:
            known = parents, below(self._above, parents)
            if not compiling:
                self._known[self._level] = known  # a static tree's parents come again in every step
        _, self._above = known
        _, attention = self._placed(self._fed, self._above, self._level)
        positions = (self.lengths + self._level)[:, None].expand(-1, parents.shape[1])
        self._fed, self._level = self._fed + parents.shape[1], self._level + 1
        return positions, attention

    def _chain(self, steps: int) -> Tensor:
        return torch.ones(1, steps, steps, dtype=torch.bool, device=self.lengths.device).tril()

    def _placed(self, first: int, ancestors: Tensor, level: int | None) -> tuple[Tensor, tuple[Attend, ...]]:
        slots = self.lengths[:, None] + self.cache.columns[first : first + ancestors.shape[1]]
        self.cache.place(slots, self._view)
        masks = {window: self._mask(window, ancestors, level) for window in {m.window for m in self._modules}}
        return slots, tuple(partial(self._attend, n, masks[m.window]) for n, m in enumerate(self._modules))

    def _mask(self, window: int | None, ancestors: Tensor, level: int | None) -> Tensor:
        """Return the mask of the nodes of a level; without a level, of positions that follow each other."""
        if window is None or window >= self._view:  # no two positions are so far apart
            return self._masks(self.lengths, ancestors, self._view)
        nodes = ancestors.shape[1]
        depths = self.cache.columns[:nodes] if level is None else self.cache.columns[level].expand(nodes)
        seen = tree_seen(self.lengths, depths[None], ancestors, self._view, window)
        return fold_heads(additive(seen, self._dtype)[:, None], self._group)

    def _read(self, number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend within prompts: to the positions before, or those of the window."""
        count, window = query.shape[2], self._modules[number].window
        mask = None
        if window is not None and window < count:
            seen = chunk_seen(0, count, count, window, query.device)
            mask = fold_heads(additive(seen, query.dtype)[:, None], self._group)
        return self._attend(number, mask, query, key, value)

    def _attend(self, number: int, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self.cache.update(key, value, number)
        return attend(self._modules[number], query, keys, values, mask)[0]


class Unrolled:
    """Attention of all anchors of a text, one depth after the other ("training-time test", EAGLE-3, Li et al. 2025).

    At depth k the query of anchor t sees the text's keys up to t, and its own keys of depths 2 .. k: the same as if it
    were drafted step by step. Hidden scores are minus infinity. Memory is length^2 per head and depth.
    """

    def __init__(self, window: int | None = None) -> None:
        """Start before the first depth; `window` is the layer's, see `SelfAttention`."""
        self._window = window
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend at the next depth; see `Attend`."""
        self._keys.append(key)
        self._values.append(value)
        batch, shared, length, width = key.shape
        grouped = query.reshape(batch, shared, -1, length, width) * width**-0.5
        place = torch.arange(length, device=key.device)
        back, depth = place[:, None] - place, len(self._keys) - 1
        hidden = back < 0
        drafted = list(range(1, depth + 1))  # the own keys that are seen, by depth
        if self._window is not None:
            hidden = hidden | (back + depth >= self._window)
            drafted = [i for i in drafted if depth - i < self._window]
        text = (grouped @ self._keys[0][:, :, None].transpose(-1, -2)).masked_fill(hidden, -torch.inf)
        own = [(grouped * self._keys[i][:, :, None]).sum(-1, keepdim=True) for i in drafted]
        weights = torch.cat([text, *own], -1).softmax(-1, dtype=torch.float32).to(query.dtype)
        out = weights[..., :length] @ self._values[0][:, :, None]
        for column, i in enumerate(drafted, length):
            out = out + weights[..., column, None] * self._values[i][:, :, None]
        return out.reshape(batch, -1, length, value.shape[-1]).transpose(1, 2)


def layer_config(model: Any, **changes: Any) -> LlamaConfig:
    """Return a Llama layer's configuration with the shape of a model's text part, and with these fields changed."""
    text = model.get_text_config()
    held = vars(text)  # reading a field in which layers differ (Gemma 4) raises an error
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    shared, between, width = (
        held[name] if name in held else getattr(text, name, None)
        for name in ("num_key_value_heads", "intermediate_size", "head_dim")
    )
    shared, between, width = int(shared or heads), between or 4 * hidden, int(width or hidden // heads)
    if hidden % heads:  # GLM-4.5, which transformers' Llama refuses: take the most heads that divide the width
        step = 1 if shared == heads else math.gcd(shared, hidden)
        heads = next(n for n in range(heads, 0, -1) if hidden % n == 0 and n % step == 0)
        shared = heads if step == 1 else step
    fields: dict[str, Any] = {
        "vocab_size": int(text.vocab_size),
        "hidden_size": hidden,
        "intermediate_size": int(max(between) if isinstance(between, list | tuple) else between),
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": width,
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-6),
        "num_hidden_layers": 1,
    }
    rope = getattr(text, "rope_parameters", None)
    if isinstance(rope, dict) and "rope_type" in rope:  # not one per kind of layer
        fields["rope_parameters"] = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    return LlamaConfig(**fields | changes)
