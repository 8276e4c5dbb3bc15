"""A Hugging Face causal language model: its sizes, embeddings and LM head, and a plain forward without a cache.

The model is used through its public forward: explicit `position_ids`, a four-dimensional mask and a Cache subclass; no
modelling code is copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from executor.target.architectures import check_architecture, context_limit
from executor.target.tree_attention_mask import KINDS, set_attention
from treeopt.errors import ExecutorError

# Layers whose inputs are returned as features; () for the LM head's input, None for no features.
Taps = tuple[int, ...] | None
HEAD = -1  # the LM head as one of several taps


def pick_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """Select from (batch, tokens, ...) the rows int64 (batch, n) of each sequence; None returns all unchanged."""
    return values if rows is None else values[torch.arange(len(rows), device=rows.device)[:, None], rows]


def put_last(stored: Tensor, rows: Tensor, new: Tensor, counts: Tensor) -> None:
    """Set stored[rows] to the entry counts - 1 of each row of `new`, (r, n, width); to zero where the count is 0."""
    stored.index_fill_(0, rows, 0)
    if new.shape[1]:
        stored[rows] = torch.where((counts > 0)[:, None], _last(new, counts), 0)


def keep_last(stored: Tensor, new: Tensor, counts: Tensor) -> None:
    """Set each row of `stored` to the entry counts - 1 of `new`, (batch, n, width); unchanged where the count is 0."""
    stored.copy_(torch.where((counts > 0)[:, None], _last(new, counts), stored))


def _last(new: Tensor, counts: Tensor) -> Tensor:
    return new[torch.arange(len(new), device=new.device), (counts - 1).clamp(min=0)]


class Features:
    """Hooks on a decoder that store the features of its last forward until they are taken."""

    def __init__(self, decoder: nn.Module, layers: int, name: str) -> None:
        """Hook a decoder of `layers` layers; `name` is the model's in errors."""
        self._count, self._name = layers, name  # the decoder holds the hooks: stored here, it would wait for gc
        self._inputs: dict[int, Tensor] = {}
        self._tapped = {HEAD}
        decoder.register_forward_hook(partial(self._keep_output, HEAD))

    def tap(self, decoder: nn.Module, layers: Sequence[int]) -> None:
        """Store the inputs of these decoder layers from now on, numbered as Hugging Face's `hidden_states`.

        Layer 0 reads the embeddings; one past the last stands for the output of the last layer, before the norm.

        Raises:
            ExecutorError: there is no such layer, or the layers cannot be found.
        """
        for layer in set(layers) - self._tapped:
            modules = self._layers(decoder)
            if not 0 <= layer <= len(modules):
                raise ExecutorError(f"{self._name}: layer {layer} does not exist: taps must be in 0..{len(modules)}")
            if layer < len(modules):
                modules[layer].register_forward_pre_hook(partial(self._keep_input, layer), with_kwargs=True)
            else:
                modules[-1].register_forward_hook(partial(self._keep_output, layer))
            self._tapped.add(layer)

    def take(self, taps: Taps) -> Tensor:
        """Return the features, tapped layers side by side: (batch, tokens, width), and drop them here.

        Raises:
            ExecutorError: the decoder did not run.
        """
        if HEAD not in self._inputs:
            raise ExecutorError(f"{self._name}: its decoder does not return the input of the LM head")
        features = torch.cat([self._inputs[layer] for layer in taps], -1) if taps else self._inputs[HEAD]
        self.drop()
        return features

    def drop(self) -> None:
        """Drop the features of the last forward."""
        self._inputs = {}

    def _layers(self, decoder: nn.Module) -> nn.ModuleList:
        for module in decoder.children():
            if isinstance(module, nn.ModuleList) and len(module) == self._count:
                return module
        raise ExecutorError(f"{self._name}: its layers are not in one ModuleList, so they cannot be tapped")

    def _keep_input(self, layer: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._inputs[layer] = args[0] if args else kwargs["hidden_states"]

    def _keep_output(self, layer: int, module: nn.Module, args: Any, output: Any) -> None:
        self._inputs[layer] = output if isinstance(output, Tensor) else output[0]


@dataclass(frozen=True)
class Outputs:
    """The results of a forward: logits (batch, tokens, vocabulary); features (batch, tokens, hidden), the input
    of the LM head (after the final norm), or (batch, tokens, taps x hidden), the inputs of the tapped layers.
    """

    logits: Tensor
    features: Tensor


class CausalModel:
    """A model in evaluation mode, with hooks that return features for drafters.

    Attributes:
        attention: the attention in use, "packed" (scaled-dot-product, grouped heads folded), or transformers' own,
            "sdpa" or "eager".
        attention_reason: why that is not the requested one; None when it is.
        warnings: what loading its files warns of, sentences without a full stop.
    """

    def __init__(self, model: PreTrainedModel, name: str = "", *, attention: str = "packed") -> None:
        """Wrap `model` (in evaluation mode); `name` is what provenance calls it.

        On CUDA this switches off cuDNN's attention for the whole process.

        Raises:
            ExecutorError: the model cannot verify trees, or there is no such attention.
        """
        if attention not in KINDS:
            raise ExecutorError(f"attention must be one of {', '.join(KINDS)}, got {attention}")
        check_architecture(model)
        self.model = model
        self.warnings: tuple[str, ...] = ()
        model.eval().requires_grad_(False)
        self.name = name or str(model.config.model_type)
        self.attention, self.attention_reason = set_attention(model, attention)
        if self.device.type == "cuda":  # cuDNN makes a plan for every new shape, and views and trees make many shapes
            torch.backends.cuda.enable_cudnn_sdp(False)
        self._decoder: nn.Module = model.get_decoder()
        layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0))
        self._features = Features(self._decoder, layers, self.name)

    @cached_property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and of the cache."""
        return next(self.model.parameters()).dtype

    @cached_property
    def hidden(self) -> int:
        """Width of a feature."""
        return int(self._head_weight.shape[1])

    @cached_property
    def vocabulary(self) -> int:
        """Width of the logits."""
        return int(self._head_weight.shape[0])

    @cached_property
    def context_limit(self) -> int | None:
        """See `architectures.context_limit`."""
        return context_limit(self.model.config)

    def check_length(self, length: int) -> None:
        """Raise ExecutorError, naming both lengths, for a sequence longer than the model's context."""
        if self.context_limit is not None and length > self.context_limit:
            raise ExecutorError(f"{self.name}: {length} tokens exceed the model's context of {self.context_limit}")

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the input embeddings: int64 (...) -> (..., hidden)."""
        embeddings: Tensor = self.model.get_input_embeddings()(tokens)
        return embeddings

    # --- the LM head

    @property
    def head(self) -> nn.Module:
        """The LM head: features to logits, without any scaling that the model applies after it."""
        return self.model.get_output_embeddings()  # type: ignore[no-any-return]

    @property
    def _head_weight(self) -> Tensor:
        weight = self.head.weight
        assert isinstance(weight, Tensor)
        return weight

    @cached_property
    def head_scaling(self) -> tuple[float, float | None]:
        """A factor on the LM head's output, and a soft cap; measured once, by a forward of at most 16 tokens.

        Raises:
            ExecutorError: the model changes its logits in another way.
        """
        count = min(16, self.vocabulary, self.context_limit or 16)
        outputs = self.features(torch.arange(count, device=self.device)[None])
        with torch.no_grad():
            return head_scaling(self.model.config, self.head(outputs.features), outputs.logits)

    @cached_property
    def _has_known_scaling(self) -> bool:
        """True if `scored` gives the model's logits."""
        try:
            return bool(self.head_scaling)
        except ExecutorError:
            return False

    def scored(self, features: Tensor) -> Tensor:
        """Return the model's logits for features: (..., hidden) -> (..., vocabulary)."""
        raw: Tensor = self.head(features)
        return self.after_head(raw)

    def after_head(self, raw: Tensor) -> Tensor:
        """Apply to the LM head's output what the model applies to it, entry by entry."""
        factor, cap = self.head_scaling
        raw = raw if factor == 1 else raw * factor
        return raw if cap is None else cap * torch.tanh(raw / cap)

    # --- forward

    def feature_width(self, taps: Taps) -> int:
        """Return the width of the features that a drafter with these taps reads."""
        return 0 if taps is None else self.hidden * max(1, len(taps))

    def features(
        self, tokens: Tensor, taps: Taps = (), *, learning: bool = False, rows: Tensor | None = None
    ) -> Outputs:
        """Run a plain causal forward without a cache, tokens int64 (batch, length), for training and recording.

        Args:
            tokens: int64 (batch, length).
            taps: layers whose inputs are returned as features; () for the input of the LM head.
            learning: the target itself is trained, so keep what gradients need.
            rows: int64 (batch, n), the positions of each sequence whose logits are returned; None for all.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        inputs = {"input_ids": tokens, "position_ids": positions, "use_cache": False}
        if rows is not None and self._has_known_scaling:
            self._features.tap(self._decoder, taps or ())
            with torch.no_grad():
                last = self._decoder(**inputs)[0]
                return Outputs(self.scored(pick_rows(last, rows)), self._features.take(taps))
        with torch.set_grad_enabled(learning and torch.is_grad_enabled()):
            outputs = self._run(self.model, taps, **inputs)
        return replace(outputs, logits=pick_rows(outputs.logits, rows))

    def _run(self, forward: Callable[..., Any], taps: Taps, **inputs: Any) -> Outputs:
        """Call a forward and take the tapped features."""
        if taps:
            self._features.tap(self._decoder, taps)
        logits = forward(**inputs).logits
        return Outputs(logits, self._features.take(taps))


def head_scaling(config: PretrainedConfig, raw: Tensor, logits: Tensor) -> tuple[float, float | None]:
    """Return the factor (Cohere, Granite) and the soft cap (Gemma 2; None for none) on the LM head's output.

    They are measured by comparing one forward's `raw` with its `logits`, since configurations name and use them in many
    ways. Logits far below a cap look as if scaled by a factor: a cap that the configuration names is believed unless
    another explanation is nearer by more than rounding.

    Raises:
        ExecutorError: the model changes its logits in another way.
    """
    step = max(torch.finfo(values.dtype).eps for values in (raw, logits))
    raw, logits = raw.double(), logits.double()
    largest = float(logits.abs().max())
    cap = getattr(config.get_text_config(), "final_logit_softcapping", None)
    fitted = float((logits * raw).sum() / raw.square().sum().clamp(min=1e-30))
    scalings: list[tuple[float, float | None]] = [(1.0, None), (fitted, None)]
    errors = [float((factor * raw - logits).abs().max()) for factor, _ in scalings]
    if cap and errors[0]:
        capped = float((cap * (raw / cap).tanh() - logits).abs().max())
        if capped <= max(min(errors), 4 * step * largest):
            scalings, errors = [(1.0, float(cap))], [capped]
    for scaling, error in zip(scalings, errors, strict=True):
        if error <= min(16 * step, 2**-6) * largest:
            return scaling
    raise ExecutorError(f"{config.model_type} models change their logits in a way that is not known")
