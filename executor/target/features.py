"""Features that drafters read from the target's forward: the input of its LM head, and the inputs of tapped layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from treeopt.errors import ExecutorError

# Layers whose inputs are returned as features; () for the LM head's input, None for no features.
Taps = tuple[int, ...] | None
HEAD = -1  # the LM head as one of several taps


def pick_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """Select from (batch, tokens, ...) the rows int64 (batch, n) of each sequence; None returns all unchanged."""
    return values if rows is None else values[torch.arange(len(rows), device=rows.device)[:, None], rows]


def put_last(stored: Tensor, rows: Tensor, new: Tensor, counts: Tensor) -> None:
    """Set stored[rows] to the entry counts - 1 of each row of `new`, (r, n, width); to zero where the count is 0."""
    stored.index_fill_(0, rows, 0)
    if new.shape[1]:
        stored[rows] = torch.where((counts > 0)[:, None], _last(new, counts), 0)


def keep_last(stored: Tensor, new: Tensor, counts: Tensor) -> None:
    """Set each row of `stored` to the entry counts - 1 of `new`, (batch, n, width); unchanged where the count is 0."""
    stored.copy_(torch.where((counts > 0)[:, None], _last(new, counts), stored))


def _last(new: Tensor, counts: Tensor) -> Tensor:
    return new[torch.arange(len(new), device=new.device), (counts - 1).clamp(min=0)]


class Features:
    """Hooks on a decoder that store the features of its last forward until they are taken."""

    def __init__(self, decoder: nn.Module, layers: int, name: str) -> None:
        """Hook a decoder of `layers` layers; `name` is the model's in errors."""
        self._count, self._name = layers, name  # the decoder holds the hooks: stored here, it would wait for gc
        self._inputs: dict[int, Tensor] = {}
        self._tapped = {HEAD}
        decoder.register_forward_hook(partial(self._keep_output, HEAD))

    def tap(self, decoder: nn.Module, layers: Sequence[int]) -> None:
        """Store the inputs of these decoder layers from now on, numbered as Hugging Face's `hidden_states`.

        Layer 0 reads the embeddings; one past the last stands for the output of the last layer, before the norm.

        Raises:
            ExecutorError: there is no such layer, or the layers cannot be found.
        """
        for layer in set(layers) - self._tapped:
            modules = self._layers(decoder)
            if not 0 <= layer <= len(modules):
                raise ExecutorError(f"{self._name}: layer {layer} does not exist: taps must be in 0..{len(modules)}")
            if layer < len(modules):
                modules[layer].register_forward_pre_hook(partial(self._keep_input, layer), with_kwargs=True)
            else:
                modules[-1].register_forward_hook(partial(self._keep_output, layer))
            self._tapped.add(layer)

    def take(self, taps: Taps) -> Tensor:
        """Return the features, tapped layers side by side: (batch, tokens, width), and drop them here.

        Raises:
            ExecutorError: the decoder did not run.
        """
        if HEAD not in self._inputs:
            raise ExecutorError(f"{self._name}: its decoder does not return the input of the LM head")
        features = torch.cat([self._inputs[layer] for layer in taps], -1) if taps else self._inputs[HEAD]
        self.drop()
        return features

    def drop(self) -> None:
        """Drop the features of the last forward."""
        self._inputs = {}

    def _layers(self, decoder: nn.Module) -> nn.ModuleList:
        for module in decoder.children():
            if isinstance(module, nn.ModuleList) and len(module) == self._count:
                return module
        raise ExecutorError(f"{self._name}: its layers are not in one ModuleList, so they cannot be tapped")

    def _keep_input(self, layer: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._inputs[layer] = args[0] if args else kwargs["hidden_states"]

    def _keep_output(self, layer: int, module: nn.Module, args: Any, output: Any) -> None:
        self._inputs[layer] = output if isinstance(output, Tensor) else output[0]
