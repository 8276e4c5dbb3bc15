"""Fields in nested parts of config.json: a layer's, `model`, `eagle_config`; and what stands beside them."""

import pytest

from executor.checkpoints import assumptions_of, load_drafter
from tests.executor.checkpoints.test_positions import YARN
from tests.helpers.checkpoint_files import assert_same, put_down, refused
from treeopt.errors import ExecutorError


def nested(plain, inner, outer):
    """A speculators file with more fields in the layer's configuration and beside it."""
    layer = {key: value for key, value in plain[2].items() if not key.startswith(("rope", "eagle", "draft"))}
    ids = {"eagle_aux_hidden_state_layer_ids": plain[2]["eagle_aux_hidden_state_layer_ids"]}
    return {"norm_before_residual": False, **ids, "transformer_layer_config": layer | inner} | outer


DEFAULT = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ({"rope_parameters": DEFAULT}, {"rope_parameters": DEFAULT}),
        ({"rms_norm_eps": 1e-6, "hidden_act": "silu"}, {"rms_norm_eps": 1e-6, "hidden_act": "silu"}),
        ({"rope_theta": 1e4}, {"eagle_config": {"rope_theta": 1e4}}),
        ({"norm_before_residual": False, "norm_output": None}, {}),
    ],
)
def test_fields_that_say_the_same_beside_a_nested_layer(tmp_path, target, plain, inner, outer):
    put_down(tmp_path, plain[1], nested(plain, inner, outer))
    assert_same(load_drafter(tmp_path, target), plain[0], target)


@pytest.mark.parametrize(
    ("inner", "outer", "message"),
    [
        ({"rope_parameters": DEFAULT}, {"rope_theta": 7.0}, "rope_theta 7.0 stands in another part of the file"),
        ({"hidden_act": "silu"}, {"hidden_act": "gelu"}, "hidden_act 'gelu' stands in another part of the file"),
        ({}, {"eagle_config": {"rope_theta": 7.0}}, "rope_theta 7.0 stands in another part of the file"),
        ({"norm_before_residual": True}, {}, "norm_before_residual True stands in another part of the file"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
            {},
            "eagle_aux_hidden_state_layer_ids [1, 2, 3] stands in another part of the file",
        ),
    ],
)
def test_fields_that_contradict_a_nested_layer(tmp_path, target, plain, inner, outer, message):
    put_down(tmp_path, plain[1], nested(plain, inner, outer))
    refused(tmp_path, target, "config.json: ", message)


@pytest.mark.parametrize("place", ["hidden_act", "rope_theta", "sliding_window"])
def test_fields_of_a_layer_in_eagle_config_are_not_passed_over(tmp_path, target, plain, place):
    value = {"hidden_act": "relu", "sliding_window": 3}.get(place, 7.0)
    put_down(tmp_path, plain[1], plain[2] | {"eagle_config": {place: value}})
    with pytest.raises(ExecutorError, match=f"{place} .* (stands in another part|elsewhere it is)"):
        load_drafter(tmp_path, target)


@pytest.mark.parametrize(
    "said",
    [
        {"norm_before_residual": True},
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 4, 5]}},
        {"rope_scaling": YARN},
        {"hidden_act": "relu"},
        {"layer_types": ["sliding_attention"], "sliding_window": 2},
    ],
    ids=lambda said: next(iter(said)),
)
def test_vllms_nested_model_is_the_top_level(tmp_path, target, plain, said):
    """EAGLEConfig sets the fields of `model` on the top level, where a field that stands outside overrides them."""
    config = {key: value for key, value in plain[2].items() if not key.startswith(("rope", "architectures", "treeopt"))}
    config = {
        key: value for key, value in config.items() if key != "eagle_aux_hidden_state_layer_ids" or key not in said
    }
    if "eagle_config" in said:
        del config["eagle_aux_hidden_state_layer_ids"]
    classes = {"architectures": ["Eagle3LlamaForCausalLM"]}
    outer = {"model_type": "eagle", "method": "eagle3", **classes}
    read = []
    for written in (
        config | classes | said,
        outer | {"model": config | said},
        outer | said | {"model": config},
        config | classes,
    ):
        put_down(tmp_path, plain[1], written)
        drafter = load_drafter(tmp_path, target)
        assert "method" not in str(assumptions_of(drafter))
        read.append((drafter.taps, drafter.windows, dict(drafter.settings), drafter.config.to_dict()))
    assert read[0] == read[1] == read[2]
    assert read[0] != read[3] or said == {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 4, 5]}}


def test_a_part_for_text_within_the_layer_s_is_the_layer_s(tmp_path, target, plain):
    layer = {key: value for key, value in plain[2].items() if not key.startswith(("rope", "eagle", "draft"))}
    whole = nested(plain, {}, {})
    for said in ({}, {"rope_theta": 7.0}):
        read = []
        for written in (layer | said, {"text_config": layer | said}):
            put_down(tmp_path, plain[1], whole | {"transformer_layer_config": written})
            read.append(load_drafter(tmp_path, target).config.to_dict())
        assert read[0] == read[1]
        assert read[0]["rope_parameters"]["rope_theta"] == said.get("rope_theta", 1e4)


@pytest.mark.parametrize(("name", "value"), [("transformer_layer_config", "llama"), ("text_config", [{}])])
def test_nested_parts_are_objects(tmp_path, target, plain, name, value):
    put_down(tmp_path, plain[1], plain[2] | {name: value})
    with pytest.raises(ExecutorError, match=f"{name} must be an object, found"):
        load_drafter(tmp_path, target)


@pytest.mark.parametrize(("field", "value"), [("head_dim", 4), ("num_attention_heads", 64)])
def test_heads_outside_the_layer_must_be_the_layer_s(tmp_path, target, plain, field, value):
    put_down(tmp_path, plain[1], nested(plain, {}, {field: value}))
    with pytest.raises(ExecutorError, match=f"{field} {value} stands in another part"):
        load_drafter(tmp_path, target)
