"""The rotary positions of a drafter's layer: every field of every spelling is used, or refused by its name.

`rope_theta` and `rope_scaling` may stand beside or inside `rope_parameters`, which may have an entry for each type of
layer. Fields that are absent have Llama's values, see `layer_config`.
"""

import math
from collections.abc import Mapping
from typing import Any

from executor.checkpoints.tensors.lazy_tensors import Stored
from treeopt.errors import ExecutorError

Fields = Mapping[str, Any]

SLIDING = "sliding_attention"
# Names of the base; the second group holds for layers that attend to a window, the third for the others.
BASES = ("rope_theta", "rotary_emb_base", "rotary_base")
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
GLOBAL_BASES = ("global_rope_theta",)
DICTIONARIES = ("rope_parameters", "rope_scaling")
# Shares of a head that are rotated; engines rotate that share alone, SpecForge's training the whole head.
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_percentage", "rope_pct", "rope_percent")
WIDTHS = ("rotary_dim", "rotary_ndims")
TRAINED_LENGTH = "original_max_position_embeddings"
# Fields that must have one of these values, if they are there: others are kinds of positions that treeopt lacks.
ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("rope_interleaved", "rope_interleave", "rotary_interleaved", "use_interleaved_rope"), (False,)),
    **dict.fromkeys(("is_neox_style", "rope_is_neox_style", "use_rope", "use_rotary_embeddings"), (True,)),
    **dict.fromkeys(("position_embedding_type", "position_embeddings_type"), ("rope", "rotary", "absolute")),
    **dict.fromkeys(("alibi", "use_alibi"), (False,)),
    **dict.fromkeys(("no_rope_layer_interval", "nope_layer_interval", "nope_layers"), (0, False, [])),
    **dict.fromkeys(("rope_ratio", "rope_scaling_factor", "rope_factor"), (1,)),
}
LISTED = ("no_rope_layers",)  # 1 for each layer that rotates
NAMES = (*BASES, *LOCAL_BASES, *GLOBAL_BASES, *DICTIONARIES, *SHARES, *WIDTHS, TRAINED_LENGTH, *ONLY, *LISTED)

_ALIASES = {"su": "longrope", "mrope": "default"}  # mrope: positions in an image and in time; equal for text
_ANY = {"rope_type", "type", "rope_theta", "mrope_section", "mrope_interleaved", "finetuned", *SHARES}
_LONG = {"factor", "attention_factor", TRAINED_LENGTH}
USED: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {*_LONG, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", TRAINED_LENGTH},
    "longrope": {*_LONG, "short_factor", "long_factor"},
}
# Fields of a dictionary that change nothing with these values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"factor": (1,), "attn_factor": (1,), "extrapolation_factor": (1,)}


def rotary(
    stored: Stored, given: Fields, base: Fields, *, layer_type: str, width: int, positions: int
) -> dict[str, Any]:
    """Return the dictionary of rotary positions as transformers 5 has it.

    Args:
        stored: the checkpoint, for messages.
        given: the fields of the layer's configuration.
        base: the dictionary where `given` says nothing.
        layer_type: `full_attention` or `sliding_attention`.
        width: of a head.
        positions: `max_position_embeddings`.

    Raises:
        ExecutorError: names a field that is not supported, or two that contradict each other.
    """
    _check_supported(stored, given, width)
    scaling = _dictionary(stored, given, "rope_scaling", layer_type)
    rope = _dictionary(stored, given, "rope_parameters", layer_type)
    theta = _base(stored, given, layer_type)
    if rope is None and scaling is None and theta is None:
        return dict(base)
    rope = _merged(stored, rope, scaling)
    if theta is not None:
        rope.setdefault("rope_theta", theta)
    kind = rope.pop("type", None)
    kind = str(rope.get("rope_type") or kind or "default")
    rope["rope_type"] = kind = _ALIASES.get(kind, kind)
    _check_dictionary(stored, rope, kind)
    rope = {name: value for name, value in rope.items() if name in {"rope_type", "rope_theta", *USED[kind]}}
    rope["rope_theta"] = positive(stored, rope, "rope_theta", float(base["rope_theta"]))
    if TRAINED_LENGTH in USED[kind]:
        _set_trained_length(stored, given, rope)
    if kind == "longrope":
        _check_longrope(stored, rope, positions)
    return rope


def positive(stored: Stored, given: Fields, name: str, usual: float) -> float:
    """Return a positive number of the configuration, or `usual` where it is absent.

    Raises:
        ExecutorError: it is none.
    """
    value = given.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ExecutorError(f"{stored.where}: {name} must be a positive number, found {value!r}")
    return float(value)


