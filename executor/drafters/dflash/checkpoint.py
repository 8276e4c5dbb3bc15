"""Read and write DFlash and DSpark checkpoints: `fc`, `hidden_norm`, `norm` and `layers.{i}.*`, Qwen3's layers.

Embeddings and LM head are the target's unless the file has its own; with `d2t` the head scores a reduced vocabulary
(`executor.drafters.eagle3.read_checkpoint`). `block_size` counts the slots. `target_layer_ids` in `dflash_config` count
outputs of layers, speculators' `aux_hidden_state_layer_ids` and `eagle_aux_hidden_state_layer_ids` inputs. Layers that
slide are causal unless `causal` or `is_causal` says otherwise, as in vLLM 0.32.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from executor.checkpoints.tensors.detect_layout import kind_of, plain
from executor.checkpoints.tensors.find_tensor_files import open_checkpoint
from executor.checkpoints.tensors.layer_config import check_layers, config_of, fields, is_positional, layer_fields
from executor.checkpoints.tensors.layer_positions import window_of
from executor.checkpoints.tensors.lazy_tensors import Stored, fill_module, named
from executor.checkpoints.tensors.write_tensors import Written, is_embedding, is_head
from executor.drafters.dflash import PARTS, SLOTS, field_of
from executor.drafters.dflash.drafter import DFlash
from executor.drafters.eagle.checkpoint import EMBEDDINGS, HEAD, without_frequencies
from executor.drafters.eagle3.read_checkpoint import drafted_ids
from executor.drafters.eagle3.write_layouts import vocabulary_tensors
from executor.target.positions import FULL, SLIDING
from executor.target.target_model import Target
from treeopt.errors import ExecutorError, UsageError

BASE = 1e6  # of rotary positions where the file names none, as in vLLM
INPUTS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
OUTPUTS = ("target_layer_ids", "dspark_target_layer_ids")
MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
# Fields read here, and not by the readers of layers.
READ = (
    *(*PARTS, *INPUTS, *OUTPUTS, *MASKS, "block_size", "dspark_block_size", "is_causal", "causal"),
    *("sample_from_anchor", "sliding_window_non_causal", "dspark_bonus_anchor", "auto_map"),
)
# Fields whose other values would change the drafter.
NONE_OF = ("attention_sink_bias", "add_swa_attention_sink_bias", "attention_value_scale", "conv_kernel_size")


def with_slots(name: str, target: Target) -> DFlash:
    """Return the drafter of `dflash:SLOTS:PATH`, with another length of its block; see `DrafterKind.named`.

    Raises:
        UsageError: another name.
    """
    _, _, rest = name.partition(":")
    count, _, path = rest.partition(":")
    if not (count.isdecimal() and 2 <= int(count) <= 10**4 and path):
        raise UsageError(f"{name}: must be dflash:SLOTS:PATH, such as dflash:8:DIR, or the drafter's folder alone")
    stored = open_checkpoint(Path(path))
    if stored is None or (kind := kind_of(stored)) is None or kind.name not in ("dflash", "dspark"):
        raise UsageError(f"{name}: {path} holds no DFlash or DSpark drafter")
    drafter = read_dflash(stored, target).to(target.device, target.dtype).eval().requires_grad_(False)
    drafter.slots = int(count)
    return drafter


def read_dflash(stored: Stored, target: Target) -> DFlash:
    """Read DFlash or DSpark in any of the layouts; raise ExecutorError for tensors or fields that do not fit."""
    stored = _with_window(without_frequencies(plain(stored))).renamed(
        lambda name: name.removeprefix("markov_head.").replace("confidence_head.proj.", "confidence_head.")
    )
    if (kind := _field(stored, "markov_head_type")) not in (None, "vanilla"):
        raise ExecutorError(f"{stored.where}: markov_head_type {kind!r:.40} is not supported: needed is 'vanilla'")
    for name in NONE_OF:
        if _field(stored, name):
            raise ExecutorError(f"{stored.where}: {name} is not supported: needed is a DFlash drafter without it")
    plainly = _layers_alone(stored)
    given = layer_fields(plainly)
    count = len({name.split(".")[1] for name in stored.entries if name.startswith("layers.")})
    configs = [config_of(plainly, f"layers.{n}.", target, hidden=target.hidden, number=n) for n in range(count)]
    check_layers(plainly, target, count)
    windows = [window_of(plainly, given, n) for n in range(count)]
    slots, mask = _field(stored, "block_size", "dspark_block_size") or SLOTS, mask_of(stored, target)
    if type(slots) is not int or slots < 2:
        raise ExecutorError(f"{stored.where}: block_size must be 2 or more, found {slots!r:.40}")
    if any(window is not None and window < slots for window in windows):
        raise ExecutorError(f"{stored.where}: sliding_window must be at least block_size, {slots}")
    own = {name: _is_own(stored, name, target) for name in (EMBEDDINGS, HEAD)}
    rows = stored.entries[HEAD].shape[0] if own[HEAD] else target.vocabulary
    ids = drafted_ids(stored, rows, target)
    if ids is not None and (not own[HEAD] or bool((ids.diff() <= 0).any())):
        raise ExecutorError(f"{stored.path}: d2t must name the rows of an LM head of its own, in rising order")
    heads = (stored.entries.get(f"markov_w{n}.weight") for n in (1, 2))
    markov = next((head.shape[-1] for head in heads if head is not None), 0)
    if _field(stored, "markov_rank") not in (None, 0, markov):
        raise ExecutorError(f"{stored.where}: markov_rank must be {markov}, that of the weights in {stored.path.name}")
    confidence = _confidence_inputs(stored, target.hidden, markov)
    anchor, bonus = (_field(stored, name, switch=True) for name in ("sample_from_anchor", "dspark_bonus_anchor"))
    usual = bool(markov) and "speculators_model_type" not in stored.config  # vLLM 0.32's algos.py
    taps = _taps(stored, target)
    return fill_module(
        lambda: DFlash(
            configs,
            taps=taps,
            vocabulary=target.vocabulary,
            mask=mask,
            slots=slots,
            from_anchor=anchor if anchor is not None else usual if bonus is None else not bonus,
            windows=windows,
            causal=[_is_causal(stored, window) for window in windows],
            draft_ids=ids,
            own_head=own[HEAD],
            own_embeddings=own[EMBEDDINGS],
            markov=markov,
            confidence=confidence,
            confidence_bias="confidence_head.bias" in stored.entries,
        ),
        stored,
        str,
        ignored=["d2t", "t2d", *(name for name, present in own.items() if not present)],
    )


def _with_window(stored: Stored) -> Stored:
    """Return the checkpoint with the usual fields for `use_swa`, ModelOpt's window of all layers."""
    nested = stored.config.get(PARTS[0])
    if not isinstance(nested, dict) or not nested.get("use_swa"):
        return stored
    rest = {name: value for name, value in nested.items() if name not in ("use_swa", "swa_window_size")}
    fields: dict[str, Any] = {PARTS[0]: rest}
    if SLIDING not in (stored.config.get("layer_types") or ()):  # or they say which layers have the window
        layers = len({name.split(".")[1] for name in stored.entries if name.startswith("layers.")})
        fields = {PARTS[0]: {"causal": False} | rest, "layer_types": [SLIDING] * layers, "use_sliding_window": True}
        fields["sliding_window"] = nested.get("swa_window_size") or stored.config.get("sliding_window")
    return replace(stored, config=stored.config | fields)


