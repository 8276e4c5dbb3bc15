"""The teacher-forced pass: a drafter's ranks, probabilities, acceptance and entropies at every token of given texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.drafters.base.drafter import Drafter
from executor.recording.sibling_acceptance import KeptOdds, accept_odds
from executor.target.causal_model import Outputs
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Rule
from executor.verification.multi_round_rejection import Rounds
from treeopt.defaults import DRAWS
from treeopt.traces.trace import MISSED, PAST_END

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PassSettings:
    """The settings of the pass.

    Attributes:
        depth: levels, D.
        width: candidates, W.
        rule: of verification.
        probabilities: the drafter's probabilities of its candidates, and entropies.
        accept: probabilities that the rule accepts each candidate.
        kept: probabilities that it accepted the text's own tokens.
        draws: simulated draws where acceptance has no closed form.
    """

    depth: int
    width: int
    rule: Rule
    probabilities: bool = False
    accept: bool = False
    kept: bool = False
    draws: int = DRAWS


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
def forced_arrays(target: Target, drafter: Drafter, texts: Texts, settings: PassSettings) -> list[Arrays]:
    """Return each text's arrays of a trace by name, one row per token: `rank`, and what `settings` asks for.

    A drafter that abstains also has `drafted`, the tokens that it proposes, whether or not the text goes on as far.
    """
    per_text = [_blank(length, settings, abstains=drafter.abstains) for length in texts.written]
    rule, width, draws = settings.rule, settings.width, settings.draws
    kept_odds = [KeptOdds(rule, width, draws=draws) for _ in per_text if isinstance(rule, Rounds)]
    levels = drafter.teacher_forced(target, texts.tokens, texts.outputs.features, settings.depth, rows=texts.rows)
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
            if k == 1 and settings.probabilities:
                _put(arrays, "target_entropy", np.s_[:], _entropy(logits))
            rank = rank_of(scores, truth)
            if drafter.abstains:  # of equal scores the first would come first, though none of them is proposed
                rank = torch.where(scores.gather(-1, truth[:, None])[:, 0] > -torch.inf, rank, width)
            _put(arrays, "rank", np.s_[:inside, k - 1], torch.where(rank < width, rank, MISSED))
            if settings.probabilities:
                _put(arrays, "draft_entropy", np.s_[:inside, k - 1], _entropy(scores))
                _put(arrays, "draft_prob", np.s_[:inside, k - 1], _best_probabilities(scores, rule, width))
            if settings.accept:
                odds = accept_odds(rule, logits, scores, width, draws=draws)
                _put(arrays, "accept", np.s_[:inside, k - 1], odds)
            if settings.kept:
                _put(arrays, "kept", np.s_[:inside, k - 1], kept_odds[i].level(logits, scores, truth))
    return per_text


def rank_of(scores: Tensor, truth: Tensor) -> Tensor:
    """Return the number of tokens that score above the true one; of equal scores the first token comes first.

    A true token whose score is not a number comes last.

    Args:
        scores: (..., vocabulary).
        truth: int64 (...).
    """
    true_score = scores.gather(-1, truth[..., None])
    index = torch.arange(scores.shape[-1], device=scores.device)
    above = ~(scores <= true_score) | ((scores == true_score) & (index < truth[..., None]))
    return above.sum(-1, dtype=torch.int32).long()  # on CPU some 20 times as fast as adding up 64 bits


def _blank(length: int, settings: PassSettings, *, abstains: bool) -> Arrays:
    """Return the arrays of a text with nothing recorded: all ranks lie past the end."""
    nodes = (length, settings.depth)
    arrays: Arrays = {"rank": np.full(nodes, PAST_END, dtype=np.int16)}
    if abstains:
        arrays["drafted"] = np.zeros(length, dtype=np.int16)
    siblings = (*nodes, settings.width)
    shapes: dict[str, tuple[int, ...]] = {}
    if settings.probabilities:
        shapes |= {"draft_prob": siblings, "draft_entropy": nodes, "target_entropy": (length,)}
    if settings.accept:
        shapes["accept"] = siblings
    if settings.kept:
        shapes["kept"] = siblings
    return arrays | {name: np.zeros(shape, dtype=np.float16) for name, shape in shapes.items()}


def _put(arrays: Arrays, name: str, place: Any, values: Tensor) -> None:
    arrays[name][place] = values.cpu().numpy()


def _best_probabilities(scores: Tensor, rule: Rule, width: int) -> Tensor:
    """Return the drafter's probabilities of its `width` best candidates, warped if the rule draws them from its law."""
    logs = rule.warp.log_probabilities(scores) if isinstance(rule, Rounds) else scores.float().log_softmax(-1)
    return logs.topk(width, dim=-1).values.exp()


def _entropy(scores: Tensor) -> Tensor:
    """Return the entropy in nats, at temperature 1."""
    entropy: Tensor = torch.special.entr(scores.float().softmax(-1)).sum(-1)
    return entropy
