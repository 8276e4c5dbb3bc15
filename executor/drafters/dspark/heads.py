"""DSpark's heads over the slots of a block (arXiv 2607.05147).

The Markov head adds W2 W1[x_{n+k}] to the scores, so that they depend on the drafted token before. The confidence head
predicts from the slot, and from W1[x_{n+k}] where it is as wide, whether the token is accepted; it changes no draft.
"""

import torch
from torch import Tensor, nn


class Heads(nn.Module):
    """A drafter with these heads, any of which may be None: DFlash has neither."""

    def make_heads(self, vocabulary: int, rows: int, *, markov: int, confidence: int, bias: bool) -> None:
        """Make untrained heads: the rank of W1 and W2, and the width that the confidence head reads; 0 without."""
        self.markov_w1 = nn.Embedding(vocabulary, markov) if markov else None
        self.markov_w2 = nn.Linear(markov, rows, bias=False) if markov else None
        self.confidence_head = nn.Linear(confidence, 1, bias=bias) if confidence else None

    def with_markov(self, scores: Tensor, before: Tensor) -> Tensor:
        """Return the scores of a slot, given the token before what it scores: (b, n or 1, rows), int64 (b, n)."""
        if self.markov_w1 is None or self.markov_w2 is None:
            return scores
        return scores + self.markov_w2(self.markov_w1(before))  # type: ignore[no-any-return]

    def confidence(self, hidden: Tensor, before: Tensor) -> Tensor | None:
        """Return log-odds of acceptance: (b, n, hidden), int64 (b, n) -> (b, n); None without the head."""
        if self.confidence_head is None:
            return None
        if self.markov_w1 is not None and self.confidence_head.in_features > hidden.shape[-1]:
            hidden = torch.cat([hidden, self.markov_w1(before)], -1)
        return self.confidence_head(hidden)[..., 0]  # type: ignore[no-any-return]
