"""Server capacity: the highest arrival rate at which requests stay within their limits, by bisection."""

import math
from collections.abc import Callable, Mapping

from simulate.runs.service_levels import PILING
from treeopt.errors import UsageError

NEAR = 0.01  # relative precision of a rate
LEAST, MOST = 1e-6, 1e6  # range of rates that are tried, requests per second


def keeps_up(figures: Mapping[str, float], *, share: float) -> bool:
    """Return whether at least `share` of a day's requests are within the limits and almost none pile up."""
    return figures["within"] >= share and figures["piled"] <= PILING


def highest_rate(holds: Callable[[float], bool]) -> float:
    """Return the highest rate at which `holds` is true, in requests per second, at most `NEAR` too low.

    Found by doubling from 1 and bisection, assuming that it is true up to some rate and false above. 0: false even at
    `LEAST`.

    Raises:
        UsageError: it is true at `MOST`, too.

    >>> 16.9 < highest_rate(lambda rate: rate <= 17) <= 17
    True
    """
    low = 1.0
    while not holds(low):
        low /= 2
        if low < LEAST:
            return 0.0
    high = 2 * low
    while holds(high):
        low, high = high, 2 * high
        if high > MOST:
            raise UsageError(f"the limits are met even at {low:.0f} requests per second: set tighter limits")
    while high > (1 + NEAR) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
