"""Detect which drafter a checkpoint holds, by the names and shapes of its tensors, and unify the projects' names.

Kinds that treeopt does not support are refused in one line, which names the kind and what would be needed; so is what
is neither a drafter nor a whole language model.
"""

import re
from dataclasses import replace
from typing import Any

import torch

from executor.checkpoints.tensors.lazy_tensors import Stored
from simulate.drafter_kinds import DRAFTERS, DrafterKind, by_priority, kind_of_drafter, named_drafter
from treeopt.errors import ExecutorError, shorten

PREFIXES = ("module.", "model.", "medusa_heads.", "_orig_mod.", "draft_model.", "drafter.", "eagle_module.")
LAYERS = ("midlayer.", "transformer.")  # names of the only layer
_WRAPPED = re.compile(r"(.+\.)(?:midlayer\.|layers\.0\.)hidden_norm\.weight$")
_VOCABULARY = re.compile(r"(?:^|\.)(?:lm_head|embed_tokens|d2t|t2d|draft_id_to_target_id)(?:\.|$)")
# NeMo's and speculators' d2t; ModelOpt's LM head before its export renames it.
_NAMES = {"draft_id_to_target_id": "d2t", "eagle_lm_head.weight": "lm_head.weight"}
_MORE = re.compile(r"additional_layers\.(\d+)\.")  # SGLang's name of the layers after the first


def unwrapped(name: str) -> str:
    """Return a tensor's name without the prefixes of wrappers.

    >>> unwrapped("module.model.fc.weight")
    'fc.weight'
    """
    while name.startswith(PREFIXES):
        name = name.split(".", 1)[1]
    return name


def without_wrapper(stored: Stored) -> Stored:
    """Return the tensors without a prefix that no reader knows, where EAGLE-3's own tensors follow it.

    A trainer's attribute, such as `spec_model.`, stands before all tensors but those of the vocabulary.
    """
    marked = {match.group(1) for name in stored.entries if (match := _WRAPPED.match(name))}
    if len(marked) != 1 or not unwrapped(min(marked)):
        return stored
    (prefix,) = marked
    if any(not name.startswith(prefix) and not _VOCABULARY.search(name) for name in stored.entries):
        return stored
    return stored.renamed(lambda name: name.removeprefix(prefix))


def plain_name(name: str) -> str:
    """Return a tensor's name without the prefixes of wrappers, in the spelling that the readers here use.

    >>> plain_name("module.model.midlayer.mlp.up_proj.weight")
    'layers.0.mlp.up_proj.weight'
    >>> plain_name("draft_id_to_target_id")
    'd2t'
    """
    name = unwrapped(name)
    if name.startswith(LAYERS):
        return "layers.0." + name.split(".", 1)[1]
    if more := _MORE.match(name):
        return f"layers.{int(more.group(1)) + 1}." + name[more.end() :]
    if name.startswith("fc_norms."):
        return name.replace("fc_norms.", "fc_norm.", 1)
    return _NAMES.get(name, name.replace("fusion_fc.", "fc.", 1))


def plain(stored: Stored) -> Stored:
    """Return the tensors under plain names; raise ExecutorError if two would have the same name."""
    renamed = stored.renamed(plain_name)
    layer = next((layer for layer in LAYERS if any(layer in name for name in stored.entries)), "layers.0.")
    return replace(renamed, spelt=lambda name: name.replace("layers.0.", layer, 1))


def kind_of(stored: Stored) -> DrafterKind | None:
    """Return the kind of drafter that the tensors are; None for none of them, such as a whole language model.

    The configuration is not read unless a kind's files are a whole language model's: EAGLE's names the target's own
    class. Where no tensor says it, the file's name does; that kind's reader reports what is wrong with the tensors.
    """
    names = {name.removeprefix("module."): entry.shape for name, entry in stored.entries.items()}
    names |= {plain_name(name): entry.shape for name, entry in stored.entries.items()}
    kinds = [kind for kind in by_priority() if kind.files is not None]
    held = (kind for kind in kinds if kind.files is not None and kind.files.recognise(names))
    called = (
        kind
        for kind in kinds
        if kind.files is not None
        and kind.files.names
        and stored.path.name.startswith((f"{kind.name}.", f"{kind.name}_"))
    )
    stated = kind_of_drafter(stored.config)
    said = (kind for kind in kinds if kind.files is not None and kind.files.whole and kind.name == stated)
    return next(held, None) or next(called, None) or next(said, None)


