"""Drafters by their configuration: their kind, and prices by the tensors that a checkpoint has."""

import json
import math
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from executor.drafters.eagle import names_drafter
from simulate.drafter_kinds import drafter_shape, kind_of_drafter
from simulate.model_sizes.model_shape import Shape, llama_of, shape_by_hand
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import Roofline
from simulate.whatif.device_cost_models import drafter_kind
from tests.helpers.command_line import small_trace
from tests.simulate.model_sizes.test_hf_config import LLAMA_3_8B
from treeopt.errors import CostError, UsageError
from treeopt.storage.user_files import shipped

PAGE = runpy.run_path("docs/generate_public_drafters.py")
ENTRIES = json.loads(Path("docs/reference/public_drafters.json").read_text("utf-8"))
UNPRICED = ("experts", "peagle", "dflash", "mtp", "mla")
EAGLES = [entry for entry in ENTRIES if entry["names"] not in (*UNPRICED, "medusa", "vllm-medusa", "hydra")]
L3 = Shape.from_config(LLAMA_3_8B)
STATED = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
STATED |= {name: LLAMA_3_8B[name] for name in ("hidden_size", "intermediate_size", "vocab_size")}
STATED |= {"num_attention_heads": 32, "num_key_value_heads": 8, "draft_vocab_size": 32000}
PLAIN = sum(rows * columns for rows, columns in L3.layer_matrices.values())
eagle3 = partial(drafter_shape, kind="eagle3", target=L3)


def read(drafter):
    """Weights that a step of one level reads."""
    return drafter.level.weights + (0 if drafter.opening is None else drafter.opening.weights)


def matrices(shapes, head):
    """Weights of matrices, embeddings left out; `head` are those of an LM head that is not stored."""
    stored = sum(math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and "embed_tokens" not in name)
    return stored + (0 if "lm_head.weight" in shapes else head)


@pytest.mark.parametrize("entry", EAGLES, ids=[entry["name"] for entry in EAGLES])
def test_public_drafters_are_priced_by_the_tensors_that_they_have(entry):
    config = PAGE["small"](entry["config"])
    kind = "eagle" if entry["names"] == "eagle" else "eagle3"
    shapes = PAGE["shapes_of"](entry["names"], config)
    target = Shape.from_config(LLAMA_3_8B | {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2})
    assert read(drafter_shape(config, kind=kind, target=target)) == matrices(shapes, 64 * 32)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e["names"] in UNPRICED], ids=lambda entry: entry["name"])
def test_public_drafters_of_other_kinds_have_no_price(entry):
    for kind in ("eagle", "eagle3"):
        with pytest.raises(CostError, match=r"has no price|configuration is of kind"):
            drafter_shape(entry["config"], kind=kind, target=L3)


@pytest.mark.parametrize("name", ["eagle", "hass", "coral", "eagle3"])
def test_shipped_drafters_are_priced_by_the_tensors_that_they_have(name):
    folder = shipped("models") / f"stdlib-{name}"
    with safe_open(str(next(folder.glob("*.safetensors"))), "pt") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    target = Shape.from_config(shipped("models") / "stdlib-llama")
    drafter = drafter_shape(folder, kind="eagle3" if name == "eagle3" else "eagle", target=target)
    assert read(drafter) == matrices(shapes, target.vocab * target.hidden)


def test_deeper_layers_read_the_layer_before():
    two = eagle3(STATED | {"num_hidden_layers": 2})
    assert two.level.weights - eagle3(STATED).level.weights == PLAIN
    assert two.level.layers == 2
    assert two.level.kept_elements(1) == 2 * eagle3(STATED).level.kept_elements(1)
    assert not names_drafter({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32})
    assert eagle3(LLAMA_3_8B).level.layers == 1  # a target's configuration: one layer like its own
    first = {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 2}
    assert drafter_shape(STATED | first, kind="eagle").level.layers == 2


