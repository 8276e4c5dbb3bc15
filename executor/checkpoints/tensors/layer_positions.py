"""Positions of a drafter's layer: the rotary embedding and the window that config.json gives it.

`rope_theta` and `rope_scaling` may stand beside or inside `rope_parameters`, which may have an entry for each type of
layer. transformers fills in the rest and says what is missing or impossible; its warnings are errors here. Fields that
are absent have Llama's values, see `layer_config`. Layers are counted from the drafter's own first one, as vLLM does.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.target.positions import FULL, SLIDING
from treeopt.errors import ExecutorError

Fields = Mapping[str, Any]

# Names of the base; the second group holds for layers that attend to a window, the third for the others.
BASES = ("rope_theta", "rotary_emb_base", "rotary_base")
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
GLOBAL_BASES = ("global_rope_theta",)
DICTIONARIES = ("rope_parameters", "rope_scaling")
# Shares of a head that are rotated, and how many of its numbers are.
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_percentage", "rope_pct", "rope_percent")
WIDTHS = ("rotary_dim", "rotary_ndims")
LENGTH = "original_max_position_embeddings"
WINDOWS = ("layer_types", "sliding_window", "use_sliding_window", "attention_chunk_size")
ROTARY = (*BASES, *LOCAL_BASES, *GLOBAL_BASES, *DICTIONARIES, *SHARES, *WIDTHS, LENGTH)
KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
ALIASES = {"su": "longrope", "mrope": "default"}  # mrope: positions in an image and in time; equal for text
SCALED_FROM_LENGTH = ("yarn", "llama3", "longrope")
LISTS = ("short_factor", "long_factor")  # a number for each pair of a head's entries
MAY_BE_ZERO = ("mscale", "mscale_all_dim")
# Fields of a dictionary that are not handed on: they change nothing, or are checked before.
NEUTRAL = ("type", "mrope_section", "mrope_interleaved", "finetuned", *SHARES)
# Warnings of transformers about numbers that it uses.
REMARKS = ("does not match", "Please set the `factor` field", "must be less than max_position_embeddings")


def positive(stored: Stored, given: Fields, name: str, usual: float, *, least: float = 0) -> float:
    """Return a number of the configuration above `least`, `usual` where it is absent; else raise ExecutorError."""
    value = given.get(name)
    if value is None:
        return usual
    number = isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
    if not number or not least < value < math.inf:
        raise ExecutorError(f"{stored.where}: {name} must be a positive number, found {value!r:.60}")
    return float(value)


def rotary(
    stored: Stored, given: Fields, base: Fields, *, layer_type: str, width: int, positions: int, context: int | None
) -> dict[str, Any]:
    """Return the dictionary of rotary positions that transformers takes.

    Args:
        stored: the checkpoint, for messages.
        given: the fields of the layer's configuration.
        base: the dictionary where `given` says nothing.
        layer_type: `full_attention` or `sliding_attention`.
        width: of a head.
        positions: `max_position_embeddings`.
        context: tokens of the longest text that the target takes; None: no limit.

    Raises:
        ExecutorError: names a field that is not supported or impossible, or two that contradict each other.
    """
    parts = {name: _dictionary(stored, given, name, layer_type) for name in DICTIONARIES}
    for part in (given, *parts.values()):
        shares = [name for name in SHARES if part.get(name) not in (None, 1)]
        if partly := shares + [name for name in WIDTHS if part.get(name) not in (None, 0, width)]:
            raise ExecutorError(
                f"{stored.where}: {partly[0]} {part[partly[0]]!r:.40}: a drafter that rotates only a part of its heads "
                f"(of {width}) is not supported"
            )
    rope: dict[str, Any] = {}
    for name, part in parts.items():
        for kind in ("rope_type", "type"):
            if part.get(kind):
                _add(stored, rope, {"rope_type": ALIASES.get(str(part[kind]), part[kind])}, f"{name}.{kind}")
        _add(stored, rope, {key: part[key] for key in part if key not in (*NEUTRAL, "rope_type")}, name)
    if "rope_theta" not in rope or not any(_by_type(given.get(name) or {}) for name in DICTIONARIES):
        own, plain = (
            [name for name in names if given.get(name) is not None]
            for names in (LOCAL_BASES if layer_type == SLIDING else GLOBAL_BASES, BASES)
        )
        for name in own or plain:
            _add(stored, rope, {"rope_theta": given[name]}, name)
    if not rope:
        return dict(base)
    kind = rope.setdefault("rope_type", "default")
    if kind not in KINDS:
        raise ExecutorError(f"{stored.where}: rope_type {kind!r:.40} is not one of {', '.join(KINDS)}")
    rope.setdefault("rope_theta", float(base["rope_theta"]))
    if kind in SCALED_FROM_LENGTH:
        _add(stored, rope, {LENGTH: given[LENGTH]} if given.get(LENGTH) is not None else {}, LENGTH)
        if LENGTH not in rope:
            rope[LENGTH] = positions
            stored.assume(f"{LENGTH} is missing: max_position_embeddings, {positions}, is taken, as in transformers")
    elif kind == "default":  # files copied from others have these
        rope = {key: value for key, value in rope.items() if key != LENGTH and (key, value) != ("factor", 1)}
    for name, value in rope.items():  # transformers does not check that all are finite and positive
        for entry in value if name in LISTS and isinstance(value, list) else [value]:
            if name not in ("rope_type", "truncate"):
                positive(stored, {name: entry}, name, 1, least=-1e-300 if name in MAY_BE_ZERO else 0)
    _check_length(stored, rope, positions, context)
    rope["rope_theta"] = float(rope["rope_theta"])
    return rope


def _add(stored: Stored, rope: dict[str, Any], more: Fields, place: str) -> None:
    """Add the fields that stand in `place`; refuse another value of one that is there."""
    for key, value in more.items():
        if rope.setdefault(key, value) is not value and rope[key] != value:
            raise ExecutorError(
                f"{stored.where}: {place} says {key} {value!r:.60}, elsewhere it is {rope[key]!r:.60}: remove one"
            )


@contextmanager
def warnings_refused() -> Iterator[None]:
    """Raise what transformers warns of in positions as ValueError."""
    logger = logging.getLogger("transformers.modeling_rope_utils")
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
    if wrong := [text for text in messages if not any(remark in text for remark in REMARKS)]:
        raise ValueError(wrong[0])


def _dictionary(stored: Stored, given: Fields, name: str, layer_type: str) -> dict[str, Any]:
    """Return one of the dictionaries for this type of layer, {} without one."""
    held = given.get(name) or {}
    if not isinstance(held, dict):
        raise ExecutorError(f"{stored.where}: {name} must be an object, found {held!r:.60}")
    by_type = _by_type(held)
    if by_type and not isinstance(by_type.get(layer_type), dict):
        raise ExecutorError(f"{stored.where}: {name} must have an object for {layer_type}, found {sorted(by_type)}")
    common = {key: value for key, value in held.items() if key not in by_type}
    return {key: value for key, value in (common | by_type.get(layer_type, {})).items() if value is not None}


def _by_type(held: Fields) -> dict[str, Any]:
    return {key: value for key, value in held.items() if key.endswith("_attention")}


def _check_length(stored: Stored, rope: Fields, positions: int, context: int | None) -> None:
    """Refuse positions that change with the length of the text: cached keys would have other ones."""
    if rope["rope_type"] == "dynamic" and (context is None or context > positions):
        raise ExecutorError(
            f"{stored.where}: dynamic rotary positions change when one sequence grows beyond max_position_embeddings, "
            f"{positions}, and the target takes longer texts; not supported"
        )
    lists = [rope.get(name) for name in LISTS]
    if rope["rope_type"] == "longrope" and None not in lists and lists[0] != lists[1] and positions > rope[LENGTH]:
        raise ExecutorError(
            f"{stored.where}: longrope with a short_factor that differs from long_factor changes all positions when "
            "one sequence grows long; not supported"
        )


# --- windows


def layer_type(stored: Stored, given: Fields, number: int) -> str:
    """Return the type of layer `number`.

    Raises:
        ExecutorError: it is neither full nor sliding attention, or the configuration does not say which.
    """
    types = given.get("layer_types")
    if types is None:
        if given.get("use_sliding_window") is True and given.get("sliding_window") is not None:
            raise ExecutorError(
                f"{stored.where}: use_sliding_window is true, but no layer_types says which layers of the drafter "
                f"slide: add layer_types, such as [{SLIDING!r}]"
            )
        return FULL
    if not isinstance(types, list) or number >= len(types):
        raise ExecutorError(f"{stored.where}: layer_types must have an entry for layer {number}, found {types!r:.60}")
    if types[number] not in (FULL, SLIDING):
        raise ExecutorError(
            f"{stored.where}: layer_types[{number}] must be {FULL} or {SLIDING}, found {types[number]!r:.40}"
        )
    return str(types[number])


def window_of(stored: Stored, given: Fields, number: int) -> int | None:
    """Return the positions that a query of layer `number` sees, its own included; None for all.

    Raises:
        ExecutorError: a sliding layer without a window; see also `layer_type`.
    """
    width, chunk = given.get("sliding_window"), given.get("attention_chunk_size")
    if chunk is not None:
        stored.assume(f"attention_chunk_size {chunk!r:.40} is not applied: no drafter's class in vLLM or SGLang does")
    if layer_type(stored, given, number) == FULL:
        if width is not None and given.get("layer_types") is None and given.get("use_sliding_window") is None:
            stored.assume(
                f"sliding_window {width} without layer_types is not applied, as in vLLM; write layer_types "
                f"[{SLIDING!r}] for a drafter that was trained with it"
            )
        return None
    if width is None or given.get("use_sliding_window") is False:
        raise ExecutorError(
            f"{stored.where}: layer_types[{number}] is {SLIDING}, but sliding_window is {width!r} and "
            f"use_sliding_window {given.get('use_sliding_window')!r}: give the window, or write {FULL}"
        )
    window = positive(stored, given, "sliding_window", 0)
    if window != int(window):
        raise ExecutorError(f"{stored.where}: sliding_window must be a whole number, found {width!r}")
    return int(window)
