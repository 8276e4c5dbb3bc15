"""Multi-round rejection: SpecInfer's rule (siblings drawn with replacement), Sequoia's (without), Leviathan's (chains).

Siblings that were drawn from the drafter's distribution q are tried one after the other; the rules need q, and the
draws in order. They are lossless when the tree was fixed before the draws: a tree that keeps only the draws of high
score is no longer a draw from q.

Block verification (Sun et al. 2024, arXiv 2403.10444) judges a chain of draws as a whole, from its end.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from executor.verification.acceptance_rules import rows
from executor.verification.sampling_rules import CoinRule, Siblings, or_else
from executor.verification.temperature_top_k_top_p import draws
from executor.verification.tree_tensors import Draft
from treeopt.errors import ExecutorError
from treeopt.tree import Tree


@dataclass(frozen=True)
class Rounds(CoinRule):
    """Accept draw i with probability min(1, p_i / q_i); after a rejection p_{i+1} = norm(max(0, p_i - q_i))."""

    needs_scores = True
    sampled_candidates = True
    replacement = True

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Draw from q, one token after the other."""
        weights = self.warp.log_probabilities(scores).exp()
        return draws(weights, width, self.generator, replacement=self.replacement)

    def check(self, tree: Tree) -> None:
        """Refuse a tree that lacks a draw before its last one; see `check_ranks`."""
        check_ranks(tree)

    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """See `rounds`."""
        inner = draft.topology.expand(len(logits)).inner
        p = self.warp.log_probabilities(rows(logits, inner)).exp()
        q = self.warp.log_probabilities(scores_after(draft, inner, logits)).exp()
        return rounds(p, q, Siblings.of(draft, inner), replacement=self.replacement)[0]

    def residual(self, logits: Tensor, draft: Draft, last: Tensor) -> Tensor:
        """Return what the rejected rounds left of p, max(0, p - spent q)."""
        nodes = last[:, None]
        p = self.warp.log_probabilities(rows(logits, nodes).double()).exp()
        q = self.warp.log_probabilities(scores_after(draft, nodes, logits).double()).exp()
        spent = rounds(p, q, Siblings.of(draft, nodes), replacement=self.replacement)[1]
        return or_else((p - spent * q).clamp(min=0), p)[:, 0]


@dataclass(frozen=True)
class SpecInfer(Rounds):
    """Verify siblings that were drawn independently, so some may be equal (Miao et al. 2024, algorithm 2)."""


@dataclass(frozen=True)
class Sequoia(Rounds):
    """Verify siblings that were drawn without replacement (Chen et al. 2024, algorithm 2; EAGLE-1)."""

    replacement = False


def rounds(p: Tensor, q: Tensor, siblings: Siblings, *, replacement: bool) -> tuple[Tensor, Tensor]:
    """Return the acceptance probabilities of siblings tried in turn, without rewriting p and q in each round.

    After i rejections p_i = max(0, p - c_i q) / M_i, where M_i normalises the sum to 1, c_0 = 0, M_0 = 1, and
    c_{i+1} = c_i + M_i / Q_i. Q_i is the mass of q that was not drawn yet; 1 for draws with replacement. (A rejected
    token has p_i < q_i, so nothing of it is left and it need not be struck from p.) Sources: SpecInfer (Miao et al.
    2024, algorithm 2) with replacement; Sequoia (Chen et al. 2024, algorithm 2) without; one sibling is Leviathan
    et al. 2023, algorithm 1.

    A token of probability 0 under q cannot have been drawn: it is skipped and costs nothing. Without replacement the
    same holds for repeated draws and for draws after the last token of q.

    Args:
        p: (batch, nodes, vocabulary), the target's distribution.
        q: the drafter's distribution, same shape.
        siblings: the children of the nodes.
        replacement: True if draws are independent, False if each is from what the earlier ones left.

    Returns:
        P(the walk continues to this child), (batch, nodes, width), and the last c, (batch, nodes, 1).
    """
    one = torch.ones_like(p[..., :1])
    spent, mass, missed, undrawn = torch.zeros_like(one), one, one, one
    left = q
    shares = []
    width = siblings.tokens.shape[-1]
    for turn in range(width):
        token, there = siblings.tokens[..., turn : turn + 1], siblings.there[..., turn : turn + 1]
        chance = left.gather(-1, token)
        valid = there & (chance > 0)
        remaining = (p.gather(-1, token) - spent * q.gather(-1, token)).clamp(min=0) * undrawn
        accepted = torch.where(valid & (remaining > 0), (remaining / (mass * chance)).clamp(max=1), 0)
        shares.append(missed * accepted)
        missed = missed * (1 - accepted)
        spent = torch.where(valid, spent + mass / undrawn, spent)
        if turn < width - 1:
            mass = torch.addcmul(p, spent, q, value=-1).clamp_(min=0).sum(-1, keepdim=True)
            if not replacement:
                left = left.scatter(-1, token, torch.where(there, 0, chance))
                undrawn = left.sum(-1, keepdim=True)
    return torch.cat(shares, -1), spent


