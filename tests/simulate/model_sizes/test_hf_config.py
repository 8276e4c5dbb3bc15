"""Sizes by a model's configuration: weights, FLOP, and bytes of keys, values and states, as transformers' own model."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from executor.drafters.eagle.drafter import weights_read
from simulate.model_sizes.hf_config import context_limit
from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.model_sizes.model_shape import Shape
from simulate.whatif.device_cost_models import bytes_per_weight
from tests.helpers.model_families import BASE, EAGER, EXPERTS, FAMILIES, MAMBA, RECURRENT
from treeopt.errors import CostError, UsageError
from treeopt.storage.user_files import shipped

TINY = {
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA_2_7B = TINY | {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
LLAMA_3_8B = LLAMA_2_7B | {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}
QWEN_25_7B = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "use_sliding_window": False,
}


def real_model(config):
    """transformers' model of `config`, without storage."""
    values = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            AutoConfig.for_model(
                config["model_type"], pad_token_id=None, bos_token_id=None, eos_token_id=None, **values
            ),
            attn_implementation="eager",
        )


@st.composite
def configs(draw, model_type):
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, head_dim = kv_heads * group, 2 * draw(st.integers(1, 6))
    config = {
        "model_type": model_type,
        "vocab_size": draw(st.integers(3, 50)),
        "hidden_size": heads * head_dim,
        "intermediate_size": draw(st.integers(1, 50)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": draw(st.booleans()),
    }
    if model_type in ("qwen3", "qwen3_moe", "gemma") or draw(st.booleans()):
        config["head_dim"] = 2 * draw(st.integers(1, 8))
    if model_type in ("mixtral", "qwen3_moe"):
        count = draw(st.integers(1, 5))
        config["num_experts" if model_type == "qwen3_moe" else "num_local_experts"] = count
        config["num_experts_per_tok"] = draw(st.integers(1, count))
        config["moe_intermediate_size"] = draw(st.integers(1, 20))
        if model_type == "mixtral":
            del config["moe_intermediate_size"]
    if model_type in ("llama", "qwen3", "qwen3_moe", "gemma", "arcee"):
        config["attention_bias"] = draw(st.booleans())
    if model_type in ("llama", "arcee"):
        config["mlp_bias"] = draw(st.booleans())
    return config


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma", "arcee", "mixtral", "qwen3_moe"])
def test_counts_are_those_of_the_real_model(model_type):
    @settings(max_examples=25)
    @given(config=configs(model_type))
    def compare(config):
        model, shape = real_model(config), Shape.from_config(config)
        assert shape.parameters == sum(weight.numel() for weight in model.parameters())
        embedding = model.get_input_embeddings().weight
        looked_up = 0 if config["tie_word_embeddings"] else embedding.numel()
        idle = 0 if shape.experts is None else shape.experts.count - shape.experts.active
        unread = shape.layers * idle * 3 * shape.hidden * shape.intermediate
        assert shape.step_parameters == shape.parameters - looked_up - unread
        layer = model.model.layers[0]
        assert shape.layer_groups[0].weights() == sum(weight.numel() for weight in layer.parameters())
        keys, values = layer.self_attn.k_proj, layer.self_attn.v_proj
        assert shape.kv_bytes == 2 * shape.layers * (keys.out_features + values.out_features)

    compare()


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "arcee"])
@pytest.mark.parametrize(
    ("tokens", "context", "logits"), [(1, 0, None), (5, 0, None), (1, 7, None), (4, 7, None), (6, 3, 1)]
)
def test_flops_are_those_that_torch_counts(model_type, tokens, context, logits):
    config = TINY | {"model_type": model_type, "head_dim": 6, "attention_bias": True}
    model, shape = real_model(config), Shape.from_config(config)
    cache = DynamicCache()
    if context:
        model(torch.zeros(1, context, dtype=torch.long, device="meta"), past_key_values=cache)
    with FlopCounterMode(display=False) as counter:
        model(
            torch.zeros(1, tokens, dtype=torch.long, device="meta"),
            past_key_values=cache,
            logits_to_keep=logits or 0,
        )
    products = 2 * shape.vocab * shape.hidden * (tokens if logits is None else logits)
    for group in shape.layer_groups:
        products += 2 * group.count * tokens * (group.products() + group.attention.products(context + tokens))
    assert products == counter.get_total_flops()


