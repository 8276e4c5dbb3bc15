"""A lookup first, and a model where it proposes nothing, as TensorRT-LLM's `sa_config` and llama.cpp's lists have it.

A sequence whose lookup proposes a token at the root takes the lookup's tokens in that step, else the model's. The model
reads every committed token either way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from executor.drafters.base.drafter import Admitted, Committed, Drafter, Forced, history_of
from executor.target.causal_model import Taps
from executor.target.target_model import Target


@dataclass
class CombinedState:
    """The states of both, and bool (batch,): the sequences that the lookup drafts for in this step."""

    first: Any
    second: Any
    looked_up: Tensor
    level: int = 0


class Combined(nn.Module):
    """A drafter that abstains, and one that drafts where it does."""

    kind = "combined"
    abstains = True

    def __init__(self, first: Drafter, second: Drafter) -> None:
        """Combine two drafters; `first` reads only the text."""
        super().__init__()
        self.first, self.second = first, second

    @property
    def taps(self) -> Taps:
        """Layers of the target that the model reads."""
        return self.second.taps

    @property
    def max_depth(self) -> int:
        """The levels that both draft."""
        return min(self.first.max_depth, self.second.max_depth)

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Drafter.facts`."""
        return {"first": self.first.kind, "second": self.second.kind}

    @property
    def history(self) -> Any:
        """See `history_of`."""
        return history_of(self.first)

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        both = (("first", self.first), ("second", self.second))
        return {f"{place} {name}": value for place, each in both for name, value in each.settings.items()}

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        return self.first.cache_bytes(batch, capacity) + self.second.cache_bytes(batch, capacity)

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> CombinedState:
        """See `Drafter.begin`."""
        first, second = (each.begin(target, batch, depth, length, capacity) for each in (self.first, self.second))
        return CombinedState(first, second, torch.zeros(batch, dtype=torch.bool, device=target.device))

    def lasting(self, state: CombinedState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return (*self.first.lasting(state.first), *self.second.lasting(state.second))

    def admit(self, state: CombinedState, admitted: Admitted) -> None:
        """See `Drafter.admit`."""
        self.first.admit(state.first, admitted)
        self.second.admit(state.second, admitted)

    def extend(self, state: CombinedState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """See `Drafter.extend`."""
        self.first.extend(state.first, committed, view=view, all_fed=all_fed)
        self.second.extend(state.second, committed, view=view, all_fed=all_fed)
        state.level = 0

    def level(self, state: CombinedState, tokens: Tensor, parents: Tensor) -> Tensor:
        """See `Drafter.level`."""
        first, second = self.first.level(state.first, tokens, parents), self.second.level(state.second, tokens, parents)
        if state.level == 0:
            state.looked_up = _proposes(first[:, 0])
        state.level += 1
        return torch.where(state.looked_up[:, None, None], first, second)

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`."""
        passes = (each.teacher_forced(target, tokens, features, depth, rows=rows) for each in (self.first, self.second))
        looked_up: Tensor | None = None
        for first, second in zip(*passes, strict=True):
            looked_up = _proposes(first.scores) if looked_up is None else looked_up
            yield Forced(torch.where(looked_up[..., None], first.scores, second.scores))


def _proposes(scores: Tensor) -> Tensor:
    return ~scores.isneginf().all(-1)
