"""The key/value cache: preallocated, ragged, with the accepted path of a tree moved into place.

Row s of a sequence is position s. Sequences are padded on the right only, and what lies beyond a
sequence's length is garbage that masks hide.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class TreeCache(Cache):
    """Keys and values of `batch` sequences, each one tensor (layers, batch, heads, capacity, width).

    The tensors are made when the first layer writes; keys and values may differ in width. Memory is
    layers * batch * heads * capacity * (key width + value width) elements.
    """

    def __init__(self, layers: int, batch: int, capacity: int) -> None:
        """Room for `batch` sequences of `capacity` tokens."""
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.shape = (layers, batch, capacity)
        self._stores: tuple[Tensor, Tensor] | None = None
        self._rows: Tensor | None = None
        self._slots: Tensor | None = None
        self._view = capacity

    def fill(self, rows: Tensor) -> None:
        """The next forward is a prefill of these rows, int64 (sequences,), from position 0."""
        self._rows, self._slots = rows, None

    def place(self, slots: Tensor, view: int) -> None:
        """The next forward writes at `slots`, int64 (batch, tokens), and attends to the first `view` positions."""
        self._rows, self._slots, self._view = (
            torch.arange(len(slots), device=slots.device)[:, None, None],
            slots,
            view,
        )

    def update(  # type: ignore[override]
        self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (sequences, heads, tokens, width); return what to attend to."""
        if self._stores is None:
            layers, batch, capacity = self.shape
            self._stores = (
                key.new_zeros(layers, batch, key.shape[1], capacity, key.shape[3]),
                value.new_zeros(layers, batch, value.shape[1], capacity, value.shape[3]),
            )
            self._heads = torch.arange(key.shape[1], device=key.device)[:, None]
        keys, values = self._stores[0][layer_idx], self._stores[1][layer_idx]
        assert self._rows is not None, "fill() or place() first"
        if self._slots is None:
            keys[self._rows, :, : key.shape[2]] = key
            values[self._rows, :, : value.shape[2]] = value
            return key, value
        at = (self._rows, self._heads, self._slots[:, None])
        keys.index_put_(at, key)
        values.index_put_(at, value)
        return keys[:, :, : self._view], values[:, :, : self._view]

    def compact(self, lengths: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path to the end of each sequence, in all layers at once.

        Args:
            lengths: int64 (batch,), committed tokens before the step.
            path: int64 (batch, steps), node of each path position, the root (0) first.
        """
        assert self._stores is not None, "nothing was verified yet"
        source = (lengths[:, None] + path)[:, None]
        goal = (lengths[:, None] + torch.arange(path.shape[1], device=path.device))[:, None]
        layers = torch.arange(self.shape[0], device=path.device)[:, None, None, None]
        rows = torch.arange(self.shape[1], device=path.device)[:, None, None]
        for store in self._stores:
            store.index_put_((layers, rows, self._heads, goal), store[layers, rows, self._heads, source])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions and masks are explicit, the model must not derive them from the cache."""
        return 0
