"""Read EAGLE-3 checkpoints of the reference, vLLM, SGLang, SpecForge, AngelSlim, NeMo Automodel and speculators.

The first layer is `midlayer.*` (reference) or `layers.0.*` (vLLM, speculators), with or without `model.` before it,
others are `layers.1.*` and so on. The other tensors: `norm.weight`; `fc.weight`, unless the drafter reads the target's
last feature alone; the drafter's LM head (if there is none, the target's is used); `d2t` and `t2d`; optionally
embeddings, `fc_norm.{i}` or `input_norm`, and norms of queries and keys.
"""

import re
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import LlamaConfig

from executor.checkpoints.layer_settings.layer_config import config_of, layer_fields
from executor.checkpoints.layer_settings.positions import window_of
from executor.checkpoints.layer_settings.stated_sizes import check_sizes, layer_sizes, layer_switches, note_missing
from executor.checkpoints.tensors.detect_layout import plain
from executor.checkpoints.tensors.lazy_tensors import Entry, Stored
from executor.checkpoints.tensors.parameter_names import fill_module, layer_name
from executor.checkpoints.tensors.target_copies import embedding_of, head_of, is_embedding
from executor.drafters.eagle.checkpoint import EMBEDDINGS, HEAD, without_frequencies
from executor.drafters.eagle3.d2t_vocabulary import drafted_ids
from executor.drafters.eagle3.drafter import Eagle3
from executor.drafters.eagle3.norms import norm_options
from executor.drafters.eagle3.target_layers import reads_last_feature, taps_of
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

FUSION = "fc.weight"
# Copies of the target's tensors that trainers leave.
LEFT = ("verifier_lm_head.weight", "verifier_norm.weight")
_HEAD_NORM = re.compile(r"layers\.\d+\.self_attn\.[qk]_norm\.weight")
_NUMBER = re.compile(r"layers\.(\d+)\.")


def read_eagle3(stored: Stored, target: Target) -> Eagle3:
    """Read EAGLE-3 in any of the layouts.

    Raises:
        ExecutorError: names the tensors that do not fit, or what the configuration contradicts.
    """
    stored = _with_input_norms(without_frequencies(plain(stored)))
    count = _layers(stored)
    hidden, wide = _widths(stored, target)
    head = _shared_head(stored, hidden, target)
    rows = len(head) if head is not None else _matrix(stored, HEAD)[0]
    configs = [config_of(stored, f"layers.{n}.", target, hidden=hidden, number=n) for n in range(count)]
    _check_alike(stored, configs)
    sizes = {"draft_vocab_size": rows, "hidden_size": hidden}
    sizes |= {"target_hidden_size": target.hidden, "vocab_size": target.vocabulary, **layer_sizes(configs[0])}
    check_sizes(stored, target, layers=count, sizes=sizes)
    head_norms = any(map(_HEAD_NORM.fullmatch, stored.entries))
    note_missing(stored, layer_switches(configs[0]) | {"use_qk_norm": head_norms})
    taps = taps_of(stored, wide, target)
    ids = drafted_ids(stored, rows, target)
    if ids is not None and head is not None:
        raise ExecutorError(f"{stored.path}: 1 missing: {HEAD}, whose rows d2t names")
    if ids is not None:
        ids, stored = _increasing(ids, stored, target)
    own_embeddings = EMBEDDINGS in stored.entries
    if own_embeddings and stored.entries[EMBEDDINGS].shape == (target.vocabulary, hidden) and hidden == target.hidden:
        own_embeddings = not is_embedding(stored.read(EMBEDDINGS), target)
    if not own_embeddings and hidden != target.hidden:
        raise ExecutorError(
            f"{stored.path}: {FUSION} makes features of width {hidden}, the target's embeddings have "
            f"{target.hidden}, and {EMBEDDINGS} is missing"
        )
    options = norm_options(stored)
    windows = [window_of(stored, layer_fields(stored), n) for n in range(count)]
    return fill_module(
        lambda: Eagle3(
            configs[0],
            taps=taps,
            target_hidden=target.hidden,
            vocabulary=target.vocabulary,
            draft_ids=ids,
            own_embeddings=own_embeddings,
            deeper=configs[1:],
            windows=windows,
            head_norms=head_norms,
            fused=FUSION in stored.entries,
            **options,
        ),
        stored,
        layer_name,
        ignored=["d2t", "t2d", *LEFT, *([] if own_embeddings else [EMBEDDINGS])],
        given=None if head is None else {HEAD: head},
    )


