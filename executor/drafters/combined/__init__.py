"""Two drafters in one: a lookup where it proposes something, else a model; `FIRST+PATH`, such as `suffix:8+DIR`.

* `drafter`: the choice, step by step.
"""

from collections.abc import Mapping
from typing import Any

from simulate.drafter_kinds import DrafterKind, DrafterShape, Sizes
from simulate.model_sizes.hf_config import OWN_SWEEP
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Raise CostError: how often the model is needed depends on the text."""
    raise CostError(f"a lookup before a model has no price: {OWN_SWEEP}")


ENTRY = DrafterKind("combined", "a lookup before a model", sizes=Sizes(stated_shape))
