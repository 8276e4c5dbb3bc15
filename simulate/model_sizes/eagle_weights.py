"""Weights that one forward of an EAGLE drafter reads, alone and relative to its target. Source: CORAL, Table 1."""

from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError


def eagle_parameters(target: Shape, *, fc_bias: bool = False) -> int:
    """Return the weights that one forward of an EAGLE, EAGLE-2, HASS or CORAL drafter for `target` reads.

    `fc` (2 x hidden to hidden; some checkpoints have a bias), one decoder layer of the target's shape without
    its first norm, the target's LM head. Source: CORAL (Weng et al. 2025), Table 1, W_d.

    Raises:
        CostError: the target has experts.

    >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> eagle_parameters(shape)
    968
    """
    if target.experts is not None:
        raise CostError("an EAGLE drafter of a target with experts has a layer of its own shape")
    fc = 2 * target.hidden**2 + fc_bias * target.hidden
    return fc + target.layer_parameters - target.hidden + target.vocab * target.hidden


def eagle_weight_ratio(target: Shape, *, fc_bias: bool = False) -> float:
    """Return W_d / W_t: `eagle_parameters` over the weights that a step of the target reads.

    Source: CORAL (Weng et al. 2025), Table 1; by its Eq. 5 this is the ratio of the two latencies.

    >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> round(eagle_weight_ratio(shape), 3)
    0.669
    """
    return eagle_parameters(target, fc_bias=fc_bias) / target.step_parameters
