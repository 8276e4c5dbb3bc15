"""Kinds of drafters that treeopt does not support, recognised by their tensors' names, types and configuration.

Each is refused in one line, which names the kind and what would be needed. What is neither a drafter nor a whole
language model is refused too.
"""

import re
from collections.abc import Callable
from typing import Any

import torch

from executor.checkpoints.tensors.detect_layout import plain_name, unwrapped
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.target.architectures import MTP
from treeopt.errors import ExecutorError, shorten

PLAIN = "the checkpoint in float32, bfloat16 or float16 that it was quantised from"
_LAYER = re.compile(r"(.*?\b(?:layers|mtp_layers|mtp|mtps|h|blocks)\.\d+)\.")
_SCALES = re.compile(r".*(weight_scale(_inv|_2)?|input_scale|weight_packed|qweight|qzeros|\.absmax|weight_zero_point)$")
_NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8)
_EMBEDDINGS = re.compile(r"(?!.*embed_out).*(embed|wte).*")  # of a model's input; drafters may have LM heads alone


def refuse_unsupported(stored: Stored, kind: str | None) -> None:
    """Refuse kinds that treeopt knows by name, and does not support.

    Args:
        stored: the checkpoint.
        kind: what `kind_of` takes it for; None for a language model, if it is one.

    Raises:
        ExecutorError: names the kind, and what would be needed.
    """
    names = {plain_name(name) for name in stored.entries}
    for recognised, sentence in _KINDS:
        if recognised(stored, names):
            raise ExecutorError(f"{stored.path}: {sentence}")
    if kind in ("eagle", "eagle3", "medusa", "hydra") and (method := _quantised(stored)):
        raise ExecutorError(f"{stored.path}: quantised drafters ({method}) are not supported: needed is {PLAIN}")
    if kind is None:
        _check_language_model(stored)


def _check_language_model(stored: Stored) -> None:
    """Refuse tensors that are no whole language model."""
    tensors = shorten(sorted(entry.key for entry in stored.entries.values())) or "no tensors"
    if "model_type" not in stored.config:
        raise ExecutorError(f"{stored.path}: neither a drafter's tensors nor a language model's config.json: {tensors}")
    if not any(_EMBEDDINGS.fullmatch(name) and len(e.shape) == 2 for name, e in stored.entries.items()):
        raise ExecutorError(
            f"{stored.path}: neither a drafter that treeopt knows nor a whole language model, which would have "
            f"embeddings of tokens; its tensors are {tensors}"
        )


def _said(stored: Stored) -> str:
    """Return what the configuration calls the drafter, in small letters."""
    config = stored.config
    nested = config.get("transformer_layer_config")
    inner = nested.get("model_type") if isinstance(nested, dict) else None
    words = [config.get("architectures"), config.get("model_type"), config.get("speculators_model_type"), inner]
    return " ".join(str(word) for word in words if word).lower()


def _calls_itself(*words: str) -> Callable[[Stored, set[str]], bool]:
    return lambda stored, names: any(word in _said(stored) for word in words)


def _either(*tests: Callable[[Stored, set[str]], bool]) -> Callable[[Stored, set[str]], bool]:
    return lambda stored, names: any(test(stored, names) for test in tests)


def _holds(*parts: str) -> Callable[[Stored, set[str]], bool]:
    """Return a test for a tensor whose name has one of these parts."""
    return lambda stored, names: any(part in name for part in parts for name in names)


def _set(name: str) -> Callable[[Stored, set[str]], bool]:
    """Return a test for a field that is set, at the top or in `eagle_config`."""

    def test(stored: Stored, names: set[str]) -> bool:
        eagle = stored.config.get("eagle_config")
        return bool(stored.config.get(name) or (isinstance(eagle, dict) and eagle.get(name)))

    return test


def _is_drafter(stored: Stored, names: set[str]) -> bool:
    """Return whether the tensors are some kind of EAGLE's, whatever its layers are."""
    marks = {"fc.weight", "d2t", "t2d", "layers.0.hidden_norm.weight"}
    return bool(names & marks) or "eagle" in _said(stored)


def _is_mla(stored: Stored, names: set[str]) -> bool:
    return _is_drafter(stored, names) and _holds("kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj")(stored, names)


def _has_experts(stored: Stored, names: set[str]) -> bool:
    return _is_drafter(stored, names) and _holds("mlp.experts.", "block_sparse_moe.", "mlp.gate.weight")(stored, names)


def _is_fused(stored: Stored, names: set[str]) -> bool:
    return _is_drafter(stored, names) and _holds("qkv_proj.", "gate_up_proj.")(stored, names)


def _is_dflash(stored: Stored, names: set[str]) -> bool:
    by_name = {"fc.weight", "hidden_norm.weight", "norm.weight"} <= names
    return by_name or "dflash_config" in stored.config or "dflash" in _said(stored)


