"""PARD (arXiv 2504.18583): a language model reads the text and then mask tokens, one for each token after the next.

The root scores the first token, the mask at k - 1 positions further the token at depth k. A mask sees the text up to
the root and the masks before it. No drafted token is ever fed: a step feeds the last root again, the tokens committed
since, and the masks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.base.drafter import USUAL_DEPTH, Admitted, Committed, Forced, mask_token
from executor.drafters.base.recipe import Frequent, Recipe
from executor.drafters.language_model.drafter import LanguageModel, LanguageModelState, for_vocabulary, of_layers
from executor.drafters.pard import MASKS
from executor.target.architectures import check_drafts, model_class
from executor.target.load_hf_model import dtype_name, load_target
from executor.target.target_model import Target
from treeopt.errors import ExecutorError


@dataclass
class PardState(LanguageModelState):
    """A language model's state.

    Attributes:
        depth: levels of the trees, at least 1.
        scores: (batch, depth, vocabulary), of all levels.
    """

    depth: int = 0
    scores: Tensor = field(default_factory=lambda: torch.zeros(0))


class Pard(LanguageModel):
    """A causal language model with the target's token ids, which learnt to draft by mask tokens.

    Attributes:
        mask: the mask token.
    """

    kind = "pard"

    def __init__(self, model: Target, mask: int) -> None:
        """Draft with `model`, through its own cache."""
        super().__init__(model)
        self.mask = mask
        self._chains: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        return {**super().settings, "mask": self.mask}

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        return super().cache_bytes(batch, capacity + _room(USUAL_DEPTH))

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> PardState:
        """See `Drafter.begin`; masks stand after the text."""
        state = super().begin(target, batch, depth, length, capacity + _room(depth))
        return PardState(**vars(state), depth=max(1, depth))

    def admit(self, state: LanguageModelState, admitted: Admitted) -> None:
        """See `Drafter.admit`."""
        super().admit(state, admitted)
        state.root[admitted.rows] = admitted.prompts.gather(1, admitted.lengths[:, None] - 1)

    def extend(self, state: LanguageModelState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Feed the committed tokens and the masks, which score all levels; see `Drafter.extend`."""
        assert isinstance(state, PardState)
        self.check_cache(state)
        state.view, state.level, last = view + _room(state.depth), 0, committed.counts[:, None]
        text = torch.cat([state.root, committed.tokens], 1)
        width = text.shape[1] + state.depth - 1
        if torch.compiler.is_compiling() or width not in self._chains:
            place = torch.arange(width, device=last.device)
            self._chains[width] = place, (place <= place[:, None])[None]
        place, chain = self._chains[width]
        fed = nn.functional.pad(text, (0, state.depth - 1)).where(place <= last, self.mask)
        logits = self._feed(state, fed, state.lengths, place[None], chain)
        chosen = (last + place[: state.depth])[..., None].expand(-1, -1, logits.shape[-1])
        state.scores = for_vocabulary(logits.gather(1, chosen), state.vocabulary)
        state.lengths.add_(committed.counts)
        state.root.copy_(text.gather(1, last))

    def level(self, state: LanguageModelState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return what the root or a mask scores; see `Drafter.level`."""
        assert isinstance(state, PardState)
        state.level += 1
        return state.scores[:, state.level - 1, None]

    def teacher_forced(
        self,
        target: Target,
        tokens: Tensor,
        features: Tensor,
        depth: int,
        *,
        rows: Tensor | None = None,
        kept: Sequence[int] | None = None,
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; at depth k only the first `kept[k - 1]` rows are scored.

        Without gradients the rows are scored in pieces, so that a forward has at most about twice the text's tokens.
        """
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        kept = [rows.shape[1]] * depth if kept is None else kept
        size = rows.shape[1] if torch.is_grad_enabled() else max(1, tokens.shape[1] // depth)
        pieces = []
        for start in range(0, rows.shape[1], size):
            counts = [min(max(count - start, 0), size) for count in kept[:depth]]
            pieces.append(self._forced(tokens, rows[:, start : start + size], counts))
        for level in zip(*pieces, strict=True):
            yield Forced(for_vocabulary(torch.cat(level, 1), target.vocabulary))

    def _forced(self, tokens: Tensor, rows: Tensor, kept: Sequence[int]) -> tuple[Tensor, ...]:
        """Score the first `kept[k - 1]` anchors at each depth k, in a forward over the text and all of their masks."""
        length = tokens.shape[1]
        text = torch.arange(length, device=tokens.device)
        roots = (rows + 1).clamp(max=length - 1)
        masked = [roots[:, :count] for count in kept[1:]]
        ends = torch.cat([text.expand(len(tokens), -1), *masked], 1)  # the last token of the text that each sees
        ids = torch.cat([text.new_full((length,), -1), *(text[:0].new_tensor(range(n)) for n in kept[1:])])
        deep = torch.cat([torch.zeros_like(text), *(text.new_full((n,), k) for k, n in enumerate(kept[1:], 1))])
        own = (ids == ids[:, None]) & (deep <= deep[:, None]) & (ids >= 0)
        seen = torch.cat([text <= ends[..., None], own[:, length:].expand(len(tokens), -1, -1)], -1)
        known = torch.where(tokens < self.target.vocabulary, tokens, 0)
        fed = nn.functional.pad(known, (0, len(ids) - length), value=self.mask)
        after = torch.arange(length, len(ids), device=tokens.device).expand(len(tokens), -1)
        scored = self.target.node_scores(fed, ends + deep, seen, torch.cat([roots[:, : kept[0]], after], 1))
        return tuple(scored[:, end - n : end] for n, end in zip(kept, accumulate(kept), strict=True))


def _room(depth: int) -> int:
    """Return the cache entries behind a tree's that masks and the last root need, a multiple of 8."""
    return -(-(depth + 1) // 8) * 8


def read_pard(stored: Stored, target: Target) -> Pard:
    """Read a whole language model with the mask token in its configuration.

    Raises:
        ExecutorError: the mask is no token of the model's, or see `load_target`.
    """
    mask = next(stored.config[name] for name in MASKS if stored.config.get(name) is not None)
    folder = stored.path if stored.path.is_dir() else stored.path.parent
    model = load_target(folder, dtype=dtype_name(target.dtype), device=str(target.device), drafter=True)
    if type(mask) is not int or not 0 <= mask < model.vocabulary:
        raise ExecutorError(f"{stored.where}: {MASKS[0]} must be in 0..{model.vocabulary - 1}, found {mask!r:.40}")
    return Pard(model, mask)


def pard_content(drafter: Pard, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the model's own files, with the mask token as AMD's and vLLM's readers ask for it."""
    config = drafter.model.config.to_diff_dict()
    config |= {"architectures": [type(drafter.model).__name__], "torch_dtype": config.pop("dtype", None)}
    config |= {MASKS[0]: drafter.mask, "spd_type": drafter.kind}
    held = {value.data_ptr(): (key, value) for key, value in reversed(drafter.model.state_dict().items())}  # tied: once
    return Written("model.safetensors", dict(held.values()), config, {"kind": drafter.kind})


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> Pard:
    """Return the target's first layers between its embeddings and its LM head; see `Training.untrained`."""
    check_drafts(target.model.config)
    config = of_layers(target.model.config, recipe.layers)
    model = model_class(config).from_config(config, dtype=torch.float32)
    for part, own in (
        (model.get_decoder(), target.model.get_decoder()),
        (model.get_output_embeddings(), target.model.get_output_embeddings()),
    ):
        part.load_state_dict(own.state_dict(), strict=False)
    return Pard(Target(model, target.name), mask_token(target))


def resumed(recipe: Recipe, drafter: LanguageModel) -> Pard:
    """Return a PARD drafter of any language model; see `Training.resumed`."""
    return drafter if isinstance(drafter, Pard) else Pard(drafter.target, mask_token(drafter.target))
