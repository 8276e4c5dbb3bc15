"""EAGLE-3 as its trainers write it: rows in any order, windows, norms, no `fc`, more layers."""

import pytest
import torch

from executor.checkpoints import assumptions_of, load_drafter, save_drafter
from tests.helpers.checkpoint_files import assert_same, put_down, refused, same, written
from tests.helpers.drafters import random_drafter
from tests.helpers.models import HIDDEN, VOCABULARY, deep_target
from treeopt.errors import ExecutorError

FORGE = {"architectures": ["LlamaForCausalLMEagle3"]}


# --- rows of the LM head


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("form", ["offsets", "ids"])
def test_rows_may_be_in_any_order(tmp_path, target, plain, chosen, form):
    drafter, tensors, config = plain
    rows = len(tensors["d2t"])
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(3))
    ids = tensors["d2t"] + torch.arange(rows)
    moved = {"lm_head.weight": tensors["lm_head.weight"][order]}
    moved["d2t"] = ids[order] - (torch.arange(rows) if form == "offsets" else 0)
    left = {} if chosen else {"t2d"}
    put_down(tmp_path, {k: v for k, v in (tensors | moved).items() if k not in left}, config)
    assert_same(load_drafter(tmp_path, target), drafter, target)


def test_ids_in_order_are_told_from_offsets_by_the_tokens_that_are_drafted(tmp_path, target, plain):
    drafter, tensors, config = plain
    put_down(tmp_path, tensors | {"d2t": tensors["d2t"] + torch.arange(len(tensors["d2t"]))}, config)
    assert_same(load_drafter(tmp_path, target), drafter, target)


def test_a_whole_vocabulary_in_another_order(tmp_path, target):
    drafter = random_drafter("eagle3-input-norm", target)
    tensors, config = written(tmp_path / "a", drafter, "eagle3-vllm")
    order = torch.randperm(VOCABULARY)
    moved = {"lm_head.weight": tensors["lm_head.weight"][order], "d2t": order - torch.arange(VOCABULARY)}
    put_down(tmp_path / "b", tensors | moved, config)
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)
    put_down(tmp_path / "b", tensors | {"d2t": torch.zeros(VOCABULARY).long()}, config)
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)


def test_tied_embeddings_are_the_lm_head(tmp_path, target):
    drafter = random_drafter("eagle3-variants", target)
    tensors, config = written(tmp_path / "a", drafter, "eagle3-vllm")
    del tensors["lm_head.weight"]
    put_down(tmp_path / "b", tensors, config | {"tie_word_embeddings": True})
    assert torch.equal(load_drafter(tmp_path / "b", target).lm_head.weight, tensors["embed_tokens.weight"])
    put_down(tmp_path / "b", tensors, config)
    assert torch.equal(load_drafter(tmp_path / "b", target).lm_head.weight, target.head.weight)


# --- layers


@pytest.mark.parametrize("name", ["eagle3-windows", "eagle3-last-feature"])
@pytest.mark.parametrize("layout", [None, "eagle3-vllm", "speculators-eagle3"])
def test_variants_come_back_without_treeopts_own_section(tmp_path, target, name, layout):
    drafter = random_drafter(name, target)
    held, config = written(tmp_path / "a", drafter, layout)
    put_down(tmp_path / "b", held, config)
    found = load_drafter(tmp_path / "b", target)
    assert_same(found, drafter, target)
    assert (found.windows, found.head_norms, found.taps) == (drafter.windows, drafter.head_norms, drafter.taps)


@pytest.mark.parametrize("layout", ["eagle3", "eagle3-specforge"])
def test_layouts_that_lack_the_variants_say_so(tmp_path, target, layout):
    with pytest.raises(ExecutorError, match="layers that attend to a window, norms of queries and keys, 2 layers"):
        save_drafter(tmp_path, random_drafter("eagle3-windows", target), dtype="float32", meta={}, layout=layout)


