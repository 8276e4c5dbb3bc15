"""Read and write EAGLE checkpoints (also EAGLE-2, HASS, CORAL): `fc.weight`, optionally `fc.bias`, and `layers.0.*`.

vLLM's copies also hold the target's `lm_head.weight`, or no bias and embeddings that contain it ;
speculators writes `fusion_fc` and `transformer.*`; CORAL's router is `router.w1.{weight,bias}` and `router.w2.weight`.
The tensors decide whether there are biases and a router.

A folded bias. vLLM's EAGLE computes W [E'(x); f] and has no bias. With W = [W_e, W_f] and E'(x) = E(x) + d for every
token x, where W_e d = b, this is W [E(x); f] + b.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from executor.checkpoints.tensors.detect_layout import plain
from executor.checkpoints.tensors.layer_config import (
    SCALED,
    TAPS,
    check_layers,
    config_of,
    eagle_fields,
    fields,
    is_scaled,
    layer_fields,
    layer_switches,
    note_missing,
)
from executor.checkpoints.tensors.layer_positions import window_of
from executor.checkpoints.tensors.lazy_tensors import STORED_LAYER, Entry, Stored, fill_module, layer_name, named
from executor.checkpoints.tensors.write_tensors import Written, embedding_of, is_embedding, is_head
from executor.drafters.eagle.drafter import Eagle
from executor.target.load_hf_model import dtype_name
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
    others = [e.key for name, e in stored.entries.items() if name.startswith("layers.") and name[7:9] != "0."]
    if others:  # only EAGLE-3 has more than one layer here
        raise ExecutorError(f"{stored.path}: {shorten(others)}: EAGLE of more than one layer is not supported")
    last = f"{STORED_LAYER}post_attention_layernorm.weight"
    norms = [entry.key for name, entry in stored.entries.items() if "norm" in name and name != last]
    if norms:
        raise ExecutorError(f"{stored.path}: {shorten(norms)}: EAGLE with these norms is not supported")
    if taps := [name for part in (stored.config, eagle_fields(stored)) for name in TAPS if part.get(name)]:
        raise ExecutorError(f"{stored.where}: {taps[0]}: EAGLE reads the target's last feature alone: remove the field")
    config = config_of(stored, STORED_LAYER, target, hidden=target.hidden)
    check_layers(stored, target, 1)
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
    it is folded into the embeddings. The layout `eagle-sglang` names SGLang's class, whose `fc` always has a bias
    and whose attention has one where `bias` is true. Without a layout: the reference's names in safetensors.

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
    if drafter.groups and layout in ("vllm", "eagle-sglang"):
        raise ExecutorError(f"{layout} has no router over the vocabulary: convert a drafter without one")
    if layout == "vllm":
        return _vllm(drafter, tensors, config, facts, embedding_of(target, layout))
    if layout:
        tensors[EMBEDDINGS] = embedding_of(target, layout)
    if layout == "eagle-sglang":
        if drafter.config.attention_bias:
            raise ExecutorError(f"{layout} cannot express biases of queries, keys and values: SGLang wants a fourth")
        tensors.setdefault(BIAS, torch.zeros(drafter.fc.out_features))
        config = {**config, "architectures": ["LlamaForCausalLMEagle"], "bias": False}
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
    config = {key: value for key, value in config.items() if key != "bias"} | {"attention_bias": False}
    check = None
    if BIAS in tensors:
        del tensors[BIAS]
        tensors[EMBEDDINGS] = shifted_embeddings(table, drafter.fc)
        check = partial(check_residual, name=EMBEDDINGS, table=table, fc=drafter.fc)
    return Written("model.safetensors", tensors, config, facts, check)


# RMS error over RMS value. Rounding to bfloat16 alone makes 2**-8; above 4 of these acceptance may differ.
TOLERANCE = 2**-6
ROWS = 4096  # embeddings that the residual is computed of, at most


@torch.no_grad()
def shifted_embeddings(table: Tensor, fc: nn.Linear) -> Tensor:
    """Return the target's embeddings plus d in every row, (vocabulary, hidden), float32 or wider.

    The d is that with the least error in W_e (E + d) once E + d is rounded to the number type of `fc`. Rounding to
    nearest in a type with spacing eps adds noise of variance eps**2 / 12 times the squared value at most. So d
    minimises |W_e d - b|**2 + eps**2 / 12 * |W_e|_F**2 / hidden * |d|**2. Where W_e is nearly singular and the type
    coarse, the exact d is large and its rounding worse than a small residual.
    """
    weight, bias = _parts(fc)
    hidden = len(bias)
    penalty = torch.finfo(fc.weight.dtype).eps * weight.norm() / (12 * hidden) ** 0.5
    rows = torch.cat([weight, penalty * torch.eye(hidden, dtype=torch.float64)])
    right = torch.cat([bias, torch.zeros(hidden, dtype=torch.float64)])
    shift: Tensor = torch.linalg.lstsq(rows, right[:, None]).solution[:, 0]
    return table.to("cpu", torch.promote_types(fc.weight.dtype, torch.float32)) + shift.to(torch.float32)


def _parts(fc: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return W_e and b in float64."""
    assert fc.bias is not None
    return fc.weight.detach().cpu().double()[:, : fc.out_features], fc.bias.detach().cpu().double()


@torch.no_grad()
def check_residual(stored: Mapping[str, Tensor], name: str, table: Tensor, fc: nn.Linear) -> str:
    """Return a remark with the error that folding leaves in `fc`'s output; the embeddings are stored under `name`.

    Raises:
        ExecutorError: the error is above `TOLERANCE`, because no d solves W_e d = b in this number type.
    """
    weight, bias = _parts(fc)
    places = torch.linspace(0, len(table) - 1, min(ROWS, len(table))).round().long()
    plain, shifted = (values.cpu()[places].double() for values in (table, stored[name]))
    due = plain @ weight.T + bias
    error = float((shifted @ weight.T - due).square().mean().sqrt() / due.square().mean().sqrt().clamp(min=1e-30))
    kind = dtype_name(stored[name].dtype)
    if error > TOLERANCE:
        raise ExecutorError(
            f"vllm has no bias after fc, and in {kind} this fc.bias cannot be folded into the embeddings: a relative "
            f"error of {error:.2g} remains, above {TOLERANCE:.2g}; write float32, or train without the bias"
        )
    return f"fc.bias is folded into the drafter's embeddings: relative error {error:.1g} after rounding to {kind}"


@torch.no_grad()
def unfolded_bias(values: Tensor, table: Tensor, weight: Tensor) -> Tensor | None:
    """Return the bias that was folded into embeddings; None if they are not the target's plus one row.

    Args:
        values: the checkpoint's embeddings, (vocabulary, hidden), in the number type of the file.
        table: the target's.
        weight: of `fc`, (hidden, 2 * hidden).
    """
    if values.shape != table.shape or values.shape[1] != len(weight):
        return None
    table = table.to(values.device)
    shift, size = (values.double() - table.double()).mean(0), table.abs().mean(0).double()  # whose rounding is in it
    spacing = max(torch.finfo(kind).eps for kind in (values.dtype, table.dtype))
    for rows, embedding in zip(values.double().split(ROWS), table.double().split(ROWS), strict=True):
        if bool(((rows - embedding - shift).abs() > spacing * (embedding.abs() + shift.abs() + size)).any()):
            return None
    return weight.double()[:, : len(weight)] @ shift
