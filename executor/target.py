"""Any Hugging Face causal language model as the target: tokens in, logits and features out, ragged and in trees.

The model is used through its public forward: explicit `position_ids`, a four-dimensional mask and a Cache
subclass; no modelling code is copied. Which models cannot be driven this way is decided here, by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from executor.attention import causal_mask, tree_mask
from executor.cache import TreeCache
from treeopt.errors import ExecutorError

# Positions enter these models through a two-dimensional mask or a recurrent state; a tree cannot be expressed.
REFUSED = {
    "bloom": "its ALiBi bias is built from a two-dimensional mask",
    "mpt": "its ALiBi bias is built from a two-dimensional mask",
    "qwen3_next": "its linear-attention layers keep a recurrent state",
    "mamba": "it keeps a recurrent state",
    "mamba2": "it keeps a recurrent state",
    "jamba": "it keeps a recurrent state",
    "gpt_neo": "its local attention layers see a window that its configuration names in a way of its own",
    "llama4": "its chunked attention needs a third mask",
}


@dataclass(frozen=True)
class Outputs:
    """What a forward returns: logits (batch, tokens, vocabulary); features (batch, tokens, hidden), the input
    of the LM head (after the final norm).
    """

    logits: Tensor
    features: Tensor


class Target:
    """The model whose output is wanted, with a key/value cache for `batch` sequences of up to `capacity` tokens."""

    def __init__(self, model: PreTrainedModel, name: str = "") -> None:
        """Wrap `model` (in evaluation mode); `name` is what provenance calls it."""
        config = model.config
        if config.model_type in REFUSED:
            raise ExecutorError(f"{config.model_type} models cannot verify trees: {REFUSED[config.model_type]}")
        if "longrope" in _rope_types(config):
            raise ExecutorError(
                f"{config.model_type}: LongRoPE changes all positions when one sequence grows long; not supported"
            )
        self.model = model
        model.eval().requires_grad_(False)
        self.name = name or str(config.model_type)
        self.window = _window(config)
        self.cache: TreeCache | None = None
        self._features: Tensor | None = None
        model.base_model.register_forward_hook(self._keep_features)

    def _keep_features(self, module: nn.Module, args: Any, output: Any) -> None:
        self._features = output[0]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and of the cache."""
        return next(self.model.parameters()).dtype

    @property
    def hidden(self) -> int:
        """Width of a feature."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def vocabulary(self) -> int:
        """Width of the logits."""
        weight = self.head.weight
        assert isinstance(weight, Tensor)
        return int(weight.shape[0])

    @property
    def head(self) -> nn.Module:
        """The LM head: features to logits, without any scaling the model applies after it."""
        return self.model.get_output_embeddings()  # type: ignore[no-any-return]

    @property
    def context_limit(self) -> int | None:
        """The longest context the model was built for; None when its configuration does not say."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return None if limit is None else int(limit)

    def check_length(self, length: int) -> None:
        """Refuse a sequence that the model cannot see as a whole.

        Raises:
            ExecutorError: it is longer than the model's context or attention window.
        """
        if self.context_limit is not None and length > self.context_limit:
            raise ExecutorError(f"{self.name}: {length} tokens exceed the model's context of {self.context_limit}")
        if self.window is not None and length > self.window:
            raise ExecutorError(
                f"{self.name}: {length} tokens are too many, it attends only to the last {self.window} "
                "(sliding windows are not supported)"
            )

    def allocate(self, batch: int, capacity: int) -> None:
        """Make room for `batch` sequences of `capacity` tokens, drafted ones included."""
        layers = int(self.model.config.get_text_config().num_hidden_layers)
        self.cache = TreeCache(layers, batch, capacity)

    @torch.no_grad()
    def prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Fill cache rows with the prompts; per prompt its features, (len(prompt), hidden).

        Prompts may be empty (nothing is computed). Right-padded: what lies beyond a prompt's end is never seen.
        """
        longest = max((len(p) for p in prompts), default=0)
        if longest == 0:
            return [torch.zeros(0, self.hidden, dtype=self.dtype, device=self.device) for _ in prompts]
        assert self.cache is not None, "allocate() first"
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            tokens[i, : len(prompt)] = torch.as_tensor(prompt, dtype=torch.long)
        self.cache.fill(torch.as_tensor(rows, device=self.device))
        features = self._forward(tokens.to(self.device), self.cache).features
        return [features[i, : len(p)] for i, p in enumerate(prompts)]

    @torch.no_grad()
    def verify(
        self, tokens: Tensor, lengths: Tensor, depths: Tensor, ancestors: Tensor, view: int, first: int = 0
    ) -> Outputs:
        """One forward over nodes of every sequence's tree, the root being node 0.

        Args:
            tokens: int64 (batch, fed), nodes `first`, `first` + 1, ...; those before are in the cache already.
            lengths: int64 (batch,), committed tokens in the cache.
            depths: int64 (b, fed), 0 for the root; b is 1 or batch.
            ancestors: bool (b, fed, first + fed), row attends to column.
            view: columns of the cache that are looked at; at least max(lengths) + first + fed.
        """
        assert self.cache is not None, "allocate() first"
        slots = lengths[:, None] + torch.arange(first, first + tokens.shape[1], device=tokens.device)
        self.cache.place(slots, view)
        mask = tree_mask(lengths, ancestors, view, self.dtype)
        return self._call(tokens, mask, lengths[:, None] + depths, self.cache)

    @torch.no_grad()
    def features(self, tokens: Tensor) -> Outputs:
        """A plain causal forward without cache, tokens int64 (batch, length), for training and recording."""
        return self._forward(tokens, None)

    def _forward(self, tokens: Tensor, cache: TreeCache | None) -> Outputs:
        count = tokens.shape[1]
        positions = torch.arange(count, device=tokens.device).expand(tokens.shape[0], -1)
        return self._call(tokens, causal_mask(count, self.dtype, tokens.device), positions, cache)

    def _call(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: TreeCache | None) -> Outputs:
        logits = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        ).logits
        if self._features is None:
            raise ExecutorError(f"{self.name}: its base model does not return the input of the LM head")
        features, self._features = self._features, None
        return Outputs(logits, features)


def _rope_types(config: Any) -> set[str]:
    """Kinds of rotary embedding that the configuration names, per layer type or for all."""
    text = config.get_text_config()
    found = set()
    waiting = [getattr(text, "rope_parameters", None), getattr(text, "rope_scaling", None)]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            found |= {str(here[key]) for key in ("rope_type", "type") if key in here}
            waiting.extend(here.values())
    return found


def _window(config: Any) -> int | None:
    """The attention window of models whose layers do not see the whole context, else None."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        names = ", ".join(sorted(kinds - {"full_attention", "sliding_attention"}))
        raise ExecutorError(f"{config.model_type}: layers of type {names} are not supported")
    window = getattr(text, "sliding_window", None)
    if kinds and "sliding_attention" not in kinds:
        return None
    if hasattr(text, "use_sliding_window") and not text.use_sliding_window:
        return None
    return None if window is None else int(window)
