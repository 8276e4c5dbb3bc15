"""Read and write EAGLE checkpoints (also EAGLE-2, HASS, CORAL): `fc.weight`, optionally `fc.bias`, and `layers.0.*`.

vLLM's copies also hold the target's `lm_head.weight`, or no bias and embeddings that contain it (`folded_bias`);
speculators writes `fusion_fc` and `transformer.*`; CORAL's router is `router.w1.{weight,bias}` and `router.w2.weight`.
The tensors decide whether there are biases and a router.
"""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from executor.checkpoints.layer_settings.layer_config import SCALED, config_of, fields, is_scaled, layer_fields
from executor.checkpoints.layer_settings.positions import window_of
from executor.checkpoints.layer_settings.stated_sizes import check_sizes, layer_sizes, layer_switches, note_missing
from executor.checkpoints.tensors.detect_layout import plain
from executor.checkpoints.tensors.lazy_tensors import Entry, Stored
from executor.checkpoints.tensors.parameter_names import STORED_LAYER, fill_module, layer_name, named
from executor.checkpoints.tensors.target_copies import embedding_of, is_embedding, is_head
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.eagle.drafter import Eagle
from executor.drafters.eagle.folded_bias import check_residual, shifted_embeddings, unfolded_bias
from executor.target.target_model import Target
from treeopt.errors import ExecutorError, shorten

BIAS = "fc.bias"
EMBEDDINGS, HEAD, CHOSEN = "embed_tokens.weight", "lm_head.weight", "token_map"
_FREQUENCIES = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def read_eagle(stored: Stored, target: Target) -> Eagle:
    """Read EAGLE in any of the layouts.

    Raises:
        ExecutorError: names the tensors that do not fit or are not supported: further norms, an LM head or embeddings
            other than the target's, more than one layer.
    """
    stored = without_frequencies(plain(stored))
    _check_one_layer(stored)
    norms = [entry.key for name, entry in stored.entries.items() if _is_norm(name)]
    if norms:
        raise ExecutorError(f"{stored.path}: {shorten(norms)}: EAGLE with these norms is not supported")
    config = config_of(stored, STORED_LAYER, target, hidden=target.hidden)
    sizes = {"hidden_size": target.hidden, "vocab_size": target.vocabulary, **layer_sizes(config)}
    check_sizes(stored, target, layers=1, sizes=sizes)
    window = window_of(stored, layer_fields(stored), 0)
    groups = 0
    if "router.w2.weight" in stored.entries:
        groups = next(iter(stored.entries["router.w2.weight"].shape), 0)
    active = stored.facts.get("active_groups", 2)
    if type(active) is not int or active < 1:
        raise ExecutorError(f"{stored.where}: active_groups must be 1 or more, found {active!r}")
    if groups > target.vocabulary:
        raise ExecutorError(f"{stored.path}: router.w2.weight: {groups} groups of {target.vocabulary} tokens")
    stored = _unfolded(stored, target)
    biased = dict.fromkeys(("bias", "fusion_bias", "eagle_fc_bias"), BIAS in stored.entries)
    note_missing(stored, biased | layer_switches(config) | {"layernorms": False})
    drafter = fill_module(
        lambda: Eagle(config, bias=BIAS in stored.entries, router_groups=groups, active_groups=active, window=window),
        stored,
        layer_name,
        ignored=[EMBEDDINGS, HEAD, CHOSEN],
        zero=["router.w1.bias"],
    )
    _check_shared(stored, target)
    return drafter


def without_frequencies(stored: Stored) -> Stored:
    """Return the tensors without the frequencies of rotary positions, which are computed."""
    return stored.renamed(lambda name: None if _FREQUENCIES.fullmatch(name) else name)


def _check_one_layer(stored: Stored) -> None:
    """Refuse drafters with more than one decoder layer, which only EAGLE-3 has here."""
    others = [e.key for name, e in stored.entries.items() if name.startswith("layers.") and name[7:9] != "0."]
    if others:
        raise ExecutorError(f"{stored.path}: {shorten(others)}: EAGLE of more than one layer is not supported")


