"""The key/value cache: preallocated, for ragged batches; the accepted path of a tree is moved into place.

Row s of a sequence is position s. Sequences are padded on the right only; rows beyond a sequence's length are garbage
that masks hide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from executor.device import to_device
from treeopt.errors import ExecutorError


@dataclass(frozen=True)
class Layout:
    """The cache entries of one token: `layers` times `heads` keys and values, which may differ in width."""

    layers: int
    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype

    def bytes(self, batch: int, capacity: int) -> int:
        """Return the bytes for `batch` sequences of `capacity` tokens.

        >>> Layout(32, 8, 128, 128, torch.bfloat16).bytes(batch=1, capacity=1)  # Llama 3.1 8B
        131072
        """
        return self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize * batch * capacity


class _Probe(Cache):
    """Stores nothing; records the shapes that one forward would write."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.seen: dict[int, tuple[int, int, int, torch.dtype]] = {}

    def update(  # type: ignore[override]
        self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.seen[layer_idx] = (key.shape[1], key.shape[3], value.shape[3], key.dtype)
        return key, value


def cache_argument(model: torch.nn.Module) -> str:
    """Return the name of a forward's argument for the cache, which transformers 5.24 renamed."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


@torch.no_grad()
def layout_of(model: PreTrainedModel) -> Layout:
    """Return what a forward of one token writes, by running it (MLA caches less than its configuration's heads).

    Raises:
        ExecutorError: layers differ, or the decoder's output is not the input of the LM head.
    """
    probe, passed = _Probe(), list[Tensor]()
    hooks = (
        model.get_decoder().register_forward_hook(lambda module, args, output: passed.append(output[0])),
        model.get_output_embeddings().register_forward_pre_hook(lambda module, args: passed.append(args[0])),
    )
    token = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    try:
        model(input_ids=token, position_ids=token, use_cache=True, **{cache_argument(model): probe})
    finally:
        for hook in hooks:
            hook.remove()
    reason = None
    if len(passed) != 2 or passed[0].shape != passed[1].shape or not torch.equal(*passed):
        reason = "their decoder does not return the input of the LM head"
    elif len(set(probe.seen.values())) != 1 or sorted(probe.seen) != list(range(len(probe.seen))):
        reason = "their layers write keys of different shapes"
    if reason is not None:
        raise ExecutorError(f"{model.config.model_type} models cannot verify trees: {reason}")
    return Layout(len(probe.seen), *probe.seen[0])


class TreeCache(Cache):
    """Keys and values of `batch` sequences, each one tensor (layers, batch, heads, capacity, width).

    `columns` counts 0, 1, ..., capacity. A cache owns its memory until `succeed` or `release` takes it away.
    """

    def __init__(
        self, layout: Layout, batch: int, capacity: int, device: torch.device, stores: tuple[Tensor, ...] = ()
    ) -> None:
        """Make room for `batch` sequences of `capacity` tokens, in new memory or in `stores`."""
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.layout, self.batch, self.capacity, self.device = layout, batch, capacity, device
        self.stores = stores or tuple(
            torch.zeros(layout.layers, batch, layout.heads, capacity, width, dtype=layout.dtype, device=device)
            for width in (layout.key_width, layout.value_width)
        )
        self.columns = torch.arange(capacity + 1, device=device)
        self._layers = torch.arange(layout.layers, device=device)[:, None, None, None]
        self._batch = torch.arange(batch, device=device)[:, None, None]
        self._heads = torch.arange(layout.heads, device=device)[:, None]
        lines = torch.arange(layout.layers * batch * layout.heads, device=device) * capacity  # where each begins
        self._lines = lines.view(layout.layers, batch, layout.heads, 1)
        self._rows: Tensor | None = None
        self._start = 0
        self._slots: Tensor | None = None
        self._view = capacity

    def succeed(self, *, clear: bool = True) -> "TreeCache":
        """Return a new owner of the same memory, by default cleared; release this one."""
        stores = self.stores
        self.release()
        for store in stores if clear else ():
            store.zero_()  # a NaN would come through a mask
        return TreeCache(self.layout, self.batch, self.capacity, self.device, stores)

    def release(self) -> None:
        """Release the memory."""
        self.stores = ()

    def fill(self, rows: Sequence[int] | Tensor, start: int, view: int) -> None:
        """Make the next forward a prefill of these rows from position `start`; from 0 it attends only to itself."""
        if isinstance(rows, Tensor):
            self._rows = rows
        else:
            self._rows = None if list(rows) == list(range(self.batch)) else to_device(list(rows), self.device)
        self._start, self._slots, self._view = start, None, view

    def place(self, slots: Tensor, view: int) -> None:
        """Make the next forward write at `slots`, int64 (batch, tokens), and attend to the first `view` positions."""
        self._slots, self._view = slots, view

    def update(  # type: ignore[override]
        self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (sequences, heads, tokens, width); return those to attend to."""
        keys, values = self.stores
        if self._slots is None:
            return self._prefilled(keys[layer_idx], key), self._prefilled(values[layer_idx], value)
        # Indices of all four dimensions: written through a chain of views, inductor would copy the whole cache.
        at = (self._layers[layer_idx], self._batch, self._heads, self._slots[:, None])
        keys.index_put_(at, key)
        values.index_put_(at, value)
        return keys[layer_idx, :, :, : self._view], values[layer_idx, :, :, : self._view]

    def _prefilled(self, store: Tensor, new: Tensor) -> Tensor:
        end = self._start + new.shape[2]
        if self._rows is None:
            store[:, :, self._start : end] = new
            return store[:, :, : self._view] if self._start else new
        store[self._rows, :, self._start : end] = new
        return store[self._rows, :, : self._view] if self._start else new

    def compact(self, lengths: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path to the end of each sequence, in all layers at once.

        Args:
            lengths: int64 (batch,), committed tokens before the step.
            path: int64 (batch, steps), node of each path position, the root (0) first.
        """
        start = lengths[:, None]
        source = (self._lines + (start + path)[:, None]).flatten()
        goal = (self._lines + (start + self.columns[: path.shape[1]])[:, None]).flatten()
        for store in self.stores:
            entries = store.flatten(0, 3)
            entries.index_copy_(0, goal, entries.index_select(0, source))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions and masks are explicit, the model must not derive them from the cache."""
        return 0
