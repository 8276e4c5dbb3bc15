"""The rotary positions of a drafter's layer: every field of every spelling is used, or refused by its name.

`rope_theta` and `rope_scaling` may stand beside or inside `rope_parameters`, which may have an entry for each type of
layer. Fields that are absent have Llama's values, see `layer_config`.
"""

from collections.abc import Mapping
from typing import Any

from executor.checkpoints.layer_settings.rotary_numbers import TRAINED_LENGTH, check_numbers, positive
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.target.positions.field_names import (
    BASES,
    DICTIONARIES,
    GLOBAL_BASES,
    LOCAL_BASES,
    SHARES,
    SLIDING,
    WIDTHS,
)
from treeopt.errors import ExecutorError

Fields = Mapping[str, Any]

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
    stored: Stored, given: Fields, base: Fields, *, layer_type: str, width: int, positions: int, context: int | None
) -> dict[str, Any]:
    """Return the dictionary of rotary positions as transformers 5 has it.

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
    held = {name: _dictionary(stored, given, name, layer_type) for name in DICTIONARIES}
    _check_supported(stored, given, [part for part in held.values() if part is not None], width)
    theta = _base(stored, given, layer_type)
    dictionaries = {name: _read(stored, name, part) for name, part in held.items() if part is not None}
    if not dictionaries and theta is None:
        return dict(base)
    rope, within = _merged(stored, dictionaries)
    if theta is not None:
        for name, part in dictionaries.items():
            _check_base(stored, given, part, theta, name)
        rope.setdefault("rope_theta", theta[1])
    rope.setdefault("rope_type", "default")
    rope["rope_theta"] = positive(stored, rope, "rope_theta", float(base["rope_theta"]), within=within)
    if TRAINED_LENGTH in USED[rope["rope_type"]]:
        _set_trained_length(stored, given, rope, within, positions)
    check_numbers(stored, rope, within=within, width=width)
    _check_length(stored, rope, positions, context)
    return rope


def check_beside(
    stored: Stored, outer: Fields, place: str, given: Fields, base: Fields, rope: Fields, **sizes: Any
) -> None:
    """Refuse positions that stand beside the layer's configuration, where engines do not read them, and mean others.

    Args:
        stored: the checkpoint, for messages.
        outer: the fields that stand beside it.
        place: where that is.
        given: the fields of the layer's configuration.
        base: see `rotary`.
        rope: what `rotary` returned for `given`.
        sizes: see `rotary`.

    Raises:
        ExecutorError: names the field and both values.
    """
    beside = {name: outer[name] for name in NAMES if outer.get(name) is not None}
    others = [name for name in beside if beside[name] != given.get(name)]
    if others and rotary(stored, {**given, **beside}, base, **sizes) != rope:
        name = others[0]
        raise ExecutorError(
            f"{stored.where}: {name} stands {place}, {beside[name]!r:.60}, and in the layer's configuration it is "
            f"{given.get(name)!r:.60}: write it into the layer's"
        )


def _check_supported(stored: Stored, given: Fields, dictionaries: list[dict[str, Any]], width: int) -> None:
    """Refuse kinds of positions that a drafter's layer here does not have.

    Of a share of a head, engines rotate that share alone, SpecForge's training the whole head.
    """
    for part in (given, *dictionaries):
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
    by_type = _by_type(held)
    if not by_type:
        return {key: value for key, value in held.items() if value is not None}
    if not isinstance(by_type.get(layer_type), dict):
        raise ExecutorError(f"{stored.where}: {name} must have an object for {layer_type}, found {sorted(by_type)}")
    common = {key: value for key, value in held.items() if key not in by_type}
    return {key: value for key, value in (common | by_type[layer_type]).items() if value is not None}


def _by_type(held: Fields) -> dict[str, Any]:
    return {key: value for key, value in held.items() if key.endswith("_attention")}


def _read(stored: Stored, name: str, held: Fields) -> dict[str, Any]:
    """Return the fields of a dictionary that its kind uses, under their present names; refuse others."""
    kind = _kind(stored, name, held)
    _check_dictionary(stored, held, kind or "default")
    said = {} if kind is None else {"rope_type": kind}
    return said | {key: value for key, value in held.items() if key in {"rope_theta", *USED[kind or "default"]}}


def _kind(stored: Stored, name: str, held: Fields) -> str | None:
    """Return the kind of positions, None where the dictionary does not say it."""
    said = {key: str(held[key]) for key in ("rope_type", "type") if held.get(key)}
    kinds = {_ALIASES.get(kind, kind) for kind in said.values()}
    if len(kinds) > 1:
        raise ExecutorError(
            f"{stored.where}: {name} has rope_type {said['rope_type']!r} and type {said['type']!r}, which contradict "
            "each other: remove one"
        )
    return next(iter(kinds), None)


def _base(stored: Stored, given: Fields, layer_type: str) -> tuple[str, float] | None:
    """Return the base that stands outside the dictionaries, and its field; None without one."""
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
    return (names[0], values.pop()) if values else None


def _check_base(stored: Stored, given: Fields, rope: Fields, outside: tuple[str, float], within: str) -> None:
    """Refuse a base in a dictionary that differs from the one outside, unless that is another type of layer's."""
    name, theta = outside
    inner = positive(stored, rope, "rope_theta", theta, within=within)
    parts = [part for held in DICTIONARIES for part in _by_type(given.get(held) or {}).values()]
    if inner != theta and not any(isinstance(part, dict) and part.get("rope_theta") == theta for part in parts):
        raise ExecutorError(
            f"{stored.where}: {name} is {theta:g} and {within}.rope_theta {inner:g}, which contradict each other: "
            "remove one"
        )


