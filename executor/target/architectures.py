"""Model architectures: those that cannot verify trees, context limits, eager attention, unused tensors.

Nothing here computes. A family that is not named is accepted if its forward takes positions and a four-dimensional mask
and its layers are of kinds known here.
"""

import inspect
import re
from collections.abc import Collection, Iterator
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from executor.target.positions import BOTH, FULL, RECURRENT, SLIDING, refused_positions
from simulate.model_sizes import hf_config
from treeopt.errors import ExecutorError
from treeopt.policies import Policy
from treeopt.tree import Tree

_ALIBI = "its ALiBi bias is built from a two-dimensional mask"
_STATE = "it keeps a recurrent state"
_CLAMPED, _NO_STEP = ("nemotron_h", "zamba2"), 1e-8  # a smaller bound is as good as none
_FRESH = "its scan of several tokens begins with an empty state"
_ENCODER = "a transform stands before its LM head"
_DRAFTS = "it drafts, and reads its target's keys"
_SOUND = "it writes sound"
# Kinds of layers without a cache.
WITHOUT_CACHE = frozenset({"mlp", "moe"})

# Refused: positions enter these models through a two-dimensional mask, a state or the cache, so a tree cannot be fed.
REFUSED = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "doge": "its attention makes its own mask from the values",
    "gpt_neo": "its local attention layers cut their window from cache rows",
    "llama4": "its chunked attention needs a third mask",
    "llama4_text": "its chunked attention needs a third mask",
    "minimax": "its linear-attention layers need a cache of their own",
    "jamba": _FRESH,
    "zamba": _FRESH,
    "minicpm3": "it scales the input of the LM head",
    "openai-gpt": "it has no cache",
    "inkling_text": "it adds a bias of positions to attention",
    "inkling2_text": "it adds a bias of positions to attention",
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "moshi": _SOUND,
    "musicgen": _SOUND,
    "musicgen_melody": _SOUND,
    **dict.fromkeys(("bert", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"), _ENCODER),
    **dict.fromkeys(("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "xlm-roberta"), _ENCODER),
    **dict.fromkeys(("xlm-roberta-xl", "xmod"), _ENCODER),
    "mllama": "it reads images between its layers",
    "mllama_text_model": "it reads images between its layers",
    "modernbert-decoder": _ENCODER,
    "hrm_text": "its layers run several times per token",
    "blt": "it reads bytes in patches",
    "reformer": "its attention sorts tokens by hashes",
    "bert-generation": "it is an encoder",
    "xlm": "it is an encoder",
    "falcon_mamba": _STATE,
    "mamba": _STATE,
    "mamba2": _STATE,
    "recurrent_gemma": _STATE,
    "rwkv": _STATE,
    "xlstm": _STATE,
}
# Families that transformers has as readers of images alone, whose text part is tried.
WITH_IMAGES = frozenset(
    {
        *("aya_vision", "cohere2_vision", "exaone4_5", "glm46v", "glm4v", "glm4v_moe", "idefics3", "internvl"),
        *("kimi_k25", "lfm2_vl", "llava", "llava_next", "llava_onevision", "mistral3", "qwen2_5_vl", "qwen2_vl"),
        *("qwen3_vl", "qwen3_vl_moe", "smolvlm"),
    }
)
# Tensors without effect on the text: computed ones, masks and scales of a cache in another type, and towers for images
# and sound. transformers leaves out others by lists of each architecture.
_WITHOUT_EFFECT = re.compile(
    r".*(inv_freq|rotary_emb\..*|rotary_pos_emb\..*|masked_bias|causal_mask|position_ids|embed_positions|_extra_state)"
    r"|.*(attn|attention)\.bias|.*(attn|attention|attn_output|[qkv]_proj)\.(kv|q|k|v|prob|output)_scale"
    r"|(.*\.)?(v_head|value_head|mtp\w*|visual|vision\w*|image\w*|video\w*|audio\w*|speech\w*|multi_modal\w*|mm_\w*"
    r"|talker|thinker|token2wav|code2wav)\..*"
)
NO_ATTENTION = "none of its layers has attention"
_OF_QUANTISED = re.compile(r".*(scale\w*|zeros?|zero_point|g_idx|shape|absmax|quant_map|quant_state\.\w+|perm)")
# Parts of MTP heads, which are layers after the model's own.
MTP = re.compile(r"(^|\.)(eh_proj|enorm|hnorm|token_layernorm|mtp_.*|mtp|mtps|nextn|shared_head)\.")
_NUMBERED = re.compile(r".*?\b(?:layers|h|blocks)\.(\d+)\.")


def refusal(config: Any) -> str | None:
    """Return why models with this configuration cannot verify trees; None if they can."""
    if config.model_type in REFUSED:
        return REFUSED[config.model_type]
    text = config.get_text_config()
    if text.model_type in REFUSED:
        return REFUSED[text.model_type]
    if getattr(text, "alibi", False):
        return _ALIBI
    if getattr(config, "is_encoder_decoder", False):
        return "it has an encoder"
    kinds = set(getattr(text, "layer_types", None) or (FULL,))
    if unknown := kinds - {FULL, SLIDING} - RECURRENT - WITHOUT_CACHE:
        return f"layers of type {', '.join(sorted(unknown))} are not supported"
    if kinds.isdisjoint({FULL, SLIDING} | BOTH):
        return NO_ATTENTION
    if text.model_type in _CLAMPED and text.time_step_min > _NO_STEP:
        return "transformers bounds time steps by time_step_min for several tokens, not for one: no chain is lossless"
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)  # one class, but typed as several
    return None if model is None else _class_refusal(model, config)


def model_class(config: PretrainedConfig) -> Any:
    """Return transformers' class that loads the models of a configuration.

    Raises:
        ExecutorError: there is none, or one with images that was not tried.
    """
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    if config.model_type in WITH_IMAGES:
        return AutoModelForImageTextToText
    kinds = ", ".join(sorted(WITH_IMAGES))
    raise ExecutorError(
        f"{config.model_type} models are no causal language models of transformers; of those with images the text part "
        f"is tried of {kinds}"
    )


def _class_refusal(model: Any, config: Any) -> str | None:
    """Return why a class of models, or one of it, cannot verify trees."""
    if getattr(model, "_is_stateful", False) and not is_recurrent(config):
        return _STATE
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward takes no position_ids"
    return None


def is_recurrent(config: Any) -> bool:
    """Return whether layers of this configuration keep a recurrent state."""
    return not RECURRENT.isdisjoint(getattr(config.get_text_config(), "layer_types", None) or ())


def check_chain(config: Any, tree: Tree | Policy) -> None:
    """Raise ExecutorError, naming the family, for trees and policies over recurrent layers."""
    if is_recurrent(config) and not (isinstance(tree, Tree) and tree.is_chain):
        raise ExecutorError(
            f"{config.model_type} models cannot verify trees: their recurrent layers have one state per sequence: "
            "give a chain, such as --tree 3"
        )


def check_drafts(config: Any) -> None:
    """Raise ExecutorError, naming the family, for a drafter that cannot drop what was not accepted."""
    if is_recurrent(config):
        raise ExecutorError(
            f"{config.model_type} models cannot draft: their recurrent layers keep what was not accepted: take a "
            "drafter without such layers"
        )


def check_architecture(model: PreTrainedModel) -> None:
    """Raise ExecutorError, naming family and reason, for a model that cannot verify trees."""
    config = model.config
    reason = refusal(config) or _class_refusal(model, config)
    if reason is not None:
        raise ExecutorError(f"{config.model_type} models cannot verify trees: {reason}")
    if (reason := refused_positions(config)) is not None:
        raise ExecutorError(f"{config.model_type}: {reason}")


def context_limit(config: Any) -> int | None:
    """Return `hf_config.context_limit` of the text part of a configuration, whose field names may differ."""
    text, names = config.get_text_config(), ("max_position_embeddings", "rope_parameters", "model_max_length")
    return hf_config.context_limit({name: getattr(text, name, None) for name in names})


def eager_reason(model: PreTrainedModel) -> str | None:
    """Return why this model needs its own eager attention; None if it runs with scaled-dot-product attention."""
    text = model.config.get_text_config()
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return "it caps attention logits, which scaled-dot-product attention does not"
    if not getattr(model, "_supports_sdpa", False):
        return "transformers has no scaled-dot-product attention for it"
    return None


def query_group(model: PreTrainedModel) -> int:
    """Return the number of query heads that share a key head; 1 also where layers differ."""
    sizes: Iterator[Any] = (getattr(module, "num_key_value_groups", None) for module in model.modules())
    groups = {int(size) for size in sizes if size is not None}
    return groups.pop() if len(groups) == 1 else 1


def tensors_with_effect(names: Collection[str], layers: int, config: PretrainedConfig, *, quantised: bool) -> list[str]:
    """Return the tensors that could change the text, of those that a model of `layers` layers lacks, by name.

    >>> names = ["model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    >>> tensors_with_effect(names, 2, PretrainedConfig(), quantised=False)
    ['model.layers.0.self_attn.q_proj.bias']
    """
    heads = {layer_number(name) for name in names if MTP.search(name)}
    heads |= set(range(layers, layers + int(getattr(config.get_text_config(), "num_nextn_predict_layers", 0) or 0)))
    return sorted(
        name
        for name in names
        if not (
            _WITHOUT_EFFECT.fullmatch(name)
            or MTP.search(name)
            or (layer_number(name) >= layers and layer_number(name) in heads)
            or (quantised and _OF_QUANTISED.fullmatch(name))
        )
    )


def layer_number(name: str) -> int:
    """Return the number of the decoder layer that a tensor belongs to, -1 for none."""
    match = _NUMBERED.match(name)
    return int(match.group(1)) if match else -1
