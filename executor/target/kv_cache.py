"""The key/value cache: preallocated, for ragged batches; the accepted path of a tree is moved into place.

Row s of a sequence is position s. Sequences are padded on the right only; rows beyond a sequence's length are garbage
that masks hide. Layers of one shape share a store. Recurrent layers have one state per sequence, which nothing hides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from executor.device import to_device
from treeopt.errors import ExecutorError

# A state of a recurrent layer: "conv" or "recurrent", the layer, its number among the layer's states of that kind.
StateName = tuple[str, int, int]


@dataclass(frozen=True)
class Layout:
    """The cache entries of one token: `layers` times `heads` keys and values, which may differ in width.

    Attributes:
        numbers: of these layers in the model; () for 0, 1, ...
        others: layers of other shapes.
        states: states of recurrent layers, with their shape for one sequence and their type.
    """

    layers: int
    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    numbers: tuple[int, ...] = ()
    others: tuple["Layout", ...] = ()
    states: tuple[tuple[StateName, tuple[int, ...], torch.dtype], ...] = ()

    def bytes(self, batch: int, capacity: int) -> int:
        """Return the bytes for `batch` sequences of `capacity` tokens; states count twice, see `TreeCache.keep`.

        >>> Layout(32, 8, 128, 128, torch.bfloat16).bytes(batch=1, capacity=1)  # Llama 3.1 8B
        131072
        """
        entry = self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize
        others = sum(other.bytes(batch, capacity) for other in self.others)
        states = sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in self.states)
        return entry * batch * capacity + others + 2 * batch * states


class _Probe(Cache):
    """Stores nothing; records the shapes that one forward would write."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.seen: dict[int, tuple[int, int, int, torch.dtype]] = {}
        self.states: dict[StateName, tuple[tuple[int, ...], torch.dtype]] = {}

    def layout(self) -> Layout:
        """Return what was recorded; there is at least one layer with keys."""
        first, *others = (
            (shape, tuple(number for number, seen in sorted(self.seen.items()) if seen == shape))
            for shape in dict.fromkeys(shape for _, shape in sorted(self.seen.items()))
        )
        return Layout(
            len(first[1]),
            *first[0],
            () if first[1] == tuple(range(len(first[1]))) else first[1],
            tuple(Layout(len(numbers), *shape, numbers) for shape, numbers in others),
            tuple((name, *state) for name, state in self.states.items()),
        )

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    get_recurrent_state = get_conv_state

    def is_recording_past(self, layer_idx: int) -> bool:
        return True

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        shape = (*conv_states.shape[1:-1], conv_kernel_size or conv_states.shape[-1])
        self.states["conv", layer_idx, state_idx] = shape, conv_states.dtype
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.states["recurrent", layer_idx, state_idx] = tuple(recurrent_states.shape[1:]), recurrent_states.dtype
        return recurrent_states

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
        ExecutorError: no layer has keys, or the decoder's output is not the input of the LM head.
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
    elif not probe.seen:
        reason = "no layer writes keys"
    if reason is not None:
        raise ExecutorError(f"{model.config.model_type} models cannot verify trees: {reason}")
    return probe.layout()


