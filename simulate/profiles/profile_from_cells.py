"""Calibration: the profile that measured cells make, with the error to expect from it.

For the error, each token count is left out in turn and predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.profiles.measured_cells import Cell, CellTables, at_committed, commit_seconds, over_plain
from simulate.profiles.profile import NORMAL_95, Profile
from simulate.profiles.step_tables import Growing, fit_growing
from simulate.roofline.data_sheets import SAME_CLASS_ERROR
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.policies import DynamicTree, growths

Floats = NDArray[np.float64]
Size = tuple[int, float, int]  # batch size, context, tokens
ENOUGH = 19  # left-out cells from which a batch size has an interval of its own: 1 / 0.05 - 1


@dataclass(frozen=True)
class LeftOut:
    """Predictions by models that each miss one token count, as shares of a step; n cells were left out.

    Attributes:
        batch: int (n,), batch size of each cell.
        residual: (n,), |log(measured / predicted)| of step / plain step.
        predicted: (n, n), the logarithm of what model i predicts of cell j over what the whole model predicts.
    """

    batch: NDArray[np.int64]
    residual: Floats
    predicted: Floats

    def half_widths(self) -> tuple[float, dict[int, float]]:
        """Return half of the 95 % interval, of all batch sizes and of each one with at least `ENOUGH` cells.

        With fewer than `ENOUGH` cells in all, the first is at least `SAME_CLASS_ERROR`.
        """
        if len(self.residual) == 0:
            return SAME_CLASS_ERROR, {}
        sizes, counts = np.unique(self.batch, return_counts=True)
        by_batch = {int(size): self._half_width(self.batch == size) for size in sizes[counts >= ENOUGH]}
        minimum = 0.0 if len(self.residual) >= ENOUGH else SAME_CLASS_ERROR
        return max(minimum, self._half_width(self.batch > 0)), by_batch

    def _half_width(self, chosen: NDArray[np.bool_]) -> float:
        """Return half of the mean jackknife+ interval of the chosen cells."""
        low, high = jackknife_plus(self.predicted[np.ix_(chosen, chosen)], self.residual[chosen])
        return float(np.mean(high - low) / 2)


def leave_out_sizes(tables: CellTables) -> LeftOut:
    """Leave out each token count of a batch size and context in turn, and predict it from the others.

    The smallest and the largest of a batch size and context are skipped: the others do not cover them.
    """
    cells = [cell for cell in tables.cells if cell.widths]
    sizes = [_size_of(cell) for cell in cells]
    whole = _log_steps(tables.profile(tables.tables), cells)
    measured = np.log([over_plain(cell, tables.cells) for cell in cells])
    left_out: list[int] = []  # cells, by number
    residual: list[float] = []
    shifts: list[Floats] = []
    for size in dict.fromkeys(sizes):
        same = [i for i, other in enumerate(sizes) if other == size]
        predicted = _predict_without(tables, size, [cells[i] for i in same])
        if predicted is None:
            continue
        shift = np.zeros_like(whole)
        shift[same] = predicted - whole[same]
        left_out.extend(same)
        residual.extend(abs(measured[same] - predicted).tolist())
        shifts.extend([shift] * len(same))
    batch = np.array([cells[i].batch for i in left_out], dtype=np.int64)
    table = np.array([shift[left_out] for shift in shifts]).reshape(len(left_out), len(left_out))
    return LeftOut(batch, np.array(residual), table)


def _size_of(cell: Cell) -> Size:
    return cell.batch, cell.context, cell.tokens


def _predict_without(tables: CellTables, size: Size, cells: Sequence[Cell]) -> Floats | None:
    """Return log(step / plain step) of cells of one size by a model without them; None if it does not cover them."""
    place = size[:2]
    others = [c for c in tables.cells if (c.batch, c.context) == place and (not c.widths or _size_of(c) != size)]
    try:
        model = tables.profile({**tables.tables, place: tables.table(others, tables.tables)})
        return _log_steps(model, cells)
    except (CostError, UsageError):
        return None


def _log_steps(profile: Profile, cells: Sequence[Cell]) -> Floats:
    """Return log(step / plain step) at the cells' own contexts; float64 (cells,)."""
    logs = []
    for cell in cells:
        times = next(t for t in profile.batches if (t.batch, t.context) == (cell.batch, cell.context))
        alone = Profile((times,), (0, 2**62), 0.0, {}, profile.basis)
        step_s = alone.step_s([StepShape(cell.batch, cell.tokens, cell.widths)])[0]
        logs.append(np.log(step_s / times.plain_s))
    return np.array(logs)