@pytest.mark.parametrize(
    ("stated", "wide"),
    [
        ({}, 3 * 4096),
        ({"target_hidden_size": 2048}, 3 * 2048),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 30]}}, 2 * 4096),
        ({"eagle_aux_hidden_state_layer_ids": [2, 9, 18, 29]}, 4 * 4096),
        ({"eagle_config": {"layer_ids": [31]}}, 4096),
        ({"num_aux_hidden_states": 5}, 5 * 4096),
        ({"use_aux_hidden_state": False}, 0),
        ({"eagle_config": {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": []}}, 0),
    ],
)
def test_features_that_are_fused(stated, wide):
    opening = eagle3(STATED | stated).opening
    assert (0 if opening is None else opening.weights) == 4096 * wide


def test_nested_layers_and_vocabularies():
    inner = {name: value for name, value in STATED.items() if name not in ("architectures", "draft_vocab_size")}
    nested = {"architectures": ["Eagle3Speculator"], "transformer_layer_config": inner, "draft_vocab_size": 32000}
    assert eagle3(nested) == eagle3(STATED)
    assert eagle3(STATED | {"model_type": "kimi_k2", "kv_lora_rank": 512, "num_experts": 64}) == eagle3(STATED)
    assert eagle3(STATED | {"draft_vocab_size": None}).level.head == (128256, 4096)
    assert eagle3(STATED | {"draft_vocab_size": None, "truncated_vocab_size": 16000}).level.head == (16000, 4096)
    vllm = {"model_type": "medusa", "num_hidden_layers": 1, "truncated_vocab_size": 16000}
    assert drafter_shape(vllm, kind="medusa", target=L3).level.head == (16000, 4096)
    with pytest.raises(CostError, match="draft_vocab_size must be a positive integer"):
        eagle3(STATED | {"draft_vocab_size": "32k"})


def test_a_window_of_all_layers_bounds_the_keys_that_are_read():
    window = {"layer_types": ["sliding_attention"] * 36, "sliding_window": 2048}
    overheads = Overheads.none()
    full, sliding = (
        Roofline(L3, eagle3(STATED | more), find_hardware("h100"), overheads=overheads) for more in ({}, window)
    )
    assert sliding.level(1, batch=4, context=500).work_s == full.level(1, batch=4, context=500).work_s
    assert sliding.level(1, batch=4, context=9000).work_s == full.level(1, batch=4, context=2047).work_s
    assert full.level(1, batch=4, context=9000).work_s > sliding.level(1, batch=4, context=9000).work_s
    mixed = STATED | window | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    assert [each.window for _, each in eagle3(mixed).level.attention] == [None]
    with pytest.raises(CostError, match="sliding_window must be a positive integer"):
        eagle3(STATED | window | {"sliding_window": None})


def test_corals_router_reads_some_groups_of_the_head():
    """16 groups, 2 for each token: one token reads an eighth of the head, and the router's two matrices."""
    plain = {"num_hidden_layers": 1, "draft_vocab_size": None}
    routed = {"router_num_groups": 16, "treeopt_drafter": {"kind": "eagle", "active_groups": 2}}
    whole, some = (drafter_shape(STATED | plain | more, kind="eagle") for more in ({}, routed))
    assert some.level.weights - whole.level.weights == 4096 * (4096 + 16) - 128256 * 4096 * 14 // 16
    cost, priced = (Roofline(L3, made, find_hardware("h100"), overheads=Overheads.none()) for made in (whole, some))
    one, many = (float(priced.level(n, batch=1).work_s / cost.level(n, batch=1).work_s) for n in (1, 500))
    assert one < 0.55
    assert 1.0 < many < 1.1
    groups = drafter_shape(STATED | plain | {"router_num_groups": 16}, kind="eagle").level.head_groups
    assert groups.active == 2
    with pytest.raises(CostError, match="router_num_groups must be a positive integer"):
        drafter_shape(STATED | {"router_num_groups": 0}, kind="eagle")
    assert np.isfinite(priced.step_s([])).all()


def test_a_drafter_of_sizes_by_hand_is_as_wide_as_its_target():
    sizes = {"params": 117e9, "active": 5.1e9, "kv_bytes": 73728, "layers": 36, "hidden": 2880, "vocab": 201088}
    target = shape_by_hand({}, sizes)  # gpt-oss-120b; its width is no multiple of a head's
    assert drafter_shape(llama_of(target), kind="eagle", target=target).level.head == (201088, 2880)


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (LLAMA | {"num_hidden_layers": 1}, None),
        ({"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "eagle"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3"),
        ({"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}, "eagle3"),
        ({"model_type": "eagle", "architectures": ["EAGLEModel"]}, "eagle"),
        (LLAMA | {"draft_vocab_size": 32000}, "eagle3"),
        ({"medusa_num_heads": 5, "medusa_num_layers": 1}, "medusa"),
        ({"model_type": "medusa", "num_heads": 5}, "medusa"),
        ({"hydra_num_heads": 4, "hydra_head_arch": "mlp"}, "hydra"),
        ({"treeopt_drafter": {"kind": "ngram"}}, "ngram"),
    ],
)
def test_kinds_of_configurations(config, kind):
    assert kind_of_drafter(config) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [("eagle", "eagle"), ("hass", "eagle"), ("coral", "eagle"), ("eagle3", "eagle3"), ("medusa", "medusa"),
     ("hydra", "hydra"), ("hydra-plus", "hydra"), ("unigram", "ngram"), ("llama", None)],
)  # fmt: skip
def test_kinds_of_the_shipped_folders(name, kind):
    assert kind_of_drafter(shipped("models") / f"stdlib-{name}") == kind


def test_the_option_comes_before_the_configuration_before_the_trace(tmp_path):
    trace = small_trace()  # of Medusa
    eagle3 = {"architectures": ["LlamaForCausalLMEagle3"]}
    assert drafter_kind(trace, None) == ("medusa", [])
    assert drafter_kind(trace, "medusa", eagle3) == ("medusa", [])
    kind, (warning,) = drafter_kind(trace, None, eagle3)
    assert (kind, warning) == ("eagle3", "the trace records drafter kind medusa, but eagle3 is priced")
    assert drafter_kind(trace, None, LLAMA | {"num_hidden_layers": 1}) == ("medusa", [])
    silent = small_trace(meta={"verification": "greedy", "temperature": 0.0})
    for config, kind in (
        (LLAMA | {"num_hidden_layers": 30}, "language-model"),
        (LLAMA | {"num_hidden_layers": 1}, "eagle"),
    ):
        assert drafter_kind(silent, None, config) == (kind, [])
    with pytest.raises(UsageError, match="does not record its drafter's kind"):
        drafter_kind(silent, None, {})
    with pytest.raises(CostError, match="none"):
        drafter_kind(silent, None, tmp_path / "none")