class TreeCache(Cache):
    """Keys and values of `batch` sequences, each one tensor (layers, batch, heads, capacity, width) per layer shape.

    After those, `stores` holds the states of recurrent layers, each (batch, ...), and as many copies of them.
    `columns` counts 0, 1, ..., capacity; the next forward attends to the first `view`. A cache owns its memory until
    `succeed` or `release` takes it away.
    """

    def __init__(
        self, layout: Layout, batch: int, capacity: int, device: torch.device, stores: tuple[Tensor, ...] = ()
    ) -> None:
        """Make room for `batch` sequences of `capacity` tokens, in new memory or in `stores`."""
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.layout, self.batch, self.capacity, self.device = layout, batch, capacity, device
        shapes = (layout, *layout.others)
        self.stores = stores or (
            *(
                torch.zeros(shape.layers, batch, shape.heads, capacity, width, dtype=shape.dtype, device=device)
                for shape in shapes
                for width in (shape.key_width, shape.value_width)
            ),
            *(torch.zeros(batch, *shape, dtype=dtype, device=device) for _, shape, dtype in layout.states * 2),
        )
        self.columns = torch.arange(capacity + 1, device=device)
        self._places = {
            number: (index, place)
            for index, shape in enumerate(shapes)
            for place, number in enumerate(shape.numbers or range(shape.layers))
        }
        self._states = {name: number for number, (name, *_) in enumerate(layout.states, 2 * len(shapes))}
        self._layers = torch.arange(max(shape.layers for shape in shapes), device=device)[:, None, None, None]
        self._batch = torch.arange(batch, device=device)[:, None, None]
        self._heads = [torch.arange(shape.heads, device=device)[:, None] for shape in shapes]
        self._lines = [  # where each begins
            torch.arange(shape.layers * batch * shape.heads, device=device).view(shape.layers, batch, shape.heads, 1)
            * capacity
            for shape in shapes
        ]
        self._rows: Tensor | None = None
        self._fed: dict[StateName, Tensor] = {}
        self._start = 0
        self._slots: Tensor | None = None
        self.view = capacity

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
        self._start, self._slots, self.view = start, None, view

    def place(self, slots: Tensor, view: int, rows: Tensor | None = None) -> None:
        """Make the next forward write at `slots`, int64 (batch, tokens), and attend to the first `view` positions.

        With `rows`, int64 (r,), only these sequences are fed, at `slots` (r, tokens).
        """
        self._slots, self.view, self._rows = slots, view, rows

    def update(  # type: ignore[override]
        self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (sequences, heads, tokens, width); return those to attend to."""
        shape, place = self._places[layer_idx]
        keys, values = self.stores[2 * shape : 2 * shape + 2]
        if self._slots is None:
            return self._prefilled(keys[place], key), self._prefilled(values[place], value)
        # Indices of all four dimensions: written through a chain of views, inductor would copy the whole cache.
        batch = self._batch if self._rows is None else self._rows[:, None, None]
        at = (self._layers[place], batch, self._heads[shape], self._slots[:, None])
        keys.index_put_(at, key)
        values.index_put_(at, value)
        if self._rows is not None:
            return keys[place, self._rows, :, : self.view], values[place, self._rows, :, : self.view]
        return keys[place, :, :, : self.view], values[place, :, :, : self.view]

    def _prefilled(self, store: Tensor, new: Tensor) -> Tensor:
        end = self._start + new.shape[2]
        if self._rows is None:
            store[:, :, self._start : end] = new
            return store[:, :, : self.view] if self._start else new
        store[self._rows, :, self._start : end] = new
        return store[self._rows, :, : self.view] if self._start else new

    def compact(self, lengths: Tensor, path: Tensor) -> None:
        """Move the entries of an accepted path to the end of each sequence, in all layers at once.

        Args:
            lengths: int64 (batch,), committed tokens before the step.
            path: int64 (batch, steps), node of each path position, the root (0) first.
        """
        start = lengths[:, None]
        for shape, lines in enumerate(self._lines):
            source = (lines + (start + path)[:, None]).flatten()
            goal = (lines + (start + self.columns[: path.shape[1]])[:, None]).flatten()
            for store in self.stores[2 * shape : 2 * shape + 2]:
                entries = store.flatten(0, 3)
                entries.index_copy_(0, goal, entries.index_select(0, source))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions and masks are explicit, the model must not derive them from the cache."""
        return 0

    # --- states of recurrent layers

    def restart(self, rows: Sequence[int]) -> None:
        """Set the states of these rows to those before a text."""
        for number in self._states.values():
            self.stores[number].index_fill_(0, to_device(list(rows), self.device), 0)

    def keep(self) -> None:
        """Copy all states, for `rewind`."""
        for number in self._states.values():
            self.stores[number + len(self._states)].copy_(self.stores[number])

    def rewind(self, rows: Tensor) -> None:
        """Set the states of these rows to those that `keep` copied."""
        for number in self._states.values():
            self.stores[number].index_copy_(0, rows, self.stores[number + len(self._states)][rows])

    def write_back(self) -> None:
        """Write the states of the rows that were fed, of which models change a copy; call it after such a forward."""
        for name, state in self._fed.items():
            self.stores[self._states[name]].index_copy_(0, cast(Tensor, self._rows), state)
        self._fed = {}

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return False: inputs of convolutions are dropped when no new token needs them."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """Return the last inputs of a convolution, of the rows that are fed."""
        return self._state("conv", layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """Return a layer's state, of the rows that are fed; models may change it in place."""
        return self._state("recurrent", layer_idx, state_idx)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Store a convolution's last inputs; return all inputs that the new tokens need."""
        state = self._state("conv", layer_idx, state_idx)
        inputs = torch.cat([state, conv_states], -1)
        state.copy_(inputs[..., -state.shape[-1] :])
        return inputs

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Store a layer's state."""
        return self._state("recurrent", layer_idx, state_idx).copy_(recurrent_states)

    def _state(self, *name: Any) -> Tensor:
        store = self.stores[self._states[name]]
        if self._rows is None:
            return store
        if name not in self._fed:
            self._fed[name] = store[self._rows]
        return self._fed[name]
