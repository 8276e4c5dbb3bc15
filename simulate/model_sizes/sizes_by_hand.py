"""The sizes of a model that its user states, for a config.json that is not understood."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulate.model_sizes.hf_config import FIELDS, parsed, positive, text_part
from simulate.model_sizes.layer_groups import LayerAttention, LayerGroup, LayerMatrix
from simulate.model_sizes.mixture_of_experts import Experts
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError

KEYS = {"params": "", "active": "", "kv_bytes": "", "layers": FIELDS[2], "hidden": FIELDS[0], "vocab": FIELDS[5]}
SPREAD = "spread"  # stated with them: lambda of `Experts.touched`
PICKED = 8  # experts that a token is assumed to pick


def llama_of(shape: Shape) -> Mapping[str, Any]:
    """Return the config.json of a Llama as wide as a model, for drafters that take their sizes from their target."""
    sizes = (shape.hidden, 4 * shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.vocab)
    return {"model_type": "llama", "head_dim": shape.head_dim, **dict(zip(FIELDS, sizes, strict=True))}


def shape_by_hand(config: Mapping[str, Any] | Path | str, sizes: Mapping[str, float]) -> Shape:
    """Return a model of so many weights, those that a token needs, and K/V bytes of a token in bf16.

    Layers, hidden size and vocabulary are the config.json's where they are not stated. Where a token needs fewer
    weights than there are, all but the LM head and the embedding count as experts.

    Args:
        config: the parsed file, its path, or the path of its folder.
        sizes: by the names of `KEYS`.

    Raises:
        CostError: names the size that is wrong or missing.

    >>> sizes = {"params": 9e9, "active": 2e9, "kv_bytes": 65536, "layers": 32, "hidden": 4096, "vocab": 32000}
    >>> round(shape_by_hand({}, sizes).parameters / 1e9, 1), shape_by_hand({}, sizes).kv_bytes
    (8.9, 65536)
    """
    text = parsed(config, lambda content: dict(text_part(content)))
    values: dict[str, Any] = {key: sizes.get(key, text.get(field)) for key, field in KEYS.items()}
    values["active"] = values["active"] or values["params"]
    if missing := [key for key, value in values.items() if not value]:
        raise CostError(f"--sizes needs {missing[0]}, such as --sizes params=117e9,active=5.1e9,kv_bytes=73728")
    whole = {key: int(size) for key, size in values.items() if isinstance(size, float) and size.is_integer()}
    layers, hidden, vocab = (positive(key, (values | whole)[key]) for key in ("layers", "hidden", "vocab"))
    active = (values["active"] - vocab * hidden) / layers
    total = (values["params"] - 2 * vocab * hidden) / layers
    if not 0 < active <= total + vocab * hidden / layers:  # the LM head may be the embedding
        raise CostError("--sizes: active must be at most params, and more than the LM head's vocab x hidden")
    heads = max(1, hidden // 128)
    attention = LayerAttention(heads, 1, 128, 128, max(1, round(values["kv_bytes"] / 2 / layers)))
    if total <= active:
        group = LayerGroup(layers, (LayerMatrix(max(1, round(active / hidden)), hidden),), attention=attention)
        return Shape(layers, hidden, 4 * hidden, heads, heads, 128, vocab, groups=(group,))
    experts = Experts(max(PICKED, round(PICKED * total / active)), PICKED)
    expert = LayerMatrix(max(1, round(active / PICKED / hidden)), hidden)
    group = LayerGroup(layers, (), attention=attention, experts=experts, expert_matrices=(expert,))
    note = f"sizes by hand: a token picks {PICKED} of {experts.count} experts, which hold all weights of a layer"
    shape = (layers, hidden, max(1, expert.outputs // 3), heads, heads, 128, vocab)
    return Shape(*shape, experts=experts, groups=(group,), notes=(note,))
