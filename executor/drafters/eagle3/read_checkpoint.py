"""Read EAGLE-3 checkpoints of the reference, vLLM, SGLang, SpecForge, AngelSlim, NeMo Automodel and speculators.

The first layer is `midlayer.*` (reference) or `layers.0.*` (vLLM, speculators), with or without `model.` before it,
others are `layers.1.*` and so on. The other tensors: `norm.weight`; `fc.weight`, unless the drafter reads the target's
last feature alone; the drafter's LM head (if there is none, the target's is used); `d2t` and `t2d`; optionally
embeddings, `fc_norm.{i}` or `input_norm`, and norms of queries and keys.

Vocabulary. `d2t`, int64 (drafted,): row i of the LM head scores token i + d2t[i], in some files token d2t[i]. `t2d`,
bool (vocabulary,): the tokens drafted.

Norms. In vLLM, SGLang, speculators, NeMo Automodel and TorchSpec `norm_output` means that the next pair reads the
output of the last norm. In SpecForge before its pull request 879 it meant that the LM head reads it, as in all of
EAGLE-3. Both write the class LlamaForCausalLMEagle3; fields and names that only the others have tell them apart.

Layers of the target. Numbers at the top level, and `layer_ids` in `eagle_config`, count as Hugging Face's
`hidden_states`: number i is the input of layer i. vLLM and speculators read them so. The other numbers in
`eagle_config` are SpecForge's and count outputs of layers; SGLang adds 1 to them for most targets. Where they are
EAGLE's usual three, or name an input that is no layer's output, they count inputs too, as SGLang reads them for
DeepSeek's kind (sglang#25454); and for gpt-oss always (sglang#32334). DeepSpec's `target_layer_ids` count outputs.
Engines collect features in the order of the layers, so that the order of numbers says nothing; an empty list names the
usual layers. With `use_aux_hidden_state` false a drafter reads the input of the target's LM head alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from executor.checkpoints.tensors.detect_layout import plain
from executor.checkpoints.tensors.layer_config import (
    TAPS,
    check_layers,
    config_of,
    eagle_fields,
    layer_fields,
    layer_switches,
    note_missing,
)
from executor.checkpoints.tensors.layer_positions import window_of
from executor.checkpoints.tensors.lazy_tensors import Entry, Stored, fill_module, layer_name
from executor.checkpoints.tensors.write_tensors import embedding_of, head_of, is_embedding
from executor.drafters.eagle.checkpoint import EMBEDDINGS, HEAD, without_frequencies
from executor.drafters.eagle3.drafter import Eagle3, usual_taps
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

E = TypeVar("E", bound=Eagle3)
FUSION = "fc.weight"
# Copies of the target's tensors that trainers leave.
LEFT = ("verifier_lm_head.weight", "verifier_norm.weight")
_HEAD_NORM = re.compile(r"layers\.\d+\.self_attn\.[qk]_norm\.weight")
_NUMBER = re.compile(r"layers\.(\d+)\.")


def read_eagle3(stored: Stored, target: Target, make: Callable[..., E] = Eagle3) -> E:  # type: ignore[assignment]
    """Read EAGLE-3, or with `make` what is made of it, in any of the layouts.

    Raises:
        ExecutorError: names the tensors that do not fit, or what the configuration contradicts.
    """
    stored = _with_input_norms(without_frequencies(plain(stored)))
    count = _layers(stored)
    hidden, wide = _widths(stored, target)
    head = _shared_head(stored, hidden, target)
    rows = len(head) if head is not None else _matrix(stored, HEAD)[0]
    configs = [config_of(stored, f"layers.{n}.", target, hidden=hidden, number=n) for n in range(count)]
    shapes = [(config.num_key_value_heads, config.head_dim) for config in configs]
    if len(set(shapes)) > 1:  # one cache cannot hold their keys
        raise ExecutorError(f"{stored.path}: all layers must have the same key heads, found {shapes}")
    check_layers(stored, target, count)
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
        lambda: make(
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


def drafted_ids(stored: Stored, rows: int, target: Target) -> Tensor | None:
    """Return the token of each of `rows` rows of the LM head, int64 (rows,); None for all tokens in order.

    Trainers write the rows in any order: of token ids, or of how often the tokens occur.

    Raises:
        ExecutorError: d2t or t2d have wrong shapes, contradict each other, or do not name tokens of the target.
    """
    known = target.vocabulary
    chosen = stored.integers("t2d", (known,)).bool() if "t2d" in stored.entries else None
    if chosen is not None and int(chosen.sum()) != rows:
        raise ExecutorError(
            f"{stored.path}: t2d must name {rows} tokens as lm_head has rows, found {int(chosen.sum())}"
        )
    if "d2t" in stored.entries:
        ids = _ids(stored, rows, known, chosen)
        if chosen is not None and not bool(chosen[ids].all()):
            first = int((~chosen[ids]).nonzero()[0])
            raise ExecutorError(f"{stored.path}: row {first} of lm_head is token {int(ids[first])}, which t2d lacks")
    elif chosen is not None:
        ids = chosen.nonzero()[:, 0]
    elif rows == known:
        return None
    else:
        raise ExecutorError(f"{stored.path}: lm_head has {rows} rows for {known} tokens, and d2t is missing")
    return None if rows == known and torch.equal(ids, torch.arange(known)) else ids


def _ids(stored: Stored, rows: int, known: int, chosen: Tensor | None) -> Tensor:
    """Return the tokens of `d2t`: offsets from the row, or the ids themselves if only these fit target and t2d."""
    key = stored.entries["d2t"].key
    given = stored.integers("d2t", (rows,)).clamp(-known - rows, known)  # or their sums could wrap around
    ids = torch.arange(rows) + given

    def fit(ids: Tensor) -> bool:
        return bool(((ids >= 0) & (ids < known)).all()) and len(ids.unique()) == rows

    def agree(ids: Tensor) -> bool:
        return fit(ids) and (chosen is None or bool(chosen[ids].all()))

    if agree(given) and not agree(ids):
        stored.assume(f"{key} holds ids of tokens, not offsets")
        return given
    if not fit(ids):
        raise ExecutorError(f"{stored.path}: {key} must lead to each of the tokens 0 to {known - 1} at most once")
    return ids


ARCHITECTURE = "LlamaForCausalLMEagle3"
# Fields that SpecForge does not write beside this class.
NOT_SPECFORGE = ("parallel_drafting", "target_hidden_size", "num_aux_hidden_states", "speculators_model_type")
NORM_FIELDS = ("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc")
# NVIDIA ModelOpt's fields, and the only values that are EAGLE-3's.
MODELOPT = {"use_mtp_layernorm": False, "use_last_layernorm": True, "use_input_layernorm_in_first_layer": True}


def norm_options(stored: Stored) -> dict[str, Any]:
    """Return the variants of `Eagle3`: the norms by the tensors, their order by the configuration.

    Raises:
        ExecutorError: the configuration contradicts itself or the tensors, or leaves out what readers differ in.
    """
    single, per_tap = "input_norm.weight" in stored.entries, any(n.startswith("fc_norm.") for n in stored.entries)
    if single and per_tap:
        raise ExecutorError(f"{stored.path}: holds both input_norm and fc_norm")
    norms: Literal["none", "fc", "input"] = "input" if single else "fc" if per_tap else "none"
    given = {name: _flag(stored, name) for name in NORM_FIELDS}
    for name, expected in MODELOPT.items():
        if _flag(stored, name) not in (None, expected):
            raise ExecutorError(
                f"{stored.where}: {name} {str(not expected).lower()} is not supported: EAGLE-3 has "
                f"{str(expected).lower()}"
            )
    for name, tensor, present in (
        ("fc_norm", "fc_norm.0.weight", per_tap),
        ("norm_before_fc", "input_norm.weight", single),
    ):
        if given[name] is not None and given[name] != present:
            verb = "holds" if present else "lacks"
            raise ExecutorError(
                f"{stored.where}: {name} is {str(given[name]).lower()}, but {stored.path.name} {verb} {tensor}"
            )
    before = given["norm_before_residual"]
    if "speculators_model_type" in stored.config and before is None:
        raise ExecutorError(
            f"{stored.where}: norm_before_residual is missing: speculators reads that as false, vLLM as true; add the "
            "value that the drafter was trained with"
        )
    fed = _feeds_normed(stored, given["norm_output"])
    return {"norms": norms, "norm_before_residual": bool(before), "feeds_normed": fed}


def _flag(stored: Stored, name: str) -> bool | None:
    """Return a field of treeopt's own section, else of the file or its `eagle_config`; None where it is absent."""
    parts = [stored.config, eagle_fields(stored)]
    values = [stored.facts[name]] if name in stored.facts else [part[name] for part in parts if name in part]
    values = [value for value in values if value is not None]
    for value in values:
        if not isinstance(value, bool):
            raise ExecutorError(f"{stored.where}: {name} must be true or false, found {value!r}")
    if len(set(values)) > 1:
        raise ExecutorError(f"{stored.where}: {name} differs from the one in eagle_config")
    return values[0] if values else None


