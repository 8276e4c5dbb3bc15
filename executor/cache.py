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
    2 * layers * batch * heads * capacity * width elements.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        """Room for `batch` sequences of `capacity` tokens."""
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.batch, self.capacity = batch, capacity
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows: Tensor | None = None
        self._slots: Tensor | None = None
        self._view = capacity

    def fill(self, rows: Tensor) -> None:
        """The next forward is a prefill of these rows, int64 (sequences,), from position 0."""
        self._rows, self._slots = rows, None

    def place(self, slots: Tensor, view: int) -> None:
        """The next forward writes at `slots`, int64 (batch, tokens), and attends to the first `view` positions."""
        self._rows, self._slots, self._view = None, slots, view

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (sequences, heads, tokens, width); return what to attend to."""
        while len(self._keys) <= layer_idx:
            for store, new in ((self._keys, key), (self._values, value)):
                store.append(new.new_zeros(self.batch, new.shape[1], self.capacity, new.shape[3]))
        if self._slots is None:
            assert self._rows is not None, "fill() or place() first"
            self._keys[layer_idx][self._rows, :, : key.shape[2]] = key
            self._values[layer_idx][self._rows, :, : value.shape[2]] = value
            return key, value
        rows = torch.arange(self.batch, device=key.device)[:, None, None]
        heads = torch.arange(key.shape[1], device=key.device)[None, :, None]
        at = (rows, heads, self._slots[:, None])
        self._keys[layer_idx].index_put_(at, key)
        self._values[layer_idx].index_put_(at, value)
        return self._keys[layer_idx][:, :, : self._view], self._values[layer_idx][:, :, : self._view]

    def compact(self, lengths: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path to the end of each sequence.

        Args:
            lengths: int64 (batch,), committed tokens before the step.
            path: int64 (batch, steps), node of each path position, the root (0) first.
        """
        source = (lengths[:, None] + path)[:, None]
        goal = (lengths[:, None] + torch.arange(path.shape[1], device=path.device))[:, None]
        rows = torch.arange(self.batch, device=path.device)[:, None, None]
        for tensor in (*self._keys, *self._values):
            heads = torch.arange(tensor.shape[1], device=path.device)[None, :, None]
            tensor.index_put_((rows, heads, goal), tensor[rows, heads, source])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions and masks are explicit, the model must not derive them from the cache."""
        return 0
