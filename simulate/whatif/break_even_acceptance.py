"""Break-even: the acceptance of each drafted token from which a chain is faster than plain decoding."""

import numpy as np
from numpy.typing import NDArray

from simulate.closed_forms.paper_formulas import expected_tau
from treeopt.cost_model import CostModel, StepShape
from treeopt.errors import CostError
from treeopt.tree import Tree

Floats = NDArray[np.float64]


def break_even(cost: CostModel, *, batch: int, depth: int, context: int | None = None) -> float | None:
    """Return the minimum acceptance of each drafted token, independent of the others, at which a chain pays.

    A chain of k, up to `depth`, pays if tau(alpha, k) = (1 - alpha**(k + 1)) / (1 - alpha) exceeds its step over a
    plain step. The step commits as many tokens; its time is interpolated linearly from a step that accepts none to one
    that accepts all. Found to 1e-9 by bisection, since tau grows with alpha. None: no chain pays even at 1.

    Raises:
        CostError: the cost model covers no chain.
    """
    gamma, none_s, all_s = _chain_steps(cost, batch=batch, depth=depth, context=context)
    low, high = np.zeros(len(gamma)), np.where(none_s <= 1, 0.0, 1.0)
    for _ in range(30):
        middle = (low + high) / 2
        tau = np.asarray(expected_tau(alpha=middle, gamma=gamma))
        pays = tau >= none_s + (all_s - none_s) * (tau - 1) / gamma
        low, high = np.where(pays, low, middle), np.where(pays, middle, high)
    possible = gamma + 1 >= all_s
    return float(high[possible].min()) if possible.any() else None


def _chain_steps(
    cost: CostModel, *, batch: int, depth: int, context: int | None
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return chain lengths from 1, and their steps over a plain step if none and if all drafted tokens are accepted.

    Ends at the first chain that the cost model does not cover.
    """
    lengths: list[int] = []
    ratios: list[Floats] = []
    plain_s = cost.plain_s(batch=batch, context=context)
    for k in range(1, depth + 1):
        shapes = [StepShape.of(Tree.chain(k), batch=batch, context=context, committed=c) for c in (1, k + 1)]
        try:
            step_s = cost.step_s(shapes)
        except CostError:
            if not lengths:
                raise
            break
        lengths.append(k)
        ratios.append(step_s / plain_s)
    none_s, all_s = np.array(ratios).T
    return np.array(lengths), none_s, all_s