def _layers(stored: Stored) -> int:
    """Return the number of decoder layers, which must be numbered from 0."""
    numbers = {int(match.group(1)) for name in stored.entries if (match := _NUMBER.match(name))}
    count = len(numbers)
    if numbers != set(range(count)) or not count:
        raise ExecutorError(f"{stored.path}: layers must be numbered from 0, found {sorted(numbers)}")
    return count


def _with_input_norms(stored: Stored) -> Stored:
    """Return the tensors with one name for the norm before the attention of deeper layers; SGLang's is hidden_norm."""

    def name_of(name: str) -> str:
        other = name.replace("hidden_norm", "input_layernorm")
        deeper = name.startswith("layers.") and not name.startswith("layers.0.")
        return other if deeper and other not in stored.entries else name

    return stored.renamed(name_of)


def _check_alike(stored: Stored, configs: list[LlamaConfig]) -> None:
    """Refuse layers whose keys have different shapes, which one cache cannot hold."""
    shapes = [(config.num_key_value_heads, config.head_dim) for config in configs]
    if len(set(shapes)) > 1:
        raise ExecutorError(f"{stored.path}: all layers must have the same key heads, found {shapes}")


def _widths(stored: Stored, target: Target) -> tuple[int, int]:
    """Return the width of the drafter, and of the features that it reads."""
    if FUSION in stored.entries:
        return _matrix(stored, FUSION)
    if not reads_last_feature(stored):
        raise ExecutorError(
            f"{stored.path}: 1 missing: {FUSION}; for a drafter that reads the target's last feature alone, "
            f"{stored.where.name} must have use_aux_hidden_state false in eagle_config"
        )
    hidden = _matrix(stored, "layers.0.self_attn.o_proj.weight")[0]
    if hidden != target.hidden:
        raise ExecutorError(
            f"{stored.path}: without {FUSION} the drafter must have the target's width, {target.hidden}, found {hidden}"
        )
    return hidden, hidden


def _shared_head(stored: Stored, hidden: int, target: Target) -> Tensor | None:
    """Return the LM head that a checkpoint without one shares, (vocabulary, hidden); None if it has its own.

    It is the target's, as in SGLang and vLLM, where all tokens are drafted; with `tie_word_embeddings` the embeddings.
    """
    if HEAD in stored.entries or hidden != target.hidden:
        return None
    fields = [layer_fields(stored), stored.config]
    drafted = stored.config.get("draft_vocab_size")
    if drafted not in (None, target.vocabulary) or not _drafts_all(stored, target):
        return None
    if any(part.get("tie_word_embeddings") is True for part in fields):
        if EMBEDDINGS in stored.entries:
            return stored.read(EMBEDDINGS) if stored.entries[EMBEDDINGS].shape[0] == target.vocabulary else None
        return embedding_of(target, "EAGLE-3 with tied embeddings")
    return head_of(target, "EAGLE-3 without an LM head")


def _drafts_all(stored: Stored, target: Target) -> bool:
    """Return whether `d2t` and `t2d`, if they are there, leave no token out."""
    return all(
        stored.entries[name].shape[:1] == (target.vocabulary,)
        and (name == "d2t" or bool(stored.integers(name, (target.vocabulary,)).all()))
        for name in ("d2t", "t2d")
        if name in stored.entries
    )


def _increasing(ids: Tensor, stored: Stored, target: Target) -> tuple[Tensor | None, Stored]:
    """Return the tokens in order, None for all, and the tensors with the rows of the LM head in the same order."""
    order = ids.argsort()
    entry = stored.entries[HEAD]

    def read(whole: Entry) -> Tensor:
        return whole.read()[order]

    if not torch.equal(order, torch.arange(len(order))):
        stored = replace(stored, entries={**stored.entries, HEAD: replace(entry, read=partial(read, entry))})
    return (None if len(ids) == target.vocabulary else ids[order]), stored


def _matrix(stored: Stored, name: str) -> tuple[int, int]:
    entry = stored.entries.get(name)
    if entry is None:
        raise ExecutorError(f"{stored.path}: 1 missing: {name}")
    if len(entry.shape) != 2 or not all(entry.shape):
        raise ExecutorError(f"{stored.path}: {entry.key} must have two dimensions, found {entry.shape}")
    return entry.shape[0], entry.shape[1]
