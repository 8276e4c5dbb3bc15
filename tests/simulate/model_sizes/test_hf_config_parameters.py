"""Sizes of the models that people serve: as transformers builds them, or as their cards say."""

import json
from contextlib import suppress
from functools import cache

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto import CONFIG_MAPPING

from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.hf_config import FIELDS, text_part
from simulate.model_sizes.model_shape import Shape
from simulate.model_sizes.stored_bytes import read_stored_bytes
from treeopt.errors import CostError
from treeopt.storage.user_files import shipped

MODELS = json.loads(shipped("model_configs.json").read_text("utf-8"))["models"]
CARDS = {  # billions, of models without a class in transformers
    "XiaomiMiMo/MiMo-7B-Base": 7.83 - 0.2,  # without its MTP layer
    "Qwen/Qwen2.5-7B-Instruct": 7.62,
    "Qwen/Qwen2.5-72B-Instruct": 72.7,
    "meta-llama/Llama-3.2-1B-Instruct": 1.24,
    "meta-llama/Llama-3.2-3B-Instruct": 3.21,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.25,
}
FAST = (
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "google/gemma-3-27b-it",
    "ibm-granite/granite-4.0-h-tiny",
    "ibm-ai-platform/Bamba-9B-v2",
    "LiquidAI/LFM2-8B-A1B",
    "MiniMaxAI/MiniMax-Text-01-hf",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "tiiuae/Falcon-H1-0.5B-Instruct",
)


@cache
def covered():
    shapes = {}
    for name, config in MODELS.items():
        try:
            shapes[name] = Shape.from_config(config)
        except CostError as error:
            shapes[name] = str(error)
    return shapes


def real_counts(config, experts):
    """Weights of transformers' model, and those that one token needs without embeddings that are only looked up."""
    text = {name: value for name, value in text_part(config).items() if "quant" not in name}
    try:
        made = CONFIG_MAPPING[text["model_type"]](**{n: v for n, v in text.items() if n != "model_type"})
        kind = AutoModelForCausalLM if type(made) in AutoModelForCausalLM._model_mapping else None
    except KeyError:
        kind = None
    if kind is None:
        inner = text if config is text_part(config) else config["text_config"]
        nested = config if "text_config" in config else {"text_config": inner}
        nested = {n: v for n, v in nested.items() if "quant" not in n and n != "model_type"}
        made, kind = CONFIG_MAPPING[config["model_type"]](**nested), AutoModelForImageTextToText
    with torch.device("meta"):
        model = kind.from_config(made, attn_implementation="eager")
    others = ("vision", "visual", "projector")
    counts = {n: w.numel() for n, w in model.named_parameters() if not any(word in n for word in others)}
    routed = sum(count for name, count in counts.items() if ".experts." in name)
    idle = 0 if experts is None else routed - routed * experts.active // experts.count
    embedding = 0 if "lm_head.weight" not in counts else model.get_input_embeddings().weight.numel()
    return sum(counts.values()), sum(counts.values()) - idle - embedding


def check_counts(name):
    shape = covered()[name]
    if text_part(MODELS[name])["model_type"] == "mimo":
        assert shape.parameters / 1e9 == pytest.approx(CARDS[name], rel=0.03)
    else:
        assert (shape.parameters, shape.step_parameters) == real_counts(MODELS[name], shape.experts), name


@pytest.mark.parametrize("name", FAST)
def test_counts_are_those_of_transformers_or_the_card(name):
    check_counts(name)


@pytest.mark.slow
def test_counts_of_every_size_are_those_of_transformers_or_the_card():
    """One covered model of each size."""
    sizes = {
        shape.parameters: name
        for name, shape in covered().items()
        if isinstance(shape, Shape)
        and MODELS[name]["model_type"] not in ("kimi_k2", "minimax_m1", "minimax_m3")  # others have classes
    }
    assert len(sizes) > 50
    for name in sizes.values():
        check_counts(name)


@pytest.mark.parametrize("name", CARDS)
def test_cards(name):
    assert covered()[name].parameters / 1e9 == pytest.approx(CARDS[name], rel=0.03)


def test_what_is_covered_and_what_is_refused_by_which_field():
    refused = {name: said.split()[0] for name, said in covered().items() if isinstance(said, str)}
    compressed = {name for name in refused if "DeepSeek-V4" in name}
    assert len(compressed) == 7
    assert {refused[name] for name in compressed} == {"compress_ratios"}
    assert {name: field for name, field in refused.items() if name not in compressed} == {
        "moonshotai/Kimi-K3": "attn_res_block_size",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "intermediate_size",
    }


