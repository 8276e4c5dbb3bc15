"""What blocks of one place come to once the machine's pace is taken off: a cell for each way to decode, and its error.

A shared machine changes its pace within seconds and within minutes. What lasts is the same for all ways, which follow
one another in random order, and is taken off; what does not averages out over rounds.
"""

from collections.abc import Sequence

import numpy as np

from executor.profiling.measured_shapes import Way
from executor.profiling.timed_block import Block
from simulate.profiles.measured_cells import Cell

CUT = 1 / 3  # of the blocks at either end: of three the median is left
FEWEST = 8  # ways
NEIGHBOURS = 15  # blocks, some 5 seconds
POLISHED = 6  # times, after once with all blocks of a round for neighbours
LOSS = 1.12  # standard error of a mean so trimmed over that of the mean, of a normal law


def centre(values: Sequence[float]) -> float:
    """Their mean without the lowest and highest third."""
    from scipy.stats import trim_mean

    return float(trim_mean(values, CUT))


def at_one_pace(rounds: Sequence[Sequence[tuple[int, Block]]]) -> tuple[dict[int, list[Block]], float]:
    """Blocks by way, and how far one of them still strays, as a relative standard deviation.

    The pace at a block is the running median over its neighbours of what each took over the centre of its way: rows
    and columns of a two-way table, their effects by Tukey's median polish (1977), with neighbours for columns. Few
    ways tell no pace from their own noise: it is left as it is then.

    Args:
        rounds: of one place, as they were measured: ways by index, and their blocks.
    """
    from scipy.ndimage import median_filter
    from scipy.stats import chi2

    ways = [np.array([way for way, _ in found]) for found in rounds]
    logs = [np.log([block.step_s for _, block in found]) for found in rounds]
    every, pace = np.concatenate(ways), [np.zeros(len(found)) for found in rounds]
    enough = len(np.unique(every)) >= FEWEST
    for neighbours in (max(map(len, rounds)), *[NEIGHBOURS] * POLISHED) if enough else ():
        left = np.concatenate([values - slower for values, slower in zip(logs, pace, strict=True)])
        level = {way: centre(left[every == way].tolist()) for way in np.unique(every).tolist()}
        pace = [
            median_filter(values - [level[way] for way in here.tolist()], min(neighbours, len(here)), mode="reflect")
            for values, here in zip(logs, ways, strict=True)
        ]
    usual = float(np.mean(np.concatenate(pace)))
    blocks: dict[int, list[Block]] = {}
    for found, slower in zip(rounds, pace, strict=True):
        for (way, block), factor in zip(found, np.exp(usual - slower).tolist(), strict=True):
            blocks.setdefault(way, []).append(block.scaled(factor))
    freedom = np.array([len(same) - 1 for same in blocks.values()])
    variance = np.array([np.var(np.log([b.step_s for b in same]), ddof=1) for same in blocks.values()])
    return blocks, float(np.sqrt(np.median(variance * freedom / chi2.median(freedom))))


def cell_of(way: Way, blocks: Sequence[Block], *, context: float, spread: float) -> Cell:
    """What steps of a way take in the middle of its blocks, and the mean of what they committed.

    Args:
        way: how they decoded.
        blocks: at one pace.
        context: tokens a sequence in the cache.
        spread: of blocks, see `at_one_pace`.
    """
    draft, rest = (centre([float(np.median(getattr(b, name))) for b in blocks]) for name in ("draft_s", "rest_s"))
    committed, error = float(np.mean([b.committed for b in blocks])), LOSS * spread / len(blocks) ** 0.5
    forced, tokens = way.kept is not None, way.tree.nodes + 1
    return Cell(way.batch, context, tokens, way.widths, draft, rest, committed, error, forced, way.growth)
