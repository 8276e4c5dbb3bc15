"""Bytes of keys, values and states: as read from a configuration, and as transformers' own model keeps them."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from simulate.model_sizes.model_shape import Shape
from tests.helpers.model_families import BASE, EAGER, EXPERTS, FAMILIES, MAMBA, RECURRENT

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
