"""A small language model as the drafter (Leviathan et al. 2023).

Its cache holds every committed token but the root. A step feeds the root, then each level of the tree; after the
verdict the accepted nodes' keys and values are moved into place. Only an accepted leaf, which was not fed, is fed late,
before the next root.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.models import make_target
from executor.target.architectures import check_drafts
from executor.target.causal_model import pick_rows
from executor.target.kv_cache import TreeCache
from executor.target.target_model import Target
from executor.verification.tree_tensors import below
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import ExecutorError, UsageError
from treeopt.traces.trace import MAX_DEPTH


@dataclass
class LanguageModelState:
    """The position of each sequence in the draft model's cache, and the levels of the current step.

    Attributes:
        vocabulary: of the target.
        cache: the draft model's cache.
        lengths: int64 (batch,), committed tokens before the root.
        root: int64 (batch, 1), the root that was fed last.
        leaf: int64 (batch, 1), the token before the root.
        view: columns of the cache that are read.
        late: the leaf is fed before the root.
        level: levels drafted in this step.
        fed: nodes fed in this step.
        above: bool (b, last level, fed), ancestors of the nodes fed last.
        known: level -> the parents of the last call, with the ancestors and depths computed from them.
    """

    vocabulary: int
    cache: TreeCache
    lengths: Tensor
    root: Tensor
    leaf: Tensor
    view: int = 0
    late: bool = True
    level: int = 0
    fed: int = 0
    above: Tensor = field(default_factory=lambda: torch.zeros(0))
    known: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)


class LanguageModel(nn.Module):
    """Any causal language model with the target's token ids; ids that it lacks are not proposed."""

    kind = "language-model"
    abstains = False
    taps = None
    max_depth = MAX_DEPTH

    def __init__(self, model: Target) -> None:
        """Draft with `model`, through its own cache."""
        super().__init__()
        check_drafts(model.model.config)
        self.target = model
        self.model = model.model  # its weights are this module's
        self._depths = torch.arange(2, device=model.device)[None]
        self._pair = torch.ones(1, 2, 2, dtype=torch.bool, device=model.device).tril()
        self._alone = self._pair[:, :1, :1].clone()

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        return {"config": self.model.config}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what loading the model warned of, sentences without a full stop."""
        return self.target.warnings

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """See `Drafter.cache_bytes`."""
        return self.target.cache_bytes(batch, capacity)

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> LanguageModelState:
        """See `Drafter.begin`; raises ExecutorError for texts beyond the draft model's own context."""
        self.target.check_length(length)
        if self.target is target:
            raise ExecutorError("the drafter must be another copy of the model than the target: they need two caches")
        self.target.allocate(batch, capacity)
        empty = torch.zeros(batch, 1, dtype=torch.long, device=self.target.device)
        assert self.target.cache is not None
        return LanguageModelState(target.vocabulary, self.target.cache, empty[:, 0].clone(), empty, empty.clone())

    def lasting(self, state: LanguageModelState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return state.lengths, state.root, state.leaf

    def admit(self, state: LanguageModelState, admitted: Admitted) -> None:
        """Read the prompts up to the root; see `Drafter.admit`."""
        known = self.target.vocabulary
        texts = [[token if token < known else 0 for token in text[:-1]] for text in admitted.texts]
        self.target.prefill(admitted.numbers, texts, taps=None)
        state.lengths[admitted.rows] = admitted.lengths - 1
        state.leaf[admitted.rows] = admitted.prompts.gather(1, (admitted.lengths - 2).clamp(min=0)[:, None])

    def extend(self, state: LanguageModelState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Move the accepted nodes' keys and values into place; see `Drafter.extend`."""
        self.check_cache(state)
        if committed.tokens.shape[1] > 1 and not committed.in_place:
            state.cache.compact(state.lengths, committed.fed.clamp(min=0))
        state.view, state.late, state.level, state.fed = view, not all_fed, 0, 0
        if state.late:  # otherwise no leaf is fed in this step, and the next step has another leaf
            text = torch.cat([state.leaf, state.root, committed.tokens], 1)
            state.leaf.copy_(text.gather(1, committed.counts[:, None]))
        state.lengths.add_(committed.counts)

    def level(self, state: LanguageModelState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Run one forward over the level; see `Drafter.level`."""
        logits = self._root(state, tokens) if state.level == 0 else self._nodes(state, tokens, parents)
        state.level += 1
        return for_vocabulary(logits, state.vocabulary)

    def check_cache(self, state: LanguageModelState) -> None:
        """Raise ExecutorError if the cache is another decoder's by now."""
        if self.target.cache is not state.cache:
            raise ExecutorError("another decoder took the drafter's cache: run one after the other, or load it twice")

    def _root(self, state: LanguageModelState, tokens: Tensor) -> Tensor:
        state.root.copy_(tokens)
        state.fed, state.above = 1, self._alone
        if not state.late:
            return self._feed(state, tokens, state.lengths, self._depths[:, :1], self._alone)
        # The leaf and the root; a sequence without a leaf feeds its root first, and its second entry is ignored.
        alone = (state.lengths == 0)[:, None]
        pair = torch.cat([torch.where(alone, tokens, state.leaf), tokens], 1)
        logits = self._feed(state, pair, (state.lengths - 1).clamp(min=0), self._depths, self._pair)
        return torch.where(alone[:, None], logits[:, :1], logits[:, 1:])

    def _nodes(self, state: LanguageModelState, tokens: Tensor, parents: Tensor) -> Tensor:
        known = None if torch.compiler.is_compiling() else state.known.get(state.level)
        if known is None or known[0] is not parents:
            depths = torch.full((1, parents.shape[1]), state.level, device=parents.device)
            known = parents, below(state.above, parents), depths
            if not torch.compiler.is_compiling():
                state.known[state.level] = known  # a static tree's parents come again in every step
        _, state.above, depths = known
        logits = self._feed(state, tokens, state.lengths, depths, state.above, state.fed)
        state.fed += tokens.shape[1]
        return logits

    def _feed(
        self,
        state: LanguageModelState,
        tokens: Tensor,
        lengths: Tensor,
        depths: Tensor,
        ancestors: Tensor,
        first: int = 0,
    ) -> Tensor:
        if self.target.vocabulary < state.vocabulary:
            tokens = torch.where(tokens < self.target.vocabulary, tokens, 0)
        return self.target.verify(tokens, lengths, depths, ancestors, state.view, first).logits

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; uses the model's own features instead of the target's."""
        known = torch.where(tokens < self.target.vocabulary, tokens, 0)
        logits = for_vocabulary(self.target.features(known).logits, target.vocabulary)
        for k in range(1, depth + 1):
            guessed = logits.roll(-k, 1)  # row t is the guess after x_{t+k}; the last k rows have no meaning
            yield Forced(pick_rows(guessed, rows))


def for_vocabulary(logits: Tensor, vocabulary: int) -> Tensor:
    """Return the scores of the target's tokens, (..., vocabulary): those that the model lacks are not proposed."""
    missing = vocabulary - logits.shape[-1]
    return nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., :vocabulary]


def random_layers(target: Target, count: int, packed: bool) -> LanguageModel:
    """Return a language model of the target's layers with random weights; see `RandomWeights.make`."""
    config, name = of_layers(target.model.config, count), f"{target.name}-{count}-layers"
    return LanguageModel(make_target(config, name, target.dtype, str(target.device), packed))


def of_layers(config: PretrainedConfig, count: int) -> PretrainedConfig:
    """Return the text part of a configuration with `count` layers, the first ones (repeated if they are all alike).

    Raises:
        UsageError: layers that differ cannot be repeated, or no language model has this text part alone.
    """
    text = config.get_text_config()
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(f"{text.model_type}: transformers has no language model of this text part: name a --drafter")
    present = int(text.num_hidden_layers)
    fields = text.to_dict()
    lists = {name for name, value in fields.items() if isinstance(value, list) and len(value) == present}
    per_layer = {name for name in lists if not name.endswith("token_id")}  # several end tokens are no layers
    cut: dict[str, Any] = {name: (fields[name] * count)[:count] for name in per_layer}
    if shared := fields.get("num_kv_shared_layers"):  # the last ones
        cut["num_kv_shared_layers"] = max(0, count - present + shared)
    if own := fields.get("per_layer_config"):  # by number, where layers differ
        cut["per_layer_config"] = {number: changes for number, changes in own.items() if int(number) < count}
    if count > present and any(value != fields[name][0] for name in per_layer for value in fields[name]):
        raise UsageError(f"layers:{count}: the model has {present} layers that differ, so none can be added")
    return type(text).from_dict(fields | cut | {"num_hidden_layers": count})


def weights_read(drafter: LanguageModel, target: Shape) -> int:
    """Return the weights that a forward reads; see `DrafterKind.reads`."""
    return Shape.from_config(drafter.target.model.config.to_dict()).step_parameters
