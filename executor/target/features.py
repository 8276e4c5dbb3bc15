"""What a model's forward leaves for drafters: the input of its LM head, and that of any of its layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from treeopt.errors import ExecutorError

Taps = tuple[int, ...] | None  # layers whose inputs are wanted as features; () for the LM head's, None for no features
HEAD = -1  # the LM head as one of several taps


def picked(values: Tensor, rows: Tensor | None) -> Tensor:
    """Of (batch, tokens, ...) the rows int64 (batch, n) of each sequence; None: all, as they are."""
    return values if rows is None else values[torch.arange(len(rows), device=rows.device)[:, None], rows]


def put_last(held: Tensor, rows: Tensor, found: Tensor, counts: Tensor) -> None:
    """Set held[rows] to row counts - 1 of each of `found`, (r, n, width); to zero where that counts none."""
    held.index_fill_(0, rows, 0)
    if found.shape[1]:
        held[rows] = torch.where((counts > 0)[:, None], _last(found, counts), 0)


def keep_last(held: Tensor, found: Tensor, counts: Tensor) -> None:
    """Set each row of `held` to row counts - 1 of `found`, (batch, n, width); it stays where that counts none."""
    held.copy_(torch.where((counts > 0)[:, None], _last(found, counts), held))


def _last(found: Tensor, counts: Tensor) -> Tensor:
    return found[torch.arange(len(found), device=found.device), (counts - 1).clamp(min=0)]


class Features:
    """Hooks on a decoder, which keep what its last forward passed until it is taken."""

    def __init__(self, decoder: nn.Module, layers: int, name: str) -> None:
        """Of a decoder with so many layers; `name` is the model's in errors."""
        self._count, self._name = layers, name  # not the decoder, which holds the hooks: its memory would wait for gc
        self._inputs: dict[int, Tensor] = {}
        self._tapped = {HEAD}
        decoder.register_forward_hook(partial(self._keep_output, HEAD))

    def tap(self, decoder: nn.Module, layers: Sequence[int]) -> None:
        """From now on keep what these layers of the decoder are given, as Hugging Face's `hidden_states` counts them.

        Layer 0 is given the embeddings; one past the last stands for what the last layer puts out, before the norm.

        Raises:
            ExecutorError: there is no such layer, or the layers cannot be found.
        """
        for layer in set(layers) - self._tapped:
            modules = self._layers(decoder)
            if not 0 <= layer <= len(modules):
                raise ExecutorError(f"{self._name}: layer {layer} is to be read, there are 0 to {len(modules)}")
            if layer < len(modules):
                modules[layer].register_forward_pre_hook(partial(self._keep_input, layer), with_kwargs=True)
            else:
                modules[-1].register_forward_hook(partial(self._keep_output, layer))
            self._tapped.add(layer)

    def take(self, taps: Taps) -> Tensor:
        """The features that are wanted, tapped layers side by side: (batch, tokens, width); nothing is kept.

        Raises:
            ExecutorError: the decoder did not run.
        """
        if HEAD not in self._inputs:
            raise ExecutorError(f"{self._name}: its decoder does not return the input of the LM head")
        found = torch.cat([self._inputs[layer] for layer in taps], -1) if taps else self._inputs[HEAD]
        self.drop()
        return found

    def drop(self) -> None:
        """Keep nothing of the last forward."""
        self._inputs = {}

    def _layers(self, decoder: nn.Module) -> nn.ModuleList:
        for module in decoder.children():
            if isinstance(module, nn.ModuleList) and len(module) == self._count:
                return module
        raise ExecutorError(f"{self._name}: its layers are not a list that could be read from")

    def _keep_input(self, layer: int, module: nn.Module, args: Any, words: Any) -> None:
        self._inputs[layer] = args[0] if args else words["hidden_states"]

    def _keep_output(self, layer: int, module: nn.Module, args: Any, output: Any) -> None:
        self._inputs[layer] = output if isinstance(output, Tensor) else output[0]
