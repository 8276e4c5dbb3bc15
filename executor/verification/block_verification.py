"""Block verification (Sun et al. 2024, arXiv 2403.10444): a chain of draws judged as a whole, from its end."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from executor.verification.acceptance_probabilities import Siblings, or_else
from executor.verification.longest_accepted_path import rows
from executor.verification.multi_round_rejection import Leviathan, scores_after
from executor.verification.tree_tensors import Draft


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
