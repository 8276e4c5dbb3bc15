"""The error of a profile at sizes that it did not measure: each token count is left out in turn and predicted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.profiles.cell_tables import Cell, CellTables, over_plain
from simulate.profiles.profile import Profile
from simulate.roofline.data_sheets import SAME_CLASS_ERROR
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError

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


def jackknife_plus(predicted: ArrayLike, residual: ArrayLike, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the lower and upper ends of the predictions' intervals, float64 (m,) each.

    The ends are the floor(alpha (n + 1))-th smallest of predicted[i] - residual[i] and the ceil((1 - alpha)
    (n + 1))-th of predicted[i] + residual[i], alpha = 1 - level. At least 1 - 2 alpha of new observations lie inside
    for any model, and close to 1 - alpha if it is stable. With fewer than 1 / alpha - 1 observations no finite interval
    guarantees that; the outermost ends are returned then.

    Source: Barber, Candes, Ramdas and Tibshirani 2021, Predictive inference with the jackknife+, eq. 1.4.

    Args:
        predicted: (n, m), the predictions of the model without observation i at each of m places.
        residual: (n,), |observation i - the prediction of the model without it|.
        level: nominal coverage.

    Raises:
        UsageError: no observation, or a level outside (0, 1).

    >>> low, high = jackknife_plus([[10.0]] * 4, [1.0, 2.0, 3.0, 4.0], level=0.5)
    >>> low.tolist(), high.tolist()
    ([7.0], [13.0])
    """
    values, errors = np.asarray(predicted, dtype=np.float64), np.asarray(residual, dtype=np.float64)
    if errors.ndim != 1 or len(errors) == 0 or values.ndim != 2 or len(values) != len(errors):
        raise UsageError(
            f"predicted must be (n, m) and residual (n,), n at least 1, got {values.shape}, {errors.shape}"
        )
    if not 0 < level < 1:
        raise UsageError(f"level must be in (0, 1), got {level}")
    count = len(errors)
    # The share of a count is rounded before its floor: 0.05 x 20 is 1.
    below = max(1, math.floor(round((1 - level) * (count + 1), 9)))
    above = min(count, math.ceil(round(level * (count + 1), 9)))
    low = np.sort(values - errors[:, None], axis=0)[below - 1]
    high = np.sort(values + errors[:, None], axis=0)[above - 1]
    return low, high
