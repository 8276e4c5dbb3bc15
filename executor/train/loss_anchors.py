"""Supervised anchors of one depth, which every loss term reads, and the distributions over them.

p is the target's distribution, q the drafter's, as everywhere. If a drafter never proposes a token (it has no score, or
-inf), p is restricted to the tokens that it does propose, and an anchor at which the target's best token is not among
those is left out of the terms that need p (EAGLE-3's mask).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

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
        """p (rows, n) on the proposed tokens, log q there (0 elsewhere), and bool (rows,), which rows count."""
        proposed = ~self.scores.isneginf()  # a score that is not a number shows in the loss
        if bool(proposed.all()):
            known = proposed[:, 0] if self.known is None else self.known
            return wide(self.teacher).softmax(-1), wide(self.scores).log_softmax(-1), known
        known = proposed.gather(-1, self.teacher.argmax(-1, keepdim=True))[:, 0]
        known = known if self.known is None else known & self.known
        p = wide(self.teacher).masked_fill(~proposed, -torch.inf).softmax(-1)
        return p, wide(self.scores).log_softmax(-1).masked_fill(~proposed, 0), known


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
