"""From tensors to a drafter's module, and back: which parameter has which name in a file."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from executor.checkpoints.tensors.lazy_tensors import Stored

M = TypeVar("M", bound=nn.Module)
LAYER, STORED_LAYER = "layer.", "layers.0."


def filled(
    make: Callable[[], M],
    stored: Stored,
    name_of: Callable[[str], str],
    *,
    ignored: Iterable[str] = (),
    zero: Collection[str] = (),
    given: Mapping[str, Tensor] | None = None,
) -> M:
    """The module that `make` returns, with its parameters read; no memory is taken before all of them fit.

    Args:
        make: called twice, the first time only for the shapes.
        stored: where the tensors are.
        name_of: name of a parameter -> name in `stored`.
        ignored: names that may be there and are not read.
        zero: names that, if they are not there, stand for zeros.
        given: what stands in the place of names that are not there.

    Raises:
        ExecutorError: names the tensors that do not fit.
    """
    with torch.device("meta"):
        wanted = {name_of(name): tuple(value.shape) for name, value in make().named_parameters()}
    given = dict(given or {}) | {name: torch.zeros(()) for name in zero}
    absent = {name for name in given if name not in stored.entries}
    stored.fit({name: shape for name, shape in wanted.items() if name not in absent}, ignored=ignored)
    module = make()
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(given[name_of(name)] if name_of(name) in absent else stored.read(name_of(name)))
    return module


def named(module: nn.Module, name_of: Callable[[str], str]) -> dict[str, Tensor]:
    """Parameters under their names in a file."""
    return {name_of(name): value for name, value in module.named_parameters()}


def layer_name(name: str) -> str:
    """A parameter of the one decoder layer, as Hugging Face's models call it; others keep their names.

    >>> layer_name("layer.mlp.up_proj.weight"), layer_name("fc.weight")
    ('layers.0.mlp.up_proj.weight', 'fc.weight')
    """
    return STORED_LAYER + name.removeprefix(LAYER) if name.startswith(LAYER) else name