@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ({"layer_types": ["sliding_attention"], "sliding_window": 3}, (3,)),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3}, (None,)),
        ({"sliding_window": 3, "use_sliding_window": False}, (None,)),
        ({"sliding_window": 3}, (None,)),
    ],
)
def test_windows_by_layer_types(tmp_path, target, plain, said, windows):
    drafter, tensors, config = plain
    put_down(tmp_path, tensors, config | said)
    found = load_drafter(tmp_path, target)
    assert found.windows == windows
    assert same(found, drafter, target) == (windows == (None,))
    assert ("sliding_window 3 without layer_types" in str(assumptions_of(found))) == (said == {"sliding_window": 3})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"use_sliding_window": True, "sliding_window": 4}, "no layer_types says which layers of the drafter slide"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 2.5}, "must be a whole number"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 4, "use_sliding_window": False}, "give the window"),
        ({"layer_types": []}, "must have an entry for layer 0"),
    ],
)
def test_windows_that_nobody_can_know(tmp_path, target, plain, said, message):
    put_down(tmp_path, plain[1], plain[2] | said)
    with pytest.raises(ExecutorError, match=message):
        load_drafter(tmp_path, target)


def test_sglangs_names_of_deeper_layers(tmp_path, target):
    drafter = random_drafter("eagle3-windows", target)
    held, config = written(tmp_path / "a", drafter, "eagle3-vllm")
    tensors = {
        name.replace("layers.0.", "midlayer.")
        .replace("layers.1.input_layernorm", "layers.1.hidden_norm")
        .replace("layers.1.", "additional_layers.0."): value
        for name, value in held.items()
    }
    put_down(tmp_path / "b", tensors, config)
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)


def test_modelopts_name_of_the_lm_head_before_its_export(tmp_path, target, plain):
    renamed = {f"eagle_module.{name.replace('lm_head', 'eagle_lm_head')}": value for name, value in plain[1].items()}
    put_down(tmp_path, renamed, plain[2])
    assert_same(load_drafter(tmp_path, target), plain[0], target)


# --- norms by the trainer


@pytest.mark.parametrize(
    ("said", "prefix", "feeds", "assumed"),
    [
        ({"norm_output": True, "architectures": ["Eagle3LlamaForCausalLM"]}, "", True, ""),
        ({"norm_output": True, "architectures": ["LlamaEagle3DraftModel"]}, "model.", True, ""),
        ({"norm_output": True, "num_aux_hidden_states": 3, **FORGE}, "", True, ""),
        ({"eagle_config": {"norm_output": True}, "architectures": ["Eagle3LlamaForCausalLM"]}, "", True, ""),
        ({"norm_output": True, **FORGE}, "", False, "norm_output true is taken for SpecForge's"),
        ({"norm_output": False, **FORGE}, "", False, "norm_output false is taken for SpecForge's since"),
        (FORGE, "", False, ""),
    ],
)
def test_norm_output_by_class_and_trainer(tmp_path, target, plain, said, prefix, feeds, assumed):
    _, tensors, config = plain
    names = {name if name in ("d2t", "t2d", "lm_head.weight") else prefix + name: t for name, t in tensors.items()}
    put_down(tmp_path, names, config | said)
    found = load_drafter(tmp_path, target)
    assert found.feeds_normed is feeds
    assert assumed in str(assumptions_of(found))
    assert bool(assumptions_of(found)) == bool(assumed)


def test_newer_speculators_name_of_the_norms_before_fc(tmp_path, target):
    drafter = random_drafter("eagle3-variants", target)
    held, config = written(tmp_path / "a", drafter, "speculators-eagle3")
    tensors = {name.replace("fc_norm.", "fc_norms."): t for name, t in held.items()}
    put_down(tmp_path / "b", tensors, config)
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)


