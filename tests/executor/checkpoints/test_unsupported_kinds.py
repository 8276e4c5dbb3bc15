"""Kinds of drafters that are not supported are named in one line; nothing unknown is loaded as a language model."""

import re

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from executor.checkpoints import load_drafter
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.load_hf_model import load_target
from simulate.drafter_kinds import named_drafter
from tests.helpers.checkpoint_files import config_of, put_down, refused, tensors_of
from tests.helpers.models import HIDDEN, VOCABULARY, small_model
from treeopt.errors import ExecutorError

LAYER = {
    **{f"self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"},
    **{f"mlp.{part}_proj.weight": (48, HIDDEN) for part in ("gate", "up")},
    "mlp.down_proj.weight": (HIDDEN, 48),
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
}
LLAMA = {"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": 4, "vocab_size": VOCABULARY}


def layer(prefix: str, **more: tuple[int, ...]):
    return {prefix + name: torch.ones(shape) for name, shape in (LAYER | more).items()}


@pytest.mark.parametrize(
    ("more", "said", "word"),
    [
        ({}, {"parallel_drafting": True}, "P-EAGLE"),
        ({}, {"pard_token": 60}, "P-EAGLE"),
        ({"layers.0.self_attn.qkv_proj.weight": (4, 64)}, {}, "fused projections"),
        ({}, {"architectures": ["DSparkDraftModel"]}, "DSpark"),
        ({"layers.0.self_attn.q_proj.qweight": (4,)}, {"quantization_config": {"quant_method": "awq"}}, "(awq)"),
    ],
)
def test_relatives_of_eagle_are_named(tmp_path, target, eagle3, more, said, word):
    _, tensors, config = eagle3
    put_down(tmp_path, tensors | {name: torch.ones(shape) for name, shape in more.items()}, config | said)
    message = refused(tmp_path, target)
    assert word in message
    assert "not supported" in message
    assert "needed" in message


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "EAGLE-3, .* has fc.weight, layers.0.hidden_norm.weight"),
        ({"architectures": ["EagleMiniCPMForCausalLM"]}, "EAGLE, .* has fc.weight, layers.0.self_attn.q_proj.weight"),
        ({"architectures": ["MedusaLlamaModel"]}, "Medusa heads, .* has 0.0.linear.weight"),
        ({"speculators_model_type": "hydra"}, "Hydra heads, .* has hydra_mlp.0.0.linear.weight"),
        ({"architectures": ["OwnDraftModel"]}, "a drafter, .* needed are Medusa"),
        ({"architectures": ["OwnMTPModel"]}, "MTP, .* has eh_proj.weight"),
        ({"architectures": ["DFlashForCausalLM"]}, "DFlash"),
    ],
)
def test_a_class_that_names_a_drafter_is_no_language_model(tmp_path, target, said, names):
    """A whole model under such a class would be judged as a language model of few layers."""
    small_model().save_pretrained(tmp_path)
    put_down(tmp_path, tensors_of(tmp_path), config_of(tmp_path) | said)
    assert re.search(names, refused(tmp_path, target))
    with pytest.raises(ExecutorError, match=r"in config.json names .*, not a language model: is it the --drafter\?"):
        load_target(tmp_path)


def test_a_field_of_a_drafter_in_a_language_model_is_named(tmp_path, target):
    small_model().save_pretrained(tmp_path)
    put_down(tmp_path, tensors_of(tmp_path), config_of(tmp_path) | {"draft_vocab_size": 40})
    assert "draft_vocab_size in config.json names EAGLE-3, not a language model" in refused(tmp_path, target)


def test_no_language_model_of_transformers_is_taken_for_a_drafter():
    names = [{"model_type": kind} for kind in CONFIG_MAPPING_NAMES]
    names += [{"architectures": [name]} for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()]
    taken = [named_drafter(config)[0] for config in names if named_drafter(config)]
    assert all("assistant" in name.lower() for name in taken)  # Gemma's are MTP heads


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_narrow_types_are_quantised_drafters(tmp_path, target, eagle3, dtype):
    tensors = {name: t.to(dtype) if name.endswith("proj.weight") else t for name, t in eagle3[1].items()}
    put_down(tmp_path, tensors, eagle3[2] | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})
    message = refused(tmp_path, target)
    assert f"quantised drafters (modelopt, FP8, {str(dtype).removeprefix('torch.')}) are not supported" in message


