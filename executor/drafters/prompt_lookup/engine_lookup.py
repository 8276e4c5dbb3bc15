"""A drafter that follows an engine's prompt lookup: it proposes a chain copied from the text, or nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from executor.drafters.base.drafter import Forced
from executor.drafters.prompt_lookup.committed_texts import TextDrafter, TextState
from executor.drafters.prompt_lookup.drafter import PromptLookup
from executor.drafters.prompt_lookup.engine_rules import NOTHING, EngineRule
from executor.target.target_model import Target


class EngineLookup(TextDrafter):
    """Proposes the piece of an engine's rule, of one token per level; see `engine_rules`."""

    abstains = True

    def __init__(self, rule: EngineRule) -> None:
        """Follow `rule`."""
        super().__init__()
        self.rule = rule
        self.kind = f"{PromptLookup.kind}:{rule.engine}"
        self.max_depth = rule.max_depth
        self.settings: Mapping[str, Any] = {"engine": rule.engine, **rule.settings}
        self.facts: Mapping[str, Any] = {"least": rule.least} if rule.least > 1 else {}

    @torch.no_grad()
    def level(self, state: TextState, tokens: Tensor, parents: Tensor) -> Tensor:
        """See `Drafter.level`; the piece is looked up at level 0, and children of other nodes get its tokens too."""
        if state.level == 0:
            state.read = self.rule.propose(state.text[:, : state.view], state.lengths[:, None], state.depth)
        state.level += 1
        return one_token(state.read[..., state.level - 1], state.vocabulary)

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; at row t the text ends with the root x_{t+1} at every depth."""
        anchor = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) if rows is None else rows
        proposed = self.rule.propose(tokens, anchor + 2, depth)
        for k in range(depth):
            yield Forced(one_token(proposed[..., k], target.vocabulary))


def one_token(tokens: Tensor, vocabulary: int) -> Tensor:
    """Return scores that propose one token each, or none: 0 for it, -inf for all others; (..., ) -> (..., vocabulary).

    >>> one_token(torch.tensor([1, -1]), 3)
    tensor([[-inf, 0., -inf],
            [-inf, -inf, -inf]])
    """
    scores = torch.full((*tokens.shape, vocabulary), -torch.inf, device=tokens.device)
    value = torch.where(tokens == NOTHING, -torch.inf, 0.0)
    return scores.scatter_(-1, tokens.clamp(min=0)[..., None], value[..., None])
