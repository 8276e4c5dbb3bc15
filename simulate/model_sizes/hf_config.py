"""Counts from a Hugging Face config.json: weights, weights read a step, K/V bytes, FLOP. No time, no tensors.

Covers decoders of the Llama kind (arcee, gemma, llama, mistral, qwen2, qwen3; with experts in every layer mixtral and
qwen3_moe) and follows transformers in which fields of a config each of them reads. Refuses by name what it would
count wrongly.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.model_sizes.mixture_of_experts import Experts
from treeopt.errors import CostError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class _Family:
    """What a model class has whatever its config says, and which fields of the config it reads."""

    qkv_bias: bool = False
    qk_norm: bool = False
    gated: bool = True
    tied: bool = False
    reads: tuple[str, ...] = ()
    requires: tuple[str, ...] = ("num_key_value_heads",)
    experts: str | None = None
    intermediate: str = "intermediate_size"


_FAMILIES = {
    "arcee": _Family(gated=False, reads=("attention_bias", "mlp_bias"), requires=()),
    "gemma": _Family(tied=True, reads=("attention_bias",), requires=("num_key_value_heads", "head_dim")),
    "llama": _Family(reads=("attention_bias", "mlp_bias"), requires=()),
    "mistral": _Family(reads=("sliding_window",)),
    "mixtral": _Family(reads=("sliding_window",), experts="num_local_experts"),
    "qwen2": _Family(qkv_bias=True, reads=("use_sliding_window",)),
    "qwen3": _Family(
        qk_norm=True,
        reads=("attention_bias", "use_sliding_window"),
        requires=("num_key_value_heads", "head_dim"),
    ),
    "qwen3_moe": _Family(
        qk_norm=True,
        reads=("attention_bias",),
        requires=("num_key_value_heads", "head_dim", "moe_intermediate_size"),
        experts="num_experts",
        intermediate="moe_intermediate_size",
    ),
}
_REFUSED = {
    "n_routed_experts": "experts",
    "kv_lora_rank": "latent attention",
    "q_lora_rank": "latent attention",
}
_OF_EXPERTS = ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")
LARGEST = 2**31  # of any size
_WINDOW = 4096  # of a config without `sliding_window`, as in transformers; mixtral's have none then


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only transformer from which its cost follows.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width inside the MLP, or inside each expert.
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        head_dim: width of a head.
        vocab: rows of the embedding and of the LM head.
        tied: the LM head is the embedding matrix.
        qkv_bias: query, key and value projections have biases.
        output_bias: the attention's output projection has one.
        mlp_bias: the MLP's projections have biases.
        qk_norm: queries and keys are normalised per head, with `head_dim` weights each.
        gated: the MLP has a gate beside its up projection.
        window: positions that a layer with a sliding window sees, None without such layers.
        experts: what stands in the MLP's place in every layer, None without.

    Raises:
        CostError: names the first field that is wrong.

    >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> shape.parameters, shape.step_parameters, shape.kv_bytes()
    (1704, 1448, 32)
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gated: bool = True
    window: int | None = None
    experts: Experts | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is bool:
                _switch(field.name, value)
            elif field.name == "experts":
                if value is not None and not isinstance(value, Experts):
                    raise CostError(f"experts must be Experts or None, got {value!r:.80}")
            elif field.name != "window" or value is not None:
                positive(field.name, value)
        if self.heads % self.kv_heads:
            raise CostError(f"kv_heads must divide heads, got {self.kv_heads} and {self.heads}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | Path | str) -> "Shape":
        """The shape that a config.json describes: the parsed file, its path, or the path of its folder.

        Raises:
            CostError: names the file and the field that is wrong, missing or not covered.

        >>> sizes = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 32}
        >>> Shape.from_config({"model_type": "llama", "num_attention_heads": 4, **sizes}).head_dim
        2
        """
        return parsed(config, _read)

    @property
    def layer_matrices(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of a layer's matrices; q-k-v and gate-up are one each, as engines fuse them.

        With experts, gate-up and down are those of one of them.
        """
        attention, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (attention + 2 * keys, self.hidden),
            "output": (self.hidden, attention),
            "gate_up": ((1 + self.gated) * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def layer_parameters(self) -> int:
        """Weights of one decoder layer: matrices, biases, router, two norms and those of queries and keys."""
        return self._layer_weights(1 if self.experts is None else self.experts.count)

    def _layer_weights(self, mlps: int) -> int:
        """Weights of one decoder layer with so many MLPs, all its experts or those that are read."""
        outputs = {name: rows for name, (rows, _) in self.layer_matrices.items()}
        biases = self.qkv_bias * outputs["qkv"] + self.output_bias * outputs["output"]
        biases += mlps * self.mlp_bias * (outputs["gate_up"] + outputs["down"])
        return self._layer_products(mlps) + biases + 2 * self.hidden + self.qk_norm * 2 * self.head_dim

    def _layer_products(self, mlps: int) -> int:
        """Multiply-adds of one token with the matrices of one layer that has so many MLPs."""
        products = {name: rows * columns for name, (rows, columns) in self.layer_matrices.items()}
        router = 0 if self.experts is None else self.experts.count * self.hidden
        return products["qkv"] + products["output"] + router + mlps * (products["gate_up"] + products["down"])

    @property
    def _active(self) -> int:
        return 1 if self.experts is None else self.experts.active

    @property
    def step_parameters(self) -> int:
        """Weights that a decoding step reads: the LM head, tied or not, but no embedding (CORAL, Table 1).

        Of a layer's experts, those that one token picks.
        """
        return self.layers * self._layer_weights(self._active) + self.hidden + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the model, all experts among them; those of a tied LM head once."""
        layers = self.layers * self.layer_parameters
        return layers + self.hidden + (2 - self.tied) * self.vocab * self.hidden

    def kv_bytes(self, *, element_bytes: int = 2) -> int:
        """Bytes that the keys and values of a token take in all layers; `element_bytes` is 2 for bf16.

        Raises:
            CostError: `element_bytes` is no positive integer.
        """
        return 2 * self.layers * self.kv_heads * self.head_dim * positive("element_bytes", element_bytes)

    def flops(
        self, tokens: ArrayLike, *, context: ArrayLike = 0, logits: ArrayLike | None = None
    ) -> float | NDArray[np.float64]:
        """FLOP of one sequence's forward, a multiply-add being 2; for arrays a float64 array.

        Matrix products only. Every token meets every key of `context` and `tokens`, as a masked tree forward
        computes it; a causal kernel that skips blocks does less.

        Args:
            tokens: tokens fed.
            context: tokens whose keys and values are cached.
            logits: tokens whose logits are computed; None: all that are fed.

        Raises:
            UsageError: tokens below 1, or context or logits below 0.
            CostError: a sliding window would hide part of the context.

        >>> shape = Shape(layers=1, hidden=4, intermediate=8, heads=2, kv_heads=1, head_dim=2, vocab=16)
        >>> shape.flops(1, context=9)
        576.0
        """
        fed, cached = np.asarray(tokens, dtype=np.float64), np.asarray(context, dtype=np.float64)
        rows = fed if logits is None else np.asarray(logits, dtype=np.float64)
        for name, value, least in (("tokens", fed, 1), ("context", cached, 0), ("logits", rows, 0)):
            if not np.all((value >= least) & np.isfinite(value)):
                raise UsageError(f"{name} must be {least} or more, got {value}")
        if self.window is not None and np.any(fed + cached > self.window):
            longest = np.max(fed + cached)
            raise CostError(f"context + tokens must fit the sliding window, {self.window}, got {longest:g}")
        attention = 2 * self.heads * self.head_dim * (cached + fed)
        layers = self.layers * (self._layer_products(self._active) + attention) * fed
        total = 2 * (layers + self.vocab * self.hidden * rows)
        return float(total) if np.ndim(total) == 0 else np.asarray(total)


def eagle_parameters(target: Shape, *, fc_bias: bool = False) -> int:
    """Weights that one forward of an EAGLE, EAGLE-2, HASS or CORAL drafter for `target` reads.

    `fc` (2 x hidden to hidden; some checkpoints have a bias), one decoder layer of the target's shape without
    its first norm, the target's LM head. Source: CORAL (Weng et al. 2025), Table 1, W_d.

    >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> eagle_parameters(shape)
    968
    """
    if target.experts is not None:
        raise CostError("an EAGLE drafter of a target with experts has a layer of its own shape")
    fc = 2 * target.hidden**2 + fc_bias * target.hidden
    return fc + target.layer_parameters - target.hidden + target.vocab * target.hidden


def eagle_weight_ratio(target: Shape, *, fc_bias: bool = False) -> float:
    """W_d / W_t: `eagle_parameters` over the weights that a step of the target reads.

    Source: CORAL (Weng et al. 2025), Table 1; by its Eq. 5 the ratio of the two latencies.

    >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> round(eagle_weight_ratio(shape), 3)
    0.669
    """
    return eagle_parameters(target, fc_bias=fc_bias) / target.step_parameters


def quant_method(config: Mapping[str, Any] | Path | str) -> str | None:
    """The method by which a config.json says that its weights are quantised, None if they are not.

    Args:
        config: as for `Shape.from_config`.

    Raises:
        CostError: names the file, which cannot be read.

    >>> quant_method({"quantization_config": {"quant_method": "awq", "bits": 4}})
    'awq'
    """
    found = parsed(config, lambda content: content.get("quantization_config"))
    if not found:
        return None
    return str(found.get("quant_method", "not named") if isinstance(found, Mapping) else found)


def context_limit(config: Mapping[str, Any] | Path | str) -> int | None:
    """The longest context that a model was built for; None when its configuration does not say.

    `max_position_embeddings` may be what the model was trained with before rotary positions were stretched by YaRN or
    linearly (Vicuna 16k), as vLLM and SGLang take it; Command-R's leaves the whole to `model_max_length`.

    Args:
        config: as for `Shape.from_config`.

    Raises:
        CostError: names the file and the field that cannot be read.

    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> context_limit({"max_position_embeddings": 40960, "rope_scaling": yarn})
    131072
    """
    return parsed(config, _context_limit)


def _context_limit(config: Mapping[str, Any]) -> int | None:
    limit = config.get("max_position_embeddings")
    if limit is None:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    try:
        limits = [int(limit)]
        if rope or "rope_theta" in config:
            limits.append(int(config.get("model_max_length") or 0))
        before = {"linear": limit, "yarn": rope.get("original_max_position_embeddings") or limit}
        kind = str(rope.get("rope_type", rope.get("type")))
        limits.append(int(before.get(kind, 0) * float(rope.get("factor") or 1)))
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise CostError(f"max_position_embeddings or what stretches it is no number: {error}") from error
    return max(limits) if max(limits) > 0 else None


def parsed(config: Mapping[str, Any] | Path | str, read: Callable[[Mapping[str, Any]], T]) -> T:
    """What `read` makes of a config.json: of the parsed file, of that at a path, or of that in a folder.

    Raises:
        CostError: names the file, which cannot be read, or of which `read` says so.

    >>> parsed({"num_hidden_layers": 2}, lambda config: config["num_hidden_layers"])
    2
    """
    if isinstance(config, Mapping):
        return read(config)
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text("utf-8-sig"))
        if not isinstance(content, dict):
            raise CostError(f"must hold an object, got {content!r:.80}")
        return read(content)
    except (OSError, ValueError, RecursionError, CostError) as error:
        raise CostError(f"{path}: {error}") from error


def _read(config: Mapping[str, Any]) -> Shape:
    """The shape of a parsed config; errors name its fields."""
    model_type = config.get("model_type")
    family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise CostError(f"model_type must be one of {', '.join(_FAMILIES)}, got {model_type!r:.80}")
    for name, what in _REFUSED.items():
        if config.get(name):
            raise CostError(f"{name} must be absent, {what} cannot be counted; got {config[name]!r:.80}")
    for name in _OF_EXPERTS:
        if family.experts is None and config.get(name):
            raise CostError(f"{name} must be absent, {model_type} has no experts; got {config[name]!r:.80}")
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise CostError("mlp_only_layers must be empty and decoder_sparse_step 1, every layer having experts")
    if model_type == "qwen3_moe" and config.get("use_sliding_window"):
        raise CostError("use_sliding_window must be false for model_type qwen3_moe")
    for name in family.requires:
        if name not in config:
            raise CostError(f"{name} must be given for model_type {model_type}")

    def size(name: str, default: int | None = None) -> int:
        value = config.get(name)
        return positive(name, default if value is None else value)

    def switch(name: str, default: bool = False) -> bool:
        value = config.get(name)
        return _switch(name, default if value is None else value)

    layers, hidden, heads = size("num_hidden_layers"), size("hidden_size"), size("num_attention_heads")
    if config.get("head_dim") is None and hidden % heads:
        raise CostError(f"num_attention_heads must divide hidden_size, got {heads} and {hidden}")
    attention_bias = "attention_bias" in family.reads and switch("attention_bias")
    slides = "sliding_window" in family.reads
    if "use_sliding_window" in family.reads and switch("use_sliding_window"):
        kinds = config.get("layer_types")
        first = size("max_window_layers", 28)
        slides = "sliding_attention" in kinds if isinstance(kinds, list) else first < layers
    slides = slides and config.get("sliding_window", None if model_type == "mixtral" else _WINDOW) is not None
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=size(family.intermediate),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", hidden // heads),
        vocab=size("vocab_size"),
        tied=switch("tie_word_embeddings", family.tied),
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias="mlp_bias" in family.reads and switch("mlp_bias"),
        qk_norm=family.qk_norm,
        gated=family.gated,
        window=size("sliding_window", _WINDOW) if slides else None,
        experts=None if family.experts is None else Experts(size(family.experts), size("num_experts_per_tok")),
    )


def positive(name: str, value: object) -> int:
    """`value`, if it is a positive integer, and no larger than any model's sizes.

    Raises:
        CostError: it is not; names it.

    >>> positive("layers", 2)
    2
    """
    if type(value) is not int or value < 1:
        raise CostError(f"{name} must be a positive integer, got {value!r:.80}")
    if value > LARGEST:
        raise CostError(f"{name} must be at most {LARGEST}, got {value!r:.80}")
    return value


def _switch(name: str, value: object) -> bool:
    """`value`, if it is true or false."""
    if not isinstance(value, bool):
        raise CostError(f"{name} must be true or false, got {value!r:.80}")
    return value
