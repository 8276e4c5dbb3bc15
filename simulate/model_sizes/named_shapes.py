"""Shapes of models by short names such as `8b`: sizes without weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHAPES = {  # hidden, intermediate, layers, heads, key heads, vocabulary
    "toy": (64, 128, 2, 4, 2, 512),
    "100m": (768, 2048, 14, 12, 4, 8192),
    "1b": (2048, 8192, 16, 32, 8, 128256),  # Llama 3.2 1B
    "8b": (4096, 14336, 32, 32, 8, 128256),  # Llama 3.1 8B
    "14b": (5120, 13824, 48, 40, 8, 152064),  # Qwen2.5 14B
    "70b": (8192, 28672, 80, 64, 8, 128256),  # Llama 3.1 70B
}
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def shape_name(source: Any) -> str | None:
    """Return the name of the shape that a path or text names, in lower case; None for what is none, or exists.

    >>> shape_name("8B"), shape_name(Path("70b")), shape_name("data/models/stdlib-llama")
    ('8b', '70b', None)
    """
    name = str(source).lower()
    return name if name in SHAPES and not Path(str(source)).exists() else None


def shape_fields(name: str) -> Mapping[str, Any]:
    """Return the fields of a shape's config.json, a Llama's.

    >>> shape_fields("8b")["num_hidden_layers"]
    32
    """
    return {"model_type": "llama", **dict(zip(FIELDS, SHAPES[name], strict=True))}
