"""Measured cells, and the tables of step times that they make: chains by depth, levels by width, steps by tokens.

With a fitted basis the steps are shrunk towards it, as far as noise explains their distance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.profiles.basis import Basis, basis_of, over_basis
from simulate.profiles.profile import BatchTimes, Profile
from simulate.profiles.step_tables import Points, interpolate
from treeopt.errors import UsageError


@dataclass(frozen=True)
class Cell:
    """Median step times of one configuration at one batch size and context.

    Attributes:
        batch: sequences.
        context: tokens per sequence in the cache, on average.
        tokens: verified tokens per sequence; 1 for plain decoding.
        widths: nodes fed to the drafter at each level; () for plain decoding.
        draft_s: seconds of drafting.
        rest_s: seconds of everything else in a step.
        committed: tokens per sequence and step.
        error: relative standard error of the step's seconds.
        forced: measured only to find what committing more tokens costs.
        growth: kind of dynamic tree, one of `treeopt.policies.growths`; None: a static tree.
    """

    batch: int
    context: float
    tokens: int
    widths: tuple[int, ...]
    draft_s: float
    rest_s: float
    committed: float = 1.0
    error: float = 0.0
    forced: bool = False
    growth: str | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.draft_s + self.rest_s


def over_plain(cell: Cell, cells: Sequence[Cell]) -> float:
    """Return the cell's step time over the median plain step at its batch size and context."""
    plain = [c.step_s for c in cells if not c.widths and (c.batch, c.context) == (cell.batch, cell.context)]
    return cell.step_s / float(np.median(plain))


def commit_seconds(cells: Sequence[Cell]) -> dict[int, float]:
    """Return the seconds of each additional committed token per sequence, by batch size.

    A batch size at which this was not measured takes the value of the nearest one; 0.0 if none was measured.
    """
    measured = {
        batch: _slope_over_committed([c for c in cells if c.batch == batch])
        for batch in {c.batch for c in cells if c.forced}
    }
    by_batch = dict.fromkeys((cell.batch for cell in cells), 0.0)
    if measured:
        for batch in by_batch:
            nearest = min((abs(np.log(size / batch)), size) for size in measured)[1]  # of two the smaller
            by_batch[batch] = measured[nearest]
    return by_batch


def _slope_over_committed(cells: Sequence[Cell]) -> float:
    """Return the seconds per additional committed token, fitted to runs that differ in nothing else; at least 0."""
    covariance = variance = 0.0
    alike: dict[Any, list[Cell]] = {}
    for cell in cells:
        if cell.forced:
            alike.setdefault((cell.context, cell.tokens, cell.widths), []).append(cell)
    for same in alike.values():
        committed, seconds = (np.array([getattr(c, name) for c in same]) for name in ("committed", "step_s"))
        centred = committed - committed.mean()
        covariance, variance = covariance + float(centred @ seconds), variance + float(centred @ centred)
    return max(0.0, covariance / variance) if variance > 0 else 0.0


def at_committed(cell: Cell, committed: float, per_token: float) -> Cell:
    """Return the cell as if it had committed `committed` tokens; a plain step is unchanged, it commits one."""
    if not cell.widths:
        return cell
    rest_s = max(cell.rest_s - (cell.committed - committed) * per_token, 0.5 * cell.rest_s)
    return replace(cell, rest_s=rest_s, committed=committed)


Floats = NDArray[np.float64]
Place = tuple[int, float]  # batch size, context

CHANCE = 1e-3  # probability that widths are found to matter when they do not
MATTERS = 0.01  # share of a step below which the width of a level is ignored