@pytest.mark.slow
def test_a_missing_field_is_that_of_the_class_or_is_refused():
    """But for whole heads that are tied: the outer configuration states that; Kimi's class drops another one."""
    seen, compared = set(), 0
    for name in covered():
        fields = {key: value for key, value in text_part(MODELS[name]).items() if "quant" not in key}
        kind = fields.pop("model_type")
        if kind in seen or kind not in CONFIG_MAPPING or isinstance(covered()[name], str):
            continue
        seen.add(kind)
        for field in set(fields) - {"tie_word_embeddings", "sliding_window", "first_k_dense_replace"}:
            rest = {key: value for key, value in fields.items() if key != field}
            with suppress(CostError, StrictDataclassClassValidationError):  # the class refuses some, too
                shape = Shape.from_config(rest | {"model_type": kind})
                default = getattr(CONFIG_MAPPING[kind](**rest), field, None)
                assert shape == Shape.from_config(rest | {"model_type": kind, field: default}), (name, field)
                compared += 1
    assert compared > 100


def test_a_gate_and_heads_that_the_usual_fields_do_not_tell():
    """BitNet's activation is that of MLPs without a gate; transformers doubles the key heads of MiMo-V2's windows."""
    config = {name: MODELS["meta-llama/Llama-3.2-1B-Instruct"][name] for name in (*FIELDS, "tie_word_embeddings")}
    bitnet = config | {"model_type": "bitnet", "hidden_act": "relu2"}
    assert Shape.from_config(bitnet).parameters == pytest.approx(real_counts(bitnet, None)[0], rel=2e-4)
    mimo = {name: value for name, value in MODELS["XiaomiMiMo/MiMo-V2-Flash"].items() if name[:4] != "swa_"}
    with pytest.raises(CostError, match="swa_num_key_value_heads must be given for model_type mimo_v2_flash"):
        Shape.from_config(mimo)


LAYERS = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}


@pytest.mark.parametrize(
    ("config", "billions", "kept"),  # of transformers 5.23; numbers of a token in the cache at context 32,768
    [
        ({"model_type": "gemma3", "text_config": {**LAYERS, "model_type": "gemma3_text"}}, 3.880, 12096),
        ({**LAYERS, "model_type": "cohere2", **dict(zip(FIELDS[3:], (20, 4, 256000), strict=True))}, 3.864, 9024),
        ({**LAYERS, "model_type": "phi3", **dict(zip(FIELDS[3:], (20, 4, 100352), strict=True))}, 3.723, 1088),
    ],
)
def test_models_that_leave_out_what_their_class_says(config, billions, kept):
    """Gemma 3 4B states no heads; Command R7B's class ties its head, every fourth layer sees all; Phi-3's none."""
    shape = Shape.from_config(config)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert Forward.of(shape).kept_elements(32_768) / 32_768 == kept


def test_the_language_model_inside_a_model_for_sound():
    """Voxtral states a hidden size outside too; Qwen3-Omni's text part is a part of its thinker."""
    text = MODELS["meta-llama/Llama-3.2-1B-Instruct"]
    for outer in ({"text_config": text, "hidden_size": 2048}, {"thinker_config": {"text_config": text}}):
        assert Shape.from_config({"model_type": "voxtral", **outer}) == Shape.from_config(text)


def test_known_totals_states_and_caches():
    shapes = covered()
    assert round(shapes["openai/gpt-oss-120b"].parameters / 1e9, 2) == 116.83
    assert round(shapes["deepseek-ai/DeepSeek-V3"].parameters / 1e9, 2) == 671.03
    assert shapes["deepseek-ai/DeepSeek-V3"].kv_bytes == 2 * 61 * (512 + 64)  # latent, for all heads
    large = shapes["Qwen/Qwen3.5-397B-A17B"]
    assert large.state_bytes / 2 == pytest.approx(90 * 2**20, rel=0.03)  # TreeWY (arXiv 2608.20961), a state in bf16
    assert large.kv_bytes == 15 * 2 * 2 * 256 * 2  # of 15 layers of 60
    gemma = [group for group in shapes["google/gemma-3-27b-it"].groups if group.attention.window == 1024]
    assert [group.count for group in gemma] == [52]