def _is_mistral_native(stored: Stored, names: set[str]) -> bool:
    """Return whether the tensors are an EAGLE drafter's, under the names of Mistral's own files."""
    return "eagle_linear.weight" in names or (
        _is_drafter(stored, names) and _holds("attention.wq.", "feed_forward.w1.")(stored, names)
    )


def _is_bare_mlp(stored: Stored, names: set[str]) -> bool:
    """Return whether the tensors are an MLP speculator's, without its prefix."""
    return {"emb.0.weight", "head.0.weight"} <= names


def _is_mtp(stored: Stored, names: set[str]) -> bool:
    """Return whether all layers are MTP heads; a language model with one beside its own layers is none."""
    layers: dict[str, bool] = {}
    for name in map(unwrapped, stored.entries):
        layer = match.group(1) if (match := _LAYER.match(name)) else ""
        marked = bool(MTP.search(name)) or "mtp" in layer
        layers[layer] = layers.get(layer, False) or marked
    heads = [layer for layer, marked in layers.items() if marked]
    whole = [layer for layer, marked in layers.items() if layer and not marked]
    return bool(heads) and not whole


def _quantised(stored: Stored) -> str | None:
    """Return how the weights are quantised, by their types; None if they are not, whatever the configuration says."""
    narrow = [e for e in stored.entries.values() if e.dtype in _NARROW and e.key.endswith(".weight")]
    scales = [name for name in stored.entries if _SCALES.match(name)]
    if not narrow and not scales:
        return None
    settings: Any = stored.config.get("quantization_config")
    methods = [settings.get(key) for key in ("quant_method", "quant_algo")] if isinstance(settings, dict) else []
    types = sorted({str(entry.dtype).removeprefix("torch.") for entry in narrow})
    return ", ".join(str(word) for word in (*methods, *types) if word) or shorten(scales)


def _drafts_in_parallel(stored: Stored, names: set[str]) -> bool:
    """Return whether a configuration names the token that vLLM feeds for every place of a block."""
    tokens = any(stored.config.get(name) is not None for name in ("pard_token", "ptd_token_id"))
    return tokens or str(stored.config.get("spd_type")).lower() == "pard"


# In order: what is recognised first is named.
_KINDS: tuple[tuple[Callable[[Stored, set[str]], bool], str], ...] = (
    (
        _either(_holds("mask_hidden"), _set("parallel_drafting"), _calls_itself("peagle", "p_eagle")),
        "P-EAGLE: parallel drafting is not supported: needed is an EAGLE-3 drafter without mask_hidden, which drafts "
        "one token after the other",
    ),
    (
        _calls_itself("dspark", "domino", "jetspec", "hspec", "dspine"),
        "drafters of whole blocks (DSpark, Domino, JetSpec) are not supported: needed is an EAGLE-3 drafter",
    ),
    (
        _is_dflash,
        "DFlash is not supported: it drafts a block in parallel; needed is an EAGLE-3 drafter",
    ),
    (
        _drafts_in_parallel,
        "PARD and other parallel drafting (pard_token, ptd_token_id) is not supported: needed is a drafter that drafts "
        "one token after the other",
    ),
    (
        _is_mla,
        "MLA drafters (multi-head latent attention, as in Eagle3DeepseekV2ForCausalLM) are not supported: needed is an "
        "EAGLE-3 drafter with q_proj, k_proj and v_proj",
    ),
    (
        _has_experts,
        "EAGLE drafters with experts are not supported: needed is a drafter with a dense MLP",
    ),
    (
        _is_fused,
        "EAGLE drafters with fused projections (qkv_proj, gate_up_proj) are not supported: needed is a checkpoint with "
        "q_proj, k_proj, v_proj, gate_proj and up_proj",
    ),
    (
        _is_mistral_native,
        "EAGLE drafters in Mistral's own format (eagle_linear, attention.wq) are not supported: needed is a checkpoint "
        "in Hugging Face's format, with fc and q_proj, k_proj and v_proj",
    ),
    (
        _either(
            _holds("speculator.emb.", "speculator.head."),
            _is_bare_mlp,
            _calls_itself("mlp_speculator", "mlpspeculator"),
        ),
        "MLP speculators are not supported: needed are Medusa or Hydra heads, EAGLE or EAGLE-3",
    ),
    (
        _calls_itself("arcticmlp", "arcticlstm", "lstm_speculator", "redrafter", "recurrentdrafter"),
        "recurrent speculators (Arctic, ReDrafter) are not supported: needed are Medusa or Hydra heads, EAGLE or "
        "EAGLE-3",
    ),
    (
        _either(_is_mtp, _calls_itself("mtp", "nextn", "_assistant")),
        "MTP heads (multi-token prediction) are not supported: needed are Medusa or Hydra heads, EAGLE or EAGLE-3",
    ),
    (
        _holds("lora_A.", "lora_B."),
        "LoRA adapters are not supported: merge the adapter into its model first",
    ),
)
