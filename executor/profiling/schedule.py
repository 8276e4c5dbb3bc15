"""The schedule of a profile measurement: which configurations fit a time budget, how often, and in which order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from executor.profiling.measured_shapes import REQUIRED, Configuration
from treeopt.errors import UsageError

FEWEST = 2  # rounds: a median of one block has no spread
ENOUGH = 3  # rounds, before configurations are left out
MARGIN = 1.15  # blocks take longer than in the first look
TOGETHER = 4  # blocks of trees after each block of plain steps

Visit = tuple[int, int]  # index of a configuration, and which of its blocks in a round


@dataclass(frozen=True)
class Schedule:
    """The configurations that are measured.

    Attributes:
        ways: configurations in the order of importance.
        rounds: blocks of each.
        left_out: configurations that did not fit.
    """

    ways: tuple[Configuration, ...]
    rounds: int
    left_out: tuple[Configuration, ...] = ()

    @property
    def places(self) -> list[list[int]]:
        """The configurations of each batch size and context, by index."""
        places: dict[tuple[int, int | None], list[int]] = {}
        for index, configuration in enumerate(self.ways):
            places.setdefault((configuration.batch, configuration.context), []).append(index)
        return list(places.values())

    def order(self, seed: Sequence[int]) -> list[list[Visit]]:
        """Return the blocks of a round, place by place in random order; see `Visit`.

        Within a place its trees come in random order, with a plain block before every few: all are compared with it.
        Trees whose acceptance is imposed come last, since their prompts have lengths of their own.
        """
        rng = np.random.default_rng(seed)
        places, visited = self.places, []
        for indices in [places[i] for i in rng.permutation(len(places)).tolist()]:
            plain = next(i for i in indices if not self.ways[i].tree.nodes)
            trees = rng.permutation([i for i in indices if i != plain]).tolist()
            trees.sort(key=lambda i: self.ways[i].imposed is not None)
            visits: list[Visit] = []
            for turn, first in enumerate(range(0, len(trees), TOGETHER)):
                visits += [(plain, turn), *((i, 0) for i in trees[first : first + TOGETHER])]
            visited.append(visits)
        return visited


def fit_schedule(
    ranked: Sequence[tuple[int, Configuration]],
    *,
    rounds: int,
    block_s: Callable[[Configuration], float],
    budget_s: float,
) -> Schedule:
    """Fit the budget: all configurations for as many rounds as fit.

    If fewer than three rounds fit, drop the least important configurations; at worst keep two rounds of the required
    ones.

    Args:
        ranked: importance and configuration, the most important first; see `ranked_configurations`.
        rounds: wanted.
        block_s: expected seconds of one block.
        budget_s: seconds for all blocks.

    Raises:
        UsageError: not even the required configurations fit.
    """
    configurations = tuple(configuration for _, configuration in ranked)
    costs = [MARGIN * block_s(configuration) for configuration in configurations]
    required = sum(importance == REQUIRED for importance, _ in ranked)
    for tried in range(rounds, min(rounds, ENOUGH) - 1, -1):
        if tried * sum(costs) <= budget_s:
            return Schedule(configurations, tried)
    for tried in range(min(rounds, ENOUGH), FEWEST - 1, -1):
        total, count = 0.0, 0
        while count < len(costs) and tried * (total + costs[count]) <= budget_s:
            total, count = total + costs[count], count + 1
        if count >= required:
            return Schedule(configurations[:count], tried, configurations[count:])
    raise UsageError(
        f"a budget of {max(0.0, budget_s):.1f} s is left, and the smallest profile takes about "
        f"{FEWEST * sum(costs[:required]):.1f} s: ask for fewer batch sizes, contexts or no policies, or give more time"
    )
