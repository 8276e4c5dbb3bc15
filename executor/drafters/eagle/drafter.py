"""EAGLE's drafter (Li et al. 2024, arXiv 2401.15077): one decoder layer over pairs of embedding and feature.

y = W [E(x_{t+1}); f_t] + b, then a layer without the norm before its attention, then the target's own LM head without
the final norm. EAGLE-2, HASS (Zhang et al. 2025, arXiv 2408.15766) and CORAL (Weng et al. 2025, arXiv 2502.16880) train
or use the same network. CORAL may add a router over the LM head, which picks the blocks of tokens that are multiplied.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig

from executor.drafters.base.decoder_layer import Attend, Layer, SelfAttention, layer_config
from executor.drafters.base.feature_recurrence import Recurrent
from executor.drafters.base.recipe import Frequent, Recipe
from executor.drafters.eagle import eagle_shape
from executor.target.target_model import Target
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import UsageError


class Router(nn.Module):
    """CORAL's router over the LM head (§3.3): predicts which of N consecutive blocks of tokens holds the next one.

    p = softmax(W2 (SiLU(W1 h) + h)); the paper leaves the activation open, SiLU is our choice.
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


class Eagle(Recurrent):
    """EAGLE, EAGLE-2, HASS and CORAL.

    Attributes:
        groups: number of the router's groups, 0 without a router.
        active: groups that a node's candidates may come from.
        routed: True if the router is used; CORAL's second stage trains it on the scores without it.
    """

    kind = "eagle"
    abstains = False

    def __init__(
        self,
        config: LlamaConfig,
        *,
        bias: bool = True,
        router_groups: int = 0,
        active_groups: int = 2,
        window: int | None = None,
    ) -> None:
        """Make an untrained drafter; `config` gives the layer's shape, for `window` see `SelfAttention`."""
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layer = Layer(config, window=window)
        self.router = Router(config.hidden_size, router_groups) if router_groups else None
        self.groups, self.active, self.routed = router_groups, min(active_groups, router_groups), bool(router_groups)

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        window = self.layer.self_attn.window
        settings = {"config": self.config, "groups": self.groups, "active": self.active}
        return settings if window is None else settings | {"window": window}

    @property
    def attentions(self) -> Sequence[SelfAttention]:
        """See `Recurrent.attentions`."""
        return [self.layer.self_attn]

    def given(self, features: Tensor) -> Tensor:
        """Return the target's features unchanged, in the drafter's type."""
        return features.to(self.fc.weight.dtype)

    def guess(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attention: Sequence[Attend]) -> Tensor:
        """See `Recurrent.guess`."""
        pair = self.fc(torch.cat([embeddings, hidden], -1))
        out: Tensor = self.layer(pair, pair, positions, attention[0])
        return out

    def scores(self, target: Target, guess: Tensor) -> Tensor:
        """Return logits of the target's LM head, or log-probabilities of the groups that the router picks."""
        if self.router is None or not self.routed:
            return target.scored(guess)
        return routed_scores(target, guess, self.router(guess), self.active)

    def route(self, guess: Tensor) -> Tensor:
        """Return the router's log-probabilities of the groups: (..., hidden) -> (..., N)."""
        assert self.router is not None
        groups: Tensor = self.router(guess)
        return groups


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> Eagle:
    """Return an untrained drafter, with a router if the recipe has one; see `Training.untrained`."""
    layer = layer_config(target.model.config)
    return Eagle(layer, router_groups=recipe.router_groups, active_groups=recipe.active_groups)


def resumed(recipe: Recipe, drafter: Eagle) -> Eagle:
    """Set the groups that the router picks, after adding one if the recipe has one; see `Training.resumed`.

    Raises:
        UsageError: the drafter's router has another number of groups.
    """
    if not recipe.router_groups:
        return drafter
    if drafter.groups not in (0, recipe.router_groups):
        raise UsageError(f"the drafter's router has {drafter.groups} groups, router_groups is {recipe.router_groups}")
    if not drafter.groups:
        weights, bias = drafter.state_dict(), drafter.fc.bias is not None
        drafter = Eagle(drafter.config, bias=bias, router_groups=recipe.router_groups)
        drafter.load_state_dict(weights, strict=False)
    drafter.active = min(recipe.active_groups, drafter.groups)
    return drafter


def random_layer(target: Target, count: int, packed: bool) -> Eagle:
    """Return a drafter of random weights; see `RandomWeights.make`."""
    return Eagle(layer_config(target.model.config))


def weights_read(drafter: Eagle, target: Shape) -> int | None:
    """Return the weights that a forward reads, None with a router; see `DrafterKind.reads`.

    The layer lacks the first norm of the target's, and what else it holds beside matrices counts. Source: CORAL (Weng
    et al. 2025), Table 1, W_d.
    """
    if drafter.groups or target.experts is not None:
        return None
    return eagle_shape(target).level.weights + target.layer_groups[0].other - target.hidden