def _feeds_normed(stored: Stored, norm_output: bool | None) -> bool:
    """Return whether the next pair reads the last norm's output, by the checkpoint's `norm_output`."""
    # A checkpoint that treeopt wrote also states the fact in treeopt's own section, with the usual meaning.
    names = [entry.key.removeprefix("module.") for entry in stored.entries.values()]
    others = any(name in stored.config for name in NOT_SPECFORGE) or any(name.startswith("model.") for name in names)
    specforge = ARCHITECTURE in str(stored.config.get("architectures")) and not others
    if norm_output is None or "norm_output" in stored.facts or not specforge:
        return bool(norm_output)
    if norm_output:
        stored.assume(
            "norm_output true is taken for SpecForge's before its pull request 879: the LM head reads the last norm, "
            "the next pair does not; if the next pair reads it too, add target_hidden_size, as NeMo Automodel has it"
        )
    else:
        stored.assume(
            "norm_output false is taken for SpecForge's since its pull request 879, as in vLLM and SGLang: the LM head "
            "reads the last norm, the next pair does not"
        )
    return False


LAYER_LISTS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
OUTPUT_LISTS = ("target_layer_ids",)  # DeepSpec's, outputs of layers
Named = tuple[str, list[int]]  # a field, and its list
INPUTS, OUTPUTS = "hidden_states", "layer_outputs"
BOUNDARIES = ("gpt_oss",)  # targets for which engines count inputs everywhere


