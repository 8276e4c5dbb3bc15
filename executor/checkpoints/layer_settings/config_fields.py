"""Fields of a drafter's config.json that no reader takes: those of positions, windows and target layers are refused.

Others have no effect: the tensors decide sizes, and a configuration that was copied from its target has many fields
that no drafter's class in vLLM, SGLang or the trainers reads.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from executor.checkpoints.layer_settings.positions import ROTARY, WINDOWS
from executor.checkpoints.tensors.lazy_tensors import Stored
from treeopt.errors import ExecutorError

# Names that speak of positions, windows or the target's layers, and those of them that are read or copied.
POSITIONAL = re.compile(r"rope|rotary|position|window|alibi|neox_style|layer_ids|target_layers|capture_layers")
READ = {
    *(*ROTARY, *WINDOWS, "max_position_embeddings"),
    *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "layer_ids", "target_layer_ids"),
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
# Fields of a layer beside those of positions and windows, other projects' names of them, and fields of the drafter.
LAYERS = ("hidden_act", "rms_norm_eps", "head_dim", "num_attention_heads")
OTHER_NAMES = {"hidden_activation": "hidden_act", "norm_eps": "rms_norm_eps"}
DRAFTERS = (
    *("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc", "use_aux_hidden_state"),
    *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"),
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
    """Return the fields of `eagle_config`, {} without them.

    Raises:
        ExecutorError: it is no object.
    """
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
            if name not in ONLY and is_positional(name) and value not in (None, False, 0, [], {}):
                raise ExecutorError(
                    f"{stored.where}: {name}: a field of positions or layers that treeopt does not know: remove it if "
                    "the drafter was trained without it"
                )
    for outer, place in (
        (stored.config, "outside the layer's configuration") if nested else ({}, ""),
        (eagle, "in eagle_config"),
    ):
        for name in (*ROTARY, *WINDOWS, *LAYERS):
            if outer.get(name) not in (None, {}, given.get(name)):
                raise ExecutorError(
                    f"{stored.where}: {name} stands {place}, {outer[name]!r:.60}, and in the layer's configuration it "
                    f"is {given.get(name)!r:.60}: write it into the layer's"
                )
    for name in DRAFTERS if nested else ():
        if given.get(name) not in (None, stored.config.get(name)):
            raise ExecutorError(
                f"{stored.where}: {name} stands in the layer's configuration, {given[name]!r:.60}, and outside it is "
                f"{stored.config.get(name)!r:.60}: write it outside, where the drafter's fields are"
            )
    for other, name in OTHER_NAMES.items():
        if given.get(other) is not None and given.get(name) is None:
            stored.assume(f"{other} {given[other]!r:.40} is not used: write it as {name}, if the drafter has it")


def is_positional(name: str) -> bool:
    """Return whether a field's name speaks of positions, windows or the target's layers, and no reader takes it.

    >>> is_positional("rope_theta"), is_positional("num_experts"), is_positional("rope_of_tomorrow")
    (False, False, True)
    """
    return POSITIONAL.search(name) is not None and name not in READ
