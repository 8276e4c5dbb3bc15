"""A profile of chains from step times that do not separate drafting from verification, as engines give them.

For a chain the separation makes no difference, and all time counts as verification. A branching tree is therefore
priced as the chain with the same number of nodes, which has more levels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulate.profiles.calibration import profile_of
from simulate.profiles.measured_cells import Cell
from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes


def chain_cell(
    batch: int, drafted: int, step_s: float, *, context: float, error: float, committed: float = 1.0
) -> Cell:
    """Return the cell of a chain of `drafted` tokens, 0 for plain decoding."""
    return Cell(batch, context, drafted + 1, (1,) * drafted, 0.0, step_s, committed=committed, error=error)


def chain_profile(cells: Sequence[Cell], *, context: tuple[int, int], meta: Mapping[str, Any]) -> Profile:
    """Return the profile of chains; see `profile_of`.

    Args:
        cells: for every batch size and context those of plain decoding and of a chain of 1, and longer chains.
        context: fewest and most tokens per sequence in the cache while measuring.
        meta: provenance.
    """
    profile = profile_of(cells, context=context, meta=meta)
    return replace(profile, batches=tuple(map(_without_drafting, profile.batches)))


def _without_drafting(times: BatchTimes) -> BatchTimes:
    """Return the table with drafting that costs nothing, from depth 1 on."""
    deepest = times.rest[-1][0] - 1
    return replace(times, draft=tuple((depth, 0.0) for depth in sorted({1, deepest})), widths_told=None)
