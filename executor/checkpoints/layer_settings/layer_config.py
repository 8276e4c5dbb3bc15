"""The configuration of a drafter's decoder layer: widths from its tensors, the rest from its config.json.

Fields that a layer's configuration leaves out have Llama's defaults, as in the projects' own code and in every engine.
Without a configuration, as beside heads, rotary positions, epsilon and context are the target's.
"""

from typing import Any

from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from executor.checkpoints.layer_settings.config_fields import LAYERS, check_fields
from executor.checkpoints.layer_settings.positions import ROTARY, layer_type, positive, rotary, warnings_refused
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.base.decoder_layer import layer_config
from executor.target.target_model import Target
from treeopt.errors import ExecutorError, shorten

LLAMA_EPSILON, LLAMA_BASE = 1e-6, 10000.0
SCALED = "scaled rotary positions"  # in messages
# The field in which speculators nests the layer's configuration; otherwise it is the whole file, see
# `config_fields.with_model_fields`.
NESTED = "transformer_layer_config"
# Where models for images nest their text part.
TEXT = ("text_config", "llm_config", "language_config")
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "attention_bias",
    "mlp_bias",
    "vocab_size",
)


def config_of(stored: Stored, layer: str, target: Target, *, hidden: int, number: int = 0) -> LlamaConfig:
    """Return the configuration of the decoder layer whose tensors' names begin with `layer`.

    Args:
        stored: the checkpoint.
        layer: such as `layers.0.`.
        target: gives what the checkpoint leaves out.
        hidden: the layer's width.
        number: of the layer in the drafter, from 0.

    Raises:
        ExecutorError: the tensors are no such layer's, or contradict the configuration.
    """
    given = layer_fields(stored)
    check_fields(stored, given)
    _note_passed_over(stored, given)
    usual = layer_config(target.model.config)
    if "hidden_size" in given or "num_attention_heads" in given:
        usual.rms_norm_eps, usual.rope_parameters = LLAMA_EPSILON, {"rope_type": "default", "rope_theta": LLAMA_BASE}
    heads, key_heads, width = _attention_heads(stored, given, layer, hidden, int(usual.head_dim or 0))
    epsilon = positive(stored, given, "rms_norm_eps", float(usual.rms_norm_eps))
    limit = positive(stored, given, "max_position_embeddings", float(usual.max_position_embeddings))
    activation = given.get("hidden_act") or "silu"
    if not isinstance(activation, str) or activation not in ACT2FN:
        raise ExecutorError(f"{stored.where}: hidden_act {activation!r} is not known")
    rope = rotary(
        stored,
        given,
        usual.rope_parameters or {},
        layer_type=layer_type(stored, given, number),
        width=width,
        positions=int(limit),
        context=target.context_limit,
    )
    try:
        with warnings_refused():
            config = LlamaConfig(
                vocab_size=target.vocabulary,
                hidden_size=hidden,
                intermediate_size=_rows(stored, f"{layer}mlp.gate_proj.weight"),
                num_attention_heads=heads if hidden % heads == 0 else 1,
                num_key_value_heads=key_heads,
                head_dim=width,
                num_hidden_layers=1,
                hidden_act=activation,
                rms_norm_eps=epsilon,
                max_position_embeddings=int(limit),
                rope_parameters=rope,
                attention_bias=any(f"{layer}self_attn.{part}_proj.bias" in stored.entries for part in "qkv"),
                mlp_bias=any(f"{layer}mlp.{part}_proj.bias" in stored.entries for part in ("gate", "up", "down")),
            )
        config.num_attention_heads = heads  # LlamaConfig refuses GLM's, whose heads do not divide the width
        LlamaRotaryEmbedding(config)
    except Exception as error:  # validators of transformers raise classes of their own
        why = " ".join(str(error).split()) or type(error).__name__
        raise ExecutorError(f"{stored.where}: the decoder layer must be one of Llama's kind: {why}") from error
    return config


