"""From odds to a verdict: which path is kept and which token follows it, whatever rule gave the odds.

Every sampling rule comes down to two things. `shares`: of a node that is reached, the probability that the walk
goes on to each of its children. `residual`: the law of the bonus token at the node where the walk ends. One coin
a node decides between its children, whose shares lie side by side in [0, 1); a coin beyond them ends the walk.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from executor.verification.tree_tensors import Draft, Topology
from executor.verification.warp import Warp, pick
from treeopt.errors import ExecutorError
from treeopt.tree import Tree


@dataclass(frozen=True)
class Accepted:
    """The outcome of a step, in tensors of the batch.

    Attributes:
        count: int64 (batch,), drafted tokens kept.
        path: int64 (batch, depth + 1), nodes of the kept path, the root first; entries beyond `count` repeat.
        emitted: int64 (batch, depth + 1), tokens committed: kept ones, then the bonus at `count` and all beyond it.
    """

    count: Tensor
    path: Tensor
    emitted: Tensor

    @classmethod
    def of(cls, draft: Draft, count: Tensor, path: Tensor, bonus: Tensor) -> "Accepted":
        """The drafted tokens of a path, then the bonus, int64 (batch, 1)."""
        step = torch.arange(path.shape[1], device=path.device)
        kept = draft.tokens.gather(1, path).roll(-1, 1)
        return cls(count, path, torch.where(step < count[:, None], kept, bonus))

    @property
    def last(self) -> Tensor:
        """The node at which the path ends: int64 (batch,)."""
        return self.path[:, -1]


@dataclass(frozen=True, eq=False)
class Siblings:
    """The children of some nodes, by rank.

    Attributes:
        entries: int64 (batch, nodes, width), 0 for none.
        tokens: int64 (batch, nodes, width), without meaning where there is none.
        there: bool (batch, nodes, width), True for the first few.
    """

    entries: Tensor
    tokens: Tensor
    there: Tensor

    @classmethod
    def of(cls, draft: Draft, nodes: Tensor) -> "Siblings":
        """The children of `nodes`, int64 (batch, nodes)."""
        batch = len(draft.tokens)
        entries = rows(draft.topology.expand(batch).children, nodes)
        tokens = draft.tokens.gather(1, entries.flatten(1)).view_as(entries)
        return cls(entries, tokens, entries != 0)

    @property
    def repeated(self) -> Tensor:
        """Which tokens an earlier sibling holds: bool (batch, nodes, width)."""
        same = (self.tokens[..., :, None] == self.tokens[..., None, :]) & self.there[..., None, :]
        return same.tril(-1).any(-1)

    def without(self, weights: Tensor) -> Tensor:
        """The weights, (batch, nodes, vocabulary), 0 at the children's tokens."""
        first = self.there[..., :1]  # where there is a child, absent ones stand for the first
        tokens = torch.where(self.there, self.tokens, self.tokens[..., :1])
        return weights.scatter(-1, tokens, torch.where(first, 0, weights.gather(-1, tokens)))


