"""Write docs/reference/target_families.md: every decoder of transformers, tried as a small model or refused by name.

A small model has random weights and a few layers, one of each kind. Trees (for recurrent layers chains) that hold some
of what `generate` writes are verified, for one sequence and for a ragged batch of three.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

sys.path.insert(0, str(Path(__file__).parents[1]))

from executor.target.architectures import NO_ATTENTION, REFUSED, WITH_IMAGES, model_class, refusal
from executor.target.positions import refused_positions
from executor.target.target_model import Target
from tests.helpers import model_families as small
from tests.helpers.models import generated, random_prompts

PAGE = Path(__file__).parent / "reference" / "target_families.md"
LARGEST = 30_000_000  # parameters of a small model
NEW = 10  # tokens that `generate` writes and the loop must write too
HEAD = f"""# Families of targets

Every decoder that transformers {transformers.__version__} has, as a target of treeopt's own loop; also models with
images, of which the text part is decoded. *Trees* and *chains*:
a small model with random weights wrote what its `generate` writes, token for token, with trees (chains) verified for
one sequence and for a ragged batch of three, float32, on a CPU. *Refused*: in one line, before weights are read.
*Not tried*: no small model could be made from its configuration here; no claim. Families with an entry in the tests
are tried further there. `python docs/generate_target_families.py` writes this page.

| model_type | result | why |
|---|---|---|
"""
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim", "conv_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size", "mlp_dim"), 48),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "mamba_n_heads", "mamba_num_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("head_dim", "kv_channels", "mamba_d_head", "mamba_head_dim", "mamba_d_state"), 8),
    **dict.fromkeys(
        ("ssm_state_size", "linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input"), 8
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts", "num_experts_per_token"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("shared_intermediate_size", "q_lora_rank", "kv_lora_rank", "mamba_d_ssm", "image_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "mamba_n_groups", "n_groups", "mamba_expand", "expand"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_shared_experts", "n_shared_experts"), 1),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "patch_size", "mamba_dt_rank"), 4),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), small.VOCABULARY),
    "time_step_min": 1e-9,  # transformers applies it to several tokens at once only
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "linear_num_key_heads": 2,
    "pad_token_id": 0,
    "sliding_window": small.WINDOW,
    "mamba_d_ssm": 32,
    "tie_word_embeddings": False,
    "is_decoder": True,
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "depth")

KINDS = {"layer_types": ["conv", "full_attention"]}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
UNIFIED = small.HYBRID | {"pad_token_id": 0}
# Fields of families whose defaults do not shrink by themselves, beside those that all have.
OWN: dict[str, dict[str, Any]] = {
    "axk1": small.MLA,
    "youtu": small.MLA,
    "bailing_hybrid": small.MLA
    | {"num_experts": 4, "num_expert_group": 1, "num_experts_per_token": 2, "linear_head_dim": 8}
    | {"linear_num_heads": 4, "layer_types": small.LINEAR["layer_types"]},
    "cohere_compass_text": small.HYBRID
    | {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in small.HYBRID["layer_types"]}},
    "dbrx": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "vocab_size": small.VOCABULARY}
    | {"attn_config": {"kv_n_heads": 2}, "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2}},
    "cwm": small.HYBRID | {"bos_token_id": 0},
    "dots1": small.MOE | {"n_shared_experts": 1},
    "gemma3n_text": small.TWICE
    | {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "laurel_rank": 8, "altup_num_inputs": 2, "pad_token_id": 0}
    | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": small.VOCABULARY}
    | {"activation_sparsity_pattern": None},
    "gemma4_unified_text": UNIFIED,
    "gemma4": {"text_config": small.BASE | UNIFIED | small.GEMMA4},
    "gemma4_unified": {"text_config": small.BASE | UNIFIED},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "lfm2_moe": KINDS | ROUTED | {"num_dense_layers": 1},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "mamba_d_state": 8, "mamba_expand": 1}
    | {"n_mamba_heads": 4, "mamba_headdim": 8},
    "zaya": ROUTED | {"layer_types": ["hybrid"] * 2, "num_experts_per_tok": 1, "router_hidden_size": 8},
}


def shrunk(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration with small sizes and one layer of each kind, at least two."""
    made = {name: shrunk(part) if isinstance(part, dict) else part for name, part in fields.items()}
    kinds = fields.get("layer_types") or fields.get("layers_block_type") or []
    chosen = sorted({kinds.index(kind) for kind in set(kinds)}) or [0]
    chosen = chosen if len(chosen) > 1 else chosen * 2
    for name, value in made.items():
        if isinstance(value, list) and kinds and len(value) == len(kinds):
            made[name] = [value[i] for i in chosen]
    made |= {name: len(chosen) for name in LAYERS if isinstance(fields.get(name), int)}
    heads, keys = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    made |= {name: size for name, size in SIZES.items() if name in fields and fields[name] is not None}
    if isinstance(keys, int):
        made["num_key_value_heads"] = 4 if keys == heads or "kv_lora_rank" in made else 2
    for name in ("per_layer_config", "architectures"):
        made.pop(name, None)
    return made


