"""What a drafter says along given texts, from one teacher-forced pass: ranks, probabilities, acceptance, entropies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.drafters.drafter import Drafter
from executor.recording.sibling_acceptance import Kept, chances
from executor.target.target_model import Outputs, Target
from executor.verification.acceptance_rules import Rule
from executor.verification.rejection_rules import Rounds
from treeopt.defaults import DRAWS
from treeopt.traces.trace import MISSED, PAST_END

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Wanted:
    """What is looked at.

    Attributes:
        depth: levels, D.
        width: candidates, W.
        rule: of verification.
        probabilities: the drafter's of its candidates, and entropies.
        accept: probabilities that the rule keeps them.
        kept: probabilities that it kept the text's own tokens.
        draws: simulated where acceptance has no closed form.
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
    """Prompts and what was written after them, side by side, and the target's own pass over them.

    Attributes:
        tokens: int64 (batch, longest), padded on the right.
        prompts: tokens of each prompt, 2 or more.
        written: tokens of each text.
        rows: int64 (batch, longest text + 1), the anchors: the token before each prompt's last and those after it.
        outputs: of the target, with the drafter's taps as features; logits of the rows alone.
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
        whole = [torch.tensor([*prompt, *text]) for prompt, text in zip(prompts, texts, strict=True)]
        tokens = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True).to(target.device)
        # An anchor's feature stands one before its root, and the root one before the text.
        first = torch.tensor([[len(prompt) - 2] for prompt in prompts])
        rows = (first + torch.arange(1 + max(map(len, texts)))).clamp(max=tokens.shape[1] - 1).to(target.device)
        outputs = target.features(tokens, drafter.taps, rows=rows)
        return cls(tokens, tuple(map(len, prompts)), tuple(map(len, texts)), rows, outputs)


@torch.no_grad()
def along(target: Target, drafter: Drafter, texts: Texts, wanted: Wanted) -> list[Arrays]:
    """Of each text the arrays of a trace by name, one row a token: `rank` and what else is wanted."""
    found = [_blank(length, wanted) for length in texts.written]
    own = [Kept(wanted.rule, wanted.width, draws=wanted.draws) for _ in found if isinstance(wanted.rule, Rounds)]
    passes = drafter.teacher_forced(target, texts.tokens, texts.outputs.features, wanted.depth, rows=texts.rows)
    for k, forced in enumerate(passes, 1):
        drafted = forced.scores
        for i, arrays in enumerate(found):
            inside = texts.written[i] - k + 1
            if inside < 1:
                continue
            scores, logits = drafted[i, :inside], texts.outputs.logits[i, k:][:inside]
            truth = texts.tokens[i, texts.prompts[i] - 1 + k :][:inside]
            if k == 1 and wanted.probabilities:
                _put(arrays, "target_entropy", np.s_[:], _entropy(logits))
            rank = rank_of(scores, truth)
            _put(arrays, "rank", np.s_[:inside, k - 1], torch.where(rank < wanted.width, rank, MISSED))
            if wanted.probabilities:
                _put(arrays, "draft_entropy", np.s_[:inside, k - 1], _entropy(scores))
                _put(arrays, "draft_prob", np.s_[:inside, k - 1], _first(scores, wanted))
            if wanted.accept:
                kept = chances(wanted.rule, logits, scores, wanted.width, draws=wanted.draws)
                _put(arrays, "accept", np.s_[:inside, k - 1], kept)
            if wanted.kept:
                _put(arrays, "kept", np.s_[:inside, k - 1], own[i].level(logits, scores, truth))
    return found


def rank_of(scores: Tensor, truth: Tensor) -> Tensor:
    """How many tokens score above the true one, the first of equals first; scores (..., V), truth (...).

    A true token whose score is no number comes last.
    """
    own = scores.gather(-1, truth[..., None])
    index = torch.arange(scores.shape[-1], device=scores.device)
    above = ~(scores <= own) | ((scores == own) & (index < truth[..., None]))
    return above.sum(-1, dtype=torch.int32).long()  # on CPU some 20 times as fast as adding up 64 bits


def _blank(length: int, wanted: Wanted) -> Arrays:
    """Nothing but ends."""
    nodes = (length, wanted.depth)
    arrays: Arrays = {"rank": np.full(nodes, PAST_END, dtype=np.int16)}
    half = {"draft_prob": (*nodes, wanted.width), "draft_entropy": nodes, "target_entropy": (length,)}
    shapes = half if wanted.probabilities else {}
    if wanted.accept:
        shapes = shapes | {"accept": (*nodes, wanted.width)}
    if wanted.kept:
        shapes = shapes | {"kept": (*nodes, wanted.width)}
    return arrays | {name: np.zeros(shape, dtype=np.float16) for name, shape in shapes.items()}


def _put(arrays: Arrays, name: str, place: Any, values: Tensor) -> None:
    arrays[name][place] = values.cpu().numpy()


def _first(scores: Tensor, wanted: Wanted) -> Tensor:
    """The drafter's probabilities of its best candidates, warped if the rule draws them from its law."""
    rule = wanted.rule
    logs = rule.warp.log_probabilities(scores) if isinstance(rule, Rounds) else scores.float().log_softmax(-1)
    return logs.topk(wanted.width, dim=-1).values.exp()


def _entropy(scores: Tensor) -> Tensor:
    """In nats, at temperature 1."""
    entropy: Tensor = torch.special.entr(scores.float().softmax(-1)).sum(-1)
    return entropy
