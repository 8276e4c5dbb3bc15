"""Seconds of the steps of a run, by batch size and context, with padding to the next batch size that has a cost."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from simulate.profiles.profile import Profile
from simulate.runs.timeline import Floats, Ints
from treeopt.cost_model import CostModel
from treeopt.errors import CostError, UsageError
from treeopt.replay.static_tree import step_seconds as price_along
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
        drafted: steps by the levels that were proposed, see `treeopt.replay.static_tree.step_seconds`.
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


Together = Callable[[Floats], Floats]  # tokens of all prompts that are read at once -> seconds


def per_request(value: float | NDArray[np.float64] | NDArray[np.int64], requests: int, name: str) -> Floats:
    """Return one value for every request, float64 (R,).

    Raises:
        UsageError: another number of values, or a value that is negative or not finite; says `name`.

    >>> per_request(0.5, 2, "prefill_s").tolist()
    [0.5, 0.5]
    """
    values = np.asarray(value, dtype=np.float64)
    if values.shape not in ((), (requests,)):
        raise UsageError(f"{name} must be one number or {requests}, found shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        place = f"[{int(wrong.argmax())}]" if values.ndim else ""
        raise UsageError(f"{name}{place} must be 0 or more and finite, got {values[wrong].flat[0]}")
    return np.broadcast_to(values, (requests,))


def divide_prefill(together: Together, tokens: Floats | Ints, group: Ints, *, padded: bool = False) -> Floats:
    """Return each request's share, by tokens, of the prefill that its group is read in; float64 (R,).

    Args:
        together: seconds by total tokens.
        tokens: prompt tokens of each request, (R,).
        group: requests with the same number are read together, (R,).
        padded: all of a group are read as if they were as long as its longest.

    >>> divide_prefill(lambda tokens: tokens + 4.0, np.array([1, 3, 2]), np.array([0, 0, 1])).tolist()
    [2.0, 6.0, 6.0]
    """
    totals: Floats = np.bincount(group, tokens).astype(np.float64)
    read = totals
    if padded:
        longest = np.zeros_like(totals)
        np.maximum.at(longest, group, tokens)
        read = longest * np.bincount(group)
    seconds = np.zeros_like(totals)
    seconds[totals > 0] = together(read[totals > 0])
    return np.asarray(seconds[group] * tokens / np.maximum(totals, 1.0)[group])
