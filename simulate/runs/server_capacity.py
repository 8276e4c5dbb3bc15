"""What a server carries: the highest rate of arrivals at which its requests are served as they should be."""

import math
from collections.abc import Callable, Mapping

from simulate.runs.service_levels import PILING
from treeopt.errors import UsageError

NEAR = 0.01  # how closely a rate is found
LEAST, MOST = 1e-6, 1e6  # requests a second that are looked at


def keeps_up(figures: Mapping[str, float], *, share: float) -> bool:
    """Whether of a day's figures that share is within the limits, and next to nothing piles up."""
    return figures["within"] >= share and figures["piled"] <= PILING


def carried(holds: Callable[[float], bool]) -> float:
    """The highest rate at which `holds` is true, requests a second, at most `NEAR` too low.

    By doubling from 1 and bisection, as if it were true up to some rate and false beyond. 0: not even at `LEAST`.

    Raises:
        UsageError: it is true at `MOST`, too.

    >>> 16.9 < carried(lambda rate: rate <= 17) <= 17
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
            raise UsageError(f"the limits are kept at {low:.0f} requests a second, too: nothing is asked of the server")
    while high > (1 + NEAR) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