def _attention_heads(
    stored: Stored, given: dict[str, Any], layer: str, hidden: int, usual: int
) -> tuple[int, int, int]:
    """Return the attention heads, the key heads and their width, checked; `usual` is the default width."""
    query, key = (_rows(stored, f"{layer}self_attn.{part}_proj.weight") for part in "qk")
    width = _head_width(stored, given, query, usual)
    if query % width or key % width or not key or query % key or width % 2:
        raise ExecutorError(
            f"{stored.path}: {query} rows of {layer}self_attn.q_proj.weight and {key} of k_proj are not whole heads of "
            f"{width} (head_dim in config.json)"
        )
    return query // width, key // width, width


def fields(config: LlamaConfig) -> dict[str, Any]:
    """Return the layer's fields for config.json, rotary positions in both spellings that transformers has had."""
    rope = dict(config.rope_parameters or {})
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    plain = rope.get("rope_type", "default") == "default"
    return {
        **{name: getattr(config, name) for name in FIELDS},
        "num_hidden_layers": 1,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if plain else scaling,
        "rope_parameters": rope,
    }


def is_scaled(config: LlamaConfig) -> bool:
    """Return whether rotary positions are scaled, which the reference's EAGLE mostly cannot read.

    It refuses transformers' present spelling (`rope_type`), knows only linear and dynamic scaling, and uses base 10000
    with these.
    """
    return (config.rope_parameters or {}).get("rope_type", "default") != "default"


def layer_fields(stored: Stored) -> dict[str, Any]:
    """Return the fields of config.json that describe a layer: those of a nested part if there is one."""
    for name in (NESTED, *TEXT):
        if stored.config.get(name) is not None and not isinstance(stored.config[name], dict):
            raise ExecutorError(f"{stored.where}: {name} must be an object, found {stored.config[name]!r:.60}")
    within = stored.facts.get("layer")
    if isinstance(within, dict):
        return within
    layer = stored.config.get(NESTED)
    return _with_text(layer if layer is not None else stored.config)


def _with_text(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that describes text: itself, unless it leaves that to a nested part."""
    parts = [config.get(name) for name in TEXT if "hidden_size" not in config]
    return next((part for part in parts if isinstance(part, dict)), config)


def _note_passed_over(stored: Stored, given: dict[str, Any]) -> None:
    """Note what config.json says of a layer in a second nested part, which is not read."""
    fields = ("hidden_size", *LAYERS, *ROTARY)
    nested = [(name, part.get(name)) for part in (stored.config, given) for name in (NESTED, *TEXT)]
    for name, other in nested:
        if isinstance(other, dict) and given is not other and all(given is not other.get(text) for text in TEXT):
            differ = [key for key in fields if other.get(key) not in (None, given.get(key))]
            if differ:
                stored.assume(f"{name} is not read; it says otherwise of {shorten(differ)} than the layer's fields")


def _rows(stored: Stored, name: str) -> int:
    if name not in stored.entries:
        raise ExecutorError(f"{stored.path}: 1 missing: {stored.spelt(name)}")
    shape = stored.entries[name].shape
    if len(shape) != 2 or not shape[0]:
        raise ExecutorError(f"{stored.path}: {stored.entries[name].key} must have two dimensions, found {shape}")
    return shape[0]


def _head_width(stored: Stored, given: dict[str, Any], rows: int, usual: int) -> int:
    """Return `head_dim`, else the query's rows over `num_attention_heads`, else the target's width."""
    heads = int(positive(stored, given, "num_attention_heads", 0))
    if given.get("head_dim") is not None:
        width = int(positive(stored, given, "head_dim", usual))
    else:
        width = rows // heads if heads else usual
    if not width or (heads and heads * width != rows):
        raise ExecutorError(
            f"{stored.path}: the {rows} rows of q_proj contradict config.json's {heads} heads"
            + (f" of {width}" if given.get("head_dim") is not None else "")
        )
    return width