@dataclass(frozen=True)
class CellTables:
    """Cells, and how a profile is made from them.

    Attributes:
        cells: static ones, sorted by batch size and context, all at the same number of committed tokens.
        context: range of tokens per sequence in the cache while measuring.
        experts: the target's experts.
        committed: tokens per sequence that each speculative cell commits.
        commit_s: seconds of each additional committed token per sequence, by batch size.
        use_basis: interpolate over a fitted basis and shrink towards it; otherwise interpolate on straight lines.
    """

    cells: Sequence[Cell]
    context: tuple[int, int]
    experts: Experts | None
    committed: float
    commit_s: Mapping[int, float]
    use_basis: bool

    def profile(
        self,
        tables: Mapping[Place, BatchTimes],
        error: float = 0.0,
        errors: Mapping[int, float] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Profile:
        """Return the profile of these tables, which come by rising batch size and context.

        Args:
            tables: `tables`, or the same with one of them replaced.
            error: relative error of all batch sizes.
            errors: relative error of single batch sizes.
            meta: provenance.
        """
        errors = errors or {}
        times = tuple(replace(table, relative_error=errors.get(table.batch)) for table in tables.values())
        basis = basis_of(times, self.experts) if self.use_basis else None
        if basis is not None:
            times = shrink_to_basis(times, basis, self.variance)
        return Profile(times, self.context, error, meta or {}, basis, self.committed)

    @cached_property
    def variance(self) -> dict[tuple[int, float, int], float]:
        """Relative variance of the measurements, by batch size, context and tokens."""
        squares: dict[tuple[int, float, int], list[float]] = {}
        for cell in self.cells:
            squares.setdefault((cell.batch, cell.context, cell.tokens), []).append(cell.error**2)
        return {size: float(np.mean(same)) / len(same) for size, same in squares.items()}

    @cached_property
    def tables(self) -> dict[Place, BatchTimes]:
        """The table of each batch size and context."""
        tables: dict[Place, BatchTimes] = {}
        for place, group in groupby(self.cells, key=lambda cell: (cell.batch, cell.context)):
            tables[place] = self.table(list(group), tables)
        return tables

    def table(self, cells: Sequence[Cell], others: Mapping[Place, BatchTimes]) -> BatchTimes:
        """Return the table of the cells of one batch size and context.

        If these cells do not determine the effect of widths, that of the first of `others` at the batch size is used.

        Raises:
            UsageError: no plain cell, or no speculative one.
        """
        batch, context = cells[0].batch, cells[0].context
        plain = [cell.step_s for cell in cells if not cell.widths]
        speculative = [cell for cell in cells if cell.widths]
        if not plain or not speculative:
            raise UsageError(f"batch {batch}, context {context:g}: a plain and a speculative step must be measured")
        first = next((times for (size, _), times in others.items() if size == batch), None)
        sizes = sorted({cell.tokens for cell in speculative})
        draft, widths = fit_drafting(speculative, first.widths if first and first.widths_told else None)
        return BatchTimes(
            batch,
            float(np.median(plain)),
            draft,
            tuple((size, float(np.median([c.rest_s for c in speculative if c.tokens == size]))) for size in sizes),
            widths or (),
            context,
            self.commit_s.get(batch, 0.0),
            widths_told=widths is not None,
        )


def shrink_to_basis(
    tables: Sequence[BatchTimes], basis: Basis, variance: Mapping[tuple[int, float, int], float]
) -> tuple[BatchTimes, ...]:
    """Return tables whose seconds besides drafting are moved towards the basis, as far as noise explains the distance.

    With r the logarithm of measured over basis seconds, less its mean over a table, v its variance from measuring and
    t the variance of the table's sizes themselves (that of r less the mean v, at least 0), r becomes r t / (t + v):
    what a quiet machine measured stays as it is. Source: Efron and Morris 1975, with unequal variances.

    Args:
        tables: tables of all batch sizes and contexts.
        basis: fitted to them.
        variance: relative, by batch size, context and tokens.
    """
    shrunk = []
    for times in tables:
        logs = np.log([seconds for _, seconds in over_basis(times, basis)])
        r, v = logs - logs.mean(), np.array([variance[times.batch, times.context, size] for size, _ in times.rest])
        t = max(0.0, float(r @ r) / max(len(r) - 1, 1) - float(v.mean()))
        noise = np.divide(v, t + v, out=np.zeros_like(v), where=v > 0)
        factors = np.exp(-r * noise).tolist()
        rest = tuple((size, seconds * factor) for (size, seconds), factor in zip(times.rest, factors, strict=True))
        shrunk.append(replace(times, rest=rest))
    return tuple(shrunk)


def fit_drafting(cells: Sequence[Cell], like: Points | None = None) -> tuple[Points, Points | None]:
    """Return the seconds of drafting chains by depth, and the additional seconds of a level by the nodes fed to it.

    The drafting time of a tree beyond that of the chain of its depth is attributed to the widths of its levels if
    `_width_seconds` finds that they matter. Otherwise the widths have no effect, and all trees of a depth count.

    Args:
        cells: speculative cells of one batch size and context.
        like: effect of widths to use if too few trees were measured to find one; None: it stays unknown.

    Returns:
        (depth, seconds), and (width, seconds): () if widths have no effect, None if it is unknown.
    """
    by_depth = {depth: [c.draft_s for c in cells if len(c.widths) == depth] for depth in {len(c.widths) for c in cells}}
    all_trees = tuple((depth, float(np.median(by_depth[depth]))) for depth in sorted(by_depth))
    chains = tuple(sorted({len(cell.widths): cell.draft_s for cell in cells if max(cell.widths) == 1}.items()))
    branching = [cell for cell in cells if max(cell.widths) > 1]
    powers = {width for cell in branching for width in cell.widths if width & (width - 1) == 0} | {1}
    widest = max((max(cell.widths) for cell in branching), default=1)
    knots = [*(power for power in sorted(powers) if power < widest), widest]
    if not chains:
        return all_trees, like
    if len(knots) == 1 or len(branching) <= len(knots):
        return (chains, like) if like else (all_trees, like)
    widths = _width_seconds(branching, chains, knots)
    return (chains, widths) if widths else (all_trees, ())


def _width_seconds(trees: Sequence[Cell], chains: Points, knots: Sequence[int]) -> Points:
    """Return the additional seconds of a level at each knot, non-negative; () if widths do not matter.

    Between knots they are linear. Widths matter if an F test finds that they explain more than chance would (1 in 1000)
    and they take at least 1 % of some step.
    """
    from scipy.optimize import nnls
    from scipy.stats import f as f_distribution

    excess_s = np.array([c.draft_s for c in trees]) - interpolate(np.array([len(c.widths) for c in trees]), chains)
    step_s = np.array([cell.step_s for cell in trees])
    hats = np.array([[np.interp(cell.widths, knots, hat).sum() for hat in np.eye(len(knots))[1:]] for cell in trees])
    seconds, residual = nnls(hats / step_s[:, None], excess_s / step_s)
    parameters = len(knots) - 1
    freedom = len(trees) - parameters
    explained = max(0.0, float(np.sum((excess_s / step_s) ** 2)) - residual**2)
    chance = f_distribution.sf((explained / parameters) / max(residual**2 / freedom, 1e-300), parameters, freedom)
    if explained == 0 or chance > CHANCE or np.max(hats @ seconds / step_s) < MATTERS:
        return ()
    return ((1, 0.0), *zip(knots[1:], seconds.tolist(), strict=True))
