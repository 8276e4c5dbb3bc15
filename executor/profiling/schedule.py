"""Which ways to decode, how often and in which order: what fits a time budget; what does not fit is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from executor.profiling.measured_shapes import LEAST, Way
from treeopt.errors import UsageError

FEWEST = 2  # rounds: a median of one block has no spread
ENOUGH = 3  # rounds, before ways are left out
MARGIN = 1.15  # blocks take longer than a first look says
TOGETHER = 4  # blocks of trees after each block of plain steps

Visit = tuple[int, int]  # index of a way, and which of its blocks of a round


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

    @property
    def places(self) -> list[list[int]]:
        """The ways of each batch size and context, by index."""
        found: dict[tuple[int, int | None], list[int]] = {}
        for index, way in enumerate(self.ways):
            found.setdefault((way.batch, way.context), []).append(index)
        return list(found.values())

    def order(self, seed: Sequence[int]) -> list[list[Visit]]:
        """The blocks of a round, place by place in random order; see `Visit`.

        Within each its trees come in random order, with a plain block before every few: all are compared with it.
        Trees whose acceptance is imposed come last, since their prompts are others, of lengths of their own.
        """
        rng = np.random.default_rng(seed)
        places, found = self.places, []
        for indices in [places[i] for i in rng.permutation(len(places)).tolist()]:
            plain = next(i for i in indices if not self.ways[i].tree.nodes)
            trees = rng.permutation([i for i in indices if i != plain]).tolist()
            trees.sort(key=lambda i: self.ways[i].kept is not None)
            visits: list[Visit] = []
            for turn, first in enumerate(range(0, len(trees), TOGETHER)):
                visits += [(plain, turn), *((i, 0) for i in trees[first : first + TOGETHER])]
            found.append(visits)
        return found


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
        f"a budget of {max(0.0, budget_s):.1f} s is left, and the least that makes a profile takes about "
        f"{FEWEST * sum(costs[:least]):.1f} s: ask for fewer batch sizes, contexts or no policies, or give more time"
    )
