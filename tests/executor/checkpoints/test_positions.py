"""Rotary positions in every spelling: used, or refused by file and field; nothing is passed over."""

import itertools

import pytest
import torch

from executor.checkpoints import assumptions_of, load_drafter, save_drafter
from executor.checkpoints.tensors.layer_config import ONLY
from executor.checkpoints.tensors.layer_positions import ROTARY
from tests.executor.checkpoints.test_layouts import assert_same, config_of, put_down, tensors_of
from tests.executor.checkpoints.test_trainers import plain_drafter, same
from tests.helpers.drafters import random_drafter
from tests.helpers.models import deep_target
from treeopt.errors import ExecutorError


@pytest.fixture(scope="module")
def target():
    return deep_target()


@pytest.fixture(scope="module")
def plain(target, tmp_path_factory):
    return plain_drafter(target, tmp_path_factory.mktemp("plain"))


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 2.0, 3.0, 4.0], "original_max_position_embeddings": 64}
SLIDES = ("sliding_attention", 3.0)
SAME = [  # each pair of spellings means the same
    ({"rope_theta": 7.0}, {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}),
    ({"rope_theta": 7.0}, {"rotary_emb_base": 7.0}),
    ({"rope_theta": 7.0}, {"rope_theta": 7.0, "rope_scaling": None, "rope_parameters": None}),
    ({"rope_theta": 7.0}, {"rope_theta": 7.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}),
    ({"rope_theta": 7.0}, {"rope_parameters": {"full_attention": {"rope_theta": 7.0, "rope_type": "default"}}}),
    ({"rope_theta": 7.0}, {"rope_theta": 7.0, "partial_rotary_factor": 1.0, "rotary_dim": 8}),
    ({"rope_theta": 7.0}, {"rope_theta": 7.0, "rope_local_base_freq": 3.0}),
    ({"rope_theta": 7.0}, {"global_rope_theta": 7.0, "local_rope_theta": 3.0}),
    (
        {"rope_theta": 7.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 7.0, "rope_type": "llama3", **LLAMA3}},
    ),
    (
        {"rope_theta": 7.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": {"type": "llama3", **LLAMA3}},
    ),
    (
        {"rope_theta": 7.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {
            "rope_theta": 7.0,
            "rope_scaling": {"rope_type": "llama3", **{k: v for k, v in LLAMA3.items() if "original" not in k}},
            "original_max_position_embeddings": 64,
        },
    ),
    ({"rope_scaling": YARN}, {"rope_scaling": YARN | {"beta_fast": None, "mscale": None, "attention_factor": None}}),
    ({"rope_scaling": YARN}, {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "x"}}}),
    ({"rope_scaling": YARN}, {"rope_scaling": {"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}}}),
    # A setting that stands only in another type of layer's entry, or the base of another type.
    (
        {"rope_theta": 7.0},
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 7.0},
                "sliding_attention": {"partial_rotary_factor": 0.5},
            }
        },
    ),
    ({"rope_scaling": YARN}, {"rope_scaling": {"full_attention": YARN, "sliding_attention": {"rotary_dim": 2}}}),
    (
        {"rope_theta": 7.0},
        {"rope_theta": 3.0, "rope_parameters": {n: {"rope_theta": t} for n, t in (("full_attention", 7.0), SLIDES)}},
    ),
    # The same setting twice.
    ({"rope_theta": 7.0}, {"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7}}),
    ({"rope_theta": 7.0}, {"rope_theta": 7.0, "rope_scaling": {"type": "mrope", "rope_type": "default"}}),
    ({"rope_scaling": YARN}, {"rope_scaling": YARN, "rope_parameters": YARN | {"type": "yarn", "rope_theta": 1e4}}),
    ({"rope_scaling": YARN}, {"rope_scaling": YARN | {"beta_fast": None, "mrope_section": [1, 1, 2]}}),
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
    config = {key: value for key, value in plain[2].items() if not key.startswith("rope")}
    found = []
    for said in (one, other):
        put_down(tmp_path, plain[1], config | said)
        found.append(load_drafter(tmp_path, target))
        assert not same(found[-1], plain[0], target)
    assert same(*found, target)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 3.0, "partial_rotary_factor": 0.5}}}, "partial_rotary"),
        ({"rotary_pct": 0.25}, "rotary_pct 0.25"),
        ({"rotary_dim": 4}, "rotary_dim 4"),
        ({"rope_interleave": True}, "rope_interleave: a field of positions"),
        ({"is_neox_style": False}, "is_neox_style False is not supported"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type 'alibi'"),
        ({"alibi": True}, "alibi: a field of positions"),
        ({"no_rope_layers": [0, 1]}, "no_rope_layers [0, 1] is not supported: a drafter's layer without positions"),
        ({"no_rope_layer_interval": 4}, "no_rope_layer_interval: a field of positions"),
        ({"rope_ratio": 2}, "rope_ratio 2"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "rope_type 'proportional' is not one of"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}}, "{'alpha'}"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8},
            "dynamic rotary positions change when one sequence grows beyond max_position_embeddings, 8",
        ),
        (
            {"rope_scaling": {"rope_type": "default", "factor": 8.0}},
            "for 'rope_type'='default': {'factor'}",
        ),
        ({"rope_scaling": LONG | {"long_factor": [9.0] * 4}}, "longrope with a short_factor that differs"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 3.0}}}, "must have an object for full_attention"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": YARN}, "contradict each other"),
        ({"rope_theta": 3.0, "rotary_base": 4.0}, "rope_theta and rotary_base differ"),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 32}, "original_max_position_embeddings is 32"),
        # Two settings that contradict each other.
        (
            {"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 3.0}},
            "rope_theta is 7 and rope_parameters.rope_theta 3, which contradict each other",
        ),
        (
            {"rope_theta": 7.0, "rope_scaling": {"rope_type": "default", "rope_theta": 3.0}},
            "rope_theta is 7 and rope_scaling.rope_theta 3, which contradict each other",
        ),
        (
            {"rotary_base": 7.0, "rope_parameters": {"full_attention": {"rope_theta": 3.0}}},
            "rotary_base is 7 and rope_parameters.rope_theta 3, which contradict each other",
        ),
        (
            {"rope_parameters": YARN | {"rope_theta": 7.0}, "rope_scaling": YARN | {"rope_theta": 3.0}},
            "contradict each other: remove one",
        ),
        ({"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": YARN | {"rope_theta": 3.0}}, "contradict each other"),
        ({"rope_parameters": YARN, "rope_scaling": {"rope_type": "default"}}, "contradict each other: remove one"),
        (
            {"rope_scaling": {"rope_type": "default", "type": "linear", "factor": 4.0}},
            "rope_scaling has rope_type 'default' and type 'linear', which contradict each other",
        ),
        ({"rope_parameters": YARN | {"type": "linear"}}, "rope_parameters has rope_type 'yarn' and type 'linear'"),
        ({"rope_scaling": YARN | {"type": "mrope"}}, "rope_scaling has rope_type 'yarn' and type 'mrope'"),
        ({"rope_of_tomorrow": 3.0}, "rope_of_tomorrow: a field of positions or layers that treeopt does not know"),
        ({"attention_window_size": 3}, "attention_window_size: a field of positions"),
        ({"main_target_layers": [1]}, "main_target_layers: a field of positions or layers"),
        ({"logit_scale": 0.5}, "logit_scale 0.5 is not supported"),
        ({"is_causal": False}, "is_causal False is not supported"),
    ],
)
def test_positions_that_are_not_supported_are_refused(tmp_path, target, plain, said, message):
    config = {key: value for key, value in plain[2].items() if not key.startswith("rope")}
    put_down(tmp_path, plain[1], config | said)
    with pytest.raises(ExecutorError, match=r"config\.json: ") as caught:
        load_drafter(tmp_path, target)
    assert message in str(caught.value)


