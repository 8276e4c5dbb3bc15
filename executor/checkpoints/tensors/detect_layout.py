"""Detect which drafter a checkpoint holds, by the names and shapes of its tensors, and unify the projects' names."""

import re
from dataclasses import replace

from executor.checkpoints.tensors.lazy_tensors import Stored
from simulate.model_sizes.drafter_kinds import DrafterKind, by_priority

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
    """Return the tensors under plain names.

    Raises:
        ExecutorError: two tensors would have the same name.
    """
    renamed = stored.renamed(plain_name)
    layer = next((layer for layer in LAYERS if any(layer in name for name in stored.entries)), "layers.0.")
    return replace(renamed, spelt=lambda name: name.replace("layers.0.", layer, 1))


def kind_of(stored: Stored) -> DrafterKind | None:
    """Return the kind of drafter that the tensors are; None for none of them, such as a whole language model.

    The configuration is not read: EAGLE's names the target's own class. Where no tensor says it, the file's name does;
    that kind's reader reports what is wrong with the tensors.
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
    return next(held, None) or next(called, None)