def jackknife_plus(predicted: ArrayLike, residual: ArrayLike) -> tuple[Floats, Floats]:
    """Return the lower and upper ends of the predictions' 95 % intervals, float64 (m,) each.

    The ends are the floor(alpha (n + 1))-th smallest of predicted[i] - residual[i] and the ceil((1 - alpha)
    (n + 1))-th of predicted[i] + residual[i], alpha = 0.05. At least 1 - 2 alpha of new observations lie inside
    for any model, and close to 1 - alpha if it is stable. With fewer than 1 / alpha - 1 observations no finite interval
    guarantees that; the outermost ends are returned then.

    Source: Barber, Candes, Ramdas and Tibshirani 2021, Predictive inference with the jackknife+, eq. 1.4.

    Args:
        predicted: (n, m), the predictions of the model without observation i at each of m places.
        residual: (n,), |observation i - the prediction of the model without it|; n is at least 1.

    >>> low, high = jackknife_plus([[0.0]] * 39, range(1, 40))
    >>> low.tolist(), high.tolist()
    ([-38.0], [38.0])
    """
    values, errors = np.asarray(predicted, dtype=np.float64), np.asarray(residual, dtype=np.float64)
    count = len(errors)
    # The share of a count is rounded before its floor: 0.05 x 20 is 1.
    below = max(1, math.floor(round(0.05 * (count + 1), 9)))
    above = min(count, math.ceil(round(0.95 * (count + 1), 9)))
    low = np.sort(values - errors[:, None], axis=0)[below - 1]
    high = np.sort(values + errors[:, None], axis=0)[above - 1]
    return low, high


