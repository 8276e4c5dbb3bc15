"""Prompt lookup: propose the tokens that followed earlier occurrences of the last tokens in this text. No weights.

After A. Saxena's prompt lookup decoding (2023), extended to a distribution over the whole vocabulary. A token has the
places i where it stands in the committed text of n tokens; m(i) is the number of tokens before i that equal the last
tokens of text and drafted path, at most `longest`. The token's weight is the maximum over i of RATIO^m(i) (1 + i / n):
longer matches rank before shorter, later ones before earlier. Tokens that are not in the text share the weight 1,
smaller ids first. q is the normalised weight, and scores are logarithms of weights.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.target.target_model import Target
from treeopt.errors import UsageError
from treeopt.traces.trace import MAX_DEPTH

MISSING = -1  # stands before the beginning of the text
RANK_STEP = 2**-20  # scores fall by this from one token id to the next, so that every sort ranks equals by id


def suffixes(text: Tensor, ends: Tensor, length: int) -> Tensor:
    """Return the `length` tokens before each end, MISSING before the text: (b, columns), (b, n) -> (b, n, length).

    >>> suffixes(torch.tensor([[5, 6, 7]]), torch.tensor([[2]]), 3)
    tensor([[[-1,  5,  6]]])
    """
    place = ends[..., None] + torch.arange(-length, 0, device=text.device)
    tokens = text.gather(1, place.clamp(0, text.shape[1] - 1).flatten(1)).view_as(place)
    return torch.where(place >= 0, tokens, MISSING)


def match_lengths(text: Tensor, suffix: Tensor) -> Tensor:
    """Return how many tokens before each place equal the last ones of `suffix`, int64 (b, n, columns).

    Args:
        text: int64 (b, columns).
        suffix: int64 (b, n, longest), the last token last, negative for a missing token.

    >>> match_lengths(torch.tensor([[5, 6, 5, 6]]), torch.tensor([[[5, 6]]]))
    tensor([[[0, 0, 2, 0]]])
    """
    columns, longest = text.shape[1], suffix.shape[2]
    padded = nn.functional.pad(text, (longest, 0), value=-2)  # no token, and no missing token either
    same = torch.ones(1, 1, 1, dtype=torch.bool, device=text.device)
    matched = torch.zeros(1, 1, 1, dtype=torch.long, device=text.device)
    for back in range(1, longest + 1):
        before = padded[:, None, longest - back : longest - back + columns]
        same = same & (before == suffix[..., -back, None])
        matched = matched + same
    return matched


@dataclass
class TextState:
    """The committed text of each sequence, and what this step's levels have left.

    Attributes:
        vocabulary: of the target.
        depth: levels of the trees.
        text: int64 (batch, capacity).
        lengths: int64 (batch,), tokens of the text, the root included.
        read: what the drafter remembers from one level to the next, int64 (batch, nodes, n).
        view: upper bound of the lengths.
        level: levels drafted in this step.
    """

    vocabulary: int
    depth: int
    text: Tensor
    lengths: Tensor
    read: Tensor
    view: int = 0
    level: int = 0

    def last_tokens(self, tokens: Tensor, parents: Tensor, count: int) -> Tensor:
        """Return the last `count` tokens of the text and the path to each of a level's nodes; see `suffixes`."""
        if self.level == 0:
            self.read = suffixes(self.text[:, : self.view], self.lengths[:, None], count)
        else:
            place = parents.expand(len(tokens), -1)[..., None].expand(-1, -1, count)
            self.read = torch.cat([self.read.gather(1, place), tokens[..., None]], 2)[..., 1:]
        self.level += 1
        return self.read


class TextDrafter(nn.Module):
    """Base of drafters whose only state is the committed text: all of `Drafter` but what they propose."""

    taps = None

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """Return the bytes of the texts; see `Drafter.cache_bytes`."""
        return 8 * batch * capacity

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> TextState:
        """See `Drafter.begin`."""
        text = torch.zeros(batch, capacity, dtype=torch.long, device=target.device)
        return TextState(target.vocabulary, depth, text, torch.zeros_like(text[:, 0]), text)

    def lasting(self, state: TextState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return state.text, state.lengths

    def admit(self, state: TextState, admitted: Admitted) -> None:
        """See `Drafter.admit`."""
        state.text[admitted.rows, : admitted.prompts.shape[1]] = admitted.prompts
        state.lengths[admitted.rows] = admitted.lengths

    def extend(self, state: TextState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Append the new tokens; see `Drafter.extend`."""
        column = torch.arange(committed.tokens.shape[1], device=state.text.device)
        place = (state.lengths[:, None] + column).clamp(max=state.text.shape[1] - 1)
        new = torch.where(column < committed.counts[:, None], committed.tokens, 0)
        state.text.scatter_(1, place, new)  # entries beyond the text are no part of it
        state.lengths.add_(committed.counts)
        state.view, state.level = view, 0


LONGEST = 16  # with longer matches float32 scores could not distinguish places
# Roughly fitted to greedy text of the shipped target, 130 tokens per text: 8 has the best likelihood, and 16 costs
# 0.08 nats per token; a longer text has more short matches to outweigh.
RATIO = 16.0


class PromptLookup(TextDrafter):
    """Proposes continuations of earlier occurrences of the last 1 to `longest` tokens."""

    kind = "prompt-lookup"
    abstains = False
    max_depth = MAX_DEPTH
    settings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, longest: int = 3) -> None:
        """Match at most `longest` tokens; raise UsageError if it is out of range."""
        super().__init__()
        if not 1 <= longest <= LONGEST:
            raise UsageError(f"prompt lookup matches 1 to {LONGEST} tokens, got {longest}")
        self.longest = longest
        self.register_buffer(
            "setting", torch.tensor([longest])
        )  # the only difference between two of them, for the weights hash

    @torch.no_grad()
    def level(self, state: TextState, tokens: Tensor, parents: Tensor) -> Tensor:
        """See `Drafter.level`."""
        suffix = state.last_tokens(tokens, parents, self.longest)
        return match_scores(state.text[:, : state.view], state.lengths[:, None], suffix, state.vocabulary)

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; at row t the text ends with the root x_{t+1} at every depth."""
        anchor = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) if rows is None else rows
        for k in range(1, depth + 1):
            suffix = suffixes(tokens, anchor + k + 1, self.longest)  # the last k rows have no meaning
            yield Forced(match_scores(tokens, anchor + 2, suffix, target.vocabulary))


def match_scores(text: Tensor, lengths: Tensor, suffix: Tensor, vocabulary: int) -> Tensor:
    """Return the logarithms of the weights, float32 (batch, nodes, vocabulary).

    Args:
        text: int64 (batch, columns).
        lengths: int64 (batch, n), tokens of the text that are read; n is 1 or nodes.
        suffix: int64 (batch, nodes, longest), the last token last, negative for a missing token.
        vocabulary: of the target.
    """
    matched = match_lengths(text, suffix).float()
    place = torch.arange(text.shape[1], device=text.device)
    weight = matched * math.log(RATIO) + torch.log1p(place / lengths[..., None])
    weight = torch.where(place < lengths[..., None], weight, -torch.inf)
    unseen = -math.log(vocabulary) - RANK_STEP * torch.arange(vocabulary, device=text.device)
    scores = unseen.expand(*suffix.shape[:2], -1).clone()
    return scores.scatter_reduce_(2, text[:, None].expand_as(weight), weight, "amax")
