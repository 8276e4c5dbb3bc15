"""Read EAGLE-3 checkpoints of the reference, vLLM, SGLang, SpecForge, AngelSlim and speculators.

The layer is `midlayer.*` (reference) or `layers.0.*` (vLLM, speculators), with or without `model.` before it. The other
tensors: `fc.weight`, `norm.weight`, the drafter's LM head (none if `draft_vocab_size` is null: then the target's is
used), `d2t` and `t2d`; optionally embeddings, `fc_norm.{i}` or `input_norm`.
"""

from typing import Any, Literal

from executor.checkpoints.detect_layout import plain
from executor.checkpoints.eagle import EMBEDDINGS, FREQUENCIES, HEAD, one_layer
from executor.checkpoints.eagle3_d2t_vocabulary import drafted_ids
from executor.checkpoints.eagle3_specforge import feeds_normed
from executor.checkpoints.eagle3_target_layers import taps_of
from executor.checkpoints.layer_config import config_of
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.parameter_names import STORED_LAYER, fill_module, layer_name
from executor.checkpoints.tensors.target_copies import head_of, is_embedding
from executor.drafters.eagle3 import Eagle3
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

# Copies of the target's tensors that trainers leave.
LEFT = ("verifier_lm_head.weight", "verifier_norm.weight")


def read_eagle3(stored: Stored, target: Target) -> Eagle3:
    """Read EAGLE-3 in any of the layouts.

    Raises:
        ExecutorError: names the tensors that do not fit, or what the configuration contradicts.
    """
    stored = plain(stored)
    one_layer(stored)
    hidden, wide = _matrix(stored, "fc.weight")
    shares_head = _shares_head(stored, hidden, target)
    rows = target.vocabulary if shares_head else _matrix(stored, "lm_head.weight")[0]
    config = config_of(stored, STORED_LAYER, target, hidden=hidden)
    taps = taps_of(stored, wide, target)
    ids = drafted_ids(stored, rows, target)
    own_embeddings = EMBEDDINGS in stored.entries
    if own_embeddings and stored.entries[EMBEDDINGS].shape == (target.vocabulary, hidden) and hidden == target.hidden:
        own_embeddings = not is_embedding(stored.read(EMBEDDINGS), target)
    if not own_embeddings and hidden != target.hidden:
        raise ExecutorError(
            f"{stored.path}: fc.weight makes features of width {hidden}, the target's embeddings have "
            f"{target.hidden}, and {EMBEDDINGS} is missing"
        )
    options = _options(stored)
    return fill_module(
        lambda: Eagle3(
            config,
            taps=taps,
            target_hidden=target.hidden,
            vocabulary=target.vocabulary,
            draft_ids=ids,
            own_embeddings=own_embeddings,
            **options,
        ),
        stored,
        layer_name,
        ignored=["d2t", "t2d", *FREQUENCIES, *LEFT, *([] if own_embeddings else [EMBEDDINGS])],
        given={HEAD: head_of(target, "EAGLE-3 without an LM head")} if shares_head else None,
    )


def _shares_head(stored: Stored, hidden: int, target: Target) -> bool:
    """Return whether the LM head is the target's: there is none, and no number of drafted tokens (as in SGLang)."""
    absent = all(name not in stored.entries for name in (HEAD, "d2t", "t2d"))
    return absent and hidden == target.hidden and stored.config.get("draft_vocab_size") is None


def _matrix(stored: Stored, name: str) -> tuple[int, int]:
    entry = stored.entries.get(name)
    if entry is None:
        raise ExecutorError(f"{stored.path}: 1 missing: {name}")
    if len(entry.shape) != 2 or not all(entry.shape):
        raise ExecutorError(f"{stored.path}: {entry.key} must have two dimensions, found {entry.shape}")
    return entry.shape[0], entry.shape[1]


def _options(stored: Stored) -> dict[str, Any]:
    """Return the variants: the norms by the tensors, the order of norms by the configuration."""
    single, per_tap = "input_norm.weight" in stored.entries, any(n.startswith("fc_norm.") for n in stored.entries)
    if single and per_tap:
        raise ExecutorError(f"{stored.path}: holds both input_norm and fc_norm")
    norms: Literal["none", "fc", "input"] = "input" if single else "fc" if per_tap else "none"
    fields = stored.config | stored.facts
    before, output = (fields.get(name) for name in ("norm_before_residual", "norm_output"))
    for name, value in (("norm_before_residual", before), ("norm_output", output)):
        if value is not None and not isinstance(value, bool):
            raise ExecutorError(f"{stored.where}: {name} must be true or false, found {value!r}")
    if "speculators_model_type" in stored.config and before is None:
        raise ExecutorError(
            f"{stored.where}: norm_before_residual is missing: speculators reads that as false, vLLM as true; add the "
            "value that the drafter was trained with"
        )
    return {"norms": norms, "norm_before_residual": bool(before), "feeds_normed": feeds_normed(stored, output)}
