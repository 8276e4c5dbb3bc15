"""P-EAGLE (arXiv 2602.01469): EAGLE-3's layers over the text's pairs and, for each later token, a pair of masks.

Depth 1 reads the pair of the root, as in EAGLE-3. Depth k > 1 reads [E(mask token); W m] at k - 1 positions further,
with m learnt; it sees the text's pairs and the masks before it. So all depths come from one forward.

Files hold EAGLE-3's tensors and `mask_hidden`, (1, 1, taps x width).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.base.decoder_layer import layer_config
from executor.drafters.base.drafter import Committed, mask_token
from executor.drafters.base.feature_recurrence import RecurrentState
from executor.drafters.base.recipe import Frequent, Recipe
from executor.drafters.dflash.checkpoint import mask_of
from executor.drafters.eagle3.drafter import Eagle3, usual_taps
from executor.drafters.eagle3.read_checkpoint import read_eagle3
from executor.drafters.eagle3.write_layouts import eagle3_content
from executor.drafters.p_eagle import SLOTS
from executor.target.target_model import Target
from treeopt.errors import ExecutorError


class PEagle(Eagle3):
    """P-EAGLE, with EAGLE-3's variants.

    Attributes:
        mask: the token whose embedding stands for tokens to come.
        max_depth: depths that it drafts.
    """

    kind = "p-eagle"

    def __init__(self, config: LlamaConfig, *, mask: int, slots: int, **options: Any) -> None:
        """Make an untrained drafter of `slots` depths; for `options` see `Eagle3`."""
        super().__init__(config, **options)
        self.mask, self.max_depth = mask, slots
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, self.sources * self.target_hidden))

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        return {**super().settings, "mask": self.mask}

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        return super().cache_bytes(batch, capacity + self.max_depth)

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> RecurrentState:
        """See `Drafter.begin`; masks stand after the text."""
        return super().begin(target, batch, depth, length, capacity + self.max_depth)

    @torch.no_grad()
    def extend(self, state: RecurrentState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """See `Drafter.extend`."""
        super().extend(state, committed, view=view + self.max_depth, all_fed=all_fed)

    @torch.no_grad()
    def level(self, state: RecurrentState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Read the masks of all levels at the root; see `Drafter.level`."""
        if state.level == 0 and state.depth > 1:
            positions, attention = state.cache.block(state.depth - 1, (True,) * len(self.configs))
            masks = self.guess(*self._masks(state.target, *positions.shape), positions, attention)
            state.above = torch.cat([state.above, masks], 1)
        state.level += 1
        return self.scores(state.target, state.above[:, state.level - 1, None])

    def next_pair(self, target: Target, tokens: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """See `Recurrent.next_pair`; neither the tokens nor the guess are read."""
        return self._masks(target, *tokens.shape)

    def _masks(self, target: Target, batch: int, count: int) -> tuple[Tensor, Tensor]:
        token = torch.full((1, 1), self.mask, device=self.mask_hidden.device)
        pair = self.embed(target, token), self.given(self.mask_hidden)
        return pair[0].expand(batch, count, -1), pair[1].expand(batch, count, -1)


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> PEagle:
    """Return an untrained drafter, whose own embeddings begin as the target's; see `Training.untrained`."""
    some = 0 < recipe.draft_vocabulary < target.vocabulary
    layer = layer_config(target.model.config)
    drafter = PEagle(
        layer,
        mask=mask_token(target),
        slots=recipe.depths,
        taps=usual_taps(target.model.config.get_text_config().num_hidden_layers),
        target_hidden=target.hidden,
        vocabulary=target.vocabulary,
        draft_ids=torch.tensor(frequent(recipe.draft_vocabulary)) if some else None,
        deeper=[layer] * (recipe.layers - 1),
        own_embeddings=True,
    )
    assert drafter.embed_tokens is not None
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.embed(torch.arange(target.vocabulary, device=target.device)))
    return drafter


def read_peagle(stored: Stored, target: Target) -> PEagle:
    """Read P-EAGLE in any of the layouts.

    Raises:
        ExecutorError: no mask token, or see `read_eagle3`.
    """
    slots = stored.facts.get("slots", SLOTS)
    if type(slots) is not int or slots < 1:
        raise ExecutorError(f"{stored.where}: slots must be 1 or more, found {slots!r:.40}")
    return read_eagle3(stored, target, partial(PEagle, mask=mask_of(stored, target), slots=slots))


def peagle_content(drafter: PEagle, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents, EAGLE-3's for vLLM or speculators with the mask; see `eagle3_content`."""
    written = eagle3_content(drafter, "eagle3-vllm" if layout is None else "speculators-eagle3", target, name)
    config = {**written.config, "mask_token_id": drafter.mask}
    if layout is None:
        config |= {"pard_token": drafter.mask, "parallel_drafting": True}
    else:
        config |= {"speculators_model_type": "peagle", "architectures": ["PEagleSpeculator"]}
    return replace(written, config=config, facts=written.facts | {"slots": drafter.max_depth})
