"""Positions of a model: kinds of rotary positions, masks of windows, and windows that its code lacks."""

import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treeopt.errors import ExecutorError

FULL, SLIDING = "full_attention", "sliding_attention"
# Kinds of layers with a recurrent state, which a chain can go through but no tree.
BOTH = frozenset({"hybrid", "hybrid_sliding"})  # a state and attention in one layer
RECURRENT = frozenset({"linear_attention", "conv"}) | BOTH


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
    """Return whether the code of the model, or of its text part, makes masks of windows."""
    parts = (sys.modules[type(part).__module__] for part in (model, model.get_decoder()))
    return any(hasattr(part, "create_sliding_window_causal_mask") for part in parts)


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
