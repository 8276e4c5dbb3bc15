"""Any Hugging Face causal language model as the target: tokens in, logits and features out, ragged and in trees.

The model is used through its public forward: explicit `position_ids`, a four-dimensional mask and a Cache
subclass; no modelling code is copied. Which models cannot be driven this way is decided here, by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from executor.attention import causal_mask, tree_mask
from executor.cache import TreeCache
from treeopt.errors import ExecutorError, UsageError

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
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

    @classmethod
    def load(cls, path: Path | str, *, dtype: str = "float32", device: str = "cpu") -> "Target":
        """Read a local Hugging Face checkpoint folder.

        Raises:
            ExecutorError: no such folder, or transformers cannot read it.
        """
        if dtype not in DTYPES:
            raise ExecutorError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
        if not Path(path).is_dir():
            raise ExecutorError(f"{path}: no model folder here")
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            if config.model_type in REFUSED:
                raise ExecutorError(
                    f"{path}: {config.model_type} models cannot verify trees: {REFUSED[config.model_type]}"
                )
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=DTYPES[dtype],
                attn_implementation="sdpa",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, UnpicklingError) as error:
            raise ExecutorError(f"{path}: transformers cannot load this model: {_first_line(error)}") from error
        model, found = loaded
        if found["missing_keys"]:
            raise ExecutorError(f"{path}: the weights of {min(found['missing_keys'])} are missing")
        if found["mismatched_keys"]:
            name, stored, due = min(found["mismatched_keys"])
            raise ExecutorError(f"{path}: {name} must be {tuple(due)}, found {tuple(stored)}")
        check_finite(path, model)
        model.to(torch.device(device))
        return cls(model, name=Path(path).resolve().name)

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
    def verify(self, tokens: Tensor, lengths: Tensor, depths: Tensor, ancestors: Tensor, view: int) -> Outputs:
        """One forward over the root and the drafted nodes of every sequence.

        Args:
            tokens: int64 (batch, nodes + 1), the root first.
            lengths: int64 (batch,), tokens already in the cache.
            depths: int64 (nodes + 1,), 0 for the root.
            ancestors: bool (nodes + 1, nodes + 1), row attends to column.
            view: columns of the cache that are looked at; at least max(lengths) + nodes + 1.
        """
        assert self.cache is not None, "allocate() first"
        count = tokens.shape[1]
        self.cache.place(lengths[:, None] + torch.arange(count, device=tokens.device), view)
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


def check_finite(path: Path | str, module: nn.Module) -> None:
    """Refuse weights that are no numbers.

    Raises:
        ExecutorError: names the first such tensor.
    """
    for name, value in module.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise ExecutorError(f"{path}: {name} holds values that are not finite")


def prepare(device: str, *, threads: int | None = None) -> None:
    """Make ready for models on `device`: transformers silent, CPU threads set.

    Raises:
        UsageError: no such device.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device {device}: {_first_line(error)}") from error


def load_tokenizer(path: Path | str, *, vocabulary: int) -> PreTrainedTokenizerBase:
    """The tokenizer of a local Hugging Face checkpoint folder, for a model of so many tokens.

    Raises:
        ExecutorError: there is none, or it has more tokens than the model.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ExecutorError(f"{path}: transformers cannot load a tokenizer: {_first_line(error)}") from error
    if len(tokenizer) > vocabulary:
        raise ExecutorError(
            f"{path}: the tokenizer has {len(tokenizer)} tokens, the model a vocabulary of {vocabulary}"
        )
    return tokenizer


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
