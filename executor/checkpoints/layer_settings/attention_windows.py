"""Which layers of a drafter attend to a window, by `layer_types` and `sliding_window` of config.json.

Layers are counted from the drafter's own first one, as vLLM counts them: entries for other layers, which a
configuration copied from a target has, are not read.
"""

from collections.abc import Mapping
from typing import Any

from executor.checkpoints.layer_settings.rotary_numbers import positive
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.target.positions.field_names import FULL, SLIDING
from treeopt.errors import ExecutorError

NAMES = ("layer_types", "sliding_window", "use_sliding_window", "attention_chunk_size")


def layer_type(stored: Stored, given: Mapping[str, Any], number: int) -> str:
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


def window_of(stored: Stored, given: Mapping[str, Any], number: int) -> int | None:
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