def _merged(stored: Stored, dictionaries: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Return one dictionary and the field that it is; where both are given, they must say the same."""
    if len(dictionaries) < 2:
        return next(((dict(rope), name) for name, rope in dictionaries.items()), ({}, ""))
    rope, scaling = (dictionaries[name] for name in DICTIONARIES)
    whole = all(part.keys() - {"rope_theta"} for part in (rope, scaling))
    one, other = ({"rope_type": "default", **part, "rope_theta": None} for part in (rope, scaling))
    bases = [part["rope_theta"] for part in (rope, scaling) if "rope_theta" in part]
    if bases[1:] != bases[:1] * len(bases[1:]) or (whole and one != other):
        raise ExecutorError(
            f"{stored.where}: rope_parameters {rope} and rope_scaling {scaling} contradict each other: remove one"
        )
    return scaling | rope, "rope_parameters" if whole or rope.keys() - {"rope_theta"} else "rope_scaling"


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


def _set_trained_length(stored: Stored, given: Fields, rope: dict[str, Any], within: str, positions: int) -> None:
    """Fill in the length before scaling where it stands beside the dictionaries, as in Phi-3's files, or nowhere."""
    outside = given.get(TRAINED_LENGTH)
    if outside is not None and rope.setdefault(TRAINED_LENGTH, outside) != outside:
        raise ExecutorError(
            f"{stored.where}: {TRAINED_LENGTH} is {outside} and, in the rotary positions, {rope[TRAINED_LENGTH]}"
        )
    if TRAINED_LENGTH not in rope:
        rope[TRAINED_LENGTH] = positions
        stored.assume(
            f"{within}.{TRAINED_LENGTH} is missing: max_position_embeddings, {positions}, is taken, as in transformers"
        )


def _check_length(stored: Stored, rope: Fields, positions: int, context: int | None) -> None:
    """Refuse positions that change with the length of the text: cached keys would have other ones."""
    kind = rope["rope_type"]
    if kind == "dynamic" and (context is None or context > positions):
        raise ExecutorError(
            f"{stored.where}: dynamic rotary positions change when one sequence grows beyond max_position_embeddings, "
            f"{positions}, and the target takes longer texts; not supported"
        )
    if kind == "longrope" and rope["short_factor"] != rope["long_factor"] and positions > rope[TRAINED_LENGTH]:
        raise ExecutorError(
            f"{stored.where}: longrope with a short_factor that differs from long_factor changes all positions when "
            "one sequence grows long; not supported"
        )
