"""The audit of greedy texts: one plain forward per text checks that each token is the target's own argmax.

Forwards of different shapes round differently, so in half precision a verified tree may choose the other of two
nearly equal tokens. A difference is excused only within a stated margin of the target's own logits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from executor.target.target_model import Target

# Units in the last place, at the size of the largest logit, that the chosen token may lie below the best one. In half
# precision the rounding of the logits themselves; in fp32 and fp64 that of the sums behind them.
MARGIN = {torch.bfloat16: 4, torch.float16: 4, torch.float32: 64, torch.float64: 64}


@dataclass(frozen=True)
class Audit:
    """The comparison of a text with the argmax of a plain forward.

    Attributes:
        tokens: tokens compared.
        differing: tokens that are not the argmax (the first of equals).
        unexcused: tokens whose logit lies below the best by more than the margin.
        worst: largest distance below the best, in units in the last place.
    """

    tokens: int
    differing: int
    unexcused: int
    worst: float

    @classmethod
    def total(cls, audits: Iterable["Audit"]) -> "Audit":
        """Add up the counts of several texts.

        >>> Audit.total([Audit(10, 1, 0, 2.0), Audit(5, 0, 0, 0.0)])
        Audit(tokens=15, differing=1, unexcused=0, worst=2.0)
        """
        texts = list(audits)
        return cls(
            sum(text.tokens for text in texts),
            sum(text.differing for text in texts),
            sum(text.unexcused for text in texts),
            max((text.worst for text in texts), default=0.0),
        )


def audit_text(target: Target, prompt: Sequence[int], tokens: Sequence[int]) -> Audit:
    """Compare `tokens`, written after `prompt`, with the argmax at each position, given the text before it."""
    text = torch.tensor([[*prompt, *tokens]], device=target.device)
    logits = target.features(text[:, :-1]).logits[0, len(prompt) - 1 :]
    written = text[0, len(prompt) :]
    chosen = logits.gather(1, written[:, None])[:, 0].double()
    scale = logits.abs().amax(1).double()
    unit = torch.exp2(torch.log2(scale.clamp(min=torch.finfo(logits.dtype).tiny)).floor())
    distance = (logits.amax(1).double() - chosen) / (unit * torch.finfo(logits.dtype).eps)
    return Audit(
        tokens=len(tokens),
        differing=int((logits.argmax(1) != written).sum()),
        unexcused=int((distance > MARGIN[target.dtype]).sum()),
        worst=float(distance.max()) if len(tokens) else 0.0,
    )