def test_known_models():
    assert Shape.from_config(LLAMA_2_7B).parameters == 6_738_415_616
    llama = Shape.from_config(LLAMA_3_8B)
    assert llama.parameters == 8_030_261_248
    assert llama.step_parameters == 8_030_261_248 - 128256 * 4096
    assert llama.kv_bytes == 128 * 1024
    due = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
    assert llama.layer_matrices == due
    assert Shape.from_config(QWEN_25_7B).parameters == 7_615_616_512


CORAL = json.loads(shipped("published/coral_table1.json").read_text("utf-8"))["rows"]
TARGETS = {"Llama2-7B": LLAMA_2_7B, "Llama3-8B": LLAMA_3_8B, "Qwen2.5-7B": QWEN_25_7B}


@pytest.mark.parametrize("row", CORAL, ids=lambda row: row["model"])
def test_corals_weights(row):
    target = Shape.from_config(TARGETS[row["model"]])
    assert (target.hidden, target.intermediate, target.vocab) == (row["hidden"], row["inter"], row["vocab"])
    own = weights_read(SimpleNamespace(groups=0), target)
    assert round(own / 2**20) == row["W_d_M"]
    assert round(target.step_parameters / 2**20) == row["W_t_M"]
    assert round(100 * own / target.step_parameters, 1) == row["W_ratio_pct"]


def test_a_config_is_read_from_its_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY), "utf-8-sig")
    for source in (path, tmp_path, str(path), TINY):
        plain = Shape(2, 16, 40, 4, 2, 4, 48)
        assert Shape.from_config(source) == replace(plain, groups=plain.layer_groups)


def test_a_quantised_config_names_its_method(tmp_path):
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq", "bits": 4}}', "utf-8")
    nameless, short = {"quantization_config": {"bits": 4}}, {"quantization_config": "fp8"}
    for config, method in ((tmp_path, "gptq"), (nameless, "not named"), (short, "fp8")):
        with pytest.raises(UsageError, match=rf"\(quant_method {method}\): give"):
            bytes_per_weight(config, None, "--weight-bytes")
    assert bytes_per_weight({"quantization_config": None}, None, "") == bytes_per_weight(LLAMA_3_8B, None, "") == 2


def test_null_and_absent_fields_mean_what_they_mean_to_transformers():
    all_heads = Shape.from_config(TINY | {"num_key_value_heads": None})
    assert all_heads.kv_heads == 4
    assert all_heads == Shape.from_config({key: value for key, value in TINY.items() if "key_value" not in key})
    assert Shape.from_config(TINY | {"model_type": "gemma", "head_dim": 4}).tied
    assert not Shape.from_config(TINY | {"tie_word_embeddings": None}).tied
    # not read by the model's class, hence without effect
    mistral = TINY | {"model_type": "mistral"}
    assert Shape.from_config(mistral | {"attention_bias": True}) == Shape.from_config(mistral)


QWEN_WINDOW = {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True}
HYBRID = {"model_type": "bamba", "mamba_n_heads": 4, "mamba_d_state": 8, "attn_layer_indices": [0]}


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 9}, [None]),
        ({"model_type": "mistral"}, [4096]),
        ({"model_type": "mistral", "sliding_window": None}, [None]),
        ({"model_type": "mistral", "sliding_window": 9}, [9]),
        (QWEN_WINDOW | {"use_sliding_window": False}, [None]),
        (QWEN_WINDOW, [None]),
        (QWEN_WINDOW | {"max_window_layers": 1}, [None, 9]),
        (QWEN_WINDOW | {"layer_types": ["full_attention", "sliding_attention"]}, [None, 9]),
        (QWEN_WINDOW | {"max_window_layers": 1, "sliding_window": None}, [None]),
    ],
)
def test_a_sliding_window_is_found(change, windows):
    shape = Shape.from_config(TINY | change)
    assert [group.attention.window for group in shape.layer_groups] == windows
    beyond = [group.attention.products(81) - group.attention.products(80) for group in shape.layer_groups]
    assert (max(beyond) > 0) == (windows != [9])


