"""Which drafted tokens are kept. A rule says what the target emits at every node; the walk follows it.

Both rules are lossless: `greedy` emits the target's argmax, `sample_and_match` a sample of its distribution at
each node, and a drafted token is kept when it equals what its parent emitted, whatever proposed it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.topology import Topology
from treeopt.errors import UsageError

# Logits (batch, nodes + 1, vocabulary) -> the token that the target emits at each node, int64 (batch, nodes + 1).
Rule = Callable[[Tensor], Tensor]


def greedy(logits: Tensor) -> Tensor:
    """The most probable token at every node; of equals the first."""
    return logits.argmax(-1)


def sample_and_match(*, temperature: float, generator: torch.Generator) -> Rule:
    """A rule that samples softmax(logits / temperature) at every node, by the Gumbel-max trick.

    Raises:
        UsageError: the temperature is not positive.
    """
    if not temperature > 0:
        raise UsageError(f"temperature must be positive to sample, got {temperature}")

    def emit(logits: Tensor) -> Tensor:
        noise = torch.empty(logits.shape, dtype=torch.float64, device=logits.device).exponential_(generator=generator)
        return (logits.double() / temperature - noise.log()).argmax(-1)

    return emit


@dataclass(frozen=True)
class Accepted:
    """The outcome of a step, in tensors of the batch.

    Attributes:
        count: int64 (batch,), drafted tokens kept.
        path: int64 (batch, depth + 1), nodes of the kept path, the root first; entries beyond `count` repeat.
        emitted: int64 (batch, depth + 1), tokens committed: kept ones, then the bonus at `count`; beyond it no meaning.
    """

    count: Tensor
    path: Tensor
    emitted: Tensor


def follow(tokens: Tensor, emitted: Tensor, topology: Topology) -> Accepted:
    """The longest path on which every drafted token is what its parent emitted.

    Args:
        tokens: int64 (batch, nodes + 1), the root first.
        emitted: int64 (batch, nodes + 1), what the rule emits at each node.
        topology: the tree. Siblings hold distinct tokens, so the path is unique.
    """
    match = tokens == emitted[:, topology.parent]
    match[:, 0] = True
    kept = ~(topology.ancestors & ~match[:, None]).any(-1)
    score = torch.where(kept, topology.depth, -1)
    count, best = score.max(1)
    path = topology.path[best]
    return Accepted(count, path, emitted.gather(1, path))
