"""CORAL's router over the LM head (Weng et al. 2025, arXiv 2502.16880, §3.3).

The vocabulary is cut into N consecutive blocks (groups), the router predicts the block of the next token, and only the
blocks that it picks are multiplied.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from executor.target.target_model import Target


class Router(nn.Module):
    """Predicts which of N consecutive blocks of the vocabulary holds the next token.

    p = softmax(W2 (SiLU(W1 h) + h)); CORAL section 3.3 leaves the activation open, SiLU is our choice.
    """

    def __init__(self, hidden: int, groups: int) -> None:
        """Make an untrained router."""
        super().__init__()
        self.w1 = nn.Linear(hidden, hidden)
        self.w2 = nn.Linear(hidden, groups, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities of the groups: (..., hidden) -> float32 (..., N)."""
        return F.log_softmax(self.w2(F.silu(self.w1(hidden)) + hidden), -1, dtype=torch.float32)


def routed_scores(target: Target, guess: Tensor, groups: Tensor, active: int) -> Tensor:
    """Return log p(x) = log p(group) + log-softmax within the group; -inf outside a node's own `active` best groups.

    Only rows of the LM head that belong to some node's groups are multiplied, where the head's weight is plain.

    Args:
        target: whose LM head scores.
        guess: (..., hidden), the inputs of the LM head.
        groups: (..., N), the router's log-probabilities.
        active: groups that a node's candidates may come from.

    Returns:
        float32 (..., vocabulary).
    """
    count = groups.shape[-1]
    size = -(-target.vocabulary // count)
    best = groups.topk(active, -1).indices
    selected = torch.zeros_like(groups).scatter(-1, best, 1.0)
    used = min(count, best.numel())
    weight = target.head.weight
    if used < count and type(weight) is nn.Parameter and weight.is_floating_point():
        computed = selected.flatten(0, -2).amax(0).topk(used).indices
        tokens = (computed[:, None] * size + torch.arange(size, device=guess.device)).flatten()
        bias = getattr(target.head, "bias", None)
        rows = tokens.clamp(max=target.vocabulary - 1)
        logits = target.after_head(F.linear(guess, weight[rows], None if bias is None else bias[rows]))
        logits = logits.masked_fill(tokens >= target.vocabulary, -torch.inf)
    else:
        computed = torch.arange(count, device=guess.device)
        tokens = torch.arange(count * size, device=guess.device)
        logits = F.pad(target.scored(guess), (0, count * size - target.vocabulary), value=-torch.inf)
    inside = logits.unflatten(-1, (-1, size)).log_softmax(-1, dtype=torch.float32)
    chosen = groups.masked_fill(selected == 0, -torch.inf)[..., computed]
    scores = (inside + chosen[..., None]).flatten(-2)
    whole = scores.new_full((*scores.shape[:-1], count * size), -torch.inf)
    out: Tensor = whole.index_copy(-1, tokens, scores)[..., : target.vocabulary]
    return out