def test_an_unknown_model_type_is_counted_by_the_usual_names_with_a_warning():
    shape = Shape.from_config(TINY | {"model_type": "new"})
    assert shape.parameters == Shape.from_config(TINY).parameters
    assert shape.notes == ("model_type 'new' is not known: its layers are counted by the usual names of fields alone",)
    assert "no gate, as" in Shape.from_config(TINY | {"model_type": "new", "hidden_act": "relu2"}).notes[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "gpt2", "hidden_size": None},
            "model_type 'gpt2' has no price, and hidden_size is missing: mea",
        ),
        ({"kv_lora_rank": 512}, "v_head_dim must be a positive integer, got None"),
        ({"compress_ratios": [0, 4]}, "compress_ratios is not understood, .* with `treeopt times`.*, or .* --sizes"),
        ({"moe_frob": 2}, "moe_frob is not understood"),
        ({"layer_types": [["a"], {}]}, "a field that describes layers holds a value of another kind: unhashable"),
        ({"num_hidden_layers": 2**30}, "num_hidden_layers must be at most 65536"),
        ({"model_type": "new", "frob": [1, 2]}, "frob is not understood"),
        ({"model_type": "new", "frob": {"0": 1, "1": 2}}, "frob is not understood"),
        ({"model_type": "new", "num_hidden_layers": 6, "frob": "ABABAB"}, "frob is not understood"),
        ({"num_experts": False}, "num_experts must be a positive integer, got False"),
        ({"model_type": "new", "ffn_multipliers": [1.0, 2.0]}, "ffn_multipliers is not understood"),
        ({"index_topk_freq": 2}, "index_topk_freq is not understood"),
        ({"model_type": "new", "num_experts": 0, "num_local_experts": 8}, "num_experts, .* must agree"),
        ({"model_type": "new", "sliding_window": 9}, "sliding_window is not understood"),
        ({"model_type": "new", "skip_mlp_layers": [1]}, "skip_mlp_layers is not understood"),
        ({"model_type": "new", "total_ut_steps": 4}, "total_ut_steps is not understood"),
        ({"model_type": "new", "multi_query": True}, "multi_query is not understood"),
        ({"layer_types": ["linear_attention"] * 2}, "linear attention without linear_num_value_heads is not counted"),
        (HYBRID | {"mamba_d_head": 9}, "mamba_n_heads x mamba_d_head must be 32, as mamba_d_ssm or mamba_expand say"),
        ({"model_type": "lfm2"}, "full_attn_idxs or layer_types must list the layers with attention"),
        ({"model_type": "lfm2", "full_attn_idxs": 1}, "a field that describes layers holds a value of another kind"),
        ({"hidden_size": 18}, "num_attention_heads must divide hidden_size, got 4 and 18"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers must be a positive integer, got '2'"),
        ({"model_type": "qwen3"}, "head_dim must be given for model_type qwen3"),
    ],
)
def test_a_config_it_cannot_count_is_refused_with_file_and_field(tmp_path, change, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY | change), "utf-8")
    with pytest.raises(CostError, match=f"config.json: {message}"):
        Shape.from_config(path)
    with pytest.raises(CostError, match=f"^{message}"):
        Shape.from_config(TINY | change)


def test_limits_of_a_context():
    assert context_limit({}) is context_limit({"max_position_embeddings": 0}) is None
    for wrong in ({"max_position_embeddings": float("inf")}, {"rope_scaling": ["linear", 2]}):
        with pytest.raises(CostError, match="max_position_embeddings and the fields that stretch it"):
            context_limit({"max_position_embeddings": 4096} | wrong)


