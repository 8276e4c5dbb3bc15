"""Attention masks: a tree's nodes attend to the committed text, their ancestors and themselves; also chunks of prompts.

A mask is made once per forward and handed to all layers of a kind. `tree_seen` is the definition; `TreeMasks` makes
the same as additive masks, cut from a table per tree.

`ATTENTION` is registered with transformers. With an additive mask (batch, 1, group * tokens, view), query heads that
share a key head are folded into the query length, so that keys and values are read once and never copied. With any
other it is transformers' own attention, where no mask means causal.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from executor.target.architectures import eager_reason
from executor.target.positions import RECURRENT
from treeopt.errors import ExecutorError


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where `seen`, the lowest finite number elsewhere; same shape, `dtype`."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)


def chunk_seen(start: int, count: int, view: int, window: int | None, device: torch.device) -> Tensor:
    """Return what tokens `start`, ... of a text see: themselves and the text before them; bool (1, count, view).

    >>> chunk_seen(1, 2, 4, None, torch.device("cpu")).int()
    tensor([[[1, 1, 0, 0],
             [1, 1, 1, 0]]], dtype=torch.int32)
    """
    back = torch.arange(start, start + count, device=device)[:, None] - torch.arange(view, device=device)
    return ((back >= 0) if window is None else (back >= 0) & (back < window))[None]


def within_window(ancestors: Tensor, window: int | None) -> Tensor:
    """Keep the ancestors less than `window` positions up; bool (b, fed, count), same shape as given.

    Ancestors are counted: all ancestors of a node are among the columns, and parents stand before children.
    """
    if window is None:
        return ancestors
    levels_up = ancestors.sum(-1, keepdim=True) - ancestors.cumsum(-1)
    return ancestors & (levels_up < window)


def tree_seen(lengths: Tensor, depths: Tensor, ancestors: Tensor, view: int, window: int | None = None) -> Tensor:
    """Return what tree nodes see: the committed tokens of their sequence, their ancestors, themselves.

    The result is bool (batch, fed, view). A window counts positions: `lengths + depths` for nodes, the column for
    committed tokens.

    Args:
        lengths: int64 (batch,), committed tokens in the cache; node n lies in column `lengths + n`.
        depths: int64 (b, fed), 0 for the root; b is 1 or batch.
        ancestors: bool (b, fed, count), row is below or equal to column.
        view: columns of the cache that are read.
        window: positions that a node sees, itself included; None for all.
    """
    batch, (_, fed, count) = len(lengths), ancestors.shape
    node = torch.arange(view, device=lengths.device) - lengths[:, None]
    committed, inside = (node < 0)[:, None], (node >= 0) & (node < count)
    if window is not None:
        committed = committed & (depths[:, :, None] - node[:, None] < window)
    tree = within_window(ancestors, window).expand(batch, -1, -1)
    seen = tree.gather(2, node.clamp(0, count - 1)[:, None].expand(-1, fed, -1))
    return (seen & inside[:, None]) | committed


def tree_table(ancestors: Tensor, dtype: torch.dtype, reach: int, group: int = 1) -> Tensor:
    """Return a table of masks for texts of up to `reach` tokens: additive (b, group * fed, reach + count + reach).

    `reach` columns stand for committed tokens, then come the nodes, then columns beyond the tree. From column
    `reach` - n on, the first column of a text of n tokens, the table is the mask. Rows are repeated for `group` query
    heads, heads outermost.
    """
    tree = additive(ancestors, dtype).repeat(1, group, 1)
    return pad(pad(tree, (reach, 0)), (0, reach), value=torch.finfo(dtype).min)


class TreeMasks:
    """Makes `tree_seen` without a window as additive masks, folded for `group` query heads.

    A mask is `view` columns of the tree's table, which is made once for a static tree: its tensor comes again in
    every step. A table lives as long as that tensor; a captured graph continues to read it.
    """

    def __init__(self, dtype: torch.dtype, group: int = 1) -> None:
        """Start without tables."""
        self._dtype, self._group = dtype, group
        self._known: dict[int, tuple[ref[Tensor], dict[int, tuple[Tensor, Tensor]]]] = {}  # by id, then by reach

    def __call__(self, lengths: Tensor, ancestors: Tensor, view: int) -> Tensor:
        """Return masks (batch, 1, group * fed, view); for the arguments see `tree_seen`.

        Masks of rows that are longer than `view`, as rows without a request may be, have no meaning.
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
        tables = known[1]
        if reach not in tables:
            tables[reach] = _windows(tree_table(ancestors, self._dtype, reach, self._group), reach)
        return tables[reach]


