"""What drafters are trained to reduce: named terms over the supervised anchors of one depth.

p is the target's distribution, q the drafter's, as everywhere; a term is a mean over anchors, taken in float32. Where
a drafter never proposes a token (it has no score, or -inf), p is restricted to the tokens that it does propose, and an
anchor at which the target's best token is not among those counts in no term that needs p (EAGLE-3's mask).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from treeopt.errors import ExecutorError

CHUNK = 2**25  # similarities held at once


@dataclass(frozen=True, eq=False)
class Anchors:
    """The supervised anchors of one depth k, `rows` of them, from all texts of a batch.

    Attributes:
        scores: (rows, n), of x_{t+1+k}, by the n tokens of a vocabulary; -inf for tokens that are never proposed.
        labels: int64 (rows,), places of the tokens x_{t+1+k} among the n; -1 where they are not among them.
        teacher: (rows, n), the target's logits of x_{t+1+k}.
        features: (rows, hidden), the target's f_{t+k}.
        hidden: (rows, hidden), what stood for f_{t+k}; None if nothing did.
        earlier: (k - 1, rows, hidden), what stood for the same feature at depths 1, ..., k - 1.
        routes: (rows, groups), log-probabilities that the router gives to groups of tokens; None without one.
        known: bool (rows,), the target's best token is among the n; None: they are the whole vocabulary.
    """

    scores: Tensor
    labels: Tensor
    teacher: Tensor
    features: Tensor
    hidden: Tensor | None = None
    earlier: Tensor | None = None
    routes: Tensor | None = None
    known: Tensor | None = None

    @cached_property
    def laws(self) -> tuple[Tensor, Tensor, Tensor]:
        """p (rows, n) on the tokens that are proposed, log q there (0 elsewhere), and which rows count."""
        proposed = ~self.scores.isneginf()  # a score that is no number shows in the loss
        if bool(proposed.all()):
            known = proposed[:, 0] if self.known is None else self.known
            return _wide(self.teacher).softmax(-1), _wide(self.scores).log_softmax(-1), known
        known = proposed.gather(-1, self.teacher.argmax(-1, keepdim=True))[:, 0]
        known = known if self.known is None else known & self.known
        p = _wide(self.teacher).masked_fill(~proposed, -torch.inf).softmax(-1)
        return p, _wide(self.scores).log_softmax(-1).masked_fill(~proposed, 0), known


def hard_ce(at: Anchors) -> Tensor:
    """−log q(x) of the true token; anchors whose token is never proposed are left out."""
    own = _wide(at.scores).log_softmax(-1).gather(-1, at.labels[:, None].clamp(min=0))[:, 0]
    return _mean(-own, ~own.isneginf() & (at.labels >= 0))


def soft_ce(at: Anchors) -> Tensor:
    """−Σ_x p(x) log q(x)."""
    p, log_q, known = at.laws
    return _mean(-(p * log_q).sum(-1), known)


def kl(at: Anchors) -> Tensor:
    """Σ_x p(x) (log p(x) − log q(x)): `soft_ce` less the target's own entropy."""
    p, log_q, known = at.laws
    return _mean((torch.special.xlogy(p, p) - p * log_q).sum(-1), known)


def top_k(at: Anchors, *, count: int = 10) -> Tensor:
    """−Σ p(x) log q(x) over the target's best `count` tokens, p not renormalised. HASS, arXiv 2408.15766."""
    p, log_q, known = at.laws
    best, index = p.topk(min(count, p.shape[-1]))
    return _mean(-(best * log_q.gather(-1, index)).sum(-1), known)


def smooth_l1(at: Anchors) -> Tensor:
    """Mean over a feature's entries of x²/2 where |x| < 1, else |x| − 1/2; x = hidden − f. EAGLE, arXiv 2401.15077."""
    hidden = _hidden(at, "smooth_l1")
    apart = nn.functional.smooth_l1_loss(_wide(hidden), _wide(at.features), reduction="none")
    return _mean(apart.mean(-1))


def csra(at: Anchors, *, temperature: float = 0.07) -> Tensor:
    """Cross-step representation alignment, a contrastive loss between depths. CORAL, arXiv 2502.16880, eq. 2.

    Positives of an anchor's hidden state are what stood for the same feature at earlier depths, and the feature
    itself; all others of this depth, of the earlier ones and of the target are negatives. With several positives the
    mean of their losses is taken (Khosla et al. 2020, L_out). Only this depth is given a gradient.
    """
    own = nn.functional.normalize(_wide(_hidden(at, "csra")), dim=-1)
    same = _wide(at.features)[None].detach()
    if at.earlier is not None:
        same = torch.cat([_wide(at.earlier).detach(), same])
    same = nn.functional.normalize(same, dim=-1)
    others = same.flatten(0, 1)
    step = max(1, CHUNK // max(1, len(own) + len(others)))
    pieces = [(own[start : start + step] / temperature, own, others, start) for start in range(0, len(own), step)]
    if len(pieces) > 1:  # similarities are then computed again rather than kept
        total = [checkpoint(_log_sum_of_others, *piece, use_reentrant=False) for piece in pieces]
    else:
        total = [_log_sum_of_others(*piece) for piece in pieces]
    near = (own * same).sum(-1).mean(0) / temperature
    return _mean(torch.cat(total) - near) if total else near.sum()


def _log_sum_of_others(rows: Tensor, own: Tensor, others: Tensor, start: int) -> Tensor:
    """log Σ exp(similarity) over `others` and all of `own` but the row itself, which is `own[start + row]`."""
    alike = rows @ own.T
    alike.diagonal(start).fill_(-torch.inf)
    return torch.cat([alike, rows @ others.T], 1).logsumexp(-1)


def router_ce(at: Anchors) -> Tensor:
    """−Σ_n p_n log r(n): r is the router's law over contiguous groups of tokens, p_n the target's mass in group n.

    CORAL, arXiv 2502.16880; the last group may be shorter than the others.
    """
    if at.routes is None:
        raise ExecutorError("router_ce trains a router, and this drafter has none: set router_groups")
    groups = at.routes.shape[-1]
    width = -(-at.teacher.shape[-1] // groups)
    p = _wide(at.teacher).softmax(-1)
    mass = nn.functional.pad(p, (0, width * groups - p.shape[-1])).unflatten(-1, (groups, width)).sum(-1)
    return _mean(-(mass * _wide(at.routes)).sum(-1))


TERMS: dict[str, Callable[..., Tensor]] = {
    term.__name__: term for term in (hard_ce, soft_ce, kl, smooth_l1, top_k, csra, router_ce)
}


def _wide(values: Tensor) -> Tensor:
    """At least float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _mean(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """Over the rows that count; 0 where there are none."""
    if counted is None:
        return values.sum() / max(1, values.numel())
    return values.where(counted, 0).sum() / counted.sum().clamp(min=1)


def _hidden(at: Anchors, term: str) -> Tensor:
    if at.hidden is None:
        raise ExecutorError(f"{term} compares with the target's features, for which nothing stands in this drafter")
    return at.hidden
