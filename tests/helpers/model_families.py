"""Small models of many families, an oracle that drafts random trees, and the shortest loop that verifies them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from executor.target.target_model import Target
from executor.verification.acceptance_rules import Greedy
from executor.verification.tree_tensors import Draft, Topology
from tests.helpers.models import generated, random_prompts

VOCABULARY, NEW, WINDOW = 499, 28, 6
PROMPTS = (7, 1, 19, 12)  # lengths; the second leaves nothing to prefill, the others outgrow the window
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128} | {
    name: BASE[name] for name in BASE if name[-2:] == "id" or name in ("vocab_size", "tie_word_embeddings")
}
SEQ2SEQ = dict.fromkeys(("num_attention_heads", "hidden_size", "num_hidden_layers", "head_dim"), ...) | {"dropout": 0.0}
HYBRID = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MLA = {
    "head_dim": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
MOE = {key: MLA[key] for key in ("n_routed_experts", "n_group", "topk_group", "num_experts_per_tok")} | {
    "moe_intermediate_size": 16
}
LONGCAT = {"expert_ffn_hidden_size": 16, "zero_expert_num": 1}
TWICE = {"layer_types": HYBRID["layer_types"] * 2, "sliding_window": WINDOW}
GEMMA4 = {
    "pad_token_id": 0,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = LINEAR | {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MIXED = {"layers_block_type": ["mamba", "attention"]}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "ministral": ("Ministral", HYBRID),
    "qwen2": ("Qwen2", {}),
    "qwen2_window": ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3": ("Qwen3", {}),
    "gemma": ("Gemma", {"num_key_value_heads": 1}),
    "gemma2": ("Gemma2", HYBRID | {"query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3Text", HYBRID | {"query_pre_attn_scalar": 8}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"sliding_window": WINDOW, "pad_token_id": 0}),
    "gpt2": ("GPT2", GPT),
    "gptj": ("GPTJ", GPT | {"rotary_dim": 4}),
    "codegen": ("CodeGen", GPT | {"rotary_dim": 4}),
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 16, "dropout": 0.0}),
    "xglm": ("XGLM", SEQ2SEQ | {"attention_heads": 4, "num_layers": 2, "d_model": 32, "ffn_dim": 48}),
    "gpt_neox": ("GPTNeoX", {}),
    "starcoder2": ("Starcoder2", {"sliding_window": WINDOW}),
    "granite": ("Granite", {"logits_scaling": 2.0}),
    "cohere2": ("Cohere2", HYBRID),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", HYBRID),
    "stablelm": ("StableLm", {}),
    "falcon": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, "head_dim": ...}),
    "falcon_multiquery": ("Falcon", {"multi_query": True, "alibi": False, "head_dim": ...}),
    "smollm3": ("SmolLM3", {"pad_token_id": 0}),
    "glm4": ("Glm4", {"pad_token_id": 0}),
    "exaone4": ("Exaone4", HYBRID),
    "hunyuan": ("HunYuanDenseV1", {}),
    "nemotron": ("Nemotron", {}),
    "apertus": ("Apertus", {}),
    "mixtral": ("Mixtral", EXPERTS | {"sliding_window": WINDOW}),
    "qwen3_moe": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "deepseek_v2": ("DeepseekV2", MLA | {"topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3", MLA),
    "glm4_moe_lite": ("Glm4MoeLite", MLA),
    "longcat_flash": ("LongcatFlash", MLA | {"num_layers": 2, "ffn_hidden_size": 48, "moe_topk": 2} | LONGCAT),
    "gpt_oss": ("GptOss", EXPERTS | HYBRID),
    "gemma4": ("Gemma4Text", HYBRID | GEMMA4),
    "gemma4_shared": ("Gemma4Text", GEMMA4 | {"num_hidden_layers": 4, "num_kv_shared_layers": 2} | TWICE),
    "mimo_v2_flash": ("MiMoV2Flash", HYBRID | MOE | {"v_head_dim": 6}),
}
# Families with a recurrent state: chains only.
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3Next", DELTA | {"num_experts": 4, "shared_expert_intermediate_size": 16} | MOE),
    "qwen3_5": ("Qwen3_5Text", DELTA),
    "olmo_hybrid": ("OlmoHybrid", DELTA | {"linear_num_key_heads": 4}),
    "kimi_linear": ("KimiLinear", MLA | LINEAR),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "falcon_h1": ("FalconH1", MAMBA | {"mamba_d_ssm": 32}),
    "bamba": ("Bamba", MAMBA | {"attn_layer_indices": [1]}),
    "granitemoehybrid": ("GraniteMoeHybrid", MAMBA | EXPERTS | MIXED | {"shared_intermediate_size": 16}),
    "nemotron_h": (
        "NemotronH",
        MIXED
        | {"num_hidden_layers": ..., "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1}
        | {"time_step_min": 1e-9},  # which transformers applies to several tokens at once only
    ),
}
# Families with images, the family of their text part, and fields of theirs; the towers are small.
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
_HALF = {"rope_parameters": _SECTIONS["rope_parameters"] | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}}
_GRID = {"image_grid_pinpoints": [[28, 28]]}
_GLM = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "depth": 1, "out_hidden_size": 32}
TOWER |= {
    "num_attention_heads": 2,
    "num_heads": 2,
    "embed_dim": 16,
    "image_size": 28,
    "patch_size": 14,
    "hidden_act": "gelu",
}
IMAGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "aya_vision": ("cohere2", {}, {}),
    "cohere2_vision": ("cohere2", {}, {}),
    "exaone4_5": ("exaone4", {}, {}),
    "glm46v": ("glm4v_moe_text", _GLM | _HALF, {}),
    "glm4v": ("glm4v_text", _HALF, {}),
    "glm4v_moe": ("glm4v_moe_text", _GLM | _HALF, {}),
    "idefics3": ("llama", {}, {}),
    "internvl": ("qwen2", {}, {}),
    "kimi_k25": ("deepseek_v3", {}, {}),
    "lfm2_vl": ("lfm2", {}, {}),
    "llava": ("llama", {}, {}),
    "llava_next": ("mistral", {}, _GRID),
    "llava_onevision": ("qwen2", {}, _GRID),
    "mistral3": ("mistral", {}, {}),
    "qwen2_5_vl": ("qwen2_5_vl_text", _SECTIONS, {}),
    "qwen2_vl": ("qwen2_vl_text", _SECTIONS, {}),
    "qwen3_vl": ("qwen3_vl_text", _SECTIONS, {}),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", _SECTIONS | EXPERTS | {"moe_intermediate_size": 16}, {}),
    "smolvlm": ("llama", {}, {}),
}
# Products of experts and of linear attention, xglm: no float64.
SINGLE = {"mixtral", "qwen3_moe", "gpt_oss", "xglm", "mimo_v2_flash"} | (RECURRENT.keys() - {"lfm2"})
SINGLE |= {name for name, (_, words) in FAMILIES.items() if "kv_lora_rank" in words}
EAGER = {"xglm", "gemma2", "gptj", "codegen", "gpt_oss", "mimo_v2_flash"}
FIXED = {"falcon", "falcon_multiquery"}


@dataclass(frozen=True)
class Family:
    """A small model with random weights, prompts of ragged length, and what `generate` writes after each."""

    name: str
    model: PreTrainedModel
    prompts: list[list[int]]
    texts: list[list[int]]

    def target(self, **words: Any) -> Target:
        return Target(copy.deepcopy(self.model), name=self.name, **words)


@cache
def family(name: str) -> Family:
    """With the first weights whose texts do not repeat themselves: that would hide a wrong mask or cache."""
    config, words = (FAMILIES | RECURRENT)[name]
    words = words if "n_embd" in words else BASE | words
    made = getattr(transformers, config + "Config")(
        **{word: value for word, value in words.items() if value is not ...}
    )
    dtype = torch.float32 if name in SINGLE else torch.float64
    prompts = random_prompts(PROMPTS, seed=3)
    for seed in range(20):
        torch.manual_seed(seed)
        # Older transformers give Gemma 2 an attention that leaves out the cap on its logits.
        asked = {"attn_implementation": "eager"} if name in EAGER else {}
        model = AutoModelForCausalLM.from_config(made, dtype=dtype, **asked).eval()
        for key, weight in model.named_parameters():
            if weight.dim() > 1 or key.endswith("sinks"):
                torch.nn.init.normal_(weight, std=0.6 if "attn" in key or "attention" in key else 0.3)
            elif any(part in key for part in ("q_norm", "k_norm", "query_layernorm", "key_layernorm")):
                torch.nn.init.constant_(weight, 2.0)  # sharper attention
        texts = [generated(model, prompt, NEW) for prompt in prompts]
        if min(len(set(text)) for text in texts) > NEW / 2:
            return Family(name, model, prompts, texts)
    raise AssertionError(f"{name}: no seed writes varied texts")


@dataclass
class Oracle:
    """Random trees or chains of `count` entries that hold the true continuation with a given probability."""

    texts: Sequence[Sequence[int]]
    count: int
    share: float
    deepest: int = 8
    seed: int = 0
    chain: bool = False

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def draw(self, limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=self.generator))

    def draft(self, roots: Tensor, done: Sequence[int]) -> Draft:
        parents, tokens = [], []
        for row, root in enumerate(roots.tolist()):
            parent, depth, token = [0], [0], [root]
            true, used = [True], [set[int]()]
            for _ in range(1, self.count):
                # Along the true path as likely as anywhere else: deep acceptances must happen.
                above = max(i for i, t in enumerate(true) if t) if self.draw(2) else self.draw(len(parent))
                if self.chain:
                    above = len(parent) - 1
                elif depth[above] == self.deepest or len(used[above]) > VOCABULARY // 2:
                    above = 0
                place = done[row] + depth[above]
                due = self.texts[row][place] if place < len(self.texts[row]) else 0
                told = true[above] and due not in used[above] and self.draw(1000) < 1000 * self.share
                found = due
                while not told and (found == due or found in used[above]):
                    found = self.draw(VOCABULARY)
                used[above].add(found)
                parent.append(above)
                depth.append(depth[above] + 1)
                token.append(found)
                true.append(bool(told))
                used.append(set())
            parents.append(parent)
            tokens.append(token)
        topology = Topology.from_parents(torch.tensor(parents), self.deepest)
        return Draft(torch.tensor(tokens), topology, torch.zeros(1, self.count, dtype=torch.long))


def decode(
    target: Target,
    prompts: Sequence[Sequence[int]],
    oracle: Oracle,
    *,
    chunk: int = 1024,
    view: int | None = None,
    new: int = NEW,
) -> tuple[list[list[int]], int]:
    """What the target writes after the prompts when it verifies the oracle's trees; most tokens kept in a step."""
    batch, best = len(prompts), 0
    target.allocate(batch, 128)
    assert target.cache is not None
    target.prefill(range(batch), [prompt[:-1] for prompt in prompts], chunk=chunk)
    lengths = torch.tensor([len(prompt) - 1 for prompt in prompts])
    roots = torch.tensor([prompt[-1] for prompt in prompts])
    texts: list[list[int]] = [[] for _ in prompts]
    while min(map(len, texts)) < new:
        draft = oracle.draft(roots, [len(text) for text in texts])
        topology = draft.topology
        seen = view or -(-(int(lengths.max()) + oracle.count) // 8) * 8
        outputs = target.verify(draft.tokens, lengths, topology.depth, topology.ancestors, seen)
        accepted = Greedy().accept(outputs.logits, draft)
        best = max(best, int(accepted.count.max()))
        target.cache.compact(lengths, accepted.path)
        going = torch.tensor([len(text) < new for text in texts])
        if target.recurrent:
            target.rewind(draft.tokens, lengths, torch.where(going, accepted.count + 1, 0))
        lengths += torch.where(going, accepted.count + 1, 0)
        roots = torch.where(going, accepted.emitted.gather(1, accepted.count[:, None])[:, 0], roots)
        for row, text in enumerate(texts):
            if going[row]:
                text += accepted.emitted[row, : int(accepted.count[row]) + 1].tolist()
    return [text[:new] for text in texts], best


def with_images(kind: str) -> PretrainedConfig:
    """The configuration of a small model that reads images and text."""
    text, fields, outer = IMAGES[kind]
    words = BASE | (FAMILIES | RECURRENT).get(text, ("", {}))[1] | fields | {"model_type": text}
    return AutoConfig.for_model(kind, text_config=words, vision_config=TOWER, **outer)
