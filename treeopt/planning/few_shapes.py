"""Few tree shapes for many batch sizes: the best ones to keep, and where a running engine changes between them.

Every shape that an engine runs costs memory (a CUDA graph for each batch size it is captured for), so fewer shapes
than batch sizes may be wanted. Plain decoding needs none.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.plans.plan import Switch

NONE = -1
UNITS = 10**9  # CP-SAT counts in whole numbers: shares of a batch size's best rate in billionths


def assign(rates: NDArray[np.float64], plain: NDArray[np.float64], *, shapes: int) -> tuple[int, ...]:
    """Return the shape of each batch size, at most `shapes` different ones; proved best.

    The objective is the mean over batch sizes of the rate as a share of the best rate of that size.

    Args:
        rates: float64 (batch sizes, S), tokens per second of each shape; 0 where it cannot be used.
        plain: float64 (batch sizes,), tokens per second without speculation.
        shapes: largest number of shapes to keep.

    Returns:
        index of the shape for each batch size, NONE where plain decoding is better than all shapes that are kept.

    >>> assign(np.array([[3.0, 2.5], [1.0, 2.0]]), np.array([1.0, 1.5]), shapes=1)
    (1, 1)
    """
    if shapes < 1:
        raise UsageError(f"shapes must be at least 1, got {shapes}")
    from ortools.sat.python import cp_model

    value = np.column_stack([rates, plain])
    share = np.rint(value / value.max(axis=1, keepdims=True) * UNITS).astype(np.int64)
    useful = np.flatnonzero((rates > plain[:, None]).any(axis=0))
    model = cp_model.CpModel()
    kept = {j: model.new_bool_var(f"keep {j}") for j in useful.tolist()}
    used = {}
    for i in range(len(rates)):
        for j in (*(j for j in kept if rates[i, j] > plain[i]), NONE):
            used[i, j] = model.new_bool_var(f"{i} uses {j}")
            if j != NONE:
                model.add_implication(used[i, j], kept[j])
        model.add_exactly_one(used[k] for k in used if k[0] == i)
    model.add(sum(kept.values()) <= shapes)
    model.maximize(sum(int(share[i, j]) * var for (i, j), var in used.items()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return tuple(next(j for (i, j), var in used.items() if i == row and solver.value(var)) for row in range(len(rates)))


def switches(
    batches: Sequence[int], chosen: Sequence[int], rates: NDArray[np.float64], *, margin: float
) -> tuple[Switch, ...]:
    """Return where to change between the configurations of neighbouring batch sizes, with a dead band against flutter.

    Args:
        batches: planned batch sizes, rising.
        chosen: configuration of each, an index into the columns of `rates`.
        rates: float64 (batch sizes, configurations), tokens per second of each, plain decoding among them.
        margin: share by which a configuration must be better before it is changed to.

    >>> rates = np.array([[3.0, 2.0], [2.01, 2.0], [1.0, 1.2]])
    >>> switches([1, 2, 4], [0, 0, 1], rates, margin=0.01)
    (Switch(small=2, large=4, up=4, down=1),)
    """
    points = []
    for i in range(len(batches) - 1):
        if chosen[i] == chosen[i + 1]:
            continue
        gain = rates[:, chosen[i + 1]] / rates[:, chosen[i]] - 1
        up = next((j for j in range(i + 1, len(batches)) if gain[j] > margin), i + 1)
        down = next((j for j in range(i, -1, -1) if gain[j] < -margin), i)
        points.append(Switch(small=batches[i], large=batches[i + 1], up=batches[up], down=batches[down]))
    return tuple(points)
