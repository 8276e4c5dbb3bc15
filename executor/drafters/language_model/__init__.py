"""A small language model as the drafter.

* `drafter`: its step, with a cache of its own.
"""

from collections.abc import Mapping
from typing import Any

from simulate.drafter_kinds import DrafterKind, DrafterShape, RandomWeights, Sizes
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the model that a configuration describes."""
    return DrafterShape(Forward.of(Shape.from_config(config)))


ENTRY = DrafterKind(
    "language-model",
    "a language model",
    sizes=Sizes(stated_shape, own_config=True, any_width=True),
    random=RandomWeights(
        "layers:N", f"{__name__}.drafter:random_layers", number="a language model of the target's layers", most=1024
    ),
    reads=f"{__name__}.drafter:weights_read",
)
