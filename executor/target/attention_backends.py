"""Attention backends: packed scaled-dot-product attention, FlexAttention, or transformers' own (sdpa, eager).

`ATTENTION` is registered with transformers; the kind of mask decides what it does:

* an additive tensor (batch, 1, group * tokens, view): query heads that share a key head are folded into the query
  length, so that keys and values are read once and never copied;
* a BlockMask: FlexAttention, which skips blocks and splits long contexts;
* anything else: transformers' own attention, where no mask means causal.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from executor.target.architectures import eager_reason, tensor_mask_reason
from treeopt.errors import ExecutorError

ATTENTION = "treeopt"
KINDS = ("packed", "flex", "sdpa", "eager")
KEPT_SHAPES = 1024  # compiled code is kept for this many shapes: views of 256 tokens, and trees


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers calls it: query (batch, heads, tokens, width) -> (batch, tokens, heads, width).

    Raises:
        ExecutorError: the layer passes an option that this attention does not support.
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if others.get(name) is not None:
            raise ExecutorError(f"{type(module).__name__} passes {name}: use eager attention")
    batch, heads, count, width = query.shape
    shared = key.shape[1]
    if isinstance(attention_mask, BlockMask):
        out = _flex(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=heads != shared)
        return out.transpose(1, 2).contiguous(), None
    if attention_mask is None or attention_mask.shape[2] * shared != heads * count:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    query = query.reshape(batch, shared, heads // shared * count, width)
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling)
    return out.reshape(batch, heads, count, value.shape[3]).transpose(1, 2).contiguous(), None


def set_attention(model: PreTrainedModel, wanted: str) -> tuple[str, str | None]:
    """Give the model the wanted attention if it supports it; return the name in use, and a reason if it is another."""
    reason = eager_reason(model)
    if reason is not None:
        model.set_attn_implementation("eager")
        return "eager", None if wanted == "eager" else reason
    reason = tensor_mask_reason(model) if wanted == "flex" else None
    wanted = wanted if reason is None else "packed"
    implementation = ATTENTION if wanted in ("packed", "flex") else wanted
    if not model._can_set_attn_implementation():
        fixed = str(model.config._attn_implementation)
        return fixed, None if fixed == wanted else "its attention is fixed when it is loaded"
    model.set_attn_implementation(implementation)
    return wanted, reason


def keep_shapes() -> None:
    """Let torch keep compiled code for every shape of a run; its default is 8 shapes."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, KEPT_SHAPES)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, KEPT_SHAPES)


_compiled: list[Callable[..., Any]] = []


def _flex(*tensors: Tensor, **options: Any) -> Any:
    """Run FlexAttention, compiled by itself or with the forward around it; on CPU not compiled, which is slow."""
    flex: Any = flex_attention
    if torch.compiler.is_compiling():
        return flex(*tensors, **options)
    if tensors[0].device.type == "cpu":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            return flex(*tensors, **options)
    if not _compiled:
        keep_shapes()
        _compiled.append(torch.compile(flex, dynamic=False))
    return _compiled[0](*tensors, **options)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
