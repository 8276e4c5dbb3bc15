"""Weights read by a plain step of the target and by one forward of the drafter, from shapes (CORAL, Table 1)."""

from executor.drafters.base.drafter import Drafter
from executor.drafters.eagle.drafter import Eagle
from executor.drafters.language_model.drafter import LanguageModel
from executor.drafters.medusa.drafter import MedusaHeads
from executor.target.quantization import quantization_of
from executor.target.target_model import Target
from simulate.model_sizes.eagle_weights import eagle_parameters
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError


def weights_read(target: Target, drafter: Drafter) -> tuple[int, int] | None:
    """Return the weights that the drafter and the target read; LM heads are counted, embeddings are not.

    Return None for models that `hf_config` does not cover, for quantised ones, and for drafters other than language
    models, Medusa heads (one head per level) and EAGLE's layer without a router.
    """
    try:
        shape = Shape.from_config(target.model.config.to_dict())
        if quantization_of(target.model) is not None:
            return None
        if isinstance(drafter, LanguageModel):
            return Shape.from_config(drafter.target.model.config.to_dict()).step_parameters, shape.step_parameters
        if isinstance(drafter, Eagle) and not drafter.groups:
            return eagle_parameters(shape, fc_bias=drafter.fc.bias is not None), shape.step_parameters
    except CostError:
        return None
    if isinstance(drafter, MedusaHeads):
        head = (drafter.weight.numel() + drafter.bias.numel()) // drafter.max_depth
        return head + shape.vocab * shape.hidden, shape.step_parameters
    return None