@dataclass(frozen=True)
class CoinRule(ABC):
    """A rule that is known by its odds; `Warp` is the same for target, drafter and bonus.

    Attributes:
        warp: temperature, top-k, top-p.
        generator: the only source of chance, on the device of the logits.
    """

    warp: Warp
    generator: torch.Generator
    lossless = True
    needs_scores = False
    sampled_candidates = False

    @abstractmethod
    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """P(the walk goes on to this child | it is at its parent), (batch, inner, width), for `topology.inner`."""

    @abstractmethod
    def residual(self, logits: Tensor, draft: Draft, last: Tensor) -> Tensor:
        """Weights of the bonus if the walk ends at `last`, int64 (batch,): float64 (batch, vocabulary), any sum."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """The best `width`, best first."""
        return scores.topk(width, dim=-1).indices

    def check(self, tree: Tree) -> None:  # noqa: B027
        """Any tree will do, unless a rule says otherwise."""

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """A verdict drawn by these odds."""
        batch, device = len(draft.tokens), logits.device
        shares = self.shares(logits, draft)
        coins = torch.rand(shares.shape[:2], dtype=torch.float64, device=device, generator=self.generator)
        count, path = toss(draft, shares, coins)
        ends = torch.rand((batch, 1), dtype=torch.float64, device=device, generator=self.generator)
        return Accepted.of(draft, count, path, pick(self.residual(logits, draft, path[:, -1]), ends))


def toss(draft: Draft, shares: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
    """Where the walk goes: `count` and `path` of `Accepted`.

    Args:
        draft: the trees.
        shares: (batch, inner, width), see `CoinRule.shares`.
        coins: float64 (batch, inner), uniform.
    """
    topology = draft.topology.expand(len(coins))
    edges = shares.double().cumsum(-1)
    rank = (coins[..., None] >= edges).sum(-1, keepdim=True)
    entries = rows(topology.children, topology.inner)
    entry = F.pad(entries, (0, 1)).gather(-1, rank)[..., 0]  # 0 when the coin lies beyond
    missed = torch.ones_like(draft.tokens, dtype=torch.bool).scatter(1, entry, False)
    return deepest(topology, missed)


def follow(draft: Draft, emitted: Tensor) -> Accepted:
    """The longest path on which every drafted token is what its parent emitted.

    Args:
        draft: the trees. Siblings hold distinct tokens, so the path is unique.
        emitted: int64 (batch, count), what the rule emits at each node.
    """
    above = emitted.gather(1, draft.topology.parent.expand_as(emitted))
    count, path = deepest(draft.topology, draft.tokens != above)
    return Accepted(count, path, emitted.gather(1, path))


def deepest(topology: Topology, missed: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The longest path of nodes that match: its length, int64 (batch,), and its nodes, int64 (batch, depth + 1).

    Args:
        topology: the trees.
        missed: bool (batch, count), nodes that do not match; the root always does, an absent entry never.
        weight: (batch, count) decides between paths of one length, by its sum over their nodes; else the first is
            taken.
    """
    if topology.present is not None:
        missed = missed | ~topology.present
    length = topology.depth.masked_fill(cut_off(topology, missed), -1)
    count, best = length.max(1)
    if weight is not None:
        sums = (topology.below * torch.where(missed, 0, weight)[:, None]).sum(-1)
        best = torch.where(length == count[:, None], sums, -torch.inf).argmax(1)
    return count, topology.path[topology.which, best]


def cut_off(topology: Topology, missed: Tensor) -> Tensor:
    """Which nodes do not match or have an ancestor that does not: bool (batch, count), of the same of nodes alone."""
    return (topology.below & missed[:, None]).any(-1)


def best_of(logits: Tensor) -> Tensor:
    """The largest of each row, the first of equals: (..., vocabulary) -> int64 (...).

    On CPU `argmax` of bf16 numbers takes four times as long (torch 2.13).
    """
    return logits.max(-1).indices


def rows(values: Tensor, nodes: Tensor) -> Tensor:
    """The rows of `nodes`, int64 (batch, k), of (batch, count, n): (batch, k, n)."""
    return values[torch.arange(len(nodes), device=nodes.device)[:, None], nodes]


def or_else(weights: Tensor, spare: Tensor) -> Tensor:
    """The weights, or the spare ones where the weights are all 0."""
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, spare)


def check_chain(tree: Tree) -> None:
    """Refuse siblings.

    Raises:
        ExecutorError: names the first node that has one.
    """
    for node, (parent, above) in enumerate(zip(tree.parents[1:], tree.parents, strict=False), 1):
        if parent == above:
            raise ExecutorError(f"this rule verifies chains, but node {node} of the tree is a sibling of {node - 1}")


def check_ranks(tree: Tree) -> None:
    """Refuse gaps between the ranks of siblings: the tree must hold every draw before the last that it holds.

    Raises:
        ExecutorError: names the first node after a gap.
    """
    before = -1
    for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True)):
        due = tree.ranks[node - 1] + 1 if node and parent == before else 0
        if rank != due:
            raise ExecutorError(
                f"this rule verifies draws in the order in which they were made, so siblings must have ranks 0, 1, "
                f"...; node {node} has rank {rank} where {due} is due"
            )
        before = parent
