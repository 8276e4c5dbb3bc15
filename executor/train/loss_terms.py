"""The terms of the training loss, by name, and the supervised anchors of one depth that they read.

A term is a mean over the supervised anchors of one depth, taken in float32. p is the target's distribution, q the
drafter's, as everywhere. If a drafter never proposes a token (it has no score, or -inf), p is restricted to the tokens
that it does propose, and an anchor at which the target's best token is not among those is left out of the terms that
need p (EAGLE-3's mask).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from treeopt.errors import ExecutorError


@dataclass(frozen=True, eq=False)
class Anchors:
    """The supervised anchors of one depth k, `rows` of them, from all texts of a batch.

    Attributes:
        scores: (rows, n), for x_{t+1+k}, over the n tokens of a vocabulary; -inf for tokens that are never proposed.
        labels: int64 (rows,), places of the tokens x_{t+1+k} among the n; -1 if they are not among them.
        teacher: (rows, n), the target's logits for x_{t+1+k}.
        features: (rows, hidden), the target's f_{t+k}.
        hidden: (rows, hidden), the drafter's prediction of f_{t+k}; None if it has none.
        earlier: (k - 1, rows, hidden), predictions of the same feature at depths 1, ..., k - 1.
        routes: (rows, groups), log-probabilities that the router gives to groups of tokens; None without a router.
        known: bool (rows,), the target's best token is among the n; None: they are the whole vocabulary.
        confidence: (rows,), the drafter's log-odds that its token is accepted; None without a confidence head.
    """

    scores: Tensor
    labels: Tensor
    teacher: Tensor
    features: Tensor
    hidden: Tensor | None = None
    earlier: Tensor | None = None
    routes: Tensor | None = None
    known: Tensor | None = None
    confidence: Tensor | None = None

    @cached_property
    def laws(self) -> tuple[Tensor, Tensor, Tensor]:
        """p (rows, n) on the proposed tokens, log q there (0 elsewhere), and bool (rows,), which rows count."""
        proposed = ~self.scores.isneginf()  # a score that is not a number shows in the loss
        if bool(proposed.all()):
            known = proposed[:, 0] if self.known is None else self.known
            return wide(self.teacher).softmax(-1), wide(self.scores).log_softmax(-1), known
        known = proposed.gather(-1, self.teacher.argmax(-1, keepdim=True))[:, 0]
        known = known if self.known is None else known & self.known
        p = wide(self.teacher).masked_fill(~proposed, -torch.inf).softmax(-1)
        return p, wide(self.scores).log_softmax(-1).masked_fill(~proposed, 0), known

    @property
    def overlap(self) -> Tensor:
        """Σ_x min(p(x), q(x)) = 1 − total variation (rows,): the odds that rejection sampling accepts a draw of q."""
        p, log_q, _ = self.laws
        return torch.minimum(p, log_q.exp()).sum(-1)


def wide(values: Tensor) -> Tensor:
    """Return the values in at least float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def mean_of(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the mean over the rows that count; 0 if there are none."""
    if counted is None:
        return values.sum() / max(1, values.numel())
    return values.where(counted, 0).sum() / counted.sum().clamp(min=1)


def hidden_of(at: Anchors, term: str) -> Tensor:
    """Return the drafter's predicted features; raise ExecutorError, naming the term, if it has none."""
    if at.hidden is None:
        raise ExecutorError(f"{term} needs the target's features, but this drafter predicts none")
    return at.hidden


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


def l1(at: Anchors) -> Tensor:
    """Return Σ_x |p(x) − q(x)|, twice the total variation. DSpark, arXiv 2607.05147."""
    return mean_of(2 * (1 - at.overlap), at.laws[2])


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


CHUNK = 2**25  # similarities in memory at once


def csra(at: Anchors, *, temperature: float = 0.07) -> Tensor:
    """Return the cross-step representation alignment, a contrastive loss between depths. CORAL, eq. 2.

    Positives of an anchor's hidden state are the predictions of the same feature at earlier depths, and the feature
    itself; all others at this depth, at earlier ones and of the target are negatives. With several positives the mean
    of their losses is taken (Khosla et al. 2020, L_out). Only this depth gets a gradient.
    """
    hidden = nn.functional.normalize(wide(hidden_of(at, "csra")), dim=-1)
    same = wide(at.features)[None].detach()
    if at.earlier is not None:
        same = torch.cat([wide(at.earlier).detach(), same])
    same = nn.functional.normalize(same, dim=-1)
    others = same.flatten(0, 1)
    step = max(1, CHUNK // max(1, len(hidden) + len(others)))
    starts = range(0, len(hidden), step)
    pieces = [(hidden[start : start + step] / temperature, hidden, others, start) for start in starts]
    if len(pieces) > 1:  # similarities are then computed again rather than stored
        total = [checkpoint(_log_sum_of_others, *piece, use_reentrant=False) for piece in pieces]
    else:
        total = [_log_sum_of_others(*piece) for piece in pieces]
    positive = (hidden * same).sum(-1).mean(0) / temperature
    return mean_of(torch.cat(total) - positive) if total else positive.sum()


def _log_sum_of_others(rows: Tensor, hidden: Tensor, others: Tensor, start: int) -> Tensor:
    """Return log Σ exp(similarity) over `others` and all of `hidden` but the row itself, `hidden[start + row]`."""
    similar = rows @ hidden.T
    similar.diagonal(start).fill_(-torch.inf)
    return torch.cat([similar, rows @ others.T], 1).logsumexp(-1)


def router_ce(at: Anchors) -> Tensor:
    """Return −Σ_n p_n log r(n): r is the router's law over contiguous groups of tokens, p_n the target's mass in n.

    The last group may be shorter than the others.
    """
    if at.routes is None:
        raise ExecutorError("router_ce trains a router, and this drafter has none: set router_groups")
    groups = at.routes.shape[-1]
    width = -(-at.teacher.shape[-1] // groups)
    p = wide(at.teacher).softmax(-1)
    mass = nn.functional.pad(p, (0, width * groups - p.shape[-1])).unflatten(-1, (groups, width)).sum(-1)
    return mean_of(-(mass * wide(at.routes)).sum(-1))


def confidence(at: Anchors) -> Tensor:
    """Return the cross-entropy of the predicted acceptance against Σ_x min(p(x), q(x)), which gets no gradient.

    Source: DSpark, arXiv 2607.05147.
    """
    if at.confidence is None:
        raise ExecutorError("confidence trains a confidence head, and this drafter has none: recipe dspark makes one")
    due = at.overlap.detach().clamp(max=1)
    loss = nn.functional.binary_cross_entropy_with_logits(wide(at.confidence), due, reduction="none")
    return mean_of(loss, at.laws[2])


TERMS: dict[str, Callable[..., Tensor]] = {
    term.__name__: term for term in (hard_ce, soft_ce, kl, l1, smooth_l1, top_k, csra, router_ce, confidence)
}
