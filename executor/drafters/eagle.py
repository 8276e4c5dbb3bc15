"""EAGLE's drafter (Li et al. 2024, arXiv 2401.15077): one decoder layer over pairs of embedding and feature.

y = W [E(x_{t+1}); f_t] + b, then a layer without the norm before its attention, then the target's own LM head without
the final norm. EAGLE-2, HASS (Zhang et al. 2025, arXiv 2408.15766) and CORAL (Weng et al. 2025, arXiv 2502.16880) train
or use the same network; CORAL may add a router, which picks the parts of the LM head that are computed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig

from executor.drafters.decoder_layer import Attend, Layer, SelfAttention
from executor.drafters.feature_recurrence import Recurrent
from executor.target.target_model import Target


class Router(nn.Module):
    """CORAL's router: which of N consecutive blocks of the vocabulary the next token is in.

    p = softmax(W2 (SiLU(W1 h) + h)); CORAL section 3.3 leaves the activation open, SiLU is ours.
    """

    def __init__(self, hidden: int, groups: int) -> None:
        """Untrained."""
        super().__init__()
        self.w1 = nn.Linear(hidden, hidden)
        self.w2 = nn.Linear(hidden, groups, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the groups: (..., hidden) -> float32 (..., N)."""
        return F.log_softmax(self.w2(F.silu(self.w1(hidden)) + hidden), -1, dtype=torch.float32)


class Eagle(Recurrent):
    """EAGLE, EAGLE-2, HASS and CORAL.

    Attributes:
        groups: of the router, 0 without one.
        active: groups that a node's candidates may come from.
        routed: whether the router is used; the drafter without it is the one that its second stage trains on.
    """

    kind = "eagle"

    def __init__(
        self, config: LlamaConfig, *, bias: bool = True, router_groups: int = 0, active_groups: int = 2
    ) -> None:
        """Untrained; `config` gives the layer's shape."""
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layer = Layer(config)
        self.router = Router(config.hidden_size, router_groups) if router_groups else None
        self.groups, self.active, self.routed = router_groups, min(active_groups, router_groups), bool(router_groups)

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        return {"config": self.config, "groups": self.groups, "active": self.active}

    @property
    def attention(self) -> SelfAttention:
        """See `Recurrent.attention`."""
        return self.layer.self_attn

    def given(self, features: Tensor) -> Tensor:
        """The target's features as they are."""
        return features.to(self.fc.weight.dtype)

    def guess(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """See `Recurrent.guess`."""
        pair = self.fc(torch.cat([embeddings, hidden], -1))
        out: Tensor = self.layer(pair, pair, positions, attention)
        return out

    def scores(self, target: Target, guess: Tensor) -> Tensor:
        """Logits of the target's LM head, or log-probabilities of the blocks that the router picks."""
        if self.router is None or not self.routed:
            return target.scored(guess)
        return self._routed(target, guess, self.router(guess))

    def route(self, guess: Tensor) -> Tensor:
        """The router's log-probabilities of the groups: (..., hidden) -> (..., N)."""
        assert self.router is not None
        found: Tensor = self.router(guess)
        return found

    def _routed(self, target: Target, guess: Tensor, groups: Tensor) -> Tensor:
        """log p(x) = log p(group) + log-softmax within it; -inf outside a node's own best groups.

        Only rows of the LM head that belong to some node's groups are multiplied, where they can be told apart.
        """
        size = -(-target.vocabulary // self.groups)
        best = groups.topk(self.active, -1).indices
        mine = torch.zeros_like(groups).scatter(-1, best, 1.0)
        used = min(self.groups, best.numel())
        weight = target.head.weight
        if used < self.groups and type(weight) is nn.Parameter and weight.is_floating_point():
            picked = mine.flatten(0, -2).amax(0).topk(used).indices
            tokens = (picked[:, None] * size + torch.arange(size, device=guess.device)).flatten()
            bias = getattr(target.head, "bias", None)
            rows = tokens.clamp(max=target.vocabulary - 1)
            logits = target.after_head(F.linear(guess, weight[rows], None if bias is None else bias[rows]))
            logits = logits.masked_fill(tokens >= target.vocabulary, -torch.inf)
        else:
            picked = torch.arange(self.groups, device=guess.device)
            tokens = torch.arange(self.groups * size, device=guess.device)
            logits = F.pad(target.scored(guess), (0, self.groups * size - target.vocabulary), value=-torch.inf)
        inside = logits.unflatten(-1, (-1, size)).log_softmax(-1, dtype=torch.float32)
        own = groups.masked_fill(mine == 0, -torch.inf)[..., picked]
        found = (inside + own[..., None]).flatten(-2)
        whole = found.new_full((*found.shape[:-1], self.groups * size), -torch.inf)
        out: Tensor = whole.index_copy(-1, tokens, found)[..., : target.vocabulary]
        return out
