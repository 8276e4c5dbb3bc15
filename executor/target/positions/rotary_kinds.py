"""Kinds of rotary positions that a configuration names, and those that are not supported."""

from typing import Any

from transformers import PreTrainedModel


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
