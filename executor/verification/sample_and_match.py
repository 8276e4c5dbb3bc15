"""Rules for candidates of any origin: sample the target and match, and EAGLE-2's point masses. Both are lossless.

They need only the drafted tokens, not the drafter's probabilities.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from executor.verification.acceptance_probabilities import CoinRule, Siblings, or_else
from executor.verification.acceptance_rules import rows
from executor.verification.tree_tensors import Draft


@dataclass(frozen=True)
class SampleAndMatch(CoinRule):
    """Accept the path that a sample of the target takes, for distinct siblings of any origin.

    Sampling at every node and following the sample is equivalent to one coin per node that lands in a child's part of
    the target's mass or beyond; a token is sampled only where the walk ends, from the mass outside the children.
    """

    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """Return p of the children's tokens."""
        inner = draft.topology.expand(len(logits)).inner
        siblings = Siblings.of(draft, inner)
        p = self.warp.log_probabilities(rows(logits, inner)).gather(-1, siblings.tokens).exp()
        return torch.where(siblings.there, p, 0)

    def residual(self, logits: Tensor, draft: Draft, last: Tensor) -> Tensor:
        """Return p with 0 at the children's tokens."""
        nodes = last[:, None]
        p = self.warp.log_probabilities(rows(logits, nodes).double()).exp()
        return or_else(Siblings.of(draft, nodes).without(p), p)[:, 0]


@dataclass(frozen=True)
class PointMass(SampleAndMatch):
    """Try deterministic candidates in turn: r <= p(x_i), else p(x_i) <- 0 and renormalise (EAGLE-2, EAGLE-3).

    After i - 1 rejections the remaining p is divided by its mass, so child i is accepted with overall probability
    p(x_i), as by `SampleAndMatch`; a token that an earlier sibling holds has no mass left.
    """

    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """Return p of the children's tokens, each token counted once."""
        inner = draft.topology.expand(len(logits)).inner
        return torch.where(Siblings.of(draft, inner).repeated, 0, super().shares(logits, draft))
