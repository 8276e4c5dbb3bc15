"""The terms of the training loss, by name: cross-entropies, divergence, top-k, regression; CORAL's in `coral_loss`.

A term is a mean over the supervised anchors of one depth, taken in float32. p is the target's distribution, q the
drafter's; see `loss_anchors` for tokens that a drafter never proposes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from executor.train.coral_loss import csra, router_ce
from executor.train.loss_anchors import Anchors, hidden_of, mean_of, wide


def hard_ce(at: Anchors) -> Tensor:
    """Return −log q(x) of the true token x; anchors whose token is never proposed are left out."""
    log_q = wide(at.scores).log_softmax(-1).gather(-1, at.labels[:, None].clamp(min=0))[:, 0]
    return mean_of(-log_q, ~log_q.isneginf() & (at.labels >= 0))


def soft_ce(at: Anchors) -> Tensor:
    """Return −Σ_x p(x) log q(x)."""
    p, log_q, known = at.laws
    return mean_of(-(p * log_q).sum(-1), known)


def kl(at: Anchors) -> Tensor:
    """Return Σ_x p(x) (log p(x) − log q(x)): `soft_ce` less the target's own entropy."""
    p, log_q, known = at.laws
    return mean_of((torch.special.xlogy(p, p) - p * log_q).sum(-1), known)


def top_k(at: Anchors, *, count: int = 10) -> Tensor:
    """Return −Σ p(x) log q(x) over the target's best `count` tokens, p not renormalised. HASS, arXiv 2408.15766."""
    p, log_q, known = at.laws
    best, index = p.topk(min(count, p.shape[-1]))
    return mean_of(-(best * log_q.gather(-1, index)).sum(-1), known)


def smooth_l1(at: Anchors) -> Tensor:
    """Return the mean over a feature's entries of x²/2 if |x| < 1, else |x| − 1/2, where x = hidden − f.

    Source: EAGLE, arXiv 2401.15077.
    """
    hidden = hidden_of(at, "smooth_l1")
    loss = nn.functional.smooth_l1_loss(wide(hidden), wide(at.features), reduction="none")
    return mean_of(loss.mean(-1))


TERMS: dict[str, Callable[..., Tensor]] = {
    term.__name__: term for term in (hard_ce, soft_ce, kl, smooth_l1, top_k, csra, router_ce)
}