@pytest.mark.parametrize("field", ["use_mtp_layernorm", "use_input_layernorm_in_first_layer"])
def test_modelopts_other_norms_are_refused(tmp_path, target, plain, field):
    put_down(tmp_path, plain[1], plain[2] | {"eagle_config": {field: field == "use_mtp_layernorm"}})
    with pytest.raises(ExecutorError, match=f"{field} .* is not supported"):
        load_drafter(tmp_path, target)


def test_layers_of_gpt_oss_are_inputs_and_others_are_said(tmp_path, target, plain):
    config = {key: value for key, value in plain[2].items() if "layer_ids" not in key}
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
    put_down(tmp_path, plain[1], config | nested)
    found = load_drafter(tmp_path, target)
    assert found.taps == (2, 4, 6)
    assert "taken for outputs of layers" in str(assumptions_of(found))
    put_down(tmp_path, plain[1], config | nested | FORGE)
    assert assumptions_of(load_drafter(tmp_path, target)) == ()
    other = deep_target()
    other.model.config.model_type = "gpt_oss"
    assert load_drafter(tmp_path, other).taps == (1, 3, 5)


# --- fields of configurations


def test_heads_need_not_divide_the_width(tmp_path, target, plain):
    """Drafters for GLM-4.5 have 96 heads of 128 in a width of 4096 (here 3 of 8 in 32), and GLM-4.7-Flash."""
    _, tensors, config = plain
    cut = {f"layers.0.self_attn.{part}_proj.weight": (slice(24), slice(None)) for part in "qkv"}
    cut["layers.0.self_attn.o_proj.weight"] = (slice(None), slice(24))
    tensors = {name: value[cut[name]].contiguous() if name in cut else value for name, value in tensors.items()}
    tensors |= {f"layers.0.self_attn.{part}_proj.weight": torch.randn(8, 2 * HIDDEN) for part in "kv"}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8}
    put_down(tmp_path / "a", tensors, config | heads)
    found = load_drafter(tmp_path / "a", target)
    assert (found.config.num_attention_heads, found.config.head_dim) == (3, 8)
    save_drafter(tmp_path / "b", found, dtype="float32", meta={}, layout="speculators-eagle3")
    assert_same(load_drafter(tmp_path / "b", target), found, target)


def test_a_drafter_without_fc_must_say_so(tmp_path, target):
    drafter = random_drafter("eagle3-last-feature", target)
    tensors, config = written(tmp_path / "a", drafter, "eagle3-vllm")
    put_down(tmp_path / "b", tensors, {key: value for key, value in config.items() if key != "eagle_config"})
    refused(tmp_path / "b", target, "1 missing: fc.weight; for a drafter that reads the target's last feature")
    narrow = {"fc.weight": torch.randn(HIDDEN, HIDDEN)}  # one level, merged by an fc of its own
    put_down(tmp_path / "b", tensors | narrow, config)
    found = load_drafter(tmp_path / "b", target)
    assert (found.taps, found.fc.in_features) == ((), HIDDEN)


@pytest.mark.parametrize(
    ("said", "alike"),
    [
        ({"num_experts": 64, "moe_intermediate_size": 8, "max_window_layers": 28}, True),  # copied from a target
        ({"layer_types": ["sliding_attention"], "sliding_window": 2048}, True),  # wider than any text
        ({"target_hidden_size": HIDDEN, "parallel_drafting": False, "attention_bias": False}, True),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, False),
        ({"norm_before_residual": True}, False),
        ({"rms_norm_eps": 10.0}, False),
        ({"hidden_act": "relu"}, False),
    ],
    ids=lambda said: str(said)[:30],
)
def test_fields_change_the_drafter_or_mean_nothing(tmp_path, target, plain, said, alike):
    drafter, tensors, config = plain
    config = {key: value for key, value in config.items() if not key.startswith("rope")}
    tensors = {f"module.{name}": t for name, t in tensors.items()} | {"module.verifier_norm.weight": torch.ones(HIDDEN)}
    put_down(tmp_path, tensors, config | said)
    assert same(load_drafter(tmp_path, target), drafter, target) == alike
