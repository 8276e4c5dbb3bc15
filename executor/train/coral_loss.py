"""The loss terms of CORAL (arXiv 2502.16880): alignment between depths (`csra`), and the router (`router_ce`)."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from executor.train.loss_anchors import Anchors, hidden_of, mean_of, wide
from treeopt.errors import ExecutorError

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