PLAIN = "the checkpoint in float32, bfloat16 or float16 that it was quantised from"
HEADS = "needed are Medusa or Hydra heads, EAGLE or EAGLE-3"
# Pattern of a checkpoint's facts, see `_facts` -> the sentence. What is recognised first is named.
KINDS = {
    r"^kind eagle3?$[^$]*(^set parallel_drafting$|^field (pard_token|ptd_token_id)$)": "P-EAGLE without "
    "mask_hidden is not supported: needed is that tensor, or a drafter that drafts one token after the other",
    r"^kind eagle3?$[^$]*^called .*(dspark|dflash)": "EAGLE's tensors under the name of DFlash or DSpark are not "
    "supported: needed are hidden_norm.weight, and q_norm and k_norm in every layer",
    r"^called .*(domino|jetspec|dflash2|[^a-z](hspec|dspine))": "blocks with a correction (Domino, JetSpec, "
    "DFlash2) are not supported: needed is a DFlash, DSpark or EAGLE-3 drafter",
    r"^kind None$[^$]*^field spd_type=pard$": "PARD without pard_token is not supported: needed is that field",
    r"^field spd_type=pard2$": "PARD-2 reads features of the target, which is not supported: needed is a PARD drafter",
    r"^eagle .*(kv_a_proj_with_mqa|kv_b_proj|q_a_proj)": "MLA drafters (multi-head latent attention, as in "
    "Eagle3DeepseekV2ForCausalLM) are not supported: needed is an EAGLE-3 drafter with q_proj, k_proj and v_proj",
    r"^eagle .*(mlp\.experts\.|block_sparse_moe\.|mlp\.gate\.weight)": "EAGLE drafters with experts are not supported: "
    "needed is a drafter with a dense MLP",
    r"^eagle .*(qkv_proj\.|gate_up_proj\.)": "EAGLE drafters with fused projections (qkv_proj, gate_up_proj) are not "
    "supported: needed is a checkpoint with q_proj, k_proj, v_proj, gate_proj and up_proj",
    r"^tensor eagle_linear\.weight$|^eagle .*(attention\.wq\.|feed_forward\.w1\.)": "EAGLE drafters in Mistral's own "
    "format (eagle_linear, attention.wq) are not supported: needed is a checkpoint in Hugging Face's format, with fc "
    "and q_proj, k_proj and v_proj",
    r"^tensor .*speculator\.(emb|head)\.|^tensor emb\.0\.weight$[^$]*^tensor head\.0\.weight$"
    r"|^called .*mlp_?speculator": (f"MLP speculators are not supported: {HEADS}"),
    r"^called .*(arcticmlp|arcticlstm|lstm_speculator|redrafter|recurrentdrafter)": "recurrent speculators (Arctic, "
    f"ReDrafter) are not supported: {HEADS}",
    r"^called .*_assistant": f"MTP heads that read the target's keys are not supported: {HEADS}",
    r"^tensor .*lora_[AB]\.": "LoRA adapters are not supported: merge the adapter into its model first",
}
EAGLE = {"fc.weight", "d2t", "t2d", "layers.0.hidden_norm.weight"}  # tensors of some kind of EAGLE's
_SCALES = re.compile(r".*(weight_scale(_inv|_2)?|input_scale|weight_packed|qweight|qzeros|\.absmax|weight_zero_point)$")
_NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8)
_EMBEDDINGS = re.compile(r"(?!.*embed_out).*(embed|wte).*")  # of a model's input; drafters may have LM heads alone


