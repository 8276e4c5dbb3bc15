"""Fields in nested parts of config.json: a layer's, `model`, `eagle_config`; and what stands beside them."""

import pytest

from executor.checkpoints import assumptions_of, load_drafter
from tests.executor.checkpoints.test_positions import YARN
from tests.helpers.checkpoint_files import assert_same, put_down, refused


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
        ({}, {"num_attention_heads": 64}, "num_attention_heads 64 stands in another part of the file"),
        ({}, {"text_config": [{}]}, "text_config must be an object, found"),
        ({"norm_before_residual": True}, {}, "norm_before_residual True stands in another part of the file"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, {}, "[1, 2, 3] stands in another part of the file"),
    ],
)
def test_fields_that_contradict_a_nested_layer(tmp_path, target, plain, inner, outer, message):
    put_down(tmp_path, plain[1], nested(plain, inner, outer))
    refused(tmp_path, target, "config.json: ", message)


@pytest.mark.parametrize(
    "said",
    [
        {"norm_before_residual": True},
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        {"rope_scaling": YARN},
        {"layer_types": ["sliding_attention"], "sliding_window": 2},
    ],
    ids=lambda said: next(iter(said)),
)
def test_vllms_nested_model_is_the_top_level(tmp_path, target, plain, said):
    """EAGLEConfig sets the fields of `model` on the top level, where a field that stands outside overrides them."""
    config = {key: value for key, value in plain[2].items() if not key.startswith(("rope", "architectures", "treeopt"))}
    config = {key: value for key, value in config.items() if key not in said}
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
    assert read[0] != read[3]
