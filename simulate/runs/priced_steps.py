"""Seconds of the steps of a run, by batch size and context, with padding to the next batch size that has a cost."""

from collections.abc import Callable, Sequence

import numpy as np

from simulate.profiles.profile import Profile
from simulate.runs.timeline import Floats, Ints
from treeopt.cost_model import CostModel
from treeopt.errors import CostError
from treeopt.replay.priced_walk import step_seconds as price_along
from treeopt.tree import Tree

Seconds = Callable[[int, int | None], float]  # batch size, context -> seconds of a step

PAD = 8  # with padding, batch sizes up to this multiple of the batch are tried for a cost


def price_steps(
    tree: Tree | None, cost: CostModel, *, committed: float, drafted: Ints | None = None, pad_to: int = 0
) -> Seconds:
    """Return a function from batch size and context to the seconds of a step.

    A batch size without a cost takes that of the nearest one above, up to `pad_to`.

    Args:
        tree: drafted at every step; None decodes plainly.
        cost: seconds of a step.
        committed: tokens per sequence that every step commits: the mean of the run.
        drafted: steps by the levels that were proposed, see `treeopt.replay.priced_walk.step_seconds`.
        pad_to: largest batch size that is tried; 0: no padding.
    """

    def price(batch: int, context: int | None) -> float:
        """Return the seconds of a step at exactly this batch size."""
        if tree is None or tree.nodes == 0:
            return cost.plain_s(batch=batch, context=context)
        return price_along(tree, cost, batch=batch, context=context, committed=committed, drafted=drafted)

    def seconds(batch: int, context: int | None) -> float:
        """Return the seconds of a step, padded if need be."""
        try:
            return price(batch, context)
        except CostError:
            for size in _sizes_above(cost, batch, pad_to):
                try:
                    return price(size, context)
                except CostError:
                    continue
            raise

    return seconds


def _sizes_above(cost: CostModel, batch: int, pad_to: int) -> Sequence[int]:
    """Return the batch sizes above `batch` that may have a cost, rising, up to `pad_to`."""
    if isinstance(cost, Profile):
        return sorted({times.batch for times in cost.batches if batch < times.batch <= pad_to})
    return range(batch + 1, pad_to + 1)


def step_seconds(occupancy: Ints, context: Ints | None, seconds: Seconds, *, padded: bool = False) -> Floats:
    """Return the seconds of steps, float64 (N,); each distinct step is priced once.

    Args:
        occupancy: requests in each step, (N,).
        context: tokens per sequence in the cache at each step, (N,); None leaves it to the cost model.
        seconds: see `price_steps`.
        padded: `seconds` pads; otherwise an error suggests it.

    Raises:
        CostError: names all batch sizes that have no cost.
    """
    pairs = np.stack([occupancy, np.zeros_like(occupancy) if context is None else context])
    kinds, which = np.unique(pairs, axis=1, return_inverse=True)
    prices, missing, why = np.empty(kinds.shape[1]), dict[int, None](), ""
    for i, (size, length) in enumerate(kinds.T.tolist()):
        try:
            prices[i] = seconds(size, None if context is None else length)
        except CostError as error:
            if size not in missing:
                why = str(error)  # of the largest size: once it is measured, those below it are interpolated
            missing[size] = None
    if missing:
        sizes = ", ".join(map(str, missing))
        others = set(kinds[0].tolist()) - set(missing)
        hint = "; padding takes the nearest batch above" if others and not padded else ""
        raise CostError(f"steps of batch {sizes} have no cost ({why}){hint}")
    return prices[which.ravel()]
