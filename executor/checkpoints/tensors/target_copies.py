"""Copies of the target's embeddings and LM head that checkpoints carry: whether they are copies."""

import torch
from torch import Tensor

from executor.target.target_model import Target
from executor.target.tensor_parallel import whole
from treeopt.errors import ExecutorError

ROWS = 4096  # compared at once
# Half precision rounds by up to 2**-8 (bfloat16) either way; below 2**-14 float16 has fewer digits.
RELATIVE, ABSOLUTE = 2**-7, 2**-14


def is_head(values: Tensor, target: Target) -> bool:
    """Whether this is the weight of the target's LM head, (vocabulary, hidden), up to rounding to half precision."""
    return _equal(values, target.head.weight)


def is_embedding(values: Tensor, target: Target) -> bool:
    """Whether this is what the target's input embeddings give, (vocabulary, hidden), up to rounding."""
    return _equal(values, _embedding(target))


def head_of(target: Target | None, layout: str) -> Tensor:
    """The weight of the target's LM head, which the layout holds a copy of.

    Raises:
        ExecutorError: no target was given.
    """
    if target is None:
        raise ExecutorError(f"{layout} holds the target's LM head: the target must be given")
    weight = target.head.weight
    assert isinstance(weight, Tensor)
    return whole(weight)


def embedding_of(target: Target | None, layout: str) -> Tensor:
    """The target's input embeddings, which the layout holds a copy of.

    Raises:
        ExecutorError: no target was given.
    """
    if target is None:
        raise ExecutorError(f"{layout} holds the target's embeddings: the target must be given")
    return _embedding(target)


@torch.no_grad()
def _embedding(target: Target) -> Tensor:
    """What a look-up gives for every token: Gemma's is its table times the square root of the width."""
    weight = target.model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    table = whole(weight)
    some = torch.arange(min(16, len(table)), device=target.device)
    found, held = target.embed(some).double(), table[: len(some)].double().to(target.device)
    factor = float((found * held).sum() / held.square().sum().clamp(min=1e-30))
    return table if not factor or abs(factor - 1) < 2**-6 else table * factor


def _equal(values: Tensor, weight: Tensor | torch.nn.Module) -> bool:
    assert isinstance(weight, Tensor)
    held = whole(weight)
    return held.shape == values.shape and all(
        torch.allclose(a.float(), b.cpu().float(), rtol=RELATIVE, atol=ABSOLUTE)
        for a, b in zip(values.split(ROWS), held.split(ROWS), strict=True)
    )
