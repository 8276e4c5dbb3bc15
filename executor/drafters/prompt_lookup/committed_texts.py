"""The committed text of each sequence, as drafters without weights read it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from executor.drafters.base.drafter import Admitted, Committed
from executor.target.target_model import Target


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
