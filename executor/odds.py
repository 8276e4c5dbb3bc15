"""How likely a rule is to keep each of the siblings that a node may have, before any of them is drawn.

Along the true path a node has the target's law p of the next token and the drafter's law q, both warped. `accept` of
a trace says for r = 0, 1, ... how likely the r-th sibling is the one that is kept, given that its parent was:

* candidates taken by score (sample-and-match, point-mass): p of the r-th best;
* candidates drawn from q and tried in rounds (Leviathan, SpecInfer, Sequoia): the expectation over the draws. The
  first draw x is kept with probability sum min(p, q) over all tokens. When it is not, p becomes norm(max(0, p - q)),
  and x was a draw from norm(max(0, q - p)). With replacement nothing depends on x, and the same formula gives the
  next round; without, q becomes norm(q without x), and rounds from the second on are means over simulated x.

Of block verification no node has a probability of its own: it depends on what is drafted below.
"""

import torch
from torch import Tensor

from executor.acceptance import PointMass, Rule, SampleAndMatch
from executor.rejection import BlockVerification, Leviathan, Sequoia, SpecInfer
from executor.sampling import pick
from treeopt.errors import UsageError


def check_recorded(rule: Rule) -> None:
    """Refuse a rule that a trace cannot speak of.

    Raises:
        UsageError: the rule is lossy, or judges a node by its descendants.
    """
    if not rule.lossless:
        raise UsageError("a trace holds the target's own text, which rule typical does not write")
    if isinstance(rule, BlockVerification):
        raise UsageError("rule block judges a token by what is drafted below it: record rule leviathan, a lower bound")


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


def in_rounds(p: Tensor, q: Tensor, width: int, generator: torch.Generator | None = None) -> Tensor:
    """P(round r = 0, 1, ... keeps its draw), (..., width), of rounds of rejection between p and q (..., vocabulary).

    Args:
        p: the target's law.
        q: the drafter's.
        width: rounds.
        generator: for draws without replacement: those before round r are drawn, as they fall when they are rejected,
            and the result is conditional on them. None: with replacement.
    """
    missed = torch.ones_like(p[..., :1])
    shares = []
    for turn in range(width):
        kept = torch.minimum(p, q).sum(-1, keepdim=True).clamp(max=1)
        shares.append(missed * kept)
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
