"""The recurrence over features that EAGLE and EAGLE-3 share: guess the target's next feature, continue from the guess.

A pair (f_t, x_{t+1}) becomes a guess of f_{t+1}, from which x_{t+2} is scored. Pairs of committed tokens hold the
target's own features and stay in the cache; pairs of drafted nodes hold their parent's guess and are forgotten when
the step ends.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from executor.drafters.base.decoder_layer import Attend, LayerCache, SelfAttention, Unrolled
from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.target.causal_model import keep_last, pick_rows, put_last
from executor.target.target_model import Target
from treeopt.traces.trace import MAX_DEPTH


@dataclass
class RecurrentState:
    """The state of each sequence.

    Attributes:
        target: the model whose embeddings and LM head are used.
        cache: keys and values of all pairs in all layers, the root's included.
        guess: (batch, hidden), after the pair of each root.
        above: (batch, nodes, hidden), after the pairs of the last level's nodes.
        level: levels drafted in this step.
        depth: levels of the trees.
    """

    target: Target
    cache: LayerCache
    guess: Tensor
    above: Tensor = field(default_factory=lambda: torch.zeros(0))
    level: int = 0
    depth: int = 0


class Recurrent(nn.Module, ABC):
    """The loop that these drafters share; a subclass defines what one pair becomes."""

    kind: str
    taps: tuple[int, ...] = ()
    max_depth = MAX_DEPTH

    @property
    @abstractmethod
    def attentions(self) -> Sequence[SelfAttention]:
        """The attentions of the drafter's layers, in order."""

    @abstractmethod
    def given(self, features: Tensor) -> Tensor:
        """Map the target's features to their side of a pair: (b, tokens, features) -> (b, tokens, hidden)."""

    @abstractmethod
    def guess(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attention: Sequence[Attend]) -> Tensor:
        """Map pairs, E(x_{t+1}) and f_t or its guess, at t, to guesses of f_{t+1}: (b, tokens, hidden) each.

        `attention` has one entry for each layer.
        """

    @abstractmethod
    def scores(self, target: Target, guess: Tensor) -> Tensor:
        """Score guesses: (b, tokens, hidden) -> (b, tokens, vocabulary)."""

    def forced(self, target: Target, guess: Tensor) -> Forced:
        """Return the scores for a teacher-forced pass."""
        return Forced(self.scores(target, guess), guess)

    def carried(self, guess: Tensor) -> Tensor:
        """Return the feature that the next pair reads after a guess."""
        return guess

    def next_pair(self, target: Target, tokens: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pair that a teacher-forced pass reads after a guess, given the true tokens (batch, length)."""
        return self.embed(target, tokens), self.carried(guess)

    def embed(self, target: Target, tokens: Tensor) -> Tensor:
        """Return the target's embeddings of tokens."""
        return target.embed(tokens).to(self._weight.dtype)

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        layout = self.attentions[0].layout(self._weight.dtype, layers=len(self.attentions))
        return layout.bytes(batch, capacity)

    @property
    def _weight(self) -> Tensor:
        """A weight of the first layer, which gives the type, the device and the width."""
        return self.attentions[0].o_proj.weight

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> RecurrentState:
        """See `Drafter.begin`."""
        weight = self._weight
        guess = torch.zeros(batch, weight.shape[0], dtype=weight.dtype, device=weight.device)
        self.scores(target, guess[:1, None])  # measures the head's scaling now, so that no step has to
        return RecurrentState(target, LayerCache(self.attentions, batch, capacity, guess), guess, depth=depth)

    def lasting(self, state: RecurrentState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return state.guess, state.cache.lengths

    @torch.no_grad()
    def admit(self, state: RecurrentState, admitted: Admitted) -> None:
        """Read all pairs; a prompt of one token has none and starts from a zero guess. See `Drafter.admit`."""
        self.read_prompts(state, admitted)

    @torch.no_grad()
    def read_prompts(self, state: RecurrentState, admitted: Admitted) -> Tensor:
        """Read all pairs of prompts and return the guesses, (rows, longest - 1, hidden)."""
        rows, features, lengths = admitted.rows, admitted.features, admitted.lengths
        attention = state.cache.prompts(rows, lengths - 1)
        guess = features  # empty where no prompt has pairs
        if features.shape[1]:
            positions = torch.arange(features.shape[1], device=rows.device)[None]
            pairs = self.embed(state.target, admitted.prompts[:, 1:]), self.given(features)
            guess = self.guess(*pairs, positions, attention)
        put_last(state.guess, rows, guess, lengths - 1)
        return guess

    def extend(self, state: RecurrentState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Read the pairs of the committed tokens, with the target's features; see `Drafter.extend`."""
        self.read_committed(state, committed, view=view)

    @torch.no_grad()
    def read_committed(self, state: RecurrentState, committed: Committed, *, view: int) -> Tensor:
        """Read the pairs of the committed tokens and return the guesses, (batch, steps, hidden)."""
        counts = committed.counts
        positions, attention = state.cache.committed(committed.tokens.shape[1], view)
        pairs = self.embed(state.target, committed.tokens), self.given(committed.features)
        guess = self.guess(*pairs, positions, attention)
        keep_last(state.guess, guess, counts)
        state.cache.advance(counts)
        state.above, state.level = state.guess[:, None], 0
        return guess

    @torch.no_grad()
    def level(self, state: RecurrentState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Run one forward per level; the root's pair was read with the committed ones. See `Drafter.level`."""
        if state.level:
            state.above = self.read_nodes(state, self.carried(state.above), tokens, parents)
        state.level += 1
        return self.scores(state.target, state.above)

    def read_nodes(self, state: RecurrentState, above: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return the guesses of nodes whose parents' features are in `above`, (batch, nodes above, hidden)."""
        place = parents.expand(len(tokens), -1)[..., None].expand(-1, -1, above.shape[2])
        return self.guess(self.embed(state.target, tokens), above.gather(1, place), *state.cache.nodes(parents))

    def teacher_forced(
        self,
        target: Target,
        tokens: Tensor,
        features: Tensor,
        depth: int,
        *,
        rows: Tensor | None = None,
        detached: bool = False,
        kept: Sequence[int] | None = None,
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`.

        `detached` cuts the gradient between one depth's guess and the next. At depth k the first `kept[k - 1]` rows are
        scored.
        """
        attention = [Unrolled(layer.window) for layer in self.attentions]
        start = torch.arange(tokens.shape[1], device=tokens.device)[None]
        embeddings, hidden = self.embed(target, tokens.roll(-1, 1)), self.given(features)
        for k in range(1, depth + 1):
            guess = self.guess(embeddings, hidden, start + k - 1, attention)
            some = rows if rows is None or kept is None else rows[:, : kept[k - 1]]
            yield self.forced(target, pick_rows(guess, some))
            embeddings, hidden = self.next_pair(target, tokens.roll(-k - 1, 1), guess)
            hidden = hidden.detach() if detached else hidden
