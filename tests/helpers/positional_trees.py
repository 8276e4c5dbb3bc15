"""The best trees under a positional table, as Medusa and Sequoia choose theirs."""

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.searchers.best_first import Children, Frontier, _grow


def from_table(table: NDArray[np.float64], *, nodes: int) -> Frontier:
    """Return the best trees under a positional table (Medusa, Sequoia): value of a path = Π table[d, rank at depth d].

    Args:
        table: float64 (depth, width), probability of each rank at each depth, whatever its parent.
        nodes: largest size wanted. Ranks may be skipped.
    """
    depth, width = table.shape
    if not ((table >= 0) & (table <= 1)).all():
        raise UsageError("table must hold probabilities in [0, 1]")
    value = np.ones(1)

    def expand(level: int, kept: NDArray[np.int64]) -> Children:
        nonlocal value
        value = (value[kept, None] * table[level]).ravel()
        return np.repeat(np.arange(len(kept)), width), np.tile(np.arange(width), len(kept)), value

    return _grow(expand, nodes=nodes, depth=depth, ranks=width)
