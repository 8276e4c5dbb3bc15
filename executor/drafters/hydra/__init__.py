"""Hydra and Hydra++ heads (Ankner et al. 2024, arXiv 2402.05109): each also reads the tokens drafted before it.

* `drafter`: the heads, and the decoder layer that Hydra++ puts before them.
* `checkpoint`: their files.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor.drafters.base.recipe import Recipe
from simulate.drafter_kinds import DrafterKind, DrafterShape, Files, Sizes, Training, decoder, heads_of
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.hf_config import positive
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError

_DEFAULTS = {"hydra_num_heads": 4, "hydra_num_layers": 1}  # fields that a configuration may omit
_NAMES = re.compile(r"hydra_mlp\.|hydra_lm_head\.|prefix_embeding_layer\.")


def hydra_shape(target: Shape, *, heads: int = 4, layers: int = 1, prefix: bool = False) -> DrafterShape:
    """Return Hydra heads, each of which reads the last feature and the tokens up to its own side by side.

    Args:
        target: the target, which sets the sizes of the heads.
        heads: heads that differ; deeper levels count as the last one.
        layers: layers of a head, the first of which is two products.
        prefix: Hydra++: a decoder layer like the target's reads the features first.

    Raises:
        CostError: `prefix` with a target that has experts.

    >>> target = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> [hydra_shape(target).at(depth).weights for depth in (0, 1, 9)]
    [512, 640, 896]
    """
    width, opening = target.hidden, None
    levels = [
        Forward((), (target.vocab, width), whole=((2, width, (2 + i) * width), (layers - 1, width, width)))
        for i in range(heads)
    ]
    if prefix:
        if target.experts is not None:
            raise CostError("hydra_head_arch: a prefix layer with experts cannot be priced")
        matrices = tuple((1, *matrix) for matrix in target.layer_matrices.values())
        opening = replace(decoder(target, matrices, target.vocab, 1), head=None)
    return DrafterShape(levels[0], opening=opening, deeper=tuple(levels[1:]))


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the heads of a Hydra configuration; of a target's, four heads of one layer without a prefix layer."""
    stated = {name: config[name] for name in _DEFAULTS if name in config}
    if not stated and "hydra_head_arch" not in config:
        return hydra_shape(Shape.from_config(config))
    heads, layers = (positive(name, stated.get(name, default)) for name, default in _DEFAULTS.items())
    arch = config.get("hydra_head_arch", "mlp")
    if arch not in ("mlp", "prefix-mlp"):
        raise CostError(f"hydra_head_arch must be mlp or prefix-mlp, got {arch!r:.40}")
    if config.get("grounded_heads") is False:  # they read no drafted token
        if arch != "mlp":
            raise CostError(
                "grounded_heads must be true with a prefix layer: ungrounded heads cannot be priced with one"
            )
        width = heads_of(target).hidden
        forward = Forward((), (heads_of(target).vocab, width), whole=((layers, width, width),))
        return DrafterShape(forward, parallel=True, longest=heads)
    return replace(
        hydra_shape(heads_of(target), heads=heads, layers=layers, prefix=arch == "prefix-mlp"), longest=heads
    )


def assumed(config: Mapping[str, Any] | None, target: Shape, drafter: DrafterShape) -> Sequence[str]:
    """See `Sizes.assumed`."""
    if config is not None and any(name.startswith("hydra_") for name in config):
        return ()
    return (
        "hydra is priced as four heads of one layer and no prefix layer; give Hydra's config as --drafter to price "
        "other heads",
    )


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`."""
    return any(map(_NAMES.match, names))


# One epoch at a peak of 1e-3; depths weigh the same.
HYDRA = Recipe("hydra", "hydra", depths=4, hard_ce_weight=1.0, learning_rate=1e-3, warmup=100)

# Prefix attention, deeper heads, the target's distribution as teacher, ten epochs; figures of the project's own
# command (the paper says 1e-3).
HYDRA_PLUS = replace(
    HYDRA,
    name="hydra++",
    hard_ce_weight=0.0,
    soft_ce_weight=1.0,
    learning_rate=5e-4,
    floor=0.33,
    weight_decay=0.1,
    layers=4,
    prefix=True,
    dropout=0.2,
)

ENTRY = DrafterKind(
    "hydra",
    "Hydra heads",
    words=("hydra",),
    fields=("hydra_num_heads", "hydra_head_arch"),
    sizes=Sizes(stated_shape, any_vocabulary=True, assumed=assumed),
    files=Files(
        recognise,
        read=f"{__name__}.checkpoint:read_hydra",
        write=f"{__name__}.checkpoint:hydra_content",
        layouts=("hydra",),
        needs=("hydra_mlp.0.0.linear.weight",),
        names=("hydra_lm_head.safetensors", "hydra_lm_head.pt"),
        known_as="the project's",
    ),
    training=Training(
        (HYDRA, HYDRA_PLUS),
        f"{__name__}.drafter:untrained",
        fields=("layers", "prefix", "grounded", "dropout"),
        resumed=f"{__name__}.drafter:resumed",
    ),
)