LLAMA_3, LINEAR = {"rope_type": "llama3", **LLAMA3}, {"rope_type": "linear", "factor": 2.0}
LONGER = LONG | {"long_factor": LONG["short_factor"]}
FIELDS = [
    *((YARN, field) for field in ("factor", "attention_factor", "beta_slow", "original_max_position_embeddings")),
    *((LLAMA_3, field) for field in ("factor", "low_freq_factor", "high_freq_factor")),
    (LINEAR, "factor"),
    (LONGER, "attention_factor"),
]
IMPOSSIBLE = (0, -2.0, float("nan"), float("inf"), 10**400, "4", True, [2.0])
NOT_POSITIVE = [(*of, value) for of, value in zip(FIELDS, itertools.cycle(IMPOSSIBLE))]


@pytest.mark.parametrize(("kind", "field", "value"), NOT_POSITIVE)
def test_impossible_numbers_of_positions_are_refused_by_field(tmp_path, target, plain, kind, field, value):
    name = "rope_scaling" if kind is YARN else "rope_parameters"
    config = {key: value for key, value in plain[2].items() if not key.startswith("rope")}
    put_down(tmp_path, plain[1], config | {name: kind | {field: value}})
    with pytest.raises(ExecutorError, match=r"config\.json: ") as caught:
        load_drafter(tmp_path, target)
    assert f"{name}.{field} must be a positive number, found {value!r:.60}" in str(caught.value)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (LLAMA_3 | {"high_freq_factor": 1.0}, "high_freq_factor field must be greater than low_freq_factor"),
        (YARN | {"beta_fast": 1, "beta_slow": 32}, "beta_fast field must be greater than beta_slow"),
        (YARN | {"factor": 0.5}, "factor field must be a float or int >= 1, got 0.5"),
        (YARN | {"mscale": -1.0}, "rope_scaling.mscale must be a positive number, found -1.0"),
        (YARN | {"truncate": "no"}, "truncate must be true or false, found 'no'"),
        (YARN | {"original_max_position_embeddings": 1}, "original_max_position_embeddings must be more than 1, found"),
        ({"rope_type": "yarn"}, "Missing required keys in `rope_parameters` for 'rope_type'='yarn': {'factor'}"),
        ({"rope_type": "linear"}, "'rope_type'='linear': {'factor'}"),
        (LONG, "'rope_type'='longrope': {'long_factor'}"),
        (LONGER | {name: [1.0] * 2 for name in ("short_factor", "long_factor")}, "must have length 4, got 2"),
        (LONGER | {"long_factor": 1.0}, "rope_scaling.long_factor must be a list of numbers, found 1.0"),
        (LONGER | {"long_factor": [1.0, 0, 1.0, 1.0]}, "long_factor[1] must be a positive number, found 0"),
    ],
)
def test_positions_that_cannot_be_computed_are_refused_by_field(tmp_path, target, plain, rope, message):
    config = {key: value for key, value in plain[2].items() if not key.startswith("rope")}
    put_down(tmp_path, plain[1], config | {"rope_scaling": rope})
    with pytest.raises(ExecutorError, match=r"config\.json: ") as caught:
        load_drafter(tmp_path, target)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whatever_transformers_raises_of_positions_names_the_file(tmp_path, target, plain):
    """Base 1 has no frequencies to correct: transformers divides by its logarithm."""
    config = {key: value for key, value in plain[2].items() if not key.startswith("rope")}
    put_down(tmp_path, plain[1], config | {"rope_theta": 1.0, "rope_scaling": YARN})
    with pytest.raises(ExecutorError, match=r"config\.json: the decoder layer must be one of Llama's kind: "):
        load_drafter(tmp_path, target)