def _field(stored: Stored, *names: str, switch: bool = False) -> Any:
    """Return the value of fields that must agree, None without; raise ExecutorError, also if a switch is no boolean."""
    parts = (stored.config, stored.config | dict.fromkeys(PARTS))
    values = [value for part in parts for name in names if (value := field_of(part, name)) is not None]
    for value in values:
        if value != values[0] or (switch and not isinstance(value, bool)):
            due = "true or false" if value == values[0] else f"one value, found {values[0]!r:.40} too"
            raise ExecutorError(f"{stored.where}: {' or '.join(names)} {value!r:.40} must be {due}")
    return next(iter(values), None)


def _confidence_inputs(stored: Stored, hidden: int, rank: int) -> int:
    """Return the width that the confidence head reads, 0 without one."""
    given = stored.entries.get("confidence_head.weight")
    stated = _field(stored, "confidence_head_with_markov", switch=True)
    if given is None:
        if _field(stored, "enable_confidence_head"):
            raise ExecutorError(
                f"{stored.where}: enable_confidence_head is true, but confidence_head.proj.weight is missing: set "
                "it to false, or add the weights"
            )
        return 0
    widths = [hidden + rank * markov for markov in (False, True) if stated is None or bool(stated) == markov]
    if given.shape not in [(1, width) for width in widths]:
        raise ExecutorError(
            f"{stored.path}: {given.key} must have 1 row of {' or '.join(map(str, widths))} columns (hidden size and, "
            f"with confidence_head_with_markov, markov_rank), found {tuple(given.shape)}"
        )
    return int(given.shape[1])


