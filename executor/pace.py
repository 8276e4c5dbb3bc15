"""What blocks of one place come to once the machine's pace is taken off: a cell for each way to decode, and its error.

A shared machine changes its pace within seconds and within minutes. The slow part is the same for all ways of a round,
which follow one another in random order, and is taken off; the quick part averages out over rounds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from executor.blocks import Block
from executor.schedule import Visit
from executor.ways import Way
from simulate.cells import Cell

CUT = 1 / 3  # of the blocks at either end: of three the median is left
LOSS = 1.12  # standard error of a mean so trimmed over that of the mean, of a normal law


def centre(values: Sequence[float]) -> float:
    """Their mean without the lowest and highest third."""
    from scipy.stats import trim_mean

    return float(trim_mean(values, CUT))


def at_one_pace(rounds: Sequence[Mapping[Visit, Block]]) -> tuple[dict[int, list[Block]], float]:
    """Blocks by way, and how far one of them still strays, as a relative standard deviation.

    A round's pace is the median over its blocks of what each took over its own median over rounds: randomised blocks,
    their effects by one step of Tukey's median polish (1977).

    Args:
        rounds: of one place, of the same visits each.
    """
    from scipy.stats import chi2

    visits = sorted(rounds[0])
    logs = np.log([[found[visit].step_s for visit in visits] for found in rounds])
    pace = np.median(logs - np.median(logs, axis=0), axis=1)
    pace -= pace.mean()
    blocks: dict[int, list[Block]] = {}
    for found, slower in zip(rounds, np.exp(pace).tolist(), strict=True):
        for visit in visits:
            blocks.setdefault(visit[0], []).append(found[visit].scaled(1 / slower))
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
    return Cell(way.batch, context, tokens, way.tree.fed_widths, draft, rest, committed, error, forced)
