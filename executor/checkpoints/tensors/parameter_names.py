"""Parameter names: fill a drafter's module from the tensors of a file, and name its parameters for a file."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from executor.checkpoints.tensors.lazy_tensors import Stored

M = TypeVar("M", bound=nn.Module)
LAYER, DEEPER, STORED_LAYER = "layer.", "deeper.", "layers.0."


def fill_module(
    make: Callable[[], M],
    stored: Stored,
    name_of: Callable[[str], str],
    *,
    ignored: Iterable[str] = (),
    zero: Collection[str] = (),
    given: Mapping[str, Tensor] | None = None,
) -> M:
    """Return the module that `make` makes, with its parameters read; allocates nothing before all of them fit.

    Args:
        make: called twice, the first time only for the shapes.
        stored: the tensors.
        name_of: name of a parameter -> name in `stored`.
        ignored: names that may be present and are not read.
        zero: names that are zeros if they are absent.
        given: values for names that are absent.

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
    """Return the parameters under their names in a file."""
    return {name_of(name): value for name, value in module.named_parameters()}


def layer_name(name: str) -> str:
    """Return a layer parameter's name as Hugging Face's models call it; other names are unchanged.

    >>> layer_name("layer.mlp.up_proj.weight"), layer_name("fc.weight")
    ('layers.0.mlp.up_proj.weight', 'fc.weight')
    >>> layer_name("deeper.0.mlp.up_proj.weight")
    'layers.1.mlp.up_proj.weight'
    """
    if name.startswith(DEEPER):
        _, number, rest = name.split(".", 2)
        return f"layers.{int(number) + 1}.{rest}"
    return STORED_LAYER + name.removeprefix(LAYER) if name.startswith(LAYER) else name