@pytest.mark.parametrize(("count", "active", "tokens"), [(4, 2, 3), (5, 1, 4), (3, 3, 2), (6, 2, 2), (4, 3, 3)])
def test_touched_experts_are_those_of_all_ways_to_pick(count, active, tokens):
    picks = list(combinations(range(count), active))
    sizes = [len(set().union(*chosen)) for chosen in product(picks, repeat=tokens)]
    mean = Fraction(sum(sizes), len(sizes))
    assert Experts(count, active).touched(tokens) == pytest.approx(float(mean), rel=1e-12)


@given(count=st.integers(1, 256), data=st.data(), spread=st.floats(0.01, 1))
def test_touched_experts_grow_with_tokens_and_spread_from_active_to_all(count, data, spread):
    experts = Experts(count, data.draw(st.integers(1, count)))
    touched = experts.touched(np.arange(1, 200), spread=spread)
    assert touched[0] == pytest.approx(experts.active, rel=1e-12)
    assert np.all(np.diff(touched) >= -1e-9)
    assert np.all(touched <= count + 1e-9)
    assert np.all(touched <= experts.touched(np.arange(1, 200)) + 1e-9)
    assert np.all(touched <= experts.active * np.arange(1, 200) + 1e-9)


MIXTRAL = LLAMA_2_7B | {"model_type": "mixtral", "intermediate_size": 14336, "num_key_value_heads": 8}
MIXTRAL |= {"num_local_experts": 8, "num_experts_per_tok": 2}


def test_mixtral():
    shape = Shape.from_config(MIXTRAL)
    assert shape.parameters == 46_702_792_704  # the published checkpoint
    assert shape.step_parameters == pytest.approx(12.75e9, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 9}, "experts: active must be at most count, 8, got 9"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok must be a positive integer, got None"),
    ],
)
def test_mixtures_that_cannot_be_counted_are_refused(change, message):
    with pytest.raises(CostError, match=message):
        Shape.from_config(MIXTRAL | change)


