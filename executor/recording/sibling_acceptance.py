"""Acceptance probability of each sibling that a node may have, before any of them is drawn: `accept` and `kept`.

Along the true path a node has the target's law p of the next token and the drafter's law q, both warped. The array
`accept` of a trace holds for r = 0, 1, ... the probability that the r-th sibling is the accepted one, given that its
parent was accepted:

* candidates taken by score (sample-and-match, point-mass): p of the r-th best;
* candidates drawn from q and tried in rounds (Leviathan, SpecInfer, Sequoia): the expectation over the draws. The
  first draw x is accepted with probability sum min(p, q) over all tokens. When it is not, p becomes
  norm(max(0, p - q)), and x was a draw from norm(max(0, q - p)). With replacement nothing depends on x, and the same
  formula gives the next round; without, q becomes norm(q without x), and rounds from the second on are means over
  simulated x.

The array `kept` holds the probability that the text's own token x was accepted as sibling r, given the text. P(round r
accepts x) is the probability that the earlier rounds miss, times min(p_r(x), q_r(x)); over all rounds and the residual
these add up to p(x), so their shares of p(x) are the law of the round, given x. A walk that follows a text by these
shares accepts what the rule would have accepted while writing that text: the emitted text has the target's law,
whatever is drafted, and the walk is the rule's own (Bayes). `accept` gives the probability at a node, but not which
tokens are the likely ones there.

For block verification (Sun et al. 2024, arXiv 2403.10444) no node has an `accept` of its own: it depends on what is
drafted below. Yet the drafted prefix x_1 .. x_i is accepted with probability P_i, whatever follows, so given the text
at least i tokens are accepted with probability min over j <= i of prod_{d <= j} q(x_d) / p(x_d), where j = 0 counts
as 1.
"""

import torch
from torch import Tensor

from executor.verification.acceptance_rules import Rule
from executor.verification.block_verification import BlockVerification
from executor.verification.multi_round_rejection import Leviathan, Rounds, Sequoia, SpecInfer
from executor.verification.sample_and_match import PointMass, SampleAndMatch
from executor.verification.temperature_top_k_top_p import pick


def source_of(rule: Rule, width: int, draws: int) -> str:
    """Return how `accept_odds` computes its figures, in words for a trace's provenance."""
    if not rule.sampled_candidates:
        return "p of the candidate"
    if isinstance(rule, Sequoia) and width > 1:
        return f"first in closed form, others means of {draws} draws"
    return "closed form"


def accept_odds(rule: Rule, logits: Tensor, scores: Tensor, width: int, *, draws: int) -> Tensor:
    """Return P(sibling r is accepted | its parent is), float (nodes, width); 0 for siblings that are never tried.

    Args:
        rule: neither greedy, nor block verification, nor typical.
        logits: (nodes, vocabulary), the target's.
        scores: (nodes, vocabulary), the drafter's.
        width: siblings.
        draws: simulated draws for siblings drawn without replacement.
    """
    assert isinstance(rule, SampleAndMatch | PointMass | Leviathan | SpecInfer | Sequoia)
    p = rule.warp.log_probabilities(logits).exp()
    if not rule.sampled_candidates:
        return p.gather(-1, rule.candidates(scores, width))
    q = rule.warp.log_probabilities(scores).exp()
    if isinstance(rule, Leviathan):
        return torch.nn.functional.pad(in_rounds(p, q, 1), (0, width - 1))
    if width == 1 or isinstance(rule, SpecInfer):
        return in_rounds(p, q, width)
    many = (draws, *p.shape)
    return in_rounds(p.expand(many), q.expand(many), width, rule.generator).mean(0)


class KeptOdds:
    """Probabilities that a rule accepted a text's own tokens, given the text: one text, level by level."""

    def __init__(self, rule: Rounds, width: int, *, draws: int) -> None:
        """Begin before the first level; `draws` as for `accept_odds`."""
        self.rule, self.width, self.draws = rule, width, draws
        self.ratio = self.survival = torch.ones(())

    def level(self, logits: Tensor, scores: Tensor, truth: Tensor) -> Tensor:
        """Return P(the token was accepted as sibling r | the text, its ancestors accepted), (nodes, width).

        Args:
            logits: (nodes, vocabulary), the target's, from each anchor on one level deeper than at the last call;
                anchors that have no such level are left out, at the end.
            scores: the same of the drafter.
            truth: int64 (nodes,), the text's tokens.
        """
        p = self.rule.warp.log_probabilities(logits).exp()
        q = self.rule.warp.log_probabilities(scores).exp()
        token = truth[:, None]
        if isinstance(self.rule, BlockVerification):
            p_token = p.gather(-1, token)
            ratio = torch.where(p_token > 0, q.gather(-1, token) / p_token, 0)[:, 0]
            before = self.survival[: len(truth)] if self.survival.dim() else torch.ones_like(ratio)
            self.ratio = ratio * (self.ratio[: len(truth)] if self.ratio.dim() else 1)
            self.survival = torch.minimum(before, self.ratio)
            odds = torch.where(before > 0, self.survival / before, 0)[:, None]
        elif isinstance(self.rule, Leviathan):
            odds = in_rounds(p, q, 1, token=token)
        elif self.width == 1 or isinstance(self.rule, SpecInfer):
            odds = in_rounds(p, q, self.width, token=token)
        else:
            many = (self.draws, *p.shape)
            tokens = token.expand(self.draws, *token.shape)
            odds = in_rounds(p.expand(many), q.expand(many), self.width, self.rule.generator, token=tokens).mean(0)
        return torch.nn.functional.pad(odds, (0, self.width - odds.shape[-1]))


def in_rounds(
    p: Tensor, q: Tensor, width: int, generator: torch.Generator | None = None, *, token: Tensor | None = None
) -> Tensor:
    """Return P(round r = 0, 1, ... accepts its draw), (..., width), for rounds of rejection sampling.

    Args:
        p: the target's law, (..., vocabulary).
        q: the drafter's.
        width: rounds.
        generator: for draws without replacement: those before round r are drawn, as they fall when they are rejected,
            and the result is conditional on them. None: with replacement.
        token: int64 (..., 1): return instead P(round r accepted this token | it was emitted here).
    """
    emitted = torch.ones_like(p[..., :1]) if token is None else p.gather(-1, token)
    missed = torch.ones_like(p[..., :1])
    shares = []
    for turn in range(width):
        common = torch.minimum(p, q)
        accepted = common.sum(-1, keepdim=True).clamp(max=1)
        if token is None:
            shares.append(missed * accepted)
        else:
            token_accepted = missed * common.gather(-1, token)
            shares.append(torch.where(emitted > 0, token_accepted / emitted, 0).clamp(max=1))
        missed = missed * (1 - accepted)
        if turn == width - 1:
            break
        rejected = (q - p).clamp(min=0)
        p = _normalise((p - q).clamp(min=0))
        if generator is not None:
            uniforms = torch.rand((*p.shape[:-1], 1), dtype=torch.float64, device=p.device, generator=generator)
            q = _normalise(q.scatter(-1, pick(rejected, uniforms), 0))
    return torch.cat(shares, -1)


def _normalise(weights: Tensor) -> Tensor:
    """Return the weights over their sum; 0 where they are all 0."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
