"""Rotary positions in every spelling: used, or refused by file and field; nothing is passed over."""

import pytest
import torch

from executor.checkpoints import assumptions_of, load_drafter
from executor.checkpoints.tensors.layer_config import ONLY
from executor.checkpoints.tensors.layer_positions import ROTARY
from tests.helpers.checkpoint_files import assert_same, put_down, refused, same, written
from tests.helpers.drafters import random_drafter
from treeopt.errors import ExecutorError


@pytest.fixture(scope="module")
def plain(plain):
    """Without any field of positions."""
    drafter, tensors, config = plain
    return drafter, tensors, {key: value for key, value in config.items() if not key.startswith("rope")}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 2.0, 3.0, 4.0], "original_max_position_embeddings": 64}
SLIDES = ("sliding_attention", 3.0)
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 2}
SAME = [
    ({"rope_theta": 7.0}, {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}),
    ({"rope_theta": 7.0}, {"rotary_emb_base": 7.0}),
    (SLIDING | {"rope_theta": 7.0}, SLIDING | {"rope_theta": 3.0, "rope_local_base_freq": 7.0}),
    ({"rope_theta": 7.0}, {"rope_theta": 7.0, "partial_rotary_factor": 1.0, "rotary_dim": 8}),
    (
        {"rope_theta": 7.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {
            "rope_theta": 7.0,
            "rope_scaling": {"rope_type": "llama3", **{k: v for k, v in LLAMA3.items() if "original" not in k}},
            "original_max_position_embeddings": 64,
        },
    ),
    ({"rope_scaling": YARN}, {"rope_scaling": {"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}}}),
    (
        {"rope_theta": 7.0},
        {"rope_theta": 3.0, "rope_parameters": {n: {"rope_theta": t} for n, t in (("full_attention", 7.0), SLIDES)}},
    ),
    ({"rope_scaling": YARN}, {"rope_scaling": YARN, "rope_parameters": YARN | {"type": "yarn", "rope_theta": 1e4}}),
    (
        {"rope_scaling": YARN | {"original_max_position_embeddings": 512}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": None}},
    ),
    (
        {"rope_scaling": LONG | {"long_factor": LONG["short_factor"], "factor": 8.0}},
        {"rope_scaling": LONG | {"long_factor": LONG["short_factor"], "factor": 8.0, "rope_type": "su"}},
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=range(len(SAME)))
def test_spellings_of_positions_that_mean_the_same(tmp_path, target, plain, one, other):
    found = []
    for said in (one, other):
        put_down(tmp_path, plain[1], plain[2] | said)
        found.append(load_drafter(tmp_path, target))
        assert not same(found[-1], plain[0], target)
    assert same(*found, target)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"is_neox_style": False}, "is_neox_style False is not supported"),
        ({"no_rope_layers": [0, 1]}, "no_rope_layers [0, 1] is not supported: a drafter's layer without positions"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "rope_type 'proportional' is not one of"),
        ({"rope_scaling": {"rope_type": [0]}}, "rope_type [0] is not one of"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}}, "{'alpha'}"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8},
            "dynamic rotary positions change when one sequence grows beyond max_position_embeddings, 8",
        ),
        ({"rope_scaling": LONG | {"long_factor": [9.0] * 4}}, "longrope with a short_factor that differs"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 3.0}}}, "must have an object for full_attention"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": YARN},
            "elsewhere it is 'linear': remove",
        ),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 32}, "embeddings 32, elsewhere it is 64"),
        (
            {"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 3.0}},
            "rope_theta says rope_theta 7.0, elsewhere it is 3.0",
        ),
    ],
)
def test_positions_that_are_not_supported_are_refused(tmp_path, target, plain, said, message):
    put_down(tmp_path, plain[1], plain[2] | said)
    refused(tmp_path, target, "config.json: ", message)