def mask_of(stored: Stored, target: Target) -> int:
    """Return the token that stands for those to come; raise ExecutorError without one of the target's."""
    mask = _field(stored, *MASKS)
    if type(mask) is not int or not 0 <= mask < target.vocabulary:
        raise ExecutorError(f"{stored.where}: mask_token_id must be a token of the target's, found {mask!r:.40}")
    return mask


def _layers_alone(stored: Stored) -> Stored:
    """Return the checkpoint with the fields of its layers alone, and DFlash's base of rotary positions."""
    for name, value in nested.items() if isinstance(nested := stored.config.get(PARTS[0]), dict) else ():
        if name not in READ and value not in (None, False) and is_positional(f"{PARTS[0]}.{name}", value):
            raise ExecutorError(f"{stored.where}: {PARTS[0]}.{name} is not read there: move it out of {PARTS[0]}")
    config = {name: value for name, value in stored.config.items() if name not in READ}
    given = dict(layer_fields(replace(stored, config=config)))
    if "hidden_size" in given and not any(
        given.get(name) for name in ("rope_theta", "rope_parameters", "rope_scaling")
    ):
        given["rope_theta"] = BASE
    nested = "transformer_layer_config"
    return replace(stored, config=config | {nested: given} if config.get(nested) is not None else given)


def _is_own(stored: Stored, name: str, target: Target) -> bool:
    """Return whether the file has a table of its own, not a copy of the target's."""
    if name not in stored.entries:
        return False
    same = is_embedding if name == EMBEDDINGS else is_head
    shape = (target.vocabulary, target.hidden)
    return stored.entries[name].shape != shape or not same(stored.read(name), target)


def _is_causal(stored: Stored, window: int | None) -> bool:
    """Return whether the slots of a layer see only those before them."""
    stated = _field(stored, "is_causal", "causal", switch=True)
    if stated is None and (other := _field(stored, "sliding_window_non_causal", switch=True)) is not None:
        if window is None and not other:
            stored.assume(
                "sliding_window_non_causal false concerns layers with a window alone, as speculators trains them; vLLM "
                "0.32 takes it for all layers"
            )
        stated = window is not None and not other
    return window is not None if stated is None else bool(stated)