def small_config(kind: str, default: PretrainedConfig) -> PretrainedConfig:
    """Return a small configuration of a family, that of the tests where they have one."""
    for name, words in (small.FAMILIES | small.RECURRENT).values():
        made = getattr(transformers, f"{name}Config")
        if made.model_type == kind:
            fields = words if "n_embd" in words else small.BASE | words
            return made(**{field: value for field, value in fields.items() if value is not ...})
    if kind in WITH_IMAGES:
        return small.with_images(kind)
    if kind in OWN:
        return type(default)(**(OWN[kind] if {"text_config", "d_model"} & OWN[kind].keys() else small.BASE | OWN[kind]))
    return type(default).from_dict(shrunk(default.to_dict()))


def tried(kind: str, default: PretrainedConfig) -> tuple[str, str]:
    """Return the result of a family that is not refused by its configuration, and why."""
    try:
        config = small_config(kind, default)
        with torch.device("meta"):
            parameters = model_class(config).from_config(config).num_parameters()
        if parameters > LARGEST:
            return "not tried", f"its smallest model has {parameters / 1e6:.0f} M parameters"
        torch.manual_seed(0)
        eager = {"attn_implementation": "eager"} if kind in small.EAGER else {}
        model = model_class(config).from_config(config, dtype=torch.float32, **eager).eval()
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.3)
        model.generation_config.eos_token_id = None
        prompts = random_prompts((9, 1, 4), seed=3)
        texts = [generated(model, prompt, NEW) for prompt in prompts]
    except Exception as error:  # noqa: BLE001 - of any library
        return "not tried", f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    try:
        target = Target(model, name=kind)
        for batch in (3, 1):
            oracle = small.Oracle(texts[:batch], 6, 0.7, chain=target.recurrent)
            if small.decode(target, prompts[:batch], oracle, new=NEW)[0] != texts[:batch]:
                return "DIFFERS", ""
    except Exception as error:  # noqa: BLE001
        return "FAILS", f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return "chains" if target.recurrent else "trees", ""


def row(kind: str) -> str:
    """Return the row of a family."""
    try:
        if kind in REFUSED:
            return f"| {kind} | refused | {REFUSED[kind]} |"
        default = transformers.AutoConfig.for_model(kind)
        if refusal(default) == NO_ATTENTION:  # hybrids' defaults leave it to a checkpoint which layers have it
            default = small_config(kind, default)
        reason = refusal(default) or refused_positions(default)
        result, why = ("refused", reason) if reason else tried(kind, default)
    except Exception as error:  # noqa: BLE001
        result, why = "not tried", f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return f"| {kind} | {result} | {why} |"


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    kinds = sys.argv[1:] or sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *WITH_IMAGES})
    rows = []
    for kind in kinds:
        rows.append(row(kind))
        print(rows[-1], flush=True)
    if not sys.argv[1:]:
        PAGE.write_text(HEAD + "\n".join(rows) + "\n", "utf-8")