def taps_of(stored: Stored, wide: int, target: Target) -> tuple[int, ...]:
    """Return the layers whose inputs are read; together they are `wide`.

    Raises:
        ExecutorError: the configuration names layers that do not fit `wide`, or none and there are not three.
    """
    if reads_last_feature(stored):
        if wide != target.hidden:
            raise ExecutorError(
                f"{stored.path}: fc.weight must read {target.hidden} features, the target's last ones, as "
                f"{stored.where} has use_aux_hidden_state false, found {wide}"
            )
        if stored.facts.get("aux_layers") is None and any(
            part.get(name) for part in (stored.config, eagle_fields(stored)) for name in TAPS
        ):
            stored.assume("use_aux_hidden_state is false: the target's layers that it names are not read")
        return ()
    config = target.model.config.get_text_config()
    layers = int(config.num_hidden_layers)
    if (stated := stored.config.get("num_target_layers")) not in (None, layers):
        raise ExecutorError(f"{stored.where}: num_target_layers is {stated!r:.40}, the target has {layers} layers")
    ids, convention = _named_layers(stored, layers, str(config.model_type))
    count = 3 if ids is None else len(ids)
    if count * target.hidden != wide:
        which = f"the three usual layers, as {stored.where} names none" if ids is None else f"layers {ids}"
        raise ExecutorError(
            f"{stored.path}: fc.weight must read {count} x {target.hidden} features of {which}, found {wide}"
        )
    if ids is None:
        return usual_taps(layers)
    taps = tuple(i + 1 if convention == OUTPUTS else i for i in ids)
    if not all(0 <= tap <= layers for tap in taps):
        raise ExecutorError(
            f"{stored.where}: {LAYER_LISTS[0]} must name layers of the target's {layers}, found {ids!r}"
        )
    if stored.facts.get("aux_layers") is not None:  # treeopt's own, also of targets with few layers
        return taps
    if len(set(taps)) < count:
        raise ExecutorError(f"{stored.where}: {LAYER_LISTS[0]} must name each layer once, found {ids!r}")
    return tuple(sorted(taps))


