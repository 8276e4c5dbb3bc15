"""Several MTP modules: module k drafts depth k (DeepSeek-V3, arXiv 2412.19437, §2.2); the chain ends with the last.

At position t module k reads the output of module k - 1 there and x_{t+k}, and sees its own earlier pairs. So a pair of
module k is certain once x_{t+k} is committed; those of drafted nodes are read along each node's own path, by all later
modules as soon as the node is drafted, and forgotten with the step.

As transformers' `MtpModel` and vLLM's model runner V2 read them; vLLM 0.32 on CPUs drafts all depths with the first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from executor.drafters.base.decoder_layer import Unrolled
from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.drafters.base.feature_recurrence import RecurrentState
from executor.drafters.mtp.drafter import Mtp
from executor.target.causal_model import pick_rows
from executor.target.target_model import Target
from treeopt.errors import ExecutorError


class SeveralMtp(nn.Module):
    """Modules of one family, in the order of their depths.

    Attributes:
        family: a name of `FAMILIES`.
        parts: the modules.
        taps: those of the first.
        max_depth: number of modules.
    """

    kind = Mtp.kind
    abstains = False

    def __init__(self, target: Target, family: str, count: int) -> None:
        """Make `count` untrained modules for a target."""
        super().__init__()
        self.family, self.max_depth = family, count
        self.parts = nn.ModuleList(Mtp(target, family, first=not k) for k in range(count))
        self.taps = self._parts[0].taps

    @property
    def _parts(self) -> list[Any]:
        return list(self.parts)

    @property
    def config(self) -> Any:
        """The configuration of a layer."""
        return self._parts[0].config

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        return {**self._parts[0].settings, "modules": self.max_depth}

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        return sum(part.cache_bytes(batch, capacity) for part in self._parts)

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> list[RecurrentState]:
        """Return a state for each module that is needed; see `Drafter.begin`."""
        return [part.begin(target, batch, depth, length, capacity) for part in self._parts[:depth]]

    def lasting(self, state: list[RecurrentState]) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return [each for part, own in self._pairs(state) for each in part.lasting(own)]

    def admit(self, state: list[RecurrentState], admitted: Admitted) -> None:
        """Read all pairs of each module; raise ExecutorError for a prompt shorter than there are modules."""
        shortest = min(map(len, admitted.texts))
        if shortest < len(state):
            raise ExecutorError(
                f"{len(state)} MTP modules read prompts of at least {len(state)} tokens, got one of {shortest}"
            )
        features = admitted.features
        for k, (part, own) in enumerate(self._pairs(state)):
            prompts, lengths = admitted.prompts[:, k:], admitted.lengths - k
            guess = part.read_prompts(own, replace(admitted, prompts=prompts, lengths=lengths, features=features))
            features = part.carried(guess)[:, :-1]

    def extend(self, state: list[RecurrentState], committed: Committed, *, view: int, all_fed: bool) -> None:
        """Read each module's pairs of the committed tokens; see `Drafter.extend`."""
        features = committed.features
        for part, own in self._pairs(state):
            last = part.carried(own.guess[:, None])
            guess = part.read_committed(own, replace(committed, features=features), view=view)
            features = torch.cat([last, part.carried(guess)[:, :-1]], 1)

    @torch.no_grad()
    def level(self, state: list[RecurrentState], tokens: Tensor, parents: Tensor) -> Tensor:
        """Read a level's nodes in all modules that draft deeper ones; see `Drafter.level`."""
        level = state[0].level
        for k in range(len(state) - 1, level - 1, -1) if level else ():  # the last first: it reads the others'
            state[k].above = self._parts[k].read_nodes(
                state[k], self._parts[k - 1].carried(state[k - 1].above), tokens, parents
            )
        state[0].level += 1
        scores: Tensor = self._parts[level].scores(state[level].target, state[level].above)
        return scores

    def teacher_forced(
        self,
        target: Target,
        tokens: Tensor,
        features: Tensor,
        depth: int,
        *,
        rows: Tensor | None = None,
        detached: bool = False,
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced` and `Recurrent.teacher_forced`."""
        hidden, start = features, torch.arange(tokens.shape[1], device=tokens.device)[None]
        for k, part in enumerate(self._parts[:depth], 1):
            pairs = part.embed(target, tokens.roll(-k, 1)), part.given(hidden)
            guess = part.guess(*pairs, start, [Unrolled()])
            yield part.forced(target, pick_rows(guess, rows))
            hidden = part.carried(guess.detach() if detached else guess)

    def _pairs(self, state: list[RecurrentState]) -> list[tuple[Any, RecurrentState]]:
        return list(zip(self._parts, state, strict=False))
