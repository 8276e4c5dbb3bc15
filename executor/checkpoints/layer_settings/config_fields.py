"""The fields of a drafter's config.json: each is read, known to be without effect, or refused.

A field that treeopt does not know is refused if its name speaks of positions or windows, and otherwise printed as not
used. Fields that a configuration copied from its target has, such as experts, have no effect: the tensors decide, and
no drafter's class in vLLM, SGLang or the trainers reads them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor.checkpoints.layer_settings import attention_windows, rotary_positions
from executor.checkpoints.tensors.lazy_tensors import Stored
from treeopt.errors import ExecutorError, shorten

# Read by `layer_config`, `rotary_positions`, `attention_windows` and the readers of the families.
READ = {
    *rotary_positions.NAMES,
    *attention_windows.NAMES,
    *("hidden_size", "num_attention_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings"),
    *("hidden_activation", "norm_eps", "num_heads"),
    *("architectures", "model_type", "speculators_model_type", "transformer_layer_config", "model", "text_config"),
    *("llm_config", "language_config", "treeopt_drafter", "eagle_config", "quantization_config", "method"),
    *("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc", "draft_vocab_size", "tie_word_embeddings"),
    *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "layer_ids", "use_aux_hidden_state"),
    *("target_hidden_size", "parallel_drafting", "num_aux_hidden_states", "active_groups", "dflash_config"),
    *("use_mtp_layernorm", "use_last_layernorm", "use_input_layernorm_in_first_layer"),
    *("hidden_state_offset", "hydra_head_arch", "hydra_num_heads", "hydra_num_layers", "grounded_heads"),
}
# The tensors decide, or training alone reads them, or they belong to the target that a configuration was copied from.
_WITHOUT_EFFECT = (
    r"_.*",
    r"(intermediate_size|num_key_value_heads|attention_bias|mlp_bias|bias|qkv_bias|vocab_size|num_hidden_layers)(_mlp)?",
    r"(torch_)?dtype|.*version|use_cache|cache_implementation|attn_implementation|auto_map|.*name_or_path",
    r".*_token_(id|ids|index)|(bos|eos|pad|sep|cls|mask)_token|tokenizer_class|prefix|suffix",
    r".*dropout.*|.*_pdrop|drop_rate|initializer_(range|factor)|init_.*|pretraining_tp|gradient_checkpointing|.*loss.*",
    r"id2label|label2id|num_labels|problem_type|task_specific_params|finetuning_task|return_dict.*|output_(?!norm).*",
    r"max_(sequence_length|paths)|(model_)?max_length|min_length|do_sample|num_(beams|beam_groups|return_sequences)|temperature"
    r"|(top|typical)_p|.*penalty|.*no_repeat_ngram_size|bad_words_ids|forced_.*|early_stopping|(begin_)?suppress_tokens"
    r"|remove_invalid_values|use_bfloat16",
    r"chunk_size_feed_forward|is_decoder|is_encoder_decoder|add_cross_attention|cross_attention.*|pruned_heads|torchscript",
    r".*expert.*|.*moe.*|router_.*|.*topk.*|top_k.*|n_group|num_experts_per_tok|decoder_sparse_step|mlp_only_layers"
    r"|scoring_func|score_function|first_k_dense_replace|routed_scaling_factor|aux_loss_alpha|seq_aux|ep_size",
    r"(q_lora|kv_lora|o_lora)_rank|qk_nope_head_dim|qk_rope_head_dim|qk_head_dim|v_head_dim|index_.*|use_mla.*",
    r"vision.*|image_.*|video_.*|audio_.*|talker_.*|thinker_.*|spatial_merge_size|mm_.*|boi_.*|eoi_.*",
    r"speculators_config|speculators_version|embed_requires_grad|enable_sp_ulysses|has_no_defaults_at_init"
    r"|proposal_methods|num_lookahead_tokens|speculative_.*|num_speculative_.*|ttt_.*|num_depths|down_sample_ratio",
    r"layernorms|fusion_bias|eagle_fc_bias|router_num_groups|medusa_.*|hydra_.*|original_lm_head|truncated_.*",
    r"eagle_(decoder_type|freeze_base_model|.*distillation|offline|loss_decay_factor|num_layers|disable_moe"
    r"|architecture_config|mix_.*|report_acc|reuse_base_decoder)|next_layer_regular|draft_.*|verifier_.*|target_model.*",
    r"num_nextn_predict_layers|num_mtp_modules|mtp_.*|use_mtp|parallel_draft_heads.*",
    # Copied from targets; the drafter's class applies none of them.
    r"final_logit_softcapping|attn_logit_softcapping|query_pre_attn_scalar|embedding_multiplier|residual_multiplier"
    r"|attention_multiplier|logits_scaling|scale_emb|scale_depth|dim_model_base|clip_qkv|swiglu_limit|swiglu_alpha",
    r"max_window_layers|(_)?sliding_window_pattern|layer_norm_eps|norm_type|norm_topk_prob",
    r"use_(qk_norm|double_wide_mlp)|attn_(temperature_tuning|scale)|floor_scale"
    r"|num_kv_shared_layers|.*_per_layer_input|activation_function|head_count|n_(head|layer|embd)",
    r"linear_.*|full_attention_interval|conv_.*|hybrid_.*|attn_output_gate|attn_type_list|postnorm|layernorm_.*",
)
WITHOUT_EFFECT = re.compile("|".join(f"(?:{form})" for form in _WITHOUT_EFFECT))
# Fields that must have one of these values, if they are there, and what another value means.
ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "logit_scale": ((1,), "vLLM multiplies the drafter's logits by it, trainers do not"),
    "is_causal": ((True,), "the drafter would attend to later tokens"),
    "use_bidirectional_attention": ((False,), "the drafter would attend to later tokens"),
    "parallel_draft_step": ((0, 1), "parallel drafting is not supported"),
}
# Fields of a layer beside those of positions and windows, and of the drafter as a whole.
LAYERS = ("hidden_act", "rms_norm_eps", "head_dim", "num_attention_heads")
# Other projects' names of a layer's fields, and the name that is read.
OTHER_NAMES = {"hidden_activation": "hidden_act", "norm_eps": "rms_norm_eps"}
DRAFTERS = (
    *("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc", "use_aux_hidden_state"),
    *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"),
)
POSITIONAL = re.compile("rope|rotary|position|window|alibi")


def with_model_fields(stored: Stored) -> Stored:
    """Return the checkpoint with the fields of vLLM's nested `model` at the top level, where others override them.

    vLLM's EAGLEConfig does this. Classes are taken from both, as it takes the nested ones.
    """
    model = stored.config.get("model")
    if not isinstance(model, dict):
        return stored
    config = {**model, **{name: value for name, value in stored.config.items() if name != "model"}}
    classes = [part.get("architectures") for part in (model, stored.config)]
    named = [name for part in classes if isinstance(part, list) for name in part]
    return replace(stored, config=config | ({"architectures": named} if named else {}))


def eagle_fields(stored: Stored) -> dict[str, Any]:
    """Return the fields of `eagle_config`, {} without them.

    Raises:
        ExecutorError: it is no object.
    """
    eagle = stored.config.get("eagle_config")
    if eagle is not None and not isinstance(eagle, dict):
        raise ExecutorError(f"{stored.where}: eagle_config must be an object, found {eagle!r:.60}")
    return eagle or {}


def check_fields(stored: Stored, given: Mapping[str, Any]) -> None:
    """Check the names of all fields of config.json; `given` are those of the layer.

    Raises:
        ExecutorError: names a field that is not supported, or that is given twice with different values.
    """
    nested, eagle = given is not stored.config, eagle_fields(stored)
    parts = [stored.config, *([given] if nested else []), eagle]
    for part in parts:
        for name, (allowed, meaning) in ONLY.items():
            if part.get(name) is not None and part[name] not in allowed:
                raise ExecutorError(f"{stored.where}: {name} {part[name]!r:.40} is not supported: {meaning}")
    for outer, place in outside(stored, given):
        _check_layer(stored, outer, place, given)
    if nested:
        _check_drafter(stored, given)
    for other, name in OTHER_NAMES.items():
        if given.get(other) is not None and given.get(name) is None:
            stored.assume(f"{other} {given[other]!r:.40} is not used: write it as {name}, if the drafter has it")
    note_unknown(stored, parts)


def note_unknown(stored: Stored, parts: Sequence[Mapping[str, Any]]) -> None:
    """Note the fields of these parts of config.json that treeopt does not know.

    Raises:
        ExecutorError: one of them is of positions.
    """
    unknown = sorted({name for part in parts for name in part if not is_known(name)})
    positional = [name for name in unknown if POSITIONAL.search(name) and any(_set(part, name) for part in parts)]
    if positional:
        raise ExecutorError(
            f"{stored.where}: {shorten(positional)}: fields of positions that treeopt does not know: remove them if "
            "the drafter was trained without them"
        )
    if unknown:
        stored.assume(f"fields that treeopt does not know were not used: {shorten(unknown)}")


def outside(stored: Stored, given: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    """Return the parts of config.json that are not the layer's, and where they stand, for messages."""
    nested = [(stored.config, "outside the layer's configuration")] if given is not stored.config else []
    return [*nested, (eagle_fields(stored), "in eagle_config")]


