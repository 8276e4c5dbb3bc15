"""Positions of a model: kinds of rotary positions, masks of windows, and what config.json states and the code lacks."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treeopt.errors import ExecutorError

FULL, SLIDING = "full_attention", "sliding_attention"
# Names of the base; the second group holds for layers that attend to a window, the third for the others.
BASES = ("rope_theta", "rotary_emb_base", "rotary_base")
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
GLOBAL_BASES = ("global_rope_theta",)
DICTIONARIES = ("rope_parameters", "rope_scaling")
# Shares of a head that are rotated, and how many of its numbers are.
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_percentage", "rope_pct", "rope_percent")
WIDTHS = ("rotary_dim", "rotary_ndims")
ALL_BASES = (*BASES, *LOCAL_BASES, *GLOBAL_BASES)
Fields = dict[str, Any]


def rope_types(config: Any) -> set[str]:
    """Return the kinds of rotary embedding that the configuration names, per layer type or for all layers."""
    text = config.get_text_config()
    types = set()
    queue = [getattr(text, "rope_parameters", None), getattr(text, "rope_scaling", None)]
    while queue:
        settings = queue.pop()
        if isinstance(settings, dict):
            types |= {str(settings[key]) for key in ("rope_type", "type") if key in settings}
            queue.extend(settings.values())
    return types


def refused_positions(config: Any) -> str | None:
    """Return why positions of this configuration's kind are not supported; None if they are."""
    if "longrope" in rope_types(config):
        return "LongRoPE changes all positions when one sequence grows long; not supported"
    return None


def looks_at_positions(model: PreTrainedModel) -> bool:
    """Return whether a forward reads the longest sequence's length from the device, which no CUDA graph can."""
    return "dynamic" in rope_types(model.config)


def makes_windows(model: PreTrainedModel) -> bool:
    """Return whether the model's code makes masks of windows."""
    return hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")


def windows(model: PreTrainedModel) -> dict[str, int | None]:
    """Return the masks that a forward needs: kind of layer -> positions that a token sees, itself included; None: all.

    A single entry named "" stands for models that take one mask for all layers; other models take one mask per kind,
    by its name. A family whose code makes no sliding mask sees the whole text, whatever its configuration says.

    Raises:
        ExecutorError: sliding layers without a window.
    """
    config = model.config
    text = config.get_text_config()
    if not makes_windows(model):
        return {"": None}
    width = getattr(text, "sliding_window", None)
    window = None if width is None else int(width)
    kinds = set(getattr(text, "layer_types", None) or ())
    if SLIDING in kinds:
        if window is None:
            raise ExecutorError(f"{config.model_type}: sliding layers, but no sliding_window in the configuration")
        return {FULL: None, SLIDING: window}
    if kinds or not getattr(text, "use_sliding_window", True):
        return {"": None}
    return {"": window}


def unused_window(path: Path | str, model: PreTrainedModel) -> tuple[str, ...]:
    """Return a warning of a window that the model's code does not have."""
    text: Any = model.config.get_text_config()
    width, length = getattr(text, "sliding_window", None), getattr(text, "max_position_embeddings", None)
    kinds = getattr(text, "layer_types", None)
    if makes_windows(model) or not isinstance(width, int) or not getattr(text, "use_sliding_window", True):
        return ()
    if (kinds and SLIDING not in kinds) or (isinstance(length, int) and width >= length):
        return ()
    return (f"{path}: sliding_window is {width} in config.json, but {type(model).__name__} has no windows: not used",)


def check_positions(path: Path | str, model: PreTrainedModel) -> tuple[str, ...]:
    """Refuse fields of positions in config.json that contradict the model; return warnings of windows without effect.

    Raises:
        ExecutorError: names the field, its value and what the model uses.
    """
    config: Any = model.config
    text = config.get_text_config()
    fields, _ = type(config).get_config_dict(path, local_files_only=True)
    fields = next(
        (part for key, part in fields.items() if text is not config and getattr(config, key, 0) is text), fields
    )
    buffers = [buffer for part in model.get_decoder().modules() for buffer in part.named_buffers(recurse=False)]
    widths = sorted({2 * tensor.numel() for name, tensor in buffers if name.endswith("inv_freq")})
    if widths:
        where, name = Path(path) / "config.json", type(model).__name__
        _check_dictionaries(where, name, fields)
        rotates = re.search(
            r"partial_rotary_factor|rotary_n?dims?\b", inspect.getsource(sys.modules[type(model).__module__])
        )
        for place, value in _numbers(fields, set(getattr(text, "layer_types", None) or ())):
            field, said = ".".join(place), f"{where}: {'.'.join(place)} is {value:g}"
            if reason := _disagreement(place[-1], value, text, widths):
                raise ExecutorError(f"{said}, but {name} {reason} and does not read {field}: remove or correct it")
            if place[-1] in SHARES and value != 1 and not rotates:
                raise ExecutorError(f"{said}, but {name} rotates whole heads: remove it, or name another model_type")
    return unused_window(path, model)


def _check_dictionaries(where: Path, name: str, text: Fields) -> None:
    """Refuse `rope_scaling` beside a `rope_parameters` that has another kind or another number."""
    both = [text.get(field) for field in DICTIONARIES]
    parts = [
        part | {"rope_type": part.get("rope_type", part.get("type"))}
        for part in both
        if isinstance(part, dict) and part
    ]
    if len(parts) == 2 and any(parts[0][key] != parts[1][key] for key in parts[0].keys() & parts[1].keys()):
        raise ExecutorError(
            f"{where}: rope_parameters {both[0]!r:.120} and rope_scaling {both[1]!r:.120} contradict each other in "
            f"{name}: remove one"
        )


def _disagreement(field: str, value: float, config: Any, widths: list[int]) -> str | None:
    """Return what a model uses in place of a field's value; None where they agree."""
    parts = _parts(getattr(config, "rope_parameters", None))
    if field in ALL_BASES:
        bases = sorted({float(part["rope_theta"]) for part in parts if "rope_theta" in part})
        return f"has base {', '.join(f'{base:g}' for base in bases)}" if bases and float(value) not in bases else None
    if field == "factor":
        kinds = {part.get("rope_type") for part in parts} - {None}
        return "has positions of rope_type default" if value != 1 and kinds == {"default"} else None
    try:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    except Exception:  # noqa: BLE001 - where heads differ between layers transformers raises a class of its own
        return None
    width = value if field in WIDTHS else int(head * value)
    agree = (field in WIDTHS and width == 0) or any(width in (size, size - 1) for size in widths)
    return None if agree else f"rotates {', '.join(map(str, widths))} of {head} numbers of a head"


def _numbers(text: Fields, kinds: set[str]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the fields of positions that are numbers: their places and values.

    Args:
        text: the fields of the text part.
        kinds: of the model's layers; dictionaries of other kinds are left out.
    """
    names = (*ALL_BASES, *SHARES, *WIDTHS)
    places: list[tuple[tuple[str, ...], Fields]] = [((), text)]
    for field in DICTIONARIES:
        held = text.get(field)
        if isinstance(held, dict):
            places.append(((field,), held))
            places += [((field, name), part) for name, part in held.items() if isinstance(part, dict) and name in kinds]
    for place, part in places:
        for name, value in part.items():
            known = name in names or (place and name == "factor")
            if known and isinstance(value, (int, float)) and not isinstance(value, bool):
                yield (*place, name), value


def _parts(rope: Any) -> list[Fields]:
    """Return a dictionary of positions, or those of each type of layer."""
    if not isinstance(rope, dict):
        return []
    return [rope, *(part for part in rope.values() if isinstance(part, dict))]
