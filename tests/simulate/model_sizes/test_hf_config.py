import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from executor.drafters.eagle.drafter import weights_read
from simulate.model_sizes.hf_config import context_limit
from simulate.model_sizes.model_shape import Shape
from simulate.whatif.device_cost_models import bytes_per_weight
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
    assert llama.layer_matrices == {
        "qkv": (6144, 4096),
        "output": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
    }
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
MAMBA = {"model_type": "bamba", "mamba_n_heads": 4, "mamba_d_state": 8, "attn_layer_indices": [0]}


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
        (MAMBA | {"mamba_d_head": 9}, "mamba_n_heads x mamba_d_head must be 32, as mamba_d_ssm or mamba_expand say"),
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
