"""What sees what, and the attention that runs it: masks of trees and of chunks, packed and block-sparse attention.

A mask is made once a forward and handed to all layers of a kind. `ATTENTION` is registered with transformers; the
kind of mask decides what it does:

* additive tensor (batch, 1, group * tokens, view): query heads that share a key head are folded into the query
  length, so that keys and values are read once and never copied;
* BlockMask: FlexAttention, which skips blocks and splits long contexts;
* anything else is transformers' own: no mask means causal.
"""

import warnings
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from executor.target.architectures import eager_reason
from treeopt.errors import ExecutorError

ATTENTION = "treeopt"
KINDS = ("packed", "flex", "sdpa", "eager")
KEPT_SHAPES = 1024  # views of 256 tokens, and trees: compiled code is kept for so many
BLOCK = 128  # FlexAttention looks at the cache in blocks of this many columns


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `seen`, the lowest finite number elsewhere; same shape, `dtype`."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)


def chunk_seen(start: int, count: int, view: int, window: int | None, device: torch.device) -> Tensor:
    """Tokens `start`, ..., of a text see themselves and what stands before them; bool (1, count, view)."""
    back = torch.arange(start, start + count, device=device)[:, None] - torch.arange(view, device=device)
    return ((back >= 0) if window is None else (back >= 0) & (back < window))[None]


def near(ancestors: Tensor, window: int | None) -> Tensor:
    """Those ancestors less than `window` positions up; bool (b, fed, count) as given.

    Ancestors are counted, not looked up: all of a node's are among the columns, and parents stand before children.
    """
    if window is None:
        return ancestors
    behind = ancestors.sum(-1, keepdim=True) - ancestors.cumsum(-1)
    return ancestors & (behind < window)


def tree_seen(lengths: Tensor, depths: Tensor, ancestors: Tensor, view: int, window: int | None = None) -> Tensor:
    """Every node sees its sequence's committed tokens, its ancestors and itself; bool (batch, fed, view).

    A window is one of positions: `lengths + depths` for nodes, the column for committed tokens.

    Args:
        lengths: int64 (batch,), committed tokens in the cache; node n lies in column `lengths + n`.
        depths: int64 (b, fed), 0 for the root; b is 1 or batch.
        ancestors: bool (b, fed, count), row is below or equal to column.
        view: columns of the cache that are looked at.
        window: how many positions back a node sees, itself included; None for all.
    """
    batch, (_, fed, count) = len(lengths), ancestors.shape
    node = torch.arange(view, device=lengths.device) - lengths[:, None]
    committed, inside = (node < 0)[:, None], (node >= 0) & (node < count)
    if window is not None:
        committed = committed & (depths[:, :, None] - node[:, None] < window)
    tree = near(ancestors, window).expand(batch, -1, -1)
    seen = tree.gather(2, node.clamp(0, count - 1)[:, None].expand(-1, fed, -1))
    return (seen & inside[:, None]) | committed


def tree_table(ancestors: Tensor, dtype: torch.dtype, reach: int, group: int = 1) -> Tensor:
    """What a tree's nodes see of any text up to `reach` tokens: additive (b, group * fed, reach + count + reach).

    `reach` columns stand for committed tokens, then come the nodes, then what lies beyond the tree: seen from the
    first column of a text of n tokens, that is from column `reach` - n, it is the mask. Rows are repeated for `group`
    query heads, heads outermost.
    """
    tree = additive(ancestors, dtype).repeat(1, group, 1)
    return pad(pad(tree, (reach, 0)), (0, reach), value=torch.finfo(dtype).min)


