"""The seconds of a step of a tree along its walk, where the drafter does not always propose all of it."""

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import CostModel, StepShape
from treeopt.storage.provenance import look
from treeopt.tree import Tree

ALL_STEPS = "means_over_all_steps"  # true in the provenance of an engine that does not report what it drafts


def step_seconds(
    tree: Tree,
    cost: CostModel,
    *,
    batch: int,
    context: int | None = None,
    committed: float | None = None,
    drafted: NDArray[np.int64] | None = None,
) -> float:
    """Return the mean seconds of a step.

    A step in which nothing was proposed costs a plain step, and a shorter proposal what the tree cut to its levels
    costs. For one sequence the result is the mean over the steps of the walk, which is exact. For a larger batch the
    price is interpolated linearly at the mean number of levels proposed per sequence: an engine verifies as many tokens
    as its sequences have together. treeopt's own loop, which verifies as many levels as the longest proposal has, takes
    more.

    Args:
        tree: the tree.
        cost: seconds of whole steps.
        batch: sequences.
        context: tokens per sequence in the cache; None leaves it to the cost model.
        committed: mean tokens per sequence that a step commits; None leaves it to the cost model.
        drafted: `StepCounts.drafted_counts` of the walk; None: every step has the whole tree. A cost model whose
            times are means over steps with and without a draft (`ALL_STEPS` in its provenance) does not need it.

    Raises:
        CostError: the tree, or a part that is needed, lies outside what the model was calibrated for.
    """

    def price(levels: int) -> float:
        """Return the seconds of a step with this many levels of the tree."""
        if levels == 0:
            return cost.plain_s(batch=batch, context=context)
        part = tree if levels == tree.depth else upper_levels(tree, levels)
        most = None if committed is None else min(committed, levels + 1.0)
        return float(cost.step_s([StepShape.of(part, batch=batch, context=context, committed=most)])[0])

    if drafted is None or look(cost.meta, ALL_STEPS):
        return float(cost.step_s([StepShape.of(tree, batch=batch, context=context, committed=committed)])[0])
    share = drafted / drafted.sum()
    if batch == 1:
        return float(sum(share[levels] * price(levels) for levels in np.flatnonzero(drafted).tolist()))
    mean = float(share @ np.arange(len(share)))
    below = min(int(mean), tree.depth - 1)
    rest = mean - below
    return float((1 - rest) * price(below) + rest * price(below + 1))


def upper_levels(tree: Tree, levels: int) -> Tree:
    """Return the nodes of the first levels.

    >>> upper_levels(Tree.from_paths([(0, 1), (2,)]), 1).paths
    ((0,), (2,))
    """
    return Tree.from_paths(path for path in tree.paths if len(path) <= levels)


def plain_share(drafted: NDArray[np.int64] | None) -> float:
    """Return the share of a walk's steps in which nothing was proposed; 0 without a record of it.

    >>> plain_share(np.array([1, 0, 3]))
    0.25
    """
    return 0.0 if drafted is None else float(drafted[0] / drafted.sum())
