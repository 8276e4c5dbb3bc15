"""Prompts that timed blocks start from: real prompts with part of the answer already written, or prompts of one length.

A run passes through its whole texts, a block sees one place of them. So with real prompts the blocks of a round
continue texts that the target has begun, another part of them in each round: in the mean over rounds they are half
written, a little less where steps are so slow that blocks end early.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from executor.decoding.decoder import Decoder
from executor.profiling.measured_shapes import Configuration, first_rank_depth
from executor.profiling.profile_settings import Settings
from executor.profiling.timed_block import WARM_UP, Tokens
from executor.target.target_model import Target
from treeopt.tree import Tree

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole parts, lie evenly whatever their number

Prompts = tuple[list[Tokens], list[int]]  # token ids, and the new tokens after each


class BlockPrompts:
    """Prompts of every block; in a round all configurations of a batch size and context start from the same ones."""

    def __init__(self, target: Target, prompts: Sequence[Tokens], settings: Settings) -> None:
        """Begin with no text written; the settings must be checked."""
        self._target, self._prompts, self._settings = target, prompts, settings
        self._begun: dict[tuple[int, int], Prompts] = {}  # the last batch size and round, with its prompts

    @property
    def spare(self) -> int:
        """Most tokens of a text that are written before a block of plain steps."""
        settings = self._settings
        enough = 2 * max(settings.batches)  # a request that ends early must be followed by another
        if settings.contexts or len(self._prompts) < enough:
            return 0
        return max(0, settings.new_tokens - (settings.steps + WARM_UP))

    @property
    def context(self) -> float:
        """Tokens per sequence in the cache during plain steps after real prompts, the mean over blocks."""
        settings = self._settings
        written = min(settings.new_tokens, self.spare + settings.steps + WARM_UP) / 2
        return float(np.mean([len(prompt) for prompt in self._prompts])) + written

    @cached_property
    def stream(self) -> NDArray[np.int64]:
        """All prompts, one after the other."""
        return np.concatenate([np.array(prompt) for prompt in self._prompts])

    def of(self, configuration: Configuration, number: int, steps: int) -> Prompts:
        """Return the prompts of a block of `steps` steps in round `number`."""
        batch, tree = configuration.batch, configuration.tree
        rng = np.random.default_rng([self._settings.seed, number, batch, configuration.context or 0])
        if configuration.context is None and configuration.imposed is None:
            return self._within_texts(batch, number, rng)
        length = self._median_length if configuration.context is None else configuration.context
        if configuration.imposed is not None:  # the fewer are accepted the longer the prompts: all reach one context
            assert isinstance(tree, Tree)
            length += round((first_rank_depth(tree) - configuration.imposed) * (WARM_UP + (steps - 1) / 2))
        starts = rng.integers(0, len(self.stream), batch)
        prompts = [np.take(self.stream, np.arange(s, s + length), mode="wrap").tolist() for s in starts]
        return prompts, [(steps + WARM_UP) * (tree.depth + 1)] * batch

    def _within_texts(self, batch: int, number: int, rng: np.random.Generator) -> Prompts:
        """Return the given prompts, the first ones with a part of their texts, which the target writes."""
        if (batch, number) not in self._begun:
            prompts = [self._prompts[i] for i in rng.permutation(len(self._prompts)).tolist()]
            limits = [self._settings.new_tokens] * len(prompts)
            ahead = int((number + 1) * GOLDEN % 1 * (self.spare + 1))
            if ahead:
                loop = Decoder(self._target, batch=batch, rule=self._settings.rule)
                texts = loop.generate(prompts[:batch], new_tokens=ahead)
                prompts[:batch] = [[*prompt, *text.tokens] for prompt, text in zip(prompts, texts, strict=False)]
                limits[:batch] = [self._settings.new_tokens - ahead] * batch
            self._begun = {(batch, number): (prompts, limits)}
        return self._begun[batch, number]

    @cached_property
    def _median_length(self) -> int:
        """The median length of a prompt, 2 at least."""
        return max(2, int(np.median([len(prompt) for prompt in self._prompts])))
