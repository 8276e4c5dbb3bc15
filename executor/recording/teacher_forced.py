"""The teacher-forced pass: a drafter's ranks, probabilities, acceptance and entropies at every token of given texts.

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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.drafters.base.drafter import Drafter
from executor.target.causal_model import Outputs
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Rule
from executor.verification.multi_round_rejection import BlockVerification, Leviathan, Rounds, Sequoia, SpecInfer
from executor.verification.sampling_rules import CoinRule, PointMass, SampleAndMatch
from executor.verification.temperature_top_k_top_p import pick
from treeopt.traces.trace import MISSED, PAST_END


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
    return _odds(rule, p, rule.warp.log_probabilities(scores).exp(), width, draws)


def _odds(rule: CoinRule, p: Tensor, q: Tensor, width: int, draws: int, token: Tensor | None = None) -> Tensor:
    """Return `in_rounds` for a rule of rounds, as many columns as `width`; means over draws where nothing is closed."""
    rounds = 1 if isinstance(rule, Leviathan) else width
    if rounds == 1 or isinstance(rule, SpecInfer):
        odds = in_rounds(p, q, rounds, token=token)
    else:
        many, tokens = (draws, *p.shape), None if token is None else token.expand(draws, *token.shape)
        odds = in_rounds(p.expand(many), q.expand(many), rounds, rule.generator, token=tokens).mean(0)
    return torch.nn.functional.pad(odds, (0, width - rounds))


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
        if not isinstance(self.rule, BlockVerification):
            return _odds(self.rule, p, q, self.width, self.draws, token)
        p_token = p.gather(-1, token)
        ratio = torch.where(p_token > 0, q.gather(-1, token) / p_token, 0)[:, 0]
        before = self.survival[: len(truth)] if self.survival.dim() else torch.ones_like(ratio)
        self.ratio = ratio * (self.ratio[: len(truth)] if self.ratio.dim() else 1)
        self.survival = torch.minimum(before, self.ratio)
        odds = torch.where(before > 0, self.survival / before, 0)[:, None]
        return torch.nn.functional.pad(odds, (0, self.width - 1))


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


Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Texts:
    """Prompts and what was written after them, as one batch, and the target's own pass over it.

    Attributes:
        tokens: int64 (batch, longest), padded on the right.
        prompts: tokens of each prompt, 2 or more.
        written: tokens of each text.
        rows: int64 (batch, longest text + 1), the anchors: the token before each prompt's last and those after it.
        outputs: of the target, with the drafter's taps as features; logits only of the rows.
    """

    tokens: Tensor
    prompts: tuple[int, ...]
    written: tuple[int, ...]
    rows: Tensor
    outputs: Outputs

    @classmethod
    def read(
        cls, target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
    ) -> "Texts":
        """Feed the texts to the target, once."""
        sequences = [torch.tensor([*prompt, *text]) for prompt, text in zip(prompts, texts, strict=True)]
        tokens = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(target.device)
        # An anchor's feature stands one before its root, and the root one before the text.
        first = torch.tensor([[len(prompt) - 2] for prompt in prompts])
        rows = (first + torch.arange(1 + max(map(len, texts)))).clamp(max=tokens.shape[1] - 1).to(target.device)
        outputs = target.features(tokens, drafter.taps, rows=rows)
        return cls(tokens, tuple(map(len, prompts)), tuple(map(len, texts)), rows, outputs)


@torch.no_grad()
def forced_arrays(
    target: Target,
    drafter: Drafter,
    texts: Texts,
    rule: Rule,
    names: Collection[str] = (),
    *,
    depth: int,
    width: int,
    draws: int,
) -> list[Arrays]:
    """Return each text's arrays of a trace by name, one row per token: `rank`, and those of `names`.

    A drafter that abstains also has `drafted`, the tokens that it proposes, whether or not the text goes on as far.

    Args:
        target: the model that wrote the texts.
        drafter: what is recorded.
        texts: prompts and what was written after them.
        rule: of verification.
        names: of `draft_prob`, `draft_entropy`, `target_entropy`, `accept` and `kept`.
        depth: levels, D.
        width: candidates, W.
        draws: simulated draws where acceptance has no closed form.
    """
    per_text = [_blank(length, depth, width, names, abstains=drafter.abstains) for length in texts.written]
    kept_odds = [KeptOdds(rule, width, draws=draws) for _ in per_text if isinstance(rule, Rounds)]
    levels = drafter.teacher_forced(target, texts.tokens, texts.outputs.features, depth, rows=texts.rows)
    for k, level in enumerate(levels, 1):
        drafted = level.scores
        for i, arrays in enumerate(per_text):
            if drafter.abstains:
                arrays["drafted"] += (drafted[i, : texts.written[i]] > -torch.inf).any(-1).cpu().numpy()
            inside = texts.written[i] - k + 1
            if inside < 1:
                continue
            scores, logits = drafted[i, :inside], texts.outputs.logits[i, k:][:inside]
            truth = texts.tokens[i, texts.prompts[i] - 1 + k :][:inside]
            if k == 1 and "target_entropy" in names:
                _put(arrays, "target_entropy", np.s_[:], _entropy(logits))
            rank = rank_of(scores, truth)
            if drafter.abstains:  # of equal scores the first would come first, though none of them is proposed
                rank = torch.where(scores.gather(-1, truth[:, None])[:, 0] > -torch.inf, rank, width)
            _put(arrays, "rank", np.s_[:inside, k - 1], torch.where(rank < width, rank, MISSED))
            if "draft_prob" in names:
                _put(arrays, "draft_entropy", np.s_[:inside, k - 1], _entropy(scores))
                logs = scores.float().log_softmax(-1)
                if isinstance(rule, Rounds):  # draws the candidates from the drafter's law
                    logs = rule.warp.log_probabilities(scores)
                _put(arrays, "draft_prob", np.s_[:inside, k - 1], logs.topk(width, dim=-1).values.exp())
            if "accept" in names:
                odds = accept_odds(rule, logits, scores, width, draws=draws)
                _put(arrays, "accept", np.s_[:inside, k - 1], odds)
            if "kept" in names:
                _put(arrays, "kept", np.s_[:inside, k - 1], kept_odds[i].level(logits, scores, truth))
    return per_text


def rank_of(scores: Tensor, truth: Tensor) -> Tensor:
    """Return how many of the scores (..., vocabulary) lie above that of the true token, int64 (...).

    Of equal scores the first token comes first.

    A true token whose score is not a number comes last.
    """
    true_score = scores.gather(-1, truth[..., None])
    index = torch.arange(scores.shape[-1], device=scores.device)
    above = ~(scores <= true_score) | ((scores == true_score) & (index < truth[..., None]))
    return above.sum(-1, dtype=torch.int32).long()  # on CPU some 20 times as fast as adding up 64 bits


def _blank(length: int, depth: int, width: int, names: Collection[str], *, abstains: bool) -> Arrays:
    """Return the arrays of a text with nothing recorded: all ranks lie past the end."""
    arrays: Arrays = {"rank": np.full((length, depth), PAST_END, dtype=np.int16)}
    if abstains:
        arrays["drafted"] = np.zeros(length, dtype=np.int16)
    shapes = {"target_entropy": (length,), "draft_entropy": (length, depth)}
    return arrays | {name: np.zeros(shapes.get(name, (length, depth, width)), dtype=np.float16) for name in names}


def _put(arrays: Arrays, name: str, place: Any, values: Tensor) -> None:
    arrays[name][place] = values.cpu().numpy()


def _entropy(scores: Tensor) -> Tensor:
    """Return the entropy in nats, at temperature 1."""
    entropy: Tensor = torch.special.entr(scores.float().softmax(-1)).sum(-1)
    return entropy