def profile_of(
    cells: Sequence[Cell],
    *,
    context: tuple[int, int],
    experts: Experts | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Profile:
    """Calibrate a profile from measured cells.

    The basis is used if it predicts left-out sizes better than straight lines do; see `shrink_to_basis`.
    `relative_error` is half the jackknife+ interval of step / plain step, each token count of a batch size and context
    left out in turn, plus a share for the uncertainty of the plain step. A batch size with `ENOUGH` left-out cells has
    its own. Fewer than `ENOUGH` cells in all make no 95 % interval: then its outermost ends are used, which hold every
    error seen, and at least the error of a data sheet's constants on another device of their class.

    Provenance records under `left_out_sizes` how many cells were left out and their median error, and under `growths`
    how many cells each kind of dynamic tree was fitted to, and the median error of each predicted from the others.

    Args:
        cells: for every batch size and context a plain one, and chains from 1 token deep.
        context: fewest and most tokens per sequence in the cache while measuring.
        experts: the target's experts.
        meta: provenance.

    Raises:
        UsageError: a batch size and context without a plain cell, or without a speculative one.
    """
    tables, left_out = _better_tables(cells, context, experts)
    pooled, by_batch = left_out.half_widths()
    plain_error = {cell.batch: NORMAL_95 * cell.error for cell in tables.cells if not cell.widths}
    pooled = float(np.hypot(pooled, np.median(list(plain_error.values()))))
    errors = {batch: float(np.hypot(half, plain_error[batch])) for batch, half in by_batch.items()}
    median = float(np.median(left_out.residual)) if len(left_out.residual) else None
    record = {"cells": len(left_out.residual), "median_error": median}
    profile = tables.profile(tables.tables, pooled, errors, {**(meta or {}), "left_out_sizes": record})
    return _with_dynamic_trees(profile, [cell for cell in cells if cell.growth is not None])


def _better_tables(
    cells: Sequence[Cell], context: tuple[int, int], experts: Experts | None
) -> tuple[CellTables, LeftOut]:
    """Return the tables that predict left-out sizes better, straight lines or basis, and these predictions."""
    static = [cell for cell in cells if not cell.forced and cell.growth is None]
    ordered = sorted(static, key=lambda cell: (cell.batch, cell.context))
    committed = float(np.mean([cell.committed for cell in ordered if cell.widths] or [1.0]))
    commit_s = commit_seconds(cells)
    level = [at_committed(cell, committed, commit_s[cell.batch]) for cell in ordered]
    straight = CellTables(level, context, experts, committed, commit_s, use_basis=False)
    fitted = replace(straight, use_basis=True)
    left_out_straight, left_out_fitted = leave_out_sizes(straight), leave_out_sizes(fitted)
    if len(left_out_fitted.residual) and np.mean(left_out_fitted.residual) < np.mean(left_out_straight.residual):
        return fitted, left_out_fitted
    return straight, left_out_straight


def _with_dynamic_trees(profile: Profile, cells: Sequence[Cell]) -> Profile:
    """Return the profile with the additional time of dynamic trees over static ones; see `fit_growing`."""
    if not cells:
        return profile
    overheads: dict[int, dict[str, Growing]] = {times.batch: {} for times in profile.batches}
    missed: dict[str, list[float]] = {growth: [] for growth in growths()}
    for batch, growth in dict.fromkeys((cell.batch, str(cell.growth)) for cell in cells):
        same = [cell for cell in cells if (cell.batch, cell.growth) == (batch, growth)]
        shapes = [StepShape(cell.batch, cell.tokens, cell.widths, None, cell.committed) for cell in same]
        step_s = np.array([cell.step_s for cell in same])
        overheads[batch][growth], errors = fit_growing(shapes, step_s - profile.step_s(shapes), step_s)
        missed[growth].extend(errors.tolist())
    record = {
        growth: {"cells": len(errors), "median_error": float(np.median(errors))}
        for growth, errors in missed.items()
        if errors
    }
    spread = float(np.sqrt(np.mean(np.concatenate(list(missed.values())) ** 2)))
    batches = tuple(
        replace(
            times,
            growth={growth: replace(known, spread=spread) for growth, known in overheads[times.batch].items()},
        )
        for times in profile.batches
    )
    return replace(profile, batches=batches, meta={**profile.meta, "growths": record})


def engine_cell(
    batch: int, draft: int | DynamicTree, step_s: float, *, context: float, error: float, committed: float = 1.0
) -> Cell:
    """Return the cell of a chain (0 tokens: plain decoding) or dynamic tree, none of its time counted as drafting."""
    if isinstance(draft, int):
        nodes, widths, growth = draft, (1,) * draft, None
    else:
        nodes, widths, growth = draft.nodes, draft.drafting.expanded, draft.growth
    return Cell(batch, context, nodes + 1, widths, 0.0, step_s, committed=committed, error=error, growth=growth)


def engine_profile(cells: Sequence[Cell], *, context: tuple[int, int], meta: Mapping[str, Any]) -> Profile:
    """Return the profile of times that do not separate drafting from verification, as engines give them.

    For chains alone the separation makes no difference, and all time counts as verification; see `profile_of`. A
    branching tree is then priced as the chain with the same number of nodes, which has more levels. Dynamic trees
    separate the two: see `_drafting_separated`. They are priced like static trees of their shape, with the median error
    at trees that were left out recorded under `growths`.

    Args:
        cells: for every batch size and context those of plain decoding and of a chain of 1, and longer chains; dynamic
            trees at every batch size or at none.
        context: fewest and most tokens per sequence in the cache while measuring.
        meta: provenance.
    """
    trees = [cell for cell in cells if cell.growth is not None]
    if not trees:
        profile = profile_of(cells, context=context, meta=meta)
        free = (  # drafting costs nothing, from depth 1 on
            replace(t, draft=tuple((n, 0.0) for n in sorted({1, t.rest[-1][0] - 1})), widths_told=None)
            for t in profile.batches
        )
        return replace(profile, batches=tuple(free))
    separated, missed, steps = list[Cell](), list[float](), dict[int, list[float]]()
    for batch, tokens in dict.fromkeys((cell.batch, cell.context) for cell in cells):
        some, errors, tree_s = _drafting_separated(
            [cell for cell in cells if (cell.batch, cell.context) == (batch, tokens)]
        )
        separated += some
        missed += errors
        steps.setdefault(batch, []).append(tree_s)
    profile = profile_of(separated, context=context, meta=meta)
    (growth,) = {str(cell.growth) for cell in trees}
    widest = max(max(cell.widths) for cell in trees)
    spread = float(np.sqrt(np.mean(np.square(missed))))
    record = {growth: {"cells": len(missed), "median_error": float(np.median(missed))}}
    batches = tuple(
        replace(times, growth={growth: Growing(float(np.mean(steps[times.batch])), 0.0, 0.0, 0.0, widest, spread)})
        for times in profile.batches
    )
    return replace(profile, batches=batches, meta={**profile.meta, "growths": record})


def _drafting_separated(cells: Sequence[Cell]) -> tuple[list[Cell], list[float], float]:
    """Return cells of one batch size and context with drafting separated, errors at trees, and a tree's own seconds.

    The time of a speculative step is fitted by a + b tokens + c levels + d (nodes fed - levels), and e for a dynamic
    tree, relative errors least, no coefficient below 0 (Lawson and Hanson 1974, by scipy). Drafting is the part with c
    and d; e is what every step with a tree takes and no chain does. What the fit does not explain stays with
    verification: a step keeps its time where no other has as many tokens. An error is that of a tree by a fit to all
    other cells, as a share of its step.
    """
    from scipy.optimize import nnls

    drafted = [cell for cell in cells if cell.widths]
    step_s = np.array([cell.step_s for cell in drafted])
    levels, fed = (np.array([of(cell.widths) for cell in drafted]) for of in (len, sum))
    grown = np.array([cell.growth is not None for cell in drafted])
    amounts = np.stack([np.ones(len(drafted)), [cell.tokens for cell in drafted], levels, fed - levels, grown], 1)
    shares = amounts / step_s[:, None]
    seconds = nnls(shares, np.ones(len(drafted)))[0]
    others = ~np.eye(len(drafted), dtype=bool)
    missed = [
        abs(1 - float(shares[i] @ nnls(shares[others[i]], np.ones(len(drafted) - 1))[0])) for i in np.flatnonzero(grown)
    ]
    draft_s, tree_s = amounts[:, 2:4] @ seconds[2:4], float(seconds[4])
    step_s -= tree_s * grown
    separated = [
        replace(cell, draft_s=part, rest_s=left - part, growth=None)
        for cell, of_draft, left in zip(drafted, draft_s.tolist(), step_s.tolist(), strict=True)
        for part in (min(of_draft, 0.9 * left),)
    ]
    return [*(cell for cell in cells if not cell.widths), *separated], missed, tree_s
