"""EAGLE, EAGLE-2, HASS and CORAL: one decoder layer over pairs of embedding and feature.

* `drafter`: the network, with CORAL's router over the LM head.
* `checkpoint`: files of the reference, vLLM and speculators.

Sizes are what configurations of EAGLE and EAGLE-3 drafters state: layers, windows, features, vocabulary. A drafter's
layers are Llama's, whatever `model_type` was copied from its target. The fields are those of the projects, vLLM,
SGLang, SpecForge, speculators, ModelOpt and NeMo Automodel.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor.drafters.base.recipe import Recipe
from simulate.drafter_kinds import (
    DrafterKind,
    DrafterShape,
    Files,
    RandomWeights,
    Sizes,
    Training,
    class_words,
    decoder,
)
from simulate.model_sizes.hf_config import EXPERT_FIELDS, FIELDS, LATENT_FIELDS, OWN_SWEEP, positive
from simulate.model_sizes.hf_config_parameters import DENSE
from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError

NESTED = ("transformer_layer_config", "model")  # where speculators and vLLM have the layer's fields
VOCABULARIES = ("draft_vocab_size", "truncated_vocab_size")
TAPS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "layer_ids", "target_layer_ids")
SLIDING = "sliding_attention"
_BIASES = ("attention_bias", "mlp_bias")
_WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers")
_LLAMA = (*FIELDS, "head_dim", "tie_word_embeddings", *_BIASES, *_WINDOWS)  # what a layer like Llama's has


def eagle_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a drafter's configuration states, by the names of `eagle_shape`; a target's: one layer like it.

    Raises:
        CostError: a field is wrong, missing or not covered; names it.

    >>> llama = {"model_type": "kimi_k2", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 4}
    >>> drafter = llama | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 2, "vocab_size": 32}
    >>> eagle_config(drafter)["layers"]
    2
    """
    inner = layer_fields(config)
    if not names_drafter(config):
        return {"layer": Shape.from_config(inner), "draft_vocab": _vocabulary(config)}
    shape, kinds = Shape.from_config(_like_llama(config, inner)), inner.get("layer_types")
    own = kinds[: shape.layers] if isinstance(kinds, list) else []  # counted from the drafter's own first layer
    if len(own) == shape.layers and all(kind == SLIDING for kind in own):
        shape = replace(shape, window=positive("sliding_window", inner.get("sliding_window")))
    return {"layer": shape, "layers": shape.layers, "draft_vocab": _vocabulary(config)}


def layer_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a layer: those of a nested part if the configuration has one."""
    parts = (config.get(name) for name in NESTED if "hidden_size" not in config)
    return next((part for part in parts if isinstance(part, Mapping)), config)


def names_drafter(config: Mapping[str, Any]) -> bool:
    """Return True if a configuration states that it is an EAGLE's, so that its layers are the drafter's own."""
    fields = ("transformer_layer_config", "eagle_config", *TAPS[:2])
    return "eagle" in class_words(config) or any(config.get(field) is not None for field in fields)


def _like_llama(config: Mapping[str, Any], inner: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a layer's fields without what was copied from a target of another family.

    Classes of Llama's layers have neither experts nor latent attention, whatever fields their configurations have.
    """
    if "llama" not in str(config.get("architectures")).lower() and inner is config:
        plain_layers(inner, "an EAGLE drafter")
    kind = inner.get("model_type")
    return {name: inner[name] for name in _LLAMA if name in inner} | {"model_type": kind if kind in DENSE else "llama"}


def plain_layers(inner: Mapping[str, Any], drafter: str) -> None:
    """Raise CostError if the fields of a layer state experts or latent attention."""
    for name, fields in (("experts", EXPERT_FIELDS), ("latent attention", LATENT_FIELDS)):
        if any(inner.get(field) for field in fields):
            raise CostError(f"{drafter} with {name} has no price: {OWN_SWEEP}")