def scores_after(draft: Draft, nodes: Tensor, logits: Tensor) -> Tensor:
    """Return the drafter's scores after `nodes`, (batch, nodes, vocabulary); arbitrary for nodes that were not fed.

    Raises:
        ExecutorError: the draft has no scores.
    """
    if draft.scores is None:
        if draft.topology.count == 1:  # the root alone: nothing was drawn, and any distribution will do
            return rows(logits, nodes)
        raise ExecutorError("this rule needs the drafter's scores in the draft, got none")
    fed = draft.fed.expand(len(draft.tokens), -1).gather(1, nodes)
    return rows(draft.scores, fed.clamp(min=0))


@dataclass(frozen=True)
class Leviathan(Rounds):
    """Verify a chain of single draws (Leviathan et al. 2023, algorithm 1; Chen et al. 2023): one sibling per node.

    A token x drawn from q is accepted with probability min(1, p(x) / q(x)); after a rejection the bonus is drawn from
    norm(max(0, p - q)), after the last accepted token from p.
    """

    def check(self, tree: Tree) -> None:
        """Refuse a tree that is not a chain of first draws; see `check_chain` and `check_ranks`."""
        check_chain(tree)
        check_ranks(tree)


def check_chain(tree: Tree) -> None:
    """Raise ExecutorError, naming the first node that is a sibling, if there is one."""
    for node, (parent, above) in enumerate(zip(tree.parents[1:], tree.parents, strict=False), 1):
        if parent == above:
            raise ExecutorError(f"this rule verifies chains, but node {node} of the tree is a sibling of {node - 1}")


def check_ranks(tree: Tree) -> None:
    """Refuse gaps between the ranks of siblings: the tree must hold every draw before its last one.

    Raises:
        ExecutorError: names the first node after a gap.
    """
    before = -1
    for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True)):
        expected = tree.ranks[node - 1] + 1 if node and parent == before else 0
        if rank != expected:
            raise ExecutorError(
                f"this rule verifies draws in the order in which they were made, so siblings must have ranks 0, 1, "
                f"...; node {node} has rank {rank}, expected {expected}"
            )
        before = parent


@dataclass(frozen=True)
class BlockVerification(Leviathan):
    """Judge a chain from its end; on average it accepts at least as many tokens as `Leviathan` (theorem 2).

    With P_0 = 1, P_i = min(1, P_{i-1} p(x_i) / q(x_i)) and S_i = sum max(0, P_i p(. | x^i) - q(. | x^i)), the step
    accepts the longest prefix i that passes with probability h_i = S_i / (S_i + 1 - P_i); h_i = P_i at the chain's end.
    """

    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """Compute P(at least i accepted) = h_i + (1 - h_i) P(at least i + 1 accepted); the shares are its ratios."""
        p, q, siblings, prefix = self._chain(logits, draft)
        there = siblings.there[..., 0]
        excess = (prefix[:, :-1, None] * p - q).clamp(min=0).sum(-1)  # S_0, ..., S_{length - 1}
        # 1 - P first: a small S is lost beside 1, and where P = 1 nothing would be left to divide by.
        nearly = torch.where(excess > 0, excess / (excess + (1 - prefix[:, :-1])), 0)
        after = torch.zeros_like(excess[:, 0])
        reached = [after]
        for i in range(there.shape[1], 0, -1):
            passes = prefix[:, i]
            if i < there.shape[1]:
                passes = torch.where(there[:, i], nearly[:, i], passes)
            after = torch.where(there[:, i - 1], passes + (1 - passes) * after, 0)
            reached.append(after)
        at_least = torch.stack([torch.ones_like(after), *reached[:0:-1]], 1)
        ratio = torch.where(at_least[:, 1:] > 0, at_least[:, 1:] / at_least[:, :-1], 0)
        return F.pad(ratio[..., None], (0, siblings.tokens.shape[-1] - 1))

    def residual(self, logits: Tensor, draft: Draft, last: Tensor) -> Tensor:
        """Return max(0, P_i p - q) inside the chain, p at its end."""
        nodes = last[:, None]
        prefix = self._chain(logits, draft)[3].double().gather(1, nodes)
        p = self.warp.log_probabilities(rows(logits, nodes).double()).exp()
        q = self.warp.log_probabilities(scores_after(draft, nodes, logits).double()).exp()
        inside = Siblings.of(draft, nodes).there[..., :1]
        return torch.where(inside, or_else((prefix[..., None] * p - q).clamp(min=0), p), p)[:, 0]

    def _chain(self, logits: Tensor, draft: Draft) -> tuple[Tensor, Tensor, Siblings, Tensor]:
        """Return p and q of all nodes but the last, their children, and P_0, P_1, ... (batch, inner + 1)."""
        inner = draft.topology.expand(len(logits)).inner
        siblings = Siblings.of(draft, inner)
        p = self.warp.log_probabilities(rows(logits, inner)).exp()
        q = self.warp.log_probabilities(scores_after(draft, inner, logits)).exp()
        chance = q.gather(-1, siblings.tokens)[..., 0]
        ratio = torch.where(chance > 0, p.gather(-1, siblings.tokens)[..., 0] / chance, 0)
        prefix = [torch.ones_like(ratio[:, 0])]
        for step in ratio.unbind(1):
            prefix.append((prefix[-1] * step).clamp(max=1))
        return p, q, siblings, torch.stack(prefix, 1)