def _check_supported(stored: Stored, given: Fields, width: int) -> None:
    """Refuse kinds of positions that a drafter's layer here does not have."""
    inner = [given[name] for name in DICTIONARIES if isinstance(given.get(name), dict)]
    inner += [part for rope in inner for part in rope.values() if isinstance(part, dict)]
    for part in (given, *inner):
        for name in SHARES:
            if part.get(name) not in (None, 1):
                raise ExecutorError(
                    f"{stored.where}: {name} {part[name]!r}: a drafter that rotates only a part of its heads is not "
                    "supported"
                )
        for name in WIDTHS:
            if part.get(name) not in (None, 0, width):
                raise ExecutorError(
                    f"{stored.where}: {name} {part[name]!r}: a drafter that rotates only a part of its heads (of "
                    f"{width}) is not supported"
                )
    for name, allowed in ONLY.items():
        if given.get(name) is not None and given[name] not in allowed:
            raise ExecutorError(f"{stored.where}: {name} {given[name]!r:.60} is not supported in a drafter")
    for name in LISTED:
        rotating = given.get(name)
        if rotating is not None and not (isinstance(rotating, list) and all(entry == 1 for entry in rotating)):
            raise ExecutorError(f"{stored.where}: {name}: a drafter's layer without positions is not supported")


def _dictionary(stored: Stored, given: Fields, name: str, layer_type: str) -> dict[str, Any] | None:
    """Return one of the dictionaries for this type of layer, None without one."""
    held = given.get(name)
    if held is None or held == {}:
        return None
    if not isinstance(held, dict):
        raise ExecutorError(f"{stored.where}: {name} must be an object, found {held!r:.60}")
    by_type = {key: value for key, value in held.items() if key.endswith("_attention")}
    if not by_type:
        return {key: value for key, value in held.items() if value is not None}
    if not isinstance(by_type.get(layer_type), dict):
        raise ExecutorError(f"{stored.where}: {name} must have an object for {layer_type}, found {sorted(by_type)}")
    common = {key: value for key, value in held.items() if key not in by_type}
    return {key: value for key, value in (common | by_type[layer_type]).items() if value is not None}


def _base(stored: Stored, given: Fields, layer_type: str) -> float | None:
    """Return the base that stands outside the dictionaries; None without one."""
    own = LOCAL_BASES if layer_type == SLIDING else GLOBAL_BASES
    names = next(
        (
            [n for n in group if given.get(n) is not None]
            for group in (own, BASES)
            if any(given.get(n) is not None for n in group)
        ),
        [],
    )
    values = {positive(stored, given, name, 0) for name in names}
    if len(values) > 1:
        raise ExecutorError(f"{stored.where}: {' and '.join(names)} differ")
    return values.pop() if values else None


def _merged(stored: Stored, rope: dict[str, Any] | None, scaling: dict[str, Any] | None) -> dict[str, Any]:
    """Return one dictionary; where both are given, they must say the same."""
    if rope is None or scaling is None:
        return dict(rope or scaling or {})
    if not set(rope) - {"rope_theta"}:
        return scaling | rope
    one, other = _compared(rope), _compared(scaling)
    if one != other and other != {"rope_type": "default"}:
        raise ExecutorError(
            f"{stored.where}: rope_parameters {one} and rope_scaling {other} contradict each other: remove one"
        )
    return rope


def _compared(rope: Fields) -> dict[str, Any]:
    """Return a dictionary without the base and with one name for its kind."""
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    others = {key: value for key, value in rope.items() if key not in ("type", "rope_type", "rope_theta")}
    return {"rope_type": _ALIASES.get(kind, kind)} | others


def _check_dictionary(stored: Stored, rope: Fields, kind: str) -> None:
    """Refuse an unknown kind, and fields that this kind does not use."""
    if kind not in USED:
        raise ExecutorError(
            f"{stored.where}: the decoder layer must be one of Llama's kind: rope_type {kind!r} is not one of "
            f"{', '.join(USED)}"
        )
    for name, value in rope.items():
        if name not in _ANY | USED[kind] and value not in _NEUTRAL.get(name, ()) and name != TRAINED_LENGTH:
            raise ExecutorError(f"{stored.where}: {name} is not supported in rotary positions of kind {kind}")


def _set_trained_length(stored: Stored, given: Fields, rope: dict[str, Any]) -> None:
    """Fill in the length before scaling where it stands beside the dictionaries, as in Phi-3's files."""
    outside = given.get(TRAINED_LENGTH)
    if outside is None:
        return
    if rope.setdefault(TRAINED_LENGTH, outside) != outside:
        raise ExecutorError(
            f"{stored.where}: {TRAINED_LENGTH} is {outside} and, in the rotary positions, {rope[TRAINED_LENGTH]}"
        )


def _check_longrope(stored: Stored, rope: Fields, positions: int) -> None:
    """Refuse factors that change with the length of the text: cached keys would have other positions."""
    trained = rope.get(TRAINED_LENGTH, positions)
    changes = rope.get("short_factor") != rope.get("long_factor")
    if changes and not (isinstance(trained, int | float) and positions <= trained):
        raise ExecutorError(
            f"{stored.where}: longrope with a short_factor that differs from long_factor changes all positions when "
            "one sequence grows long; not supported"
        )