LLAMA_3 = {"rope_type": "llama3", **LLAMA3}
HUGE = 10**400
LONGER = LONG | {"long_factor": LONG["short_factor"]}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (YARN | {"factor": 0}, "factor must be a positive number, found 0"),
        (LLAMA_3 | {"low_freq_factor": HUGE}, "low_freq_factor must be a positive number, found 1000"),
        (LLAMA_3 | {"high_freq_factor": 1.0}, "high_freq_factor field must be greater than low_freq_factor"),
        (YARN | {"factor": 0.5}, "factor field must be a float or int >= 1, got 0.5"),
        ({"rope_type": "yarn"}, "Missing required keys in `rope_parameters` for 'rope_type'='yarn': {'factor'}"),
        (LONGER | {name: [1.0] * 2 for name in ("short_factor", "long_factor")}, "must have length 4, got 2"),
        (LONGER | {"long_factor": [1.0, 0, 1.0, 1.0]}, "long_factor must be a positive number, found 0"),
    ],
)
def test_positions_that_cannot_be_computed_are_refused_by_field(tmp_path, target, plain, rope, message):
    put_down(tmp_path, plain[1], plain[2] | {"rope_scaling": rope})
    refused(tmp_path, target, "config.json: ", message)


def test_whatever_transformers_raises_of_positions_names_the_file(tmp_path, target, plain):
    """Base 1 has no frequencies to correct: transformers divides by its logarithm."""
    put_down(tmp_path, plain[1], plain[2] | {"rope_theta": 1.0, "rope_scaling": YARN})
    refused(tmp_path, target, "config.json: the decoder layer must be one of Llama's kind: ")


@pytest.mark.parametrize(("name", "rope"), [("rope_scaling", YARN), ("rope_parameters", LLAMA_3)])
def test_a_missing_length_before_scaling_is_told(tmp_path, target, plain, name, rope):
    said = "original_max_position_embeddings is missing: max_position_embeddings, 512, is taken, as in transformers"
    for left, told in ((rope, False), ({k: v for k, v in rope.items() if "original" not in k}, True)):
        put_down(tmp_path, plain[1], plain[2] | {name: left})
        assert (said in str(assumptions_of(load_drafter(tmp_path, target)))) == told


def test_frequencies_of_any_layer_are_computed(tmp_path, target):
    drafter = random_drafter("eagle3-windows", target)
    held, config = written(tmp_path / "a", drafter, "eagle3-vllm")
    more = {f"layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(4) for n in (0, 1)}
    put_down(tmp_path / "b", held | more, config)
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)


def test_layers_of_different_types_have_their_own_positions(tmp_path, target):
    drafter = random_drafter("eagle3-windows", target)
    held, config = written(tmp_path / "a", drafter, "speculators-eagle3")
    layer = {key: v for key, v in config["transformer_layer_config"].items() if not key.startswith("rope")}
    rope = {"sliding_attention": {"rope_theta": 3.0}, "full_attention": {"rope_theta": 9.0}}
    config["transformer_layer_config"] = layer | {"rope_parameters": rope}
    put_down(tmp_path / "b", held, config)
    found = load_drafter(tmp_path / "b", target)
    assert [shape.rope_parameters["rope_theta"] for shape in found.configs] == [3.0, 9.0]


def test_every_positional_field_is_used_or_refused(tmp_path, target, plain):
    """No field of positions is passed over: a strange value of any of them changes the drafter, or is refused."""
    passed = []
    for name in (*ROTARY, *ONLY):
        for strange in ({"rope_type": "linear", "factor": 3.0}, 3.5):
            put_down(tmp_path, plain[1], plain[2] | {name: strange})
            try:
                found = load_drafter(tmp_path, target)
            except ExecutorError as error:
                assert name in str(error) or "rope" in str(error)  # noqa: PT017
                continue
            if same(found, plain[0], target):
                passed.append(name)
    # Of sliding layers, and of kinds of scaling that this drafter does not have.
    others = {"rope_local_base_freq", "local_rope_theta", "swa_rope_theta", "original_max_position_embeddings"}
    assert set(passed) <= others