@pytest.mark.parametrize("rope", [YARN, LLAMA_3, LONGER], ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_missing_length_before_scaling_is_told(tmp_path, target, plain, name, rope):
    config = {key: value for key, value in plain[2].items() if not key.startswith("rope")}
    said = "original_max_position_embeddings is missing: max_position_embeddings, 512, is taken, as in transformers"
    for left, told in ((rope, False), ({k: v for k, v in rope.items() if "original" not in k}, True)):
        put_down(tmp_path, plain[1], config | {name: left})
        assert (f"{name}.{said}" in str(assumptions_of(load_drafter(tmp_path, target)))) == told


@pytest.mark.parametrize("numbers", [(0,), (0, 1), (1,)])
def test_frequencies_of_any_layer_are_computed(tmp_path, target, numbers):
    drafter = random_drafter("eagle3-windows", target)
    save_drafter(tmp_path / "a", drafter, dtype="float32", meta={}, layout="eagle3-vllm")
    more = {f"layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(4) for n in numbers}
    put_down(tmp_path / "b", tensors_of(tmp_path / "a") | more, config_of(tmp_path / "a"))
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)


def test_layers_of_different_types_have_their_own_positions(tmp_path, target):
    drafter = random_drafter("eagle3-windows", target)
    save_drafter(tmp_path / "a", drafter, dtype="float32", meta={}, layout="speculators-eagle3")
    config = config_of(tmp_path / "a")
    layer = {key: v for key, v in config["transformer_layer_config"].items() if not key.startswith("rope")}
    rope = {"sliding_attention": {"rope_theta": 3.0}, "full_attention": {"rope_theta": 9.0}}
    config["transformer_layer_config"] = layer | {"rope_parameters": rope}
    put_down(tmp_path / "b", tensors_of(tmp_path / "a"), config)
    found = load_drafter(tmp_path / "b", target)
    assert [shape.rope_parameters["rope_theta"] for shape in found.configs] == [3.0, 9.0]


def test_every_positional_field_is_used_or_refused(tmp_path, target, plain):
    """No field of positions is passed over: a strange value of any of them changes the drafter, or is refused."""
    config = {key: value for key, value in plain[2].items() if not key.startswith("rope")}
    passed = []
    for name in (*ROTARY, *ONLY):
        for strange in ({"rope_type": "linear", "factor": 3.0}, 3.5):
            put_down(tmp_path, plain[1], config | {name: strange})
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
