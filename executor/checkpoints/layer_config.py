"""The configuration of a drafter's decoder layer: widths as its tensors have them, the rest as its config.json says.

What a configuration of a layer leaves out is as Llama has it, since the projects' own code and every engine take it so.
Where there is none, as beside heads, rotary positions, epsilon and context are the target's.
"""

import math
from typing import Any

from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.decoder_layer import layer_config
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

LLAMA_EPSILON, LLAMA_BASE = 1e-6, 10000.0
SCALED = "scaled rotary positions"  # in messages
# Where speculators and vLLM have the layer's configuration; without these it is the whole.
NESTED = ("transformer_layer_config", "model")
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


def config_of(stored: Stored, layer: str, target: Target, *, hidden: int) -> LlamaConfig:
    """What the decoder layer whose tensors' names begin with `layer` is built from.

    Args:
        stored: the checkpoint.
        layer: such as `layers.0.`.
        target: says what the checkpoint does not.
        hidden: the layer's width.

    Raises:
        ExecutorError: the tensors are no such layer's, or contradict what only the configuration can say.
    """
    said = _said(stored)
    query, key = (_rows(stored, f"{layer}self_attn.{part}_proj.weight") for part in "qk")
    usual = layer_config(target.model.config)
    if "hidden_size" in said or "num_attention_heads" in said:
        usual.rms_norm_eps, usual.rope_parameters = LLAMA_EPSILON, {"rope_type": "default", "rope_theta": LLAMA_BASE}
    width = _head_width(stored, said, query, int(usual.head_dim or 0))
    if query % width or key % width or not key or query % key or width % 2:
        raise ExecutorError(
            f"{stored.path}: {query} rows of {layer}self_attn.q_proj.weight and {key} of k_proj are not whole heads of "
            f"{width} (head_dim in config.json)"
        )
    if hidden % (query // width):  # transformers' own condition
        raise ExecutorError(f"{stored.path}: width {hidden} must be a multiple of the {query // width} attention heads")
    epsilon = _number(stored, said, "rms_norm_eps", float(usual.rms_norm_eps))
    limit = _number(stored, said, "max_position_embeddings", float(usual.max_position_embeddings))
    activation = said.get("hidden_act") or "silu"
    if not isinstance(activation, str) or activation not in ACT2FN:
        raise ExecutorError(f"{stored.where}: hidden_act {activation!r} is not known")
    if "sliding_attention" in str(said.get("layer_types")):
        raise ExecutorError(f"{stored.where}: layer_types: a drafter that attends to a window is not supported")
    try:
        config = LlamaConfig(
            vocab_size=target.vocabulary,
            hidden_size=hidden,
            intermediate_size=_rows(stored, f"{layer}mlp.gate_proj.weight"),
            num_attention_heads=query // width,
            num_key_value_heads=key // width,
            head_dim=width,
            num_hidden_layers=1,
            hidden_act=activation,
            rms_norm_eps=epsilon,
            max_position_embeddings=int(limit),
            rope_parameters=_rotary(stored, said, usual),
            attention_bias=any(f"{layer}self_attn.{part}_proj.bias" in stored.entries for part in "qkv"),
            mlp_bias=any(f"{layer}mlp.{part}_proj.bias" in stored.entries for part in ("gate", "up", "down")),
        )
        LlamaRotaryEmbedding(config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ExecutorError(f"{stored.where}: the decoder layer must be one of Llama's kind: {why}") from error
    return config


def fields(config: LlamaConfig) -> dict[str, Any]:
    """What config.json says of the layer, rotary positions in both spellings that transformers has had."""
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
    """Whether rotary positions are other than plain ones, which the reference's EAGLE mostly cannot take.

    It refuses what transformers says of them today (`rope_type`), knows linear and dynamic scaling alone, and has base
    10000 with these.
    """
    return (config.rope_parameters or {}).get("rope_type", "default") != "default"


def _said(stored: Stored) -> dict[str, Any]:
    parts = [stored.facts.get("layer"), *(stored.config.get(name) for name in NESTED)]
    return next((part for part in parts if isinstance(part, dict)), stored.config)


def _rows(stored: Stored, name: str) -> int:
    if name not in stored.entries:
        raise ExecutorError(f"{stored.path}: 1 missing: {stored.spelt(name)}")
    shape = stored.entries[name].shape
    if len(shape) != 2 or not shape[0]:
        raise ExecutorError(f"{stored.path}: {stored.entries[name].key} must have two dimensions, found {shape}")
    return shape[0]


def _number(stored: Stored, said: dict[str, Any], name: str, usual: float) -> float:
    value = said.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ExecutorError(f"{stored.where}: {name} must be a positive number, found {value!r}")
    return float(value)


def _head_width(stored: Stored, said: dict[str, Any], rows: int, usual: int) -> int:
    """`head_dim`, else what `num_attention_heads` makes of the query's rows, else the target's."""
    heads = int(_number(stored, said, "num_attention_heads", 0))
    if said.get("head_dim") is not None:
        width = int(_number(stored, said, "head_dim", usual))
    else:
        width = rows // heads if heads else usual
    if not width or (heads and heads * width != rows):
        raise ExecutorError(
            f"{stored.path}: the {rows} rows of q_proj contradict config.json's {heads} heads"
            + (f" of {width}" if said.get("head_dim") is not None else "")
        )
    return width


def _rotary(stored: Stored, said: dict[str, Any], usual: LlamaConfig) -> dict[str, Any]:
    """In one dictionary, as transformers 5 has it; older configurations say `rope_theta` and `rope_scaling`."""
    base = dict(usual.rope_parameters or {})
    if isinstance(said.get("rope_parameters"), dict):
        found = dict(said["rope_parameters"])
    elif "rope_theta" not in said and "rope_scaling" not in said:
        return base
    else:
        scaling = said.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise ExecutorError(f"{stored.where}: rope_scaling must be an object, found {scaling!r}")
        found = {"rope_theta": said.get("rope_theta")} | scaling
    if found.pop("partial_rotary_factor", None) not in (None, 1):
        raise ExecutorError(f"{stored.where}: partial_rotary_factor: a drafter that rotates a part is not supported")
    kind = found.pop("type", "default")
    kind = found.get("rope_type") or kind
    # Positions in a picture and in time; of text all are one.
    found["rope_type"] = "default" if kind == "mrope" else kind
    found["rope_theta"] = _number(stored, found, "rope_theta", float(base["rope_theta"]))
    return found
