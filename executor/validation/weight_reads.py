"""Weights read by a plain step of the target and by one forward of the drafter, from shapes (CORAL, Table 1)."""

from executor.drafters.base.drafter import Drafter
from executor.target.quantization import quantization_of
from executor.target.target_model import Target
from simulate.model_sizes.drafter_kinds import known_kind
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError
from treeopt.registry import load


def weights_read(target: Target, drafter: Drafter) -> tuple[int, int] | None:
    """Return the weights that the drafter and the target read; LM heads are counted, embeddings are not.

    Return None for models that `hf_config` does not cover, for quantised ones, and for drafters whose kind does not
    tell them.
    """
    kind = known_kind(drafter.kind)
    if kind is None or not kind.reads or quantization_of(target.model) is not None:
        return None
    try:
        shape = Shape.from_config(target.model.config.to_dict())
        weights: int | None = load(kind.reads)(drafter, shape)
    except CostError:
        return None
    return None if weights is None else (weights, shape.step_parameters)