def is_known(name: str) -> bool:
    """Return whether a field is read, checked, or known to be without effect.

    >>> is_known("rope_theta"), is_known("num_experts"), is_known("rope_of_tomorrow")
    (True, True, False)
    """
    return name in READ or name in ONLY or WITHOUT_EFFECT.fullmatch(name) is not None


def _set(part: Mapping[str, Any], name: str) -> bool:
    return part.get(name) not in (None, False, 0, [], {})


def _check_layer(stored: Stored, outer: Mapping[str, Any], place: str, given: Mapping[str, Any]) -> None:
    """Refuse a layer's settings where engines do not read them, unless they say the same."""
    for name in (*attention_windows.NAMES, *LAYERS):
        if outer.get(name) is not None and outer[name] != given.get(name):
            raise ExecutorError(
                f"{stored.where}: {name} stands {place}, {outer[name]!r:.60}, and in the layer's configuration it is "
                f"{given.get(name)!r:.60}: write it into the layer's"
            )


def _check_drafter(stored: Stored, given: Mapping[str, Any]) -> None:
    """Refuse a drafter's settings inside the layer's, where not all read them, unless they say the same outside."""
    for name in DRAFTERS:
        if given.get(name) is not None and given[name] != stored.config.get(name):
            raise ExecutorError(
                f"{stored.where}: {name} stands in the layer's configuration, {given[name]!r:.60}, and outside it is "
                f"{stored.config.get(name)!r:.60}: write it outside, where the drafter's fields are"
            )