TOKENS = 9  # more than the windows hold
UNREAD = ("time_step_limit", "per_layer_config", "dtype")  # what `to_dict` adds
BIASED = {"mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True, "mamba_n_groups": 2}
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
HEADS = {"head_dim": 8}
GRANITE = MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16}
MORE = {  # families of which the loop's tests have no small model, or one that states its layers otherwise
    "gemma4": ("Gemma4Text", FAMILIES["gemma4"][1] | {"hidden_size_per_layer_input": 0}),
    "mimo_v2_flash": ("MiMoV2Flash", FAMILIES["mimo_v2_flash"][1] | {"swa_num_key_value_heads": 4}),
    "glm4_moe": ("Glm4Moe", {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}),
    "llama4": ("Llama4Text", {"attention_chunk_size": 6, "num_local_experts": 4, "intermediate_size_mlp": 48}),
    "minimax_m2": ("MiniMaxM2", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_5_moe": ("Qwen3_5MoeText", RECURRENT["qwen3_next"][1]),
    "arcee": ("Arcee", {}),
    "lfm2_adjusted": (
        "Lfm2",
        {"block_ff_dim": 70, "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3}
        | {"full_attn_idxs": [1], "conv_bias": True, "tie_embedding": True},
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 1}
        | {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    ),
    "falcon_h1_biased": (
        "FalconH1",
        MAMBA
        | BIASED
        | {"mamba_d_ssm": None, "mamba_rms_norm": True, "projectors_bias": True, "mamba_conv_bias": False},
    ),
    "bamba_biased": ("Bamba", MAMBA | BIASED | {"attn_layer_indices": [0], "mamba_d_head": "auto", "mamba_expand": 2}),
    "granitemoehybrid": ("GraniteMoeHybrid", GRANITE | EXPERTS),
    "granitemoehybrid_dense": ("GraniteMoeHybrid", GRANITE | {"num_local_experts": 0, "attention_bias": True}),
    "kimi_linear": ("KimiLinear", RECURRENT["kimi_linear"][1] | {"n_routed_experts": ..., "num_experts": 4}),
    "afmoe": (
        "Afmoe",
        SPARSE | HEADS | {"num_dense_layers": 1, "num_shared_experts": 1, "global_attn_every_n_layers": 2},
    ),
    "bailing_hybrid": (
        "BailingHybrid",
        EXPERTS
        | {
            name: size
            for name, size in FAMILIES["deepseek_v3"][1].items()
            if name not in ("q_lora_rank", "n_routed_experts")
        }
        | {"head_dim": 8, "layer_group_size": 2, "first_k_dense_replace": 1},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 1},
    ),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1",
        HEADS | {"num_experts": 4, "moe_topk": [2, 2], "num_shared_expert": [1, 1], "use_qk_norm": True},
    ),
    "laguna": (
        "Laguna",
        SPARSE
        | HEADS
        | {"mlp_layer_types": ["dense", "sparse"], "num_attention_heads_per_layer": [4, 8], "sliding_window": 6}
        | {"layer_types": ["full_attention", "sliding_attention"], "shared_expert_intermediate_size": 16},
    ),
    "minimax": ("MiniMax", EXPERTS),
    "nemotron_h": (
        "NemotronH",
        RECURRENT["nemotron_h"][1] | {"n_shared_experts": 0, "moe_shared_expert_intermediate_size": 0},
    ),
}
READ = "llama mistral qwen2 qwen2_window qwen3 gemma gemma2 gemma3 mixtral qwen3_moe gpt_oss deepseek_v3 qwen3_next"
NAMES = (*READ.split(), "phi3", "smollm3", "qwen3_5", "lfm2", "falcon_h1", "bamba", *MORE)


def kept(name):
    """The shape; weights, and bytes of keys and values and of states after `TOKENS` tokens in bf16."""
    kind, words = (FAMILIES | RECURRENT | MORE)[name]
    words = {key: value for key, value in (BASE | words).items() if value is not ...}
    config = getattr(transformers, f"{kind}Config")(**words)
    fields = {key: value for key, value in (words | config.to_dict()).items() if key not in UNREAD}
    asked = {"attn_implementation": "eager"} if name in EAGER else {}
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **asked).eval()
    with torch.no_grad():
        cache = model(torch.arange(1, TOKENS + 1)[None], use_cache=True).past_key_values
    held = {"keys": 0, "values": 0, "conv_states": 0, "recurrent_states": 0}
    for layer in cache.layers:
        for part in held:
            value = getattr(layer, part, None)
            for tensor in value.values() if isinstance(value, dict) else [value]:
                held[part] += 0 if tensor is None else tensor.numel() * tensor.element_size()
    held["recurrent_states"] += sum(state.nbytes for state in getattr(cache, "linear_cache", ()) if len(state))
    names = ("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", "conv_L_cache")
    kernel = next((fields[name] for name in names if name in fields), 1)
    spare = held["conv_states"] // kernel  # transformers keeps a column that no step reads
    cached = held["keys"] + held["values"]
    weights = sum(weight.numel() for weight in model.parameters())
    return Shape.from_config(fields), weights, cached, sum(held.values()) - cached - spare


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_weights_caches_and_states_are_those_of_transformers(name):
    """In layers with windows transformers drops the oldest token before the next one comes, which is counted here."""
    shape, weights, cached, states = kept(name)
    counted = 0
    for group in shape.layer_groups:
        if (attention := group.attention) is not None:
            counted += group.count * attention.kv_width * min(TOKENS, (attention.window or TOKENS + 1) - 1)
    assert (shape.parameters, 2 * counted, shape.state_bytes) == (weights, cached, states)
    if all(group.attention is None or group.attention.window is None for group in shape.layer_groups):
        assert shape.kv_bytes * TOKENS == cached
