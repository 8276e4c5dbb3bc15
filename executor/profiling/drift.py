"""Remove the machine's drift from timed blocks; return one cell per configuration, with its error.

A shared machine changes its speed within seconds and within minutes. A change that lasts is the same for all
configurations, which follow one another in random order, and is removed; a short one averages out over rounds.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from executor.profiling.configurations import Configuration
from executor.runners.runner import Run
from simulate.profiles.measured_cells import Cell
from treeopt.statistics import TRIMMED_ERROR, trimmed_mean

FEWEST = 8  # configurations
NEIGHBOURS = 15  # blocks, some 5 seconds
POLISHED = 6  # passes, after one with all blocks of a round for neighbours


def remove_drift(rounds: Sequence[Sequence[tuple[int, Run]]]) -> tuple[dict[int, list[Run]], float]:
    """Return the blocks of each configuration without drift, and their remaining relative standard deviation.

    The drift at a block is the running median, over its neighbours, of each one's time over the trimmed mean of its
    configuration: rows and columns of a two-way table, their effects by Tukey's median polish (1977), with neighbours
    for columns. With few configurations drift cannot be separated from their noise, and is not removed.

    Args:
        rounds: of one place, as they were measured: index of a configuration, and its block.
    """
    configurations = [np.array([index for index, _ in blocks]) for blocks in rounds]
    logs = [np.log([block.step_s for _, block in blocks]) for blocks in rounds]
    drift = _drift(configurations, logs)
    usual = float(np.mean(np.concatenate(drift)))
    steady: dict[int, list[Run]] = {}
    for blocks, excess in zip(rounds, drift, strict=True):
        for (index, block), factor in zip(blocks, np.exp(usual - excess).tolist(), strict=True):
            steady.setdefault(index, []).append(block.scaled(factor))
    return steady, _spread(list(steady.values()))


def _drift(configurations: list[NDArray[np.int64]], logs: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Return the logarithm of the drift at each block of each round; see `remove_drift`."""
    from scipy.ndimage import median_filter

    every, drift = np.concatenate(configurations), [np.zeros(len(values)) for values in logs]
    if len(np.unique(every)) < FEWEST:
        return drift
    for neighbours in (max(map(len, logs)), *[NEIGHBOURS] * POLISHED):
        steady = np.concatenate([values - excess for values, excess in zip(logs, drift, strict=True)])
        level = {index: trimmed_mean(steady[every == index].tolist()) for index in np.unique(every).tolist()}
        drift = [
            median_filter(values - [level[i] for i in indices.tolist()], min(neighbours, len(values)), mode="reflect")
            for values, indices in zip(logs, configurations, strict=True)
        ]
    return drift


def _spread(steady: Sequence[Sequence[Run]]) -> float:
    """Return the standard deviation of the logarithms of one configuration's blocks, from the median over all."""
    from scipy.stats import chi2

    freedom = np.array([len(same) - 1 for same in steady])
    variance = np.array([np.var(np.log([b.step_s for b in same]), ddof=1) for same in steady])
    return float(np.sqrt(np.median(variance * freedom / chi2.median(freedom))))


def cell_of(configuration: Configuration, blocks: Sequence[Run], *, context: float, spread: float) -> Cell:
    """Return the trimmed mean of the step times of a configuration, and the mean of committed tokens.

    Args:
        configuration: how the blocks were decoded.
        blocks: with drift removed.
        context: tokens per sequence in the cache.
        spread: of the blocks, see `remove_drift`.
    """
    draft_s, rest_s = (
        trimmed_mean([float(np.median(getattr(block, name))) for block in blocks]) for name in ("draft_s", "rest_s")
    )
    return Cell(
        configuration.batch,
        context,
        configuration.tree.nodes + 1,
        configuration.widths,
        draft_s,
        rest_s,
        committed=float(np.mean([block.committed for block in blocks])),
        error=TRIMMED_ERROR * spread / len(blocks) ** 0.5,
        forced=configuration.imposed is not None,
        growth=configuration.growth,
    )
