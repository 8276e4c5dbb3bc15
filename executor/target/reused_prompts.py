"""Prompts that rows of the cache's memory hold, so that timing many configurations computes each prompt once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from executor.target.features import Taps

# Fills cache rows with prompts and returns their features, one tensor per prompt.
Prefill = Callable[[Sequence[int], Sequence[Sequence[int]]], list[Tensor]]


@dataclass(frozen=True)
class _Prefilled:
    """A prompt that a row holds, and its features by taps."""

    prompt: list[int]
    features: dict[Taps, Tensor] = field(default_factory=dict)


class ReusedPrompts:
    """The prompt that each row was filled with last. Outside `remember` nothing is stored.

    Sequences only ever grow, so a prompt lies in its row, whatever was decoded after it, until another prompt is put
    there, a run has no request for the row, or the memory is released.
    """

    def __init__(self) -> None:
        """Start without prompts."""
        self.active = False
        self._rows: dict[int, _Prefilled] = {}

    @contextmanager
    def remember(self) -> Iterator[None]:
        """Store prompts inside this context, and forget all of them at its end."""
        self.active = True
        try:
            yield
        finally:
            self.active = False
            self.clear()

    def clear(self) -> None:
        """Forget all prompts: the memory is released."""
        self._rows = {}

    def forget(self, rows: Sequence[int]) -> None:
        """Forget the prompts of these rows, which are overwritten."""
        for row in rows:
            self._rows.pop(row, None)

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[Sequence[int]], taps: Taps, compute: Prefill
    ) -> list[Tensor]:
        """Return the features of the prompts; call `compute` only for prompts that their rows do not hold."""
        texts = [list(prompt) for prompt in prompts]
        for row, prompt in zip(rows, texts, strict=True):
            if row not in self._rows or self._rows[row].prompt != prompt:
                self._rows[row] = _Prefilled(prompt)
        prefilled = [self._rows[row] for row in rows]
        missing = [i for i, row in enumerate(prefilled) if taps not in row.features]
        computed = compute([rows[i] for i in missing], [texts[i] for i in missing]) if missing else []
        for i, features in zip(missing, computed, strict=True):
            prefilled[i].features[taps] = features
        return [row.features[taps] for row in prefilled]