class TreeMasks:
    """`tree_seen` without a window as additive masks, folded for `group` query heads.

    A mask is `view` columns of the tree's table, which is made once for a static tree: its tensor comes again in
    every step. Tables stay while that tensor does; a captured graph goes on reading them.
    """

    def __init__(self, dtype: torch.dtype, group: int = 1) -> None:
        """None made yet."""
        self._dtype, self._group = dtype, group
        self._known: dict[int, tuple[ref[Tensor], dict[int, tuple[Tensor, Tensor]]]] = {}  # by id, then by reach

    def __call__(self, lengths: Tensor, ancestors: Tensor, view: int) -> Tensor:
        """Masks (batch, 1, group * fed, view); for the arguments see `tree_seen`. Those of rows that are longer than
        `view`, as rows without a request may be, have no meaning.
        """
        reach = 1 << (view - 1).bit_length()
        windows, places = self._windows(ancestors, reach)
        return windows.narrow(3, 0, view).index_select(0, (places - lengths).clamp_(min=0))

    def _windows(self, ancestors: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return _windows(tree_table(ancestors, self._dtype, reach, self._group), reach)
        key = id(ancestors)
        known = self._known.get(key)
        if known is None or known[0]() is not ancestors:
            known = self._known[key] = ref(ancestors, lambda _: self._known.pop(key, None)), {}
        made = known[1]
        if reach not in made:
            made[reach] = _windows(tree_table(ancestors, self._dtype, reach, self._group), reach)
        return made[reach]


def _windows(table: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Whatever `reach` columns of a table are a mask, (places, 1, group * fed, reach), as views of it; and the place
    of each tree's mask for no text, int64 (b,): that for n tokens stands n places before.
    """
    trees, rows, width = table.shape
    places = (trees - 1) * rows * width + width - reach + 1
    windows = table.as_strided((places, 1, rows, reach), (1, 0, width, 1))
    return windows, torch.arange(trees, device=table.device) * (rows * width) + reach


def tree_blocks(lengths: Tensor, depths: Tensor, ancestors: Tensor, view: int, window: int | None = None) -> BlockMask:
    """The same for FlexAttention: blocks of committed tokens are full, those with nodes or a window's edge partial."""
    batch, (_, fed, count) = len(lengths), ancestors.shape
    tree = near(ancestors, window).expand(batch, -1, -1)
    depths = depths.expand(batch, -1)

    def seen(b: Tensor, h: Tensor, q: Tensor, column: Tensor) -> Tensor:
        node = column - lengths[b]
        row = q.clamp(max=fed - 1)
        committed = node < 0
        if window is not None:
            committed = committed & (depths[b, row] - node < window)
        return committed | ((node >= 0) & (node < count) & tree[b, row, node.clamp(0, count - 1)])

    rows, columns = -(-fed // BLOCK), -(-view // BLOCK)
    order = torch.arange(columns, dtype=torch.int32, device=lengths.device)
    last = (lengths + count - 1) // BLOCK
    if window is None:
        full = first = lengths // BLOCK
    else:
        full, first = torch.zeros_like(lengths), (lengths - window + 1).clamp(min=0) // BLOCK

    def of_all_rows(values: Tensor) -> Tensor:
        return values[:, None, None].expand(-1, 1, rows, *values.shape[1:]).to(torch.int32).contiguous()

    return BlockMask.from_kv_blocks(
        of_all_rows(last - first + 1),
        of_all_rows((first[:, None] + order).clamp(max=columns - 1)),
        of_all_rows(full),
        of_all_rows(order.expand(batch, -1)),
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=seen,
        seq_lengths=(fed, view),
        compute_q_blocks=False,
    )


def folded(mask: Tensor, group: int) -> Tensor:
    """A mask (b, 1, tokens, view) for `group` query heads folded into the tokens, heads outermost."""
    return mask if group == 1 else mask.repeat(1, 1, group, 1)


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
    """Attention as transformers calls it: query (batch, heads, tokens, width) -> (batch, tokens, heads, width).

    Raises:
        ExecutorError: the layer asks for something that this attention does not compute.
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
    """Give the model the attention that is wanted, or what it can do; which, and why another."""
    reason = eager_reason(model)
    if reason is not None:
        model.set_attn_implementation("eager")
        return "eager", None if wanted == "eager" else reason
    implementation = ATTENTION if wanted in ("packed", "flex") else wanted
    if not model._can_set_attn_implementation():
        found = str(model.config._attn_implementation)
        return found, None if found == wanted else "its attention is fixed when it is loaded"
    model.set_attn_implementation(implementation)
    return wanted, None


def keep_shapes() -> None:
    """Let compiled code be kept for every shape that a run comes to; torch keeps that of 8 unless told."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, KEPT_SHAPES)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, KEPT_SHAPES)


_compiled: list[Callable[..., Any]] = []


def _flex(*tensors: Tensor, **words: Any) -> Any:
    """FlexAttention, compiled by itself or with the forward it is in; on CPU as it is, slow but sure to run."""
    flex: Any = flex_attention
    if torch.compiler.is_compiling():
        return flex(*tensors, **words)
    if tensors[0].device.type == "cpu":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            return flex(*tensors, **words)
    if not _compiled:
        keep_shapes()
        _compiled.append(torch.compile(flex, dynamic=False))
    return _compiled[0](*tensors, **words)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