def _windows(table: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Return all windows of `reach` columns of a table as views, (places, 1, group * fed, reach), and the place of each
    tree's mask for an empty text, int64 (b,); the mask for n tokens stands n places before it.
    """
    trees, rows, width = table.shape
    places = (trees - 1) * rows * width + width - reach + 1
    windows = table.as_strided((places, 1, rows, reach), (1, 0, width, 1))
    return windows, torch.arange(trees, device=table.device) * (rows * width) + reach


def fold_heads(mask: Tensor, group: int) -> Tensor:
    """Fold a mask (b, 1, tokens, view) for `group` query heads into the tokens, heads outermost."""
    return mask if group == 1 else mask.repeat(1, 1, group, 1)


class ForwardMasks:
    """Makes the masks of a model's forwards: one for all layers, or one for each kind of layer."""

    def __init__(self, windows: Mapping[str, int | None], *, dtype: torch.dtype, group: int) -> None:
        """Take kinds of layers and what each sees, see `positions.windows`; `group` query heads are folded."""
        self.windows = dict(windows)
        self._dtype, self._group = dtype, group
        self._trees = TreeMasks(dtype, group)

    def chunk(
        self, start: int, count: int, view: int, batch: int, device: torch.device
    ) -> Tensor | dict[str, Tensor | None] | None:
        """Masks of `count` tokens of prompts from position `start`.

        None for the first chunk: without a mask the model is causal, by its fast path where it has one.
        """
        if start == 0:
            return None
        seen = partial(chunk_seen, start, count, view, device=device)
        return self._for_each_kind(lambda window: self._additive(seen(window)).expand(batch, -1, -1, -1))

    def tree(self, lengths: Tensor, depths: Tensor, ancestors: Tensor, view: int) -> Tensor | dict[str, Tensor | None]:
        """Masks of tree nodes; for the arguments see `tree_seen`."""

        def build(window: int | None) -> Tensor:
            if window is None:
                return self._trees(lengths, ancestors, view)
            return self._additive(tree_seen(lengths, depths, ancestors, view, window))

        return self._for_each_kind(build)

    def nodes(self, ancestors: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor | None]:
        """Masks of trees without committed tokens, of which all nodes are fed, bool (batch, nodes, nodes)."""
        return self._for_each_kind(lambda window: additive(within_window(ancestors, window), dtype)[:, None])

    def _for_each_kind(self, build: Callable[[int | None], Tensor]) -> Tensor | dict[str, Tensor | None]:
        masks: dict[str, Any] = {kind: build(window) for kind, window in self.windows.items()}
        chosen: Tensor | dict[str, Tensor | None] = masks.get("", masks | dict.fromkeys(RECURRENT))
        return chosen

    def _additive(self, seen: Tensor) -> Tensor:
        return fold_heads(additive(seen, self._dtype)[:, None], self._group)


ATTENTION = "treeopt"
KINDS = ("packed", "sdpa", "eager")


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
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
    if not model._can_set_attn_implementation():
        fixed = str(model.config._attn_implementation)
        return fixed, None if fixed == wanted else "its attention is fixed when it is loaded"
    model.set_attn_implementation(ATTENTION if wanted == "packed" else wanted)
    return wanted, None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
