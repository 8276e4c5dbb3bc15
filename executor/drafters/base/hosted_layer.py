"""A decoder layer of the target's own class in a drafter: any attention and any experts, with a drafter's cache.

transformers' layer makes queries, keys and values, after its norms and rotary positions, and hands them to the
attention that the drafter passes (`Attend`), which caches them: the layer gets neither a mask nor a cache of its own.
"""

import copy
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from executor.drafters.base.decoder_layer import Attend
from executor.target.kv_cache import Layout
from treeopt.errors import ExecutorError

GIVEN = "treeopt-given"
# Lists of a configuration with an entry for each layer -> the entry of a drafter's layer; None: the model's last.
PER_LAYER = {"layer_types": "full_attention", "mlp_layer_types": None}


def given_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    attend: Attend | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Call the attention that the drafter passed as `attend`, as transformers calls its own.

    Raises:
        ExecutorError: the layer passes an option that the attention of drafters does not support.
    """
    wanted = next((name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None), None)
    if attend is None or wanted is not None:
        raise ExecutorError(f"{type(module).__name__} cannot draft: {wanted or 'it drops the attention'}")
    factor = 1.0 if scaling is None else scaling * query.shape[-1] ** 0.5  # attention divides by the root of the width
    return attend(query if abs(factor - 1) < 1e-9 else query * factor, key, value).contiguous(), None


AttentionInterface.register(GIVEN, given_attention)


class HostedLayer(nn.Module):
    """One layer like the target's last, with full attention, untrained.

    Attributes:
        config: of the layer, the target's with one layer.
        block: transformers' layer.
        window: None: a query sees all positions.
    """

    is_causal = True
    window: int | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        """Make the layer.

        Raises:
            ExecutorError: the model's layers do not attend through transformers' interface.
        """
        super().__init__()
        decoder: Any = model.get_decoder()
        self.config = one_layer(model.config.get_text_config())
        self.block: Any = type(decoder.layers[-1])(self.config, 0)
        rotary = type(decoder.rotary_emb)(self.config)
        self._rotary = [rotary]  # in a list: a cast of the drafter does not change its frequencies
        self._shapes: tuple[int, int, int, int] | None = None

    def forward(self, x: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Run the layer over x (b, tokens, hidden) at positions int64 (b or 1, tokens)."""
        rotary = self._rotary[0]
        if next(rotary.buffers()).device != x.device:
            rotary.to(x.device)
        kinds = self.config.layer_types if "layer_type" in signature(rotary.forward).parameters else ()  # Gemma 3
        out = self.block(
            x,
            position_embeddings=rotary(x, positions, *kinds),
            position_ids=positions,
            attention_mask=None,
            past_key_values=None,
            attend=attention,
        )
        hidden: Tensor = out[0] if isinstance(out, tuple) else out
        return hidden

    @property
    def num_key_value_groups(self) -> int:
        """Query heads that share a key head."""
        heads, shared, *_ = self._measured
        return heads // shared

    def layout(self, dtype: torch.dtype, *, layers: int = 1) -> Layout:
        """Return the cache entries of one token in `layers` layers like this one."""
        _, shared, key_width, value_width = self._measured
        return Layout(layers, shared, key_width, value_width, dtype)

    @property
    def _measured(self) -> tuple[int, int, int, int]:
        """Query heads, key heads, and the widths of a key and a value; measured once, on one token."""
        if self._shapes is None:
            shapes: list[tuple[int, int, int, int]] = []

            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                shapes.append((query.shape[1], key.shape[1], key.shape[3], value.shape[3]))
                shared = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
                return shared.transpose(1, 2)

            weight = next(self.parameters())
            with torch.no_grad():
                self(weight.new_zeros(1, 1, self.config.hidden_size), weight.new_zeros(1, 1, dtype=torch.long), attend)
            if not shapes:
                raise ExecutorError(f"{type(self.block).__name__} cannot draft: it has no attention")
            self._shapes = shapes[0]
        return self._shapes


def one_layer(text: PretrainedConfig) -> PretrainedConfig:
    """Return a copy of a configuration for one layer, which has experts wherever the model has any."""
    config = copy.deepcopy(text)
    config.num_hidden_layers = 1
    for name, kind in PER_LAYER.items():
        if getattr(config, name, None):
            setattr(config, name, [kind or getattr(config, name)[-1]])
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config._attn_implementation = GIVEN
    return config
