"""Typical acceptance (Cai et al. 2024, Medusa, §2.3.1), p(x) > min(epsilon, delta exp(-H(p))): it is NOT lossless."""

from dataclasses import dataclass

import torch
from torch import Tensor

from executor.verification.acceptance_rules import Accepted, best_of, cut_off, deepest, rows
from executor.verification.sampling_rules import Siblings
from executor.verification.temperature_top_k_top_p import Warp
from executor.verification.tree_tensors import Draft, Topology
from treeopt.errors import UsageError
from treeopt.tree import Tree


@dataclass(frozen=True)
class Typical:
    """LOSSY: accept the longest path of tokens that are typical for the target.

    A token is typical if p(x) > min(epsilon, delta exp(-H(p))), where H is the entropy of p in nats, with Medusa's
    1e-5 inside the logarithm. Among paths of equal length the likeliest is accepted, and the bonus is the target's
    argmax: the text does not have the target's distribution.
    """

    warp: Warp
    epsilon: float = 0.09
    delta: float = 0.3
    lossless = False
    needs_scores = False
    sampled_candidates = False

    def __post_init__(self) -> None:
        """Raise UsageError, naming the field, if a value is out of range."""
        for field in ("epsilon", "delta"):
            if not 0 < getattr(self, field) <= 1:
                raise UsageError(f"{field} must be in (0, 1], got {getattr(self, field)}")

    def check(self, tree: Tree) -> None:
        """Accept any tree."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Return the best `width` tokens, best first."""
        return scores.topk(width, dim=-1).indices

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Accept the longest path of typical tokens."""
        topology = draft.topology.expand(len(logits))
        missed, weight = self._atypical_entries(logits, draft, topology)
        count, path = deepest(topology, missed, weight)
        return Accepted.of(draft, count, path, best_of(rows(logits, path[:, -1:])))

    def kept(self, logits: Tensor, draft: Draft) -> Tensor:
        """Mark the nodes of a static tree that are typical and have only typical ancestors: bool (batch, count).

        The root is always marked.
        """
        topology = draft.topology.expand(len(logits))
        missed, _ = self._atypical_entries(logits, draft, topology)
        return ~cut_off(topology, missed)

    def _atypical_entries(self, logits: Tensor, draft: Draft, topology: Topology) -> tuple[Tensor, Tensor]:
        """Return the entries that are not typical, bool (batch, count), and log p of the drafted ones.

        The root is always typical.
        """
        siblings = Siblings.of(draft, topology.inner)
        log_p = self.warp.log_probabilities(rows(logits, topology.inner))
        p = log_p.exp()
        entropy = -(p * (p + 1e-5).log()).sum(-1, keepdim=True)
        threshold = (self.delta * torch.exp(-entropy)).clamp(max=self.epsilon)
        typical = siblings.there & (p.gather(-1, siblings.tokens) > threshold)
        # From children by rank to entries; an absent child writes to the root, whose value is never read.
        entries, blank = siblings.entries.flatten(1), torch.zeros_like(log_p[:, :1, 0]).expand(-1, topology.count)
        weight = blank.scatter(1, entries, log_p.gather(-1, siblings.tokens).flatten(1))
        match = blank.bool().scatter(1, entries, typical.flatten(1))
        return ~match, weight