def _taps(stored: Stored, target: Target) -> tuple[int, ...]:
    """Return the layers whose inputs are read, in the file's order."""
    layers = int(target.model.config.get_text_config().num_hidden_layers)
    stated = stored.config.get("num_target_layers")
    if stated not in (None, layers):
        raise ExecutorError(f"{stored.where}: num_target_layers is {stated!r:.40}, the target has {layers} layers")
    lists = {name: _field(stored, name) for name in (*INPUTS, *OUTPUTS)}
    lists = {name: ids for name, ids in lists.items() if ids is not None}
    for name, ids in lists.items():
        if not (isinstance(ids, list) and ids and all(type(n) is int for n in ids)):
            raise ExecutorError(f"{stored.where}: {name} must be a list of layers, found {ids!r:.60}")
    found = {tuple(n + (name in OUTPUTS) for n in ids) for name, ids in lists.items()}
    if len(found) != 1:
        raise ExecutorError(f"{stored.where}: one list of target_layer_ids is needed, found {lists or 'none'}")
    (taps,) = found
    if not all(0 <= tap <= layers for tap in taps):
        raise ExecutorError(f"{stored.where}: {min(lists)} must name layers of the target's {layers}, found {lists}")
    return taps


def dflash_content(drafter: DFlash, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents in z-lab's layout, which vLLM and SGLang read, or in speculators'.

    Raises:
        ExecutorError: the layout cannot express this drafter.
    """
    if 0 in drafter.taps:
        raise ExecutorError("DFlash's layouts cannot express a tap at the embeddings: they count outputs of layers")
    if len(set(drafter.causal)) > 1 and list(drafter.causal) != [window is not None for window in drafter.windows]:
        raise ExecutorError("DFlash's layouts cannot express layers of which some are causal")
    tensors = named(
        drafter,
        lambda key: f"markov_head.{key}" if key[0] == "m" else key.replace("confidence_head.", "confidence_head.proj."),
    )
    tensors |= vocabulary_tensors(drafter.draft_ids, drafter.vocabulary)
    drafted = drafter.vocabulary if drafter.draft_ids is None else len(drafter.draft_ids)
    window = next((window for window in drafter.windows if window is not None), None)
    types = [FULL if own is None else SLIDING for own in drafter.windows]
    layer: dict[str, Any] = {"model_type": "qwen3", **fields(drafter.config), "num_hidden_layers": len(drafter.configs)}
    layer |= {"vocab_size": drafter.vocabulary, "layer_types": types, "sliding_window": window}
    layer |= {"use_sliding_window": window is not None, "tie_word_embeddings": False}
    facts = {"kind": drafter.kind, "slots": drafter.slots}
    outer: dict[str, Any] = {"block_size": drafter.slots, "draft_vocab_size": drafted, "torch_dtype": ""}
    if layout is not None:
        outer |= {"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash"}
        outer |= {"mask_token_id": drafter.mask, "aux_hidden_state_layer_ids": list(drafter.taps)}
        causal = dict(zip((own is not None for own in drafter.windows), drafter.causal, strict=True))
        if causal.get(False):
            raise ExecutorError("speculators' layout cannot express a causal layer without a window")
        outer |= {"sample_from_anchor": drafter.from_anchor, "sliding_window_non_causal": not causal.get(True)}
        return Written("model.safetensors", tensors, outer | {"transformer_layer_config": layer}, facts)
    nested = {"mask_token_id": drafter.mask, "target_layer_ids": [tap - 1 for tap in drafter.taps]}
    if list(drafter.causal) != [own is not None for own in drafter.windows]:
        nested["causal"] = drafter.causal[0]
    if drafter.markov_w1 is not None:
        outer |= {"markov_rank": drafter.markov_w1.embedding_dim, "markov_head_type": "vanilla"}
    (nested if drafter.kind == "dflash" else outer)["sample_from_anchor"] = drafter.from_anchor  # as vLLM reads them
    if (head := drafter.confidence_head) is not None:
        with_markov = head.in_features > drafter.config.hidden_size
        outer |= {"enable_confidence_head": True, "confidence_head_with_markov": with_markov}
    layers = {} if target is None else {"num_target_layers": target.model.config.get_text_config().num_hidden_layers}
    names = {"architectures": ["DFlashDraftModel" if drafter.kind == "dflash" else "Qwen3DSparkModel"]}
    return Written("model.safetensors", tensors, names | layer | layers | outer | {"dflash_config": nested}, facts)