FILES = {"openai/gpt-oss-120b": 60.8, "openai/gpt-oss-20b": 12.8}  # GiB; the models' card (arXiv 2508.10925), table 1


@pytest.mark.parametrize("name", FILES)
def test_bytes_as_stored_are_those_of_the_files(name):
    shape = Shape.from_config(MODELS[name], as_stored=True)
    ends = 2 * 2 * shape.vocab * shape.hidden
    assert (shape.weight_bytes(2) + ends) / 2**30 == pytest.approx(FILES[name], rel=0.01)


LLAMA = MODELS["meta-llama/Llama-3.1-8B-Instruct"]


@pytest.mark.parametrize(
    ("settings", "widths", "head"),
    [
        ({"quant_method": "fp8"}, {1.0}, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {1 + 4 / 128**2}, None),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.mlp.down_proj"]}, {1.0, None}, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "lm_head": True}, {0.5 + 2.5 / 64}, 0.5 + 2.5 / 64),
        ({"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.self_attn*"]}, {0.5625, None}, None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, {0.5158691}, None),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 64}, {0.5 + 2.5 / 64}, None),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
                "exclude": ["lm_head", "*self_attn*"],
            },
            {0.5 + 1 / 32, None},
            None,
        ),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.3.mlp.down_proj"]}, {1.0, None}, None),
        (
            {
                "config_groups": {
                    "a": {"targets": ["Linear"], "weights": {"num_bits": 4}},
                    "b": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 8}},
                }
            },
            {0.5, 1.0},
            0.5,
        ),
        (
            {
                "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
                "ignore": ["re:.*mlp.*"],
            },
            {0.5 + 2 / 32, None},
            0.5 + 2 / 32,
        ),
    ],
)
def test_widths_of_matrices(settings, widths, head):
    shape = Shape.from_config(LLAMA | {"quantization_config": settings}, as_stored=True)
    stored = {each.stored for group in shape.layer_groups for each in group.matrices}
    assert {each and round(each, 7) for each in stored} == {each and round(each, 7) for each in widths}
    assert shape.head_bytes == head
    assert shape.parameters == Shape.from_config(LLAMA).parameters


def test_a_list_of_excluded_layers_makes_groups():
    left = [f"model.layers.{i}.self_attn.{m}_proj" for i in (0, 5) for m in "qkvo"]
    settings = {"quant_method": "fp8", "modules_to_not_convert": left}
    shape = Shape.from_config(LLAMA | {"quantization_config": settings}, as_stored=True)
    assert sorted(group.count for group in shape.groups) == [2, 30]
    shortened = settings | {"modules_to_not_convert": [*left[:4], "... 4 more"]}  # one stands for all
    shape = Shape.from_config(LLAMA | {"quantization_config": shortened}, as_stored=True)
    assert [each.stored for each in shape.groups[0].matrices] == [None, None, 1.0, 1.0]


def test_cached_numbers_of_one_byte():
    for name, size in (("nvidia/Llama-3.1-70B-Instruct-FP8", 1.0), ("openai/gpt-oss-120b", None)):
        assert read_stored_bytes(MODELS[name]).kv_bytes == size
    halves = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}
    assert read_stored_bytes({"hf_quant_config": halves}).kv_bytes == 0.5625


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"config_groups": {"a": {"weights": {}}}}, "num_bits must be a positive integer, got None"),
        ({"config_groups": {"a": {"weights": {"num_bits": 4096}}}}, "num_bits must be at most 64"),
        ({"config_groups": {"a": {"targets": ["frob"], "weights": {"num_bits": 4}}}}, "names no matrix of this model"),
        ({"quant_method": "fp8", "weight_block_size": [128, -1]}, "weight_block_size must be a positive integer"),
        ({"quant_method": "awq", "bits": -4}, "bits must be a positive integer, got -4"),
        ({"quant_method": "awq", "group_size": float("inf")}, "holds a value of another kind"),
        ({"quant_method": "gptq", "dynamic": {"-:.*mlp.*": {}}}, "weights quantised by gptq are not known"),
    ],
)
def test_a_quantisation_that_cannot_be_is_refused(settings, said):
    with pytest.raises(CostError, match=said):
        Shape.from_config(LLAMA | {"quantization_config": settings}, as_stored=True)
