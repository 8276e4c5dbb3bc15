"""What blocks of steps begin behind: prompts as they are, with a part of their texts written; or prompts of one length.

A run is everywhere in its texts, a block somewhere. So where prompts are as they are, the blocks of a round go on with
texts that the target has begun, by another part in each round: in the mean over rounds they are half written, a little
less where steps are so slow that blocks end early.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from executor.decoding.decoder import Decoder
from executor.profiling.measured_shapes import Way, line_of
from executor.profiling.profile_settings import Settings
from executor.profiling.timed_block import WARM_UP, Tokens
from executor.target.target_model import Target
from treeopt.tree import Tree

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole parts, lie evenly whatever their number

Opening = tuple[list[Tokens], list[int]]  # prompts, and the new tokens after each


class Openings:
    """Prompts of every block; all ways of a batch size and context begin behind the same in a round."""

    def __init__(self, target: Target, prompts: Sequence[Tokens], settings: Settings) -> None:
        """Of checked settings; nothing written yet."""
        self._target, self._prompts, self._settings = target, prompts, settings
        self._begun: dict[tuple[int, int], Opening] = {}  # the last round's of a batch size

    @property
    def spare(self) -> int:
        """Most tokens of a text that are written before a block of plain steps."""
        wanted = self._settings
        enough = 2 * max(wanted.batches)  # who ends early must be followed by another
        if wanted.contexts or len(self._prompts) < enough:
            return 0
        return max(0, wanted.new_tokens - (wanted.steps + WARM_UP))

    @property
    def context(self) -> float:
        """Tokens a sequence in the cache that plain steps come to behind prompts as they are, the mean over blocks."""
        wanted = self._settings
        written = min(wanted.new_tokens, self.spare + wanted.steps + WARM_UP) / 2
        return float(np.mean([len(prompt) for prompt in self._prompts])) + written

    @cached_property
    def stream(self) -> NDArray[np.int64]:
        """All prompts, one after the other."""
        return np.concatenate([np.array(prompt) for prompt in self._prompts])

    def of(self, way: Way, number: int, steps: int) -> Opening:
        """What a block of so many steps begins behind, in round `number`."""
        rng = np.random.default_rng([self._settings.seed, number, way.batch, way.context or 0])
        if way.context is None and way.kept is None:
            return self._within_texts(way.batch, number, rng)
        length = self._usual if way.context is None else way.context
        if way.kept is not None:  # those that keep less begin with more, so that all come to the same context
            assert isinstance(way.tree, Tree)
            length += round((line_of(way.tree) - way.kept) * (WARM_UP + (steps - 1) / 2))
        starts = rng.integers(0, len(self.stream), way.batch)
        drawn = [np.take(self.stream, np.arange(s, s + length), mode="wrap").tolist() for s in starts]
        return drawn, [(steps + WARM_UP) * (way.tree.depth + 1)] * way.batch

    def _within_texts(self, batch: int, number: int, rng: np.random.Generator) -> Opening:
        if (batch, number) not in self._begun:
            drawn = [self._prompts[i] for i in rng.permutation(len(self._prompts)).tolist()]
            limits = [self._settings.new_tokens] * len(drawn)
            ahead = int((number + 1) * GOLDEN % 1 * (self.spare + 1))
            if ahead:
                loop = Decoder(self._target, batch=batch, rule=self._settings.rule)
                texts = loop.generate(drawn[:batch], new_tokens=ahead)
                drawn[:batch] = [[*prompt, *text.tokens] for prompt, text in zip(drawn, texts, strict=False)]
                limits[:batch] = [self._settings.new_tokens - ahead] * batch
            self._begun = {(batch, number): (drawn, limits)}
        return self._begun[batch, number]

    @cached_property
    def _usual(self) -> int:
        """The usual length of a prompt, 2 at least."""
        return max(2, int(np.median([len(prompt) for prompt in self._prompts])))