def refuse_unsupported(stored: Stored, kind: str | None) -> None:
    """Refuse kinds that treeopt knows by name, and does not support; `kind` is what `kind_of` takes the tensors for.

    Raises:
        ExecutorError: names the kind, and what would be needed.
    """
    facts, own = f"kind {kind}\n{_facts(stored)}", DRAFTERS[kind].words if kind else ()
    found = ((re.search(pattern, facts, re.MULTILINE), text) for pattern, text in KINDS.items())
    if sentence := next((text for match, text in found if match and match[match.lastindex or 0] not in own), None):
        raise ExecutorError(f"{stored.path}: {sentence}")
    if kind in ("eagle", "eagle3", "medusa", "hydra") and (method := quantised(stored)):
        raise ExecutorError(f"{stored.path}: quantised drafters ({method}) are not supported: needed is {PLAIN}")
    if kind is None:
        _check_language_model(stored)


def _facts(stored: Stored) -> str:
    """Return what a checkpoint is known by, a line each.

    `called` and what its configuration calls it, `tensor` and a name, `eagle` and the name where some kind of EAGLE is
    meant, `field` and a field that is not null, `set` and one that is true.
    """
    config, eagle, nested = (
        part if isinstance(part, dict) else {}
        for part in (stored.config, stored.config.get("eagle_config"), stored.config.get("transformer_layer_config"))
    )
    words = [config.get("architectures"), config.get("model_type"), config.get("speculators_model_type")]
    called = " ".join(str(word) for word in (*words, nested.get("model_type")) if word).lower()
    names = sorted({plain_name(name) for name in stored.entries})
    lines = [f"called {called}", *(f"tensor {name}" for name in names)]
    lines += [f"eagle {name}" for name in names] if EAGLE.intersection(names) or "eagle" in called else []
    lines += [f"field {name}" for name, value in config.items() if value is not None]
    lines += [f"field spd_type={str(config.get('spd_type')).lower()}"]
    return "\n".join([*lines, *(f"set {name}" for part in (config, eagle) for name, value in part.items() if value)])


def _check_language_model(stored: Stored) -> None:
    """Refuse tensors that are no whole language model, and classes and fields that name a drafter."""
    tensors = shorten(sorted(entry.key for entry in stored.entries.values())) or "no tensors"
    own = [(name, each) for each in by_priority() if each.files and each.files.needs for name in each.fields]
    fields = ((name, each.title, each) for name, each in own if stored.config.get(name) is not None)
    if (drafter := named_drafter(stored.config) or next(fields, None)) is not None:
        word, title, kind = drafter
        needs = f"such a drafter has {', '.join(kind.files.needs)}" if kind and kind.files else HEADS
        raise ExecutorError(
            f"{stored.path}: {word} in config.json names {title}, not a language model: {needs}; its tensors are "
            f"{tensors}"
        )
    if "model_type" not in stored.config:
        raise ExecutorError(f"{stored.path}: neither a drafter's tensors nor a language model's config.json: {tensors}")
    if not any(_EMBEDDINGS.fullmatch(name) and len(e.shape) == 2 for name, e in stored.entries.items()):
        raise ExecutorError(
            f"{stored.path}: neither a drafter that treeopt knows nor a whole language model, which would have "
            f"embeddings of tokens; its tensors are {tensors}"
        )


def quantised(stored: Stored) -> str | None:
    """Return how the weights are quantised, by their types; None if they are not, whatever the configuration says."""
    narrow = [e for e in stored.entries.values() if e.dtype in _NARROW and e.key.endswith(".weight")]
    scales = [name for name in stored.entries if _SCALES.match(name)]
    if not narrow and not scales:
        return None
    settings: Any = stored.config.get("quantization_config")
    methods = [settings.get(key) for key in ("quant_method", "quant_algo")] if isinstance(settings, dict) else []
    types = sorted({str(entry.dtype).removeprefix("torch.") for entry in narrow})
    return ", ".join(str(word) for word in (*methods, *types) if word) or shorten(scales)