def reads_last_feature(stored: Stored) -> bool:
    """Return whether the drafter reads the input of the target's LM head, and no other layers.

    Raises:
        ExecutorError: the field is neither true nor false.
    """
    if stored.facts.get("aux_layers") is not None:
        return bool(stored.facts["aux_layers"] == [])
    parts = [stored.config, eagle_fields(stored)]
    values = [part["use_aux_hidden_state"] for part in parts if part.get("use_aux_hidden_state") is not None]
    if any(not isinstance(value, bool) for value in values) or len(set(values)) > 1:
        raise ExecutorError(f"{stored.where}: use_aux_hidden_state must be true or false, found {values}")
    return False in values


def convention_of(ids: Sequence[int], layers: int) -> str:
    """Return whether the numbers in `eagle_config` count inputs or outputs of layers.

    >>> convention_of([1, 15, 28], 32), convention_of([2, 16, 29], 32)
    ('layer_outputs', 'hidden_states')
    """
    return INPUTS if tuple(ids) == usual_taps(layers) or layers in ids else OUTPUTS


def _named_layers(stored: Stored, layers: int, target: str) -> tuple[list[int] | None, str]:
    """Return the numbers in the configuration, None without any, and their convention; `target` is its `model_type`."""
    if stored.facts.get("aux_layers") is not None:
        ids = _checked(stored, LAYER_LISTS[0], stored.facts["aux_layers"])
        return ids, str(stored.facts.get("aux_convention"))
    nested = eagle_fields(stored)
    inputs = _lists(stored, stored.config, LAYER_LISTS) + _lists(stored, nested, ("layer_ids",), "eagle_config.")
    outputs = _lists(stored, stored.config, OUTPUT_LISTS) + _lists(stored, nested, OUTPUT_LISTS, "eagle_config.")
    inputs += [(name, [i + 1 for i in ids]) for name, ids in outputs]
    others = _lists(stored, nested, LAYER_LISTS, "eagle_config.")
    _check_same(stored, inputs, others)
    if inputs or not others or target in BOUNDARIES:
        return next((ids for _, ids in inputs or others), None), INPUTS
    ids = others[0][1]
    convention = convention_of(ids, layers)
    if convention == OUTPUTS and ARCHITECTURE not in str(stored.config.get("architectures")):
        stored.assume(
            f"the layers {ids} of eagle_config are taken for outputs of layers, as SpecForge and SGLang count them; "
            "vLLM counts inputs; numbers outside eagle_config are inputs everywhere"
        )
    return ids, convention


def _lists(stored: Stored, part: Mapping[str, Any], names: Sequence[str], place: str = "") -> list[Named]:
    """Return the lists of layers in a part of the configuration, with their fields; an empty one says nothing."""
    given = [name for name in names if part.get(name) not in (None, [])]
    return [(f"{place}{name}", _checked(stored, f"{place}{name}", part[name])) for name in given]


def _checked(stored: Stored, name: str, ids: Any) -> list[int]:
    if not (isinstance(ids, list) and ids and all(type(i) is int for i in ids)):
        raise ExecutorError(f"{stored.where}: {name} must be a list of layers, found {ids!r}")
    return ids


def _check_same(stored: Stored, inputs: list[Named], others: list[Named]) -> None:
    """Refuse two lists of different layers; `others` may count inputs or outputs."""
    first = next(iter(inputs or others), ("", []))
    for name, ids in [*inputs, *others]:
        may = [sorted(ids)]
        if inputs and (name, ids) in others:
            may.append([i + 1 for i in sorted(ids)])
        if sorted(first[1]) not in may:
            raise ExecutorError(
                f"{stored.where}: {first[0]} {first[1]} and {name} {ids} name different layers: remove one"
            )
