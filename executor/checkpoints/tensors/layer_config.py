"""The configuration of a drafter's decoder layer: widths from its tensors, the rest from its config.json.

Fields that a layer's configuration leaves out have Llama's defaults, as in the projects' own code and in every engine.
Without a configuration, as beside heads, rotary positions, epsilon and context are the target's.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from executor.checkpoints.tensors.layer_positions import (
    DICTIONARIES,
    ROTARY,
    WINDOWS,
    layer_type,
    positive,
    rotary,
    warnings_refused,
)
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.base.decoder_layer import layer_config
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

# Names that speak of positions or windows, or of the target's layers, as a list of numbers for layers or features may,
# too; and those of them that are read or copied.
POSITIONAL = re.compile(r"rope|rotary|position|window|alibi|neox_style")
OF_TARGET = re.compile(r"layer_i(d|nd|dx)|target_layer|(capture|aux|tap|feature)\w*_layer")
OF_LAYERS = re.compile(r"layer|hidden_state|feature|capture|taps?$|aux")
TAPS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "layer_ids", "target_layer_ids")
READ = {
    *(*ROTARY, *WINDOWS, *TAPS, "max_position_embeddings"),
    *("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern", "num_target_layers", "use_mrope"),
    *("qk_rope_head_dim", "qk_nope_head_dim"),
}
# Fields that must have one of these values, if they are there, and what another value means.
ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(
        ("is_neox_style", "rope_is_neox_style", "use_rope", "use_rotary_embeddings"),
        ((True,), "the drafter would have other positions"),
    ),
    **dict.fromkeys(("rope_ratio", "rope_scaling_factor", "rope_factor"), ((1,), "positions would be scaled")),
    **dict.fromkeys(
        ("position_embedding_type", "position_embeddings_type"),
        (("rope", "rotary", "absolute"), "the drafter would have other positions"),
    ),
    "no_rope_layers": (([], [1]), "a drafter's layer without positions"),
    "logit_scale": ((1,), "vLLM multiplies the drafter's logits by it, trainers do not"),
    "is_causal": ((True,), "the drafter would attend to later tokens"),
    "use_bidirectional_attention": ((False,), "the drafter would attend to later tokens"),
    "parallel_draft_step": ((0, 1), "parallel drafting is not supported"),
}
# Fields of a layer beside those of positions and windows, and fields of the drafter.
LAYERS = ("hidden_act", "rms_norm_eps", "head_dim", "num_attention_heads")
DRAFTERS = (
    *("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc", "use_aux_hidden_state"),
    *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids"),
)


def with_model_fields(stored: Stored) -> Stored:
    """Return the checkpoint with the fields of vLLM's nested `model` at the top level, where others override them.

    vLLM's EAGLEConfig does this. Classes are taken from both, as it takes the nested ones.
    """
    model = stored.config.get("model")
    if not isinstance(model, dict):
        return stored
    config = {**model, **{name: value for name, value in stored.config.items() if name != "model"}}
    classes = [part.get("architectures") for part in (model, stored.config)]
    named = [name for part in classes if isinstance(part, list) for name in part]
    return replace(stored, config=config | ({"architectures": named} if named else {}))


def eagle_fields(stored: Stored) -> dict[str, Any]:
    """Return the fields of `eagle_config`, {} without them; raise ExecutorError if it is no object."""
    eagle = stored.config.get("eagle_config")
    if eagle is not None and not isinstance(eagle, dict):
        raise ExecutorError(f"{stored.where}: eagle_config must be an object, found {eagle!r:.60}")
    return eagle or {}


def check_fields(stored: Stored, given: Mapping[str, Any]) -> None:
    """Check the names of all fields of config.json; `given` are those of the layer.

    Raises:
        ExecutorError: names a field that is not supported, or that is given twice with different values.
    """
    nested, eagle = given is not stored.config, eagle_fields(stored)
    for part in (stored.config, given, eagle):
        for name, value in part.items():
            allowed, meaning = ONLY.get(name, (None, ""))
            if allowed is not None and value is not None and value not in allowed:
                raise ExecutorError(f"{stored.where}: {name} {value!r:.40} is not supported: {meaning}")
            if name not in ONLY and is_positional(name, value) and value not in (None, False, 0, [], {}):
                raise ExecutorError(
                    f"{stored.where}: {name}: a field of positions or layers that treeopt does not know: remove it if "
                    "the drafter was trained without it"
                )
    known = (*DICTIONARIES, *TEXT, NESTED, "eagle_config", "treeopt_drafter", "model")
    for place, part in stored.config.items():
        if isinstance(part, dict) and place not in known and (found := [n for n in part if _of_target(n, part[n])]):
            raise ExecutorError(f"{stored.where}: {place}.{found[0]} is not read there: move it to eagle_config")
    if stored.config.get("layer_ids"):
        raise ExecutorError(f"{stored.where}: layer_ids is read in eagle_config alone: move it there")
    for outer, held, names in (
        (stored.config if nested else {}, given, (*ROTARY, *WINDOWS, *LAYERS)),
        (eagle, given, (*ROTARY, *WINDOWS, *LAYERS)),
        (given if nested else {}, stored.config, DRAFTERS),
    ):
        for name in names:
            if outer.get(name) not in (None, {}, held.get(name)):
                owner = "the file" if held is stored.config else "the layer"
                raise ExecutorError(
                    f"{stored.where}: {name} {outer[name]!r:.60} stands in another part of the file, where it is not "
                    f"read: move it to the fields of {owner}"
                )


def is_positional(name: str, value: Any = None) -> bool:
    """Return whether a field speaks of positions, windows or the target's layers, and no reader takes it.

    >>> is_positional("rope_theta"), is_positional("num_experts"), is_positional("rope_of_tomorrow")
    (False, False, True)
    >>> is_positional("hidden_states_read", [2, 6, 9]), is_positional("layer_types", ["full_attention"])
    (True, False)
    """
    return name not in READ and bool(POSITIONAL.search(name) or _of_target(name, value))


def _of_target(name: str, value: Any) -> bool:
    """Return whether a field speaks of the target's layers."""
    numbers = isinstance(value, list) and any(type(entry) is int for entry in value)
    return bool(OF_TARGET.search(name) or (numbers and OF_LAYERS.search(name)))


