"""How many ways to decode, and how often each, fit a time budget; what does not fit is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from executor.ways import LEAST, Way
from treeopt.errors import UsageError

FEWEST = 2  # rounds: a median of one block has no spread
ENOUGH = 3  # rounds, before ways are left out
MARGIN = 1.15  # blocks take longer than a first look says


@dataclass(frozen=True)
class Schedule:
    """What is measured.

    Attributes:
        ways: in the order of importance.
        rounds: blocks of each.
        left_out: ways that did not fit.
    """

    ways: tuple[Way, ...]
    rounds: int
    left_out: tuple[Way, ...] = ()


def fitted(
    ranked: Sequence[tuple[int, Way]], *, rounds: int, block_s: Callable[[Way], float], budget_s: float
) -> Schedule:
    """As many rounds of all ways as fit; if 3 do not, 3 rounds of the most important; if need be 2 of the least.

    Args:
        ranked: importance and way, the most important first; see `ranked_ways`.
        rounds: wanted.
        block_s: expected seconds of one block.
        budget_s: seconds for all blocks.

    Raises:
        UsageError: not even what every profile needs fits.
    """
    costs = [MARGIN * block_s(way) for _, way in ranked]
    least = sum(importance == LEAST for importance, _ in ranked)
    for tried in range(rounds, min(rounds, ENOUGH) - 1, -1):
        if tried * sum(costs) <= budget_s:
            return Schedule(tuple(way for _, way in ranked), tried)
    for tried in range(min(rounds, ENOUGH), FEWEST - 1, -1):
        total, count = 0.0, 0
        while count < len(costs) and tried * (total + costs[count]) <= budget_s:
            total, count = total + costs[count], count + 1
        if count >= least:
            chosen = tuple(way for _, way in ranked)
            return Schedule(chosen[:count], tried, chosen[count:])
    raise UsageError(
        f"a budget of {budget_s:.0f} s is left, and the least that makes a profile takes about "
        f"{FEWEST * sum(costs[:least]):.0f} s: ask for fewer batch sizes or contexts, or give more time"
    )
