"""How much wider an interval clustered by request gets if it is clustered by group (domain), and whether it must be."""

import math

import numpy as np
from numpy.typing import NDArray

from treeopt.statistics.clustered_estimate import Counts, linearised, ratio

FEW_GROUPS = 5  # fewer do not show how far groups differ: `make coverage`
BY_CHANCE = 0.95  # share of groups that are alike whose spread passes for chance


def group_factor(numerator: Counts, denominator: Counts, group: NDArray[np.integer]) -> float | None:
    """Return the width of the interval of Σ numerator / Σ denominator clustered by group, over that by request.

    Groups are alike if the ratio of the two linearised variances, which is about χ² / degrees of freedom then, is no
    larger than chance explains.

    Args:
        numerator: counts by request, (R,).
        denominator: counts by request, (R,).
        group: int (R,), the group of each request.

    Returns:
        None if groups are alike or there is only one; infinity if there are fewer than `FEW_GROUPS`.

    Raises:
        TraceError: see `ratio`.

    >>> steps, tokens = np.full(40, 10), np.tile([20, 21], 20) + 10 * (np.arange(40) // 20)
    >>> group_factor(tokens, steps, np.arange(40) // 4) > 1.5, group_factor(tokens, steps, np.arange(40) % 10)
    (True, None)
    """
    from scipy.special import chdtri  # slow to import, needed only here

    labels, place = np.unique(group, return_inverse=True)
    if len(labels) < 2 or len(labels) == len(group):
        return None
    if len(labels) < FEW_GROUPS:
        return math.inf
    grouped = np.bincount(place, numerator), np.bincount(place, denominator)
    narrow, freedom = linearised(numerator, denominator), len(labels) - 1
    chance = math.sqrt(float(chdtri(freedom, 1 - BY_CHANCE)) / freedom)
    if not linearised(*grouped) > chance * narrow:
        return None
    by_group, by_request = ratio(*grouped), ratio(numerator, denominator)
    return max(1.0, (by_group.high - by_group.low) / (by_request.high - by_request.low))