def test_a_copied_quantisation_of_plain_tensors_changes_nothing(tmp_path, target, eagle3):
    put_down(tmp_path, eagle3[1], eagle3[2] | {"quantization_config": {"quant_method": "mxfp4"}})
    assert load_drafter(tmp_path, target).kind == "eagle3"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            layer("model.mtp_layers.0.", **{"input_proj.weight": (32, 64), "token_layernorm.weight": (32,)}),
            "2 missing: model.mtp_layers.0.hidden_layernorm.weight",
        ),
        (
            layer("model.layers.0.", **{"eh_proj.weight": (32, 64)})
            | {"model.embed_tokens.weight": torch.ones(61, 32)},
            "model.embed_tokens.weight is not the target's, which MTP uses",
        ),
        (layer("model.layers.0."), "deepseek_mtp in config.json names MTP, not a language model"),
    ],
)
def test_parts_of_mtp_modules_are_named(tmp_path, target, tensors, words):
    put_down(tmp_path, tensors, LLAMA | ({"model_type": "deepseek_mtp"} if "names MTP" in words else {}))
    assert words in refused(tmp_path, target)


@pytest.mark.parametrize(
    ("tensors", "said", "word"),
    [
        ({"speculator.emb.0.weight": (61, 32)}, {"model_type": "mlp_speculator"}, "MLP speculators"),
        ({f"{part}.{k}.weight": (32, 32) for part in ("emb", "proj", "ln", "head") for k in (0, 1)}, {}, "MLP specul"),
        ({"eagle_linear.weight": (32, 64), "layers.0.attention.wq.weight": (32, 32)}, {}, "in Mistral's own format"),
        ({"speculator.x.weight": (61, 32)}, {"architectures": ["ArcticLSTMSpeculatorPreTrainedModel"]}, "recurrent"),
        ({"base_model.model.layers.0.q_proj.lora_A.weight": (4, 32)}, {}, "LoRA adapters"),
        ({"heads.0.weight": (61, 32), "gate": (3,)}, {}, "its tensors are gate, heads.0.weight"),
    ],
)
def test_others_are_named_before_transformers_is_asked(tmp_path, target, monkeypatch, tensors, said, word):
    monkeypatch.setattr("executor.checkpoints.load_target", lambda *a, **k: pytest.fail("loaded as a language model"))
    put_down(tmp_path, {name: torch.ones(shape) for name, shape in tensors.items()}, LLAMA | said)
    assert word in refused(tmp_path, target)


def test_a_language_model_with_an_mtp_layer_beside_its_own_is_one(tmp_path, target):
    model = small_model()
    model.save_pretrained(tmp_path)
    tensors = tensors_of(tmp_path)
    put_down(tmp_path, tensors | layer("model.layers.2.", **{"eh_proj.weight": (32, 64)}))
    assert isinstance(load_drafter(tmp_path, target), LanguageModel)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"spd_type": "PARD"}, "PARD without pard_token"),
        ({"spd_type": "pard2", "pard_token": 0}, "PARD-2 reads features"),
    ],
)
def test_a_language_model_that_drafts_in_parallel_is_named(tmp_path, target, said, words):
    small_model().save_pretrained(tmp_path)
    put_down(tmp_path, tensors_of(tmp_path), config_of(tmp_path) | said)
    assert words in refused(tmp_path, target)


@pytest.mark.parametrize("prefix", ["language_model.model.", "x.y.z."])
@pytest.mark.parametrize("vocabulary", [True, False])
def test_a_prefix_that_no_reader_knows_is_found_by_what_follows(tmp_path, target, eagle3, prefix, vocabulary):
    _, tensors, config = eagle3
    outer = ("lm_head", "d2t", "t2d")
    renamed = {name if vocabulary and name.startswith(outer) else prefix + name: t for name, t in tensors.items()}
    put_down(tmp_path, renamed, config)
    assert load_drafter(tmp_path, target).kind == "eagle3"


def test_other_names_beside_a_prefix_are_refused(tmp_path, target, eagle3):
    _, tensors, config = eagle3
    put_down(tmp_path, {f"a.{name}": t for name, t in tensors.items()} | {"other.weight": torch.ones(2)}, config)
    assert "Eagle3LlamaForCausalLM in config.json names EAGLE-3, not a language model" in refused(tmp_path, target)


def test_an_unknown_drafter_with_embeddings_is_refused_with_the_names_of_its_tensors(tmp_path, target):
    prefix = "adapter.layers.0."
    embeddings = {"embed_tokens.weight": torch.ones(VOCABULARY, HIDDEN)}
    put_down(tmp_path, layer(prefix) | embeddings, LLAMA | {"intermediate_size": 48, "num_hidden_layers": 1})
    message = refused(tmp_path, target)
    assert "are missing" in message
    assert f"instead there are {prefix}" in message