LLAMA_EPSILON, LLAMA_BASE = 1e-6, 10000.0
SCALED = "scaled rotary positions"  # in messages
# The field in which speculators nests the layer's configuration; otherwise it is the whole file, see
# `with_model_fields`.
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
    """Return the configuration of the decoder layer, the `number`-th, whose tensors' names begin with `layer`.

    The target gives what the checkpoint leaves out.

    Raises:
        ExecutorError: the tensors are no such layer's, or contradict the configuration.
    """
    given = layer_fields(stored)
    check_fields(stored, given)
    usual = layer_config(target.model.config)
    if "hidden_size" in given or "num_attention_heads" in given:
        usual.rms_norm_eps, usual.rope_parameters = LLAMA_EPSILON, {"rope_type": "default", "rope_theta": LLAMA_BASE}
    query, key = (_rows(stored, f"{layer}self_attn.{part}_proj.weight") for part in "qk")
    width = _head_width(stored, given, query, int(usual.head_dim or 0))
    if query % width or key % width or not key or query % key or width % 2:
        raise ExecutorError(
            f"{stored.path}: {query} rows of {layer}self_attn.q_proj.weight and {key} of k_proj are not whole heads of "
            f"{width} (head_dim in config.json)"
        )
    heads = query // width
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
                num_key_value_heads=key // width,
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
    config: dict[str, Any] = layer if layer is not None else stored.config
    parts = [config.get(name) for name in TEXT if "hidden_size" not in config]
    return next((part for part in parts if isinstance(part, dict)), config)


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


def check_layers(stored: Stored, target: Target, layers: int) -> None:
    """Check the number of decoder layers that is stated; `layers` are stored.

    Raises:
        ExecutorError: it is neither this number nor the target's, which trainers copy.
    """
    stated = layer_fields(stored).get("num_hidden_layers")
    if stated not in (None, layers, target.model.config.get_text_config().num_hidden_layers):
        raise ExecutorError(
            f"{stored.where}: num_hidden_layers is {stated!r:.40}, but {stored.path.name} has tensors of {layers}: is "
            "a part of the checkpoint missing? if not, correct the number"
        )


def note_missing(stored: Stored, switches: Mapping[str, bool]) -> None:
    """Note which fields of config.json are true without their tensors; `switches` is field -> the tensors exist."""
    parts = (stored.config, layer_fields(stored))
    for name, there in switches.items():
        if not there and any(part.get(name) is True for part in parts):
            stored.assume(f"{name} is true, but {stored.path.name} has no such tensors: none are used")


def layer_switches(config: LlamaConfig) -> dict[str, bool]:
    """Return the biases of a decoder layer, by the tensors."""
    attention = bool(config.attention_bias)
    return {"attention_bias": attention, "qkv_bias": attention, "mlp_bias": bool(config.mlp_bias)}
