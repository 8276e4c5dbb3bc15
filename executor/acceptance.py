"""Which drafted tokens are kept. A rule draws candidates from the drafter's scores and judges them by the target's.

`Greedy` and `SampleAndMatch` say what the target emits at every node, and keep a drafted token when it equals
what its parent emitted, whatever proposed it: both are lossless.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from executor.topology import Draft
from treeopt.errors import UsageError
from treeopt.tree import Tree


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


class Rule(Protocol):
    """How siblings are drawn and how they are verified. Draws and verdicts use one generator and one pipeline."""

    @property
    def needs_scores(self) -> bool:
        """`Draft.scores` must be there."""

    @property
    def sampled_candidates(self) -> bool:
        """Candidates are drawn at random; which of them are in the tree may not depend on them."""

    def check(self, tree: Tree) -> None:
        """Raise ExecutorError when the rule cannot verify this tree."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Children of fed nodes by rank, int64 (..., width), from the drafter's scores (..., vocabulary)."""

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """The verdict, given the target's logits (batch, count, vocabulary) at every node."""


@dataclass(frozen=True)
class Greedy:
    """The target's argmax, the first of equals."""

    needs_scores = False
    sampled_candidates = False

    def check(self, tree: Tree) -> None:
        """Any tree."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """The best `width`, best first."""
        return scores.topk(width, dim=-1).indices

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """The longest path on which every token is the argmax at its parent."""
        return follow(draft, logits.argmax(-1))


@dataclass(frozen=True)
class SampleAndMatch:
    """A sample of softmax(logits / temperature) at every node, by the Gumbel-max trick."""

    temperature: float
    generator: torch.Generator
    needs_scores = False
    sampled_candidates = False

    def check(self, tree: Tree) -> None:
        """Any tree."""

    def __post_init__(self) -> None:
        """Check the temperature."""
        if not self.temperature > 0:
            raise UsageError(f"temperature must be positive to sample, got {self.temperature}")

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """The best `width`, best first."""
        return scores.topk(width, dim=-1).indices

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """The longest path on which every token is the sample at its parent."""
        noise = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
        noise.exponential_(generator=self.generator)
        return follow(draft, (logits.double() / self.temperature - noise.log()).argmax(-1))


def follow(draft: Draft, emitted: Tensor) -> Accepted:
    """The longest path on which every drafted token is what its parent emitted.

    Args:
        draft: the trees. Siblings hold distinct tokens, so the path is unique.
        emitted: int64 (batch, count), what the rule emits at each node.
    """
    batch = len(emitted)
    topology = draft.topology.expand(batch)
    match = draft.tokens == emitted.gather(1, topology.parent)
    if topology.present is not None:
        match &= topology.present
    match[:, 0] = True
    kept = ~(topology.ancestors & ~match[:, None]).any(-1)
    count, best = torch.where(kept, topology.depth, -1).max(1)
    path = topology.path[torch.arange(batch, device=best.device), best]
    return Accepted(count, path, emitted.gather(1, path))
