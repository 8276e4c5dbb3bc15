"""The numbers of rotary positions: which ones each kind needs, and which values are possible.

transformers warns of impossible numbers and computes with them, or ends in an error that names no field.
"""

import math
from collections.abc import Mapping
from typing import Any

from executor.checkpoints.tensors.lazy_tensors import Stored
from treeopt.errors import ExecutorError

Fields = Mapping[str, Any]

TRAINED_LENGTH = "original_max_position_embeddings"
NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
_POSITIVE = ("factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor")
_NOT_NEGATIVE = ("mscale", "mscale_all_dim")
_LISTS = ("short_factor", "long_factor")  # a number for each pair of a head's entries
_ORDERED = (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast"))


def positive(stored: Stored, given: Fields, name: str, usual: float, *, within: str = "") -> float:
    """Return a positive number of the configuration, or `usual` where it is absent; `within` is the part it stands in.

    Raises:
        ExecutorError: it is none.
    """
    value = given.get(name)
    if value is None:
        return usual
    if not _is_number(value) or not 0 < value < math.inf:
        raise ExecutorError(f"{stored.where}: {_field(within, name)} must be a positive number, found {value!r:.60}")
    return float(value)


def check_numbers(stored: Stored, rope: Fields, *, within: str, width: int) -> None:
    """Check the numbers of a dictionary of rotary positions, which has its `rope_type`.

    Args:
        stored: the checkpoint, for messages.
        rope: the dictionary.
        within: the field of config.json that it is.
        width: of a head.

    Raises:
        ExecutorError: names a field that is missing, or whose value is impossible.
    """
    kind = str(rope["rope_type"])
    for name in NEEDED.get(kind, ()):
        if rope.get(name) is None:
            raise ExecutorError(
                f"{stored.where}: {_field(within, name)} is missing, which positions of kind {kind} need"
            )
    for name in _POSITIVE:
        positive(stored, rope, name, 1, within=within)
    for name in _NOT_NEGATIVE:
        value = 0 if rope.get(name) is None else rope[name]
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ExecutorError(
                f"{stored.where}: {_field(within, name)} must be a number of 0 or more, found {value!r:.60}"
            )
    if not isinstance(rope.get("truncate", True), bool):
        raise ExecutorError(f"{stored.where}: {within}.truncate must be true or false, found {rope['truncate']!r:.60}")
    if positive(stored, rope, TRAINED_LENGTH, 2, within=within) <= 1:
        raise ExecutorError(f"{stored.where}: {TRAINED_LENGTH} must be more than 1, found {rope[TRAINED_LENGTH]!r}")
    for low, high in _ORDERED:
        if None not in (rope.get(low), rope.get(high)) and not rope[low] < rope[high]:
            raise ExecutorError(
                f"{stored.where}: {_field(within, low)} must be less than {high}, found {rope[low]} and {rope[high]}"
            )
    for name in _LISTS:
        _check_list(stored, rope, name, within=within, entries=width // 2)


def _check_list(stored: Stored, rope: Fields, name: str, *, within: str, entries: int) -> None:
    values = rope.get(name)
    if values is None:
        return
    what = f"{stored.where}: {_field(within, name)} must be a list of {entries} positive numbers"
    if not isinstance(values, list):
        raise ExecutorError(f"{what}, found {values!r:.60}")
    if len(values) != entries:
        raise ExecutorError(f"{what}, found {len(values)}")
    for place, value in enumerate(values):
        if not _is_number(value) or not 0 < value < math.inf:
            raise ExecutorError(f"{what}, found {value!r:.60} at {place}")


def _is_number(value: Any) -> bool:
    """Return True for what a float holds; NaN and the infinities too."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _field(within: str, name: str) -> str:
    return f"{within}.{name}" if within else name
