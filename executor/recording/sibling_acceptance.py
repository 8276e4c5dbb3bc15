"""How likely a rule is to keep each of the siblings that a node may have, before any of them is drawn.

Along the true path a node has the target's law p of the next token and the drafter's law q, both warped. `accept` of
a trace says for r = 0, 1, ... how likely the r-th sibling is the one that is kept, given that its parent was:

* candidates taken by score (sample-and-match, point-mass): p of the r-th best;
* candidates drawn from q and tried in rounds (Leviathan, SpecInfer, Sequoia): the expectation over the draws. The
  first draw x is kept with probability sum min(p, q) over all tokens. When it is not, p becomes norm(max(0, p - q)),
  and x was a draw from norm(max(0, q - p)). With replacement nothing depends on x, and the same formula gives the
  next round; without, q becomes norm(q without x), and rounds from the second on are means over simulated x.

`kept` says how likely it is that the text's own token x was kept as sibling r, given the text. P(round r keeps x) is
the chance that the rounds before miss, times min(p_r(x), q_r(x)); over all rounds and the residual these add up to
p(x), so their shares of p(x) are the law of the round, given x. Whoever walks a text by them keeps what the rule would
have kept on its way to this very text: the emitted text has the target's law, whatever is drafted, and the walk is the
rule's own (Bayes). By `accept` one knows the chance at a node, but not which tokens are the likely ones there.

Of block verification (Sun et al. 2024, arXiv 2403.10444) no node has an `accept` of its own: it depends on what is
drafted below. Yet the drafted prefix x_1 .. x_i is kept with probability P_i, whatever follows, so given the text at
least i tokens are kept with probability min over j <= i of prod_{d <= j} q(x_d) / p(x_d), where j = 0 counts as 1.
"""

import torch
from torch import Tensor

from executor.verification.acceptance_rules import Rule
from executor.verification.block_verification import BlockVerification
from executor.verification.leviathan import Leviathan
from executor.verification.multi_round_rejection import Rounds, Sequoia, SpecInfer
from executor.verification.sample_and_match import PointMass, SampleAndMatch
from executor.verification.temperature_top_k_top_p import pick


def manner(rule: Rule, width: int, draws: int) -> str:
    """How `chances` comes by its figures, in words for a trace's provenance."""
    if not rule.sampled_candidates:
        return "p of the candidate"
    if isinstance(rule, Sequoia) and width > 1:
        return f"first in closed form, others means of {draws} draws"
    return "closed form"


def chances(rule: Rule, logits: Tensor, scores: Tensor, width: int, *, draws: int) -> Tensor:
    """P(sibling r is kept | its parent is), float (nodes, width); siblings that the rule never tries have 0.

    Args:
        rule: see `check_recorded`; not greedy.
        logits: (nodes, vocabulary), the target's.
        scores: (nodes, vocabulary), the drafter's.
        width: siblings.
        draws: simulated for siblings drawn without replacement.
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


class Kept:
    """How likely a rule has kept a text's own tokens, given the text: one text, level by level."""

    def __init__(self, rule: Rounds, width: int, *, draws: int) -> None:
        """Nothing is kept yet; `draws` as for `chances`."""
        self.rule, self.width, self.draws = rule, width, draws
        self.ratio = self.survival = torch.ones(())

    def level(self, logits: Tensor, scores: Tensor, truth: Tensor) -> Tensor:
        """P(the token was kept as sibling r | the text, its ancestors kept), (nodes, width).

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
            own = p.gather(-1, token)
            ratio = torch.where(own > 0, q.gather(-1, token) / own, 0)[:, 0]
            before = self.survival[: len(truth)] if self.survival.dim() else torch.ones_like(ratio)
            self.ratio = ratio * (self.ratio[: len(truth)] if self.ratio.dim() else 1)
            self.survival = torch.minimum(before, self.ratio)
            found = torch.where(before > 0, self.survival / before, 0)[:, None]
        elif isinstance(self.rule, Leviathan):
            found = in_rounds(p, q, 1, token=token)
        elif self.width == 1 or isinstance(self.rule, SpecInfer):
            found = in_rounds(p, q, self.width, token=token)
        else:
            many = (self.draws, *p.shape)
            drawn = token.expand(self.draws, *token.shape)
            found = in_rounds(p.expand(many), q.expand(many), self.width, self.rule.generator, token=drawn).mean(0)
        return torch.nn.functional.pad(found, (0, self.width - found.shape[-1]))


def in_rounds(
    p: Tensor, q: Tensor, width: int, generator: torch.Generator | None = None, *, token: Tensor | None = None
) -> Tensor:
    """P(round r = 0, 1, ... keeps its draw), (..., width), of rounds of rejection between p and q (..., vocabulary).

    Args:
        p: the target's law.
        q: the drafter's.
        width: rounds.
        generator: for draws without replacement: those before round r are drawn, as they fall when they are rejected,
            and the result is conditional on them. None: with replacement.
        token: int64 (..., 1): instead P(round r kept this token | it was emitted here).
    """
    emitted = torch.ones_like(p[..., :1]) if token is None else p.gather(-1, token)
    missed = torch.ones_like(p[..., :1])
    shares = []
    for turn in range(width):
        common = torch.minimum(p, q)
        kept = common.sum(-1, keepdim=True).clamp(max=1)
        if token is None:
            shares.append(missed * kept)
        else:
            due = missed * common.gather(-1, token)
            shares.append(torch.where(emitted > 0, due / emitted, 0).clamp(max=1))
        missed = missed * (1 - kept)
        if turn == width - 1:
            break
        rejected = (q - p).clamp(min=0)
        p = _normed((p - q).clamp(min=0))
        if generator is not None:
            uniforms = torch.rand((*p.shape[:-1], 1), dtype=torch.float64, device=p.device, generator=generator)
            q = _normed(q.scatter(-1, pick(rejected, uniforms), 0))
    return torch.cat(shares, -1)


def _normed(weights: Tensor) -> Tensor:
    """The weights over their sum; nothing where they are all 0."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