def _unfolded(stored: Stored, target: Target) -> Stored:
    """Return the tensors with `fc.bias` in the place of embeddings that contain it."""
    shape = (target.vocabulary, target.hidden)
    if BIAS in stored.entries or EMBEDDINGS not in stored.entries or "fc.weight" not in stored.entries:
        return stored
    if stored.entries[EMBEDDINGS].shape != shape or is_embedding(stored.read(EMBEDDINGS), target):
        return stored
    values, weight = stored.read(EMBEDDINGS), stored.read("fc.weight")
    bias = unfolded_bias(values, embedding_of(target, "EAGLE for vLLM"), weight)
    if bias is None:
        return stored
    entries = {name: entry for name, entry in stored.entries.items() if name != EMBEDDINGS}
    entries[BIAS] = Entry(stored.entries[EMBEDDINGS].key, tuple(bias.shape), bias.dtype, bias.clone)
    return replace(stored, entries=entries)


def _is_norm(name: str) -> bool:
    return "norm" in name and name != f"{STORED_LAYER}post_attention_layernorm.weight"


def _check_shared(stored: Stored, target: Target) -> None:
    """Refuse an LM head or embeddings that are not copies of the target's."""
    if CHOSEN in stored.entries:
        chosen = stored.integers(CHOSEN, stored.entries[CHOSEN].shape)
        if not torch.equal(chosen, torch.arange(target.vocabulary)):
            share = f"{chosen.numel()} of {target.vocabulary}"
            raise ExecutorError(f"{stored.path}: {CHOSEN}: EAGLE that scores only {share} tokens is not supported")
    for name, is_copy in ((EMBEDDINGS, is_embedding), (HEAD, is_head)):
        if name in stored.entries and not is_copy(stored.read(name), target):
            raise ExecutorError(
                f"{stored.path}: {stored.entries[name].key} {stored.entries[name].shape} is not the target's, which "
                "EAGLE uses: was it trained for another model?"
            )


def eagle_content(drafter: Eagle, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents for EAGLE.

    The layout `eagle` is the reference's file, with the target's embeddings. The layout `vllm` has no bias after `fc`:
    it is folded into the embeddings. Without a layout: the reference's names in safetensors.

    Raises:
        ExecutorError: the layout needs embeddings and no target is given, or it cannot express this drafter.
    """
    if layout == "eagle" and is_scaled(drafter.config):
        raise ExecutorError(f"{layout} cannot express {SCALED}: the reference's code refuses them")
    if drafter.layer.self_attn.window is not None:
        raise ExecutorError(f"{layout or 'EAGLE'} cannot express a layer that attends to a window")
    facts: dict[str, Any] = {"kind": drafter.kind}
    tensors = named(drafter, layer_name)
    config = _config(drafter, biased=BIAS in tensors)
    if layout == "vllm":
        return _vllm(drafter, tensors, config, facts, embedding_of(target, layout))
    if layout:
        tensors[EMBEDDINGS] = embedding_of(target, layout)
    if drafter.groups:
        config["router_num_groups"] = drafter.groups
        facts["active_groups"] = drafter.active
    return Written("pytorch_model.bin" if layout else "model.safetensors", tensors, config, facts)


def _config(drafter: Eagle, *, biased: bool) -> dict[str, Any]:
    """Return config.json. `bias` is true where it is absent, for the reference and SGLang.

    vLLM and SGLang take a true `bias` for biases of the attention, which are then never filled.
    """
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **fields(drafter.config)}
    if not biased:
        config["bias"] = False
    return config | {"qkv_bias": bool(drafter.config.attention_bias), "torch_dtype": ""}


def _vllm(
    drafter: Eagle, tensors: dict[str, Tensor], config: dict[str, Any], facts: dict[str, Any], table: Tensor
) -> Written:
    """Return what vLLM reads: no bias after `fc`, `attention_bias` only for biases of all four projections."""
    if drafter.groups:
        raise ExecutorError("vllm has no router over the vocabulary: convert a drafter without one")
    config = {key: value for key, value in config.items() if key != "bias"} | {"attention_bias": False}
    check = None
    if BIAS in tensors:
        del tensors[BIAS]
        tensors[EMBEDDINGS] = shifted_embeddings(table, drafter.fc)
        check = partial(check_residual, name=EMBEDDINGS, table=table, fc=drafter.fc)
    return Written("model.safetensors", tensors, config, facts, check)
