"""Sampling rules, from acceptance probabilities to a verdict: sample and match, point masses, and the base of all.

A sampling rule is defined by two functions. `shares`: at a node that is reached, the probability that the walk
continues to each of its children. `residual`: the distribution of the bonus token at the node where the walk ends.
One coin per node decides between its children, whose shares lie side by side in [0, 1); a coin beyond them ends the
walk.

The two need only the drafted tokens, of any origin, and not the drafter's probabilities; both are lossless.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from executor.verification.acceptance_rules import Accepted, deepest, rows
from executor.verification.temperature_top_k_top_p import Warp, pick
from executor.verification.tree_tensors import Draft
from treeopt.tree import Tree


@dataclass(frozen=True, eq=False)
class Siblings:
    """The children of some nodes, by rank.

    Attributes:
        entries: int64 (batch, nodes, width), 0 for an absent child.
        tokens: int64 (batch, nodes, width), meaningless for an absent child.
        there: bool (batch, nodes, width), True for the children that exist; they come first.
    """

    entries: Tensor
    tokens: Tensor
    there: Tensor

    @classmethod
    def of(cls, draft: Draft, nodes: Tensor) -> "Siblings":
        """Return the children of `nodes`, int64 (batch, nodes)."""
        batch = len(draft.tokens)
        entries = rows(draft.topology.expand(batch).children, nodes)
        tokens = draft.tokens.gather(1, entries.flatten(1)).view_as(entries)
        return cls(entries, tokens, entries != 0)

    @property
    def repeated(self) -> Tensor:
        """Marks tokens that an earlier sibling holds: bool (batch, nodes, width)."""
        same = (self.tokens[..., :, None] == self.tokens[..., None, :]) & self.there[..., None, :]
        return same.tril(-1).any(-1)

    def without(self, weights: Tensor) -> Tensor:
        """Return the weights, (batch, nodes, vocabulary), with 0 at the children's tokens."""
        first = self.there[..., :1]  # where there is a child, absent ones stand for the first
        tokens = torch.where(self.there, self.tokens, self.tokens[..., :1])
        return weights.scatter(-1, tokens, torch.where(first, 0, weights.gather(-1, tokens)))


@dataclass(frozen=True)
class CoinRule(ABC):
    """A rule defined by its acceptance probabilities; `Warp` is the same for target, drafter and bonus.

    Attributes:
        warp: temperature, top-k, top-p.
        generator: the only source of randomness, on the device of the logits.
    """

    warp: Warp
    generator: torch.Generator
    lossless = True
    needs_scores = False
    sampled_candidates = False

    @abstractmethod
    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """Return P(the walk continues to this child | it is at its parent), (batch, inner, width), for
        `topology.inner`.
        """

    @abstractmethod
    def residual(self, logits: Tensor, draft: Draft, last: Tensor) -> Tensor:
        """Return weights of the bonus token, float64 (batch, vocabulary) with any sum, if the walk ends at `last`,
        int64 (batch,).
        """

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Return the best `width` tokens, best first."""
        return scores.topk(width, dim=-1).indices

    def check(self, tree: Tree) -> None:  # noqa: B027
        """Accept any tree; rules that cannot verify every tree override this."""

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Draw a verdict with these probabilities."""
        batch, device = len(draft.tokens), logits.device
        shares = self.shares(logits, draft)
        coins = torch.rand(shares.shape[:2], dtype=torch.float64, device=device, generator=self.generator)
        count, path = toss(draft, shares, coins)
        ends = torch.rand((batch, 1), dtype=torch.float64, device=device, generator=self.generator)
        return Accepted.of(draft, count, path, pick(self.residual(logits, draft, path[:, -1]), ends))


def toss(draft: Draft, shares: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the path that the coins take: `count` and `path` of `Accepted`.

    Args:
        draft: the trees.
        shares: (batch, inner, width), see `CoinRule.shares`.
        coins: float64 (batch, inner), uniform in [0, 1).
    """
    topology = draft.topology.expand(len(coins))
    edges = shares.double().cumsum(-1)
    rank = (coins[..., None] >= edges).sum(-1, keepdim=True)
    entries = rows(topology.children, topology.inner)
    entry = F.pad(entries, (0, 1)).gather(-1, rank)[..., 0]  # 0 when the coin lies beyond
    missed = torch.ones_like(draft.tokens, dtype=torch.bool).scatter(1, entry, False)
    return deepest(topology, missed)


def or_else(weights: Tensor, spare: Tensor) -> Tensor:
    """Return the weights, or the spare ones where the weights are all 0."""
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, spare)


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