def _vocabulary(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the LM head; None if the configuration does not state them."""
    stated = ((name, config.get(name)) for name in VOCABULARIES)
    return next((positive(name, value) for name, value in stated if value is not None), None)


def fused_width(config: Mapping[str, Any], target: Shape) -> int | None:
    """Return the width of the features that `fc` merges; 0 without `fc`, None where no drafter's fields state it."""
    if not names_drafter(config):
        return None
    nested = config.get("eagle_config")
    parts = [config, nested if isinstance(nested, Mapping) else {}]
    if any(part.get("use_aux_hidden_state") is False for part in parts):
        return 0
    lists = [part.get(name) for part in parts for name in TAPS if part.get(name)]
    taps = next((len(ids) for ids in lists if isinstance(ids, list)), None)
    stated = config.get("num_aux_hidden_states")
    taps = positive("num_aux_hidden_states", stated) if taps is None and stated is not None else taps
    width = config.get("target_hidden_size")
    return (3 if taps is None else taps) * (target.hidden if width is None else positive("target_hidden_size", width))


def eagle_shape(
    layer: Shape, *, layers: int = 1, draft_vocab: int | None = None, groups: Experts | None = None
) -> DrafterShape:
    """Return EAGLE, EAGLE-2, HASS or CORAL: a fusion of token and feature, one layer, the target's LM head.

    Args:
        layer: the target, or a shape whose layers and vocabulary are the drafter's.
        layers: decoder layers.
        draft_vocab: rows of the LM head; None: the target's vocabulary.
        groups: groups of the LM head's rows that CORAL's router picks from; None: all rows are multiplied.
    """
    layer = dense(layer)
    matrices = tuple((layers, *matrix) for matrix in layer.layer_matrices.values())
    forward = decoder(layer, matrices, draft_vocab or layer.vocab, layers)
    fc = (1, layer.hidden, 2 * layer.hidden)
    router = () if groups is None else ((1, layer.hidden, layer.hidden), (1, groups.count, layer.hidden))
    return DrafterShape(replace(forward, whole=(fc, *router), head_groups=groups))


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the layer of an EAGLE's configuration, with CORAL's router if it states one."""
    groups, experts = config.get("router_num_groups"), None
    if groups is not None:
        facts = config.get("treeopt_drafter")
        active = facts.get("active_groups", 2) if isinstance(facts, Mapping) else 2
        experts = Experts(positive("router_num_groups", groups), positive("active_groups", active))
    return eagle_shape(**eagle_config(config), groups=experts)


def dense(layer: Shape) -> Shape:
    """Return a layer without experts or other kinds, as wide as the experts of a token are together."""
    active = 1 if layer.experts is None else layer.experts.active
    return replace(layer, experts=None, groups=(), intermediate=active * layer.intermediate)


_LAYER = re.compile(r"layers\.\d+\.")


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`; EAGLE-3 is asked for first."""
    return any(name.startswith(("fc.", "router.")) for name in names) and any(map(_LAYER.match, names))


# Li et al. 2024 (arXiv 2401.15077), §4.1 for the weights; noise, betas, clipping and the 2000 steps of warm-up in
# 800 000 from the project's training script.
EAGLE = Recipe(
    "eagle",
    "eagle",
    depths=1,
    smooth_l1_weight=1.0,
    soft_ce_weight=0.1,
    noise="uniform",
    noise_scale=0.2,
    learning_rate=3e-5,
    beta2=0.95,
    warmup=0.0025,
    schedule="linear",
    clip=0.5,
    clip_by="value",
)

# Zhang et al. 2024 (arXiv 2408.15766): three steps. The published schedule has two stages: 40 epochs of this with
# top_k_weight 0, then 10 more from there at a learning rate of 1e-5.
HASS = replace(EAGLE, name="hass", depths=3, top_k_weight=1.0, detached=True, warmup=0.01)

# Weng et al. 2025 (arXiv 2502.16880): HASS's steps with representations aligned across them. csra_weight is 0.2 for
# Qwen2.5-7B, 0.15 for Llama-3-8B, 0.1 or less for larger ones: about what makes it as large as the regression.
CORAL = replace(HASS, name="coral", smooth_l1_weight=0.5, top_k_weight=0.0, csra_weight=0.2)

# The same paper's second stage: only the router learns. The paper gives no settings of the optimiser.
CORAL_ROUTER = replace(
    HASS,
    name="coral-router",
    smooth_l1_weight=0.0,
    soft_ce_weight=0.0,
    top_k_weight=0.0,
    router_ce_weight=1.0,
    noise="none",
    learning_rate=1e-3,
    trainable="router",
    router_groups=16,
)

ENTRY = DrafterKind(
    "eagle",
    "EAGLE",
    words=("eagle",),
    priority=-2,
    sizes=Sizes(stated_shape),
    files=Files(
        recognise,
        read=f"{__name__}.checkpoint:read_eagle",
        write=f"{__name__}.checkpoint:eagle_content",
        needs=("fc.weight", "layers.0.self_attn.q_proj.weight"),
        layouts=("eagle", "eagle-sglang", "vllm"),
        known_as="the reference's, SGLang's, vLLM's (also with the bias in the embeddings), speculators'",
    ),
    training=Training(
        (EAGLE, HASS, CORAL, CORAL_ROUTER),
        f"{__name__}.drafter:untrained",
        fields=("detached", "router_ce_weight", "router_groups", "active_groups"),
        resumed=f"{__name__}.drafter:resumed",
    ),
    random=RandomWeights("eagle", f"{__name__}.drafter:random_layer"),
    reads=f"{__name__}.drafter:weights_read",
)
