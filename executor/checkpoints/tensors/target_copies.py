"""Copies of the target's embeddings and LM head in checkpoints: recognise them, and make them."""

import torch
from torch import Tensor

from executor.target.target_model import Target
from executor.target.tensor_parallel import whole
from treeopt.errors import ExecutorError

ROWS = 4096  # compared at once
# Half precision rounds by up to 2**-8 (bfloat16) either way; below 2**-14 float16 has fewer digits.
RELATIVE, ABSOLUTE = 2**-7, 2**-14


def is_head(values: Tensor, target: Target) -> bool:
    """Return whether this is the weight of the target's LM head, (vocabulary, hidden), up to rounding to 16 bits."""
    return _equal(values, target.head.weight)


def is_embedding(values: Tensor, target: Target) -> bool:
    """Return whether these are the target's input embeddings, (vocabulary, hidden), up to rounding."""
    return _equal(values, _embedding(target))


def head_of(target: Target | None, layout: str) -> Tensor:
    """Return the weight of the target's LM head, which the layout holds a copy of.

    Raises:
        ExecutorError: no target was given.
    """
    if target is None:
        raise ExecutorError(f"{layout} holds the target's LM head: the target must be given")
    weight = target.head.weight
    assert isinstance(weight, Tensor)
    return whole(weight)


def embedding_of(target: Target | None, layout: str) -> Tensor:
    """Return the target's input embeddings, which the layout holds a copy of.

    Raises:
        ExecutorError: no target was given.
    """
    if target is None:
        raise ExecutorError(f"{layout} holds the target's embeddings: the target must be given")
    return _embedding(target)


@torch.no_grad()
def _embedding(target: Target) -> Tensor:
    """Return the embedding of every token; Gemma's is its table times the square root of the width."""
    weight = target.model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    table = whole(weight)
    some = torch.arange(min(16, len(table)), device=target.device)
    embedded, plain = target.embed(some).double(), table[: len(some)].double().to(target.device)
    factor = float((embedded * plain).sum() / plain.square().sum().clamp(min=1e-30))
    return table if not factor or abs(factor - 1) < 2**-6 else table * factor


def _equal(values: Tensor, weight: Tensor | torch.nn.Module) -> bool:
    assert isinstance(weight, Tensor)
    full = whole(weight)
    return full.shape == values.shape and all(
        torch.allclose(a.float(), b.cpu().float(), rtol=RELATIVE, atol=ABSOLUTE)
        for a, b in zip(values.split(ROWS), full.split(ROWS), strict=True)
    )
