"""Cells, ways of decoding as they were measured, and the profile that they calibrate, with the error it will make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulate.model_sizes.mixture_of_experts import Experts
from simulate.profiles.basis import Basis, fit_basis
from simulate.profiles.dynamic_tree_overhead import fit_growing
from simulate.profiles.jackknife import jackknife_plus
from simulate.profiles.profile import NORMAL_95, BatchTimes, Profile, over_basis
from simulate.profiles.step_tables import Growing, Points, interpolated
from simulate.roofline.fitted_constants import SAME_CLASS_ERROR
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.policies import GROWTHS

Floats = NDArray[np.float64]

CHANCE = 1e-3  # of calling widths a matter when they are none
MATTERS = 0.01  # share of a step below which a level's width is left out
Place = tuple[int, float]  # batch size, context

ENOUGH = 19  # left-out cells from which a batch size has an interval of its own: 1 / 0.05 - 1


@dataclass(frozen=True)
class Cell:
    """Medians of one way to decode at one batch size and context.

    Attributes:
        batch: sequences.
        context: tokens a sequence in the cache, on average.
        tokens: verified tokens a sequence; 1 for plain decoding.
        widths: nodes fed to the drafter at each level; () for plain decoding.
        draft_s: seconds of drafting.
        rest_s: seconds of everything else in a step.
        committed: tokens a sequence and step.
        error: relative standard error of the step's seconds.
        forced: measured to tell what committing more tokens takes, and for nothing else.
        growth: its trees were drawn anew, as one of `treeopt.policies.GROWTHS` says; None: it is a static tree.
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


def profile_of(
    cells: Sequence[Cell],
    *,
    context: tuple[int, int],
    experts: Experts | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Profile:
    """The profile that cells calibrate.

    The basis is used where it predicts left-out sizes better than straight lines do; see `shrunk`. `relative_error`
    is half the jackknife+ interval of step / plain step, every token count of a batch size and context left out in
    turn (with a share of what the plain step itself is uncertain by), and each batch size's own where it has enough.
    Fewer than `ENOUGH` in all make no 95 % interval: their outermost ends are taken then, which hold every error seen,
    and no less than what a data sheet's constants err by on another device of their class.
    Under `left_out_sizes` provenance says how many were, and by how much they were missed in the median; under
    `growths` how many ways what drawing anew takes was fitted to, and by how much the others miss each in the median.

    Args:
        cells: of every batch size and context a plain one, and chains from 1 token deep.
        context: fewest and most tokens a sequence in the cache while measuring.
        experts: of the target.
        meta: provenance.

    Raises:
        UsageError: a batch size and context without a plain cell, or without a speculative one.
    """
    static = [cell for cell in cells if not cell.forced and cell.growth is None]
    ordered = sorted(static, key=lambda cell: (cell.batch, cell.context))
    committed = float(np.mean([cell.committed for cell in ordered if cell.widths] or [1.0]))
    per_token = _per_token(cells)
    level = [_levelled(cell, committed, per_token[cell.batch]) for cell in ordered]
    straight = _Calibration(level, context, experts, committed, per_token, fitted=False)
    found = straight.left_out()
    fitted = _Calibration(level, context, experts, committed, per_token, fitted=True)
    other = fitted.left_out()
    best = straight
    if len(other.residual) and np.mean(other.residual) < np.mean(found.residual):
        best, found = fitted, other
    pooled, own = found.half_widths()
    plain = {cell.batch: NORMAL_95 * cell.error for cell in level if not cell.widths}
    pooled = float(np.hypot(pooled, np.median(list(plain.values()))))
    errors = {batch: float(np.hypot(half, plain[batch])) for batch, half in own.items()}
    median = float(np.median(found.residual)) if len(found.residual) else None
    sizes = {"cells": len(found.residual), "median_error": median}
    profile = best.profile(best.tables, pooled, errors, {**(meta or {}), "left_out_sizes": sizes})
    return _with_growths(profile, [cell for cell in cells if cell.growth is not None])


@dataclass(frozen=True)
class _LeftOut:
    """What models that each missed one token count said of it, and of all cells; in shares of a step.

    Attributes:
        batch: int (n,), of each that was left out.
        residual: (n,), |log(measured / predicted)| of step / plain step.
        predicted: (n, n), the logarithm of what model i predicts of cell j over what the whole model does.
    """

    batch: NDArray[np.int64]
    residual: Floats
    predicted: Floats

    def half_widths(self) -> tuple[float, dict[int, float]]:
        """Half of the 95 % interval, of all batch sizes and of those that have enough; see `profile_of` of too few."""
        if len(self.residual) == 0:
            return SAME_CLASS_ERROR, {}

        def half(chosen: NDArray[np.bool_]) -> float:
            low, high = jackknife_plus(self.predicted[np.ix_(chosen, chosen)], self.residual[chosen])
            return float(np.mean(high - low) / 2)

        sizes, counts = np.unique(self.batch, return_counts=True)
        own = {int(size): half(self.batch == size) for size in sizes[counts >= ENOUGH]}
        least = 0.0 if len(self.residual) >= ENOUGH else SAME_CLASS_ERROR
        return max(least, half(self.batch > 0)), own


@dataclass(frozen=True)
class _Calibration:
    """Cells at one level of committed tokens, and how they are made to a profile."""

    cells: Sequence[Cell]
    context: tuple[int, int]
    experts: Experts | None
    committed: float
    per_token: Mapping[int, float]
    fitted: bool

    def profile(
        self, tables: Mapping[Place, BatchTimes], error: float, errors: Mapping[int, float], meta: Mapping[str, Any]
    ) -> Profile:
        """Of these tables, by rising batch size and context."""
        times = tuple(replace(t, relative_error=errors.get(t.batch)) for t in tables.values())
        basis = self._basis(times) if self.fitted else None
        if basis is not None:
            times = shrunk(times, basis, self.variance)
        return Profile(times, self.context, error, meta, basis, self.committed)

    @cached_property
    def variance(self) -> dict[tuple[int, float, int], float]:
        """Of what was measured, by batch size, context and tokens, relative."""
        found: dict[tuple[int, float, int], list[float]] = {}
        for cell in self.cells:
            found.setdefault((cell.batch, cell.context, cell.tokens), []).append(cell.error**2)
        return {size: float(np.mean(same)) / len(same) for size, same in found.items()}

    @cached_property
    def tables(self) -> dict[Place, BatchTimes]:
        """Of each batch size and context."""
        found: dict[Place, BatchTimes] = {}
        for place, group in groupby(self.cells, key=lambda cell: (cell.batch, cell.context)):
            found[place] = self._table(list(group), found)
        return found

    def _table(self, cells: Sequence[Cell], others: Mapping[Place, BatchTimes]) -> BatchTimes:
        """Of the cells of one batch size and context; where they cannot tell widths, another context's are taken."""
        batch, context = cells[0].batch, cells[0].context
        plain = [cell.step_s for cell in cells if not cell.widths]
        speculative = [cell for cell in cells if cell.widths]
        if not plain or not speculative:
            raise UsageError(f"batch {batch}, context {context:g}: a plain and a speculative step must be measured")
        first = next((times for (size, _), times in others.items() if size == batch), None)
        draft, widths = drafting(speculative, first.widths if first and first.widths_told else None)
        rest, more = _by_size(speculative), self.per_token.get(batch, 0.0)
        return BatchTimes(
            batch, float(np.median(plain)), draft, rest, widths or (), context, more, widths_told=widths is not None
        )

    def _basis(self, tables: Sequence[BatchTimes]) -> Basis:
        rows = [(n, s, times.batch, times.context) for times in tables for n, s in times.rest]
        tokens, seconds, batch, context = map(np.array, zip(*rows, strict=True))
        return fit_basis(tokens, seconds, batch=batch, context=context, experts=self.experts)

    def left_out(self) -> _LeftOut:
        """Every token count of a batch size and context in turn, where the others say something of it."""
        whole = self.profile(self.tables, 0.0, {}, {})
        speculative = [cell for cell in self.cells if cell.widths]
        place = [(cell.batch, cell.context, cell.tokens) for cell in speculative]
        due = np.log([_over_plain(cell, self.cells) for cell in speculative])
        at_all = _log_steps(whole, speculative)
        batches, residual, predicted = [], [], []
        for one in dict.fromkeys(place):
            here = [c for c in self.cells if (c.batch, c.context) == one[:2] and (not c.widths or c.tokens != one[2])]
            mine = [i for i, where in enumerate(place) if where == one]
            try:
                model = self.profile({**self.tables, one[:2]: self._table(here, self.tables)}, 0.0, {}, {})
                found = _log_steps(model, [speculative[i] for i in mine])
            except (CostError, UsageError):  # the smallest or largest: the others say nothing of it
                continue
            said = at_all.copy()
            said[mine] = found
            for i, value in zip(mine, found.tolist(), strict=True):
                batches.append(speculative[i].batch)
                residual.append(abs(due[i] - value))
                predicted.append((i, said - at_all))
        rows = [i for i, _ in predicted]
        table = np.array([row[rows] for _, row in predicted]).reshape(len(rows), len(rows))
        return _LeftOut(np.array(batches, dtype=np.int64), np.array(residual), table)


def _with_growths(profile: Profile, cells: Sequence[Cell]) -> Profile:
    """With what trees that were drawn anew took longer than the profile says of static ones; see `fit_growing`."""
    if not cells:
        return profile
    known: dict[int, dict[str, Growing]] = {times.batch: {} for times in profile.batches}
    missed: dict[str, list[float]] = {growth: [] for growth in GROWTHS}
    for batch, growth in dict.fromkeys((cell.batch, str(cell.growth)) for cell in cells):
        here = [cell for cell in cells if (cell.batch, cell.growth) == (batch, growth)]
        shapes = [StepShape(cell.batch, cell.tokens, cell.widths, None, cell.committed) for cell in here]
        steps = np.array([cell.step_s for cell in here])
        known[batch][growth], off = fit_growing(shapes, steps - profile.step_s(shapes), steps)
        missed[growth].extend(off.tolist())
    told = {growth: {"cells": len(off), "median_error": float(np.median(off))} for growth, off in missed.items() if off}
    spread = float(np.sqrt(np.mean(np.concatenate(list(missed.values())) ** 2)))
    batches = tuple(
        replace(times, growth={growth: replace(each, spread=spread) for growth, each in known[times.batch].items()})
        for times in profile.batches
    )
    return replace(profile, batches=batches, meta={**profile.meta, "growths": told})


def shrunk(
    tables: Sequence[BatchTimes], basis: Basis, variance: Mapping[tuple[int, float, int], float]
) -> tuple[BatchTimes, ...]:
    """Tables whose seconds besides drafting are drawn towards the basis, as far as noise explains where they lie.

    With r the logarithm of what was measured over what the basis says, less its mean over a table, v its variance by
    measuring and t the variance that the table's sizes have of their own (that of r less the mean v, at least 0), r
    becomes r t / (t + v): what a quiet machine measured stays as it is. Source: Efron and Morris 1975, with unequal
    variances.

    Args:
        tables: of all batch sizes and contexts.
        basis: fitted to them.
        variance: relative, by batch size, context and tokens.
    """
    found = []
    for times in tables:
        logs = np.log([seconds for _, seconds in over_basis(times, basis)])
        r, v = logs - logs.mean(), np.array([variance[times.batch, times.context, size] for size, _ in times.rest])
        own = max(0.0, float(r @ r) / max(len(r) - 1, 1) - float(v.mean()))
        noise = np.divide(v, own + v, out=np.zeros_like(v), where=v > 0)
        factors = np.exp(-r * noise).tolist()
        rest = tuple((size, seconds * factor) for (size, seconds), factor in zip(times.rest, factors, strict=True))
        found.append(replace(times, rest=rest))
    return tuple(found)


def drafting(cells: Sequence[Cell], like: Points | None = None) -> tuple[Points, Points | None]:
    """Seconds of drafting chains by depth, and how much longer a level takes by the nodes fed to it.

    What trees' drafting exceeds that of the chain of their depth by is laid to their levels' widths, a non-negative
    piece-wise linear function of them, if an F test finds that it explains more than chance would (1 in 1000) and it
    is at least 1 % of a step. Else widths do not matter, and all trees of a depth tell what it takes.

    Args:
        cells: speculative ones of one batch size and context.
        like: what is taken for the widths where too few trees were measured to tell; None: nothing tells.
    """
    by_depth = {depth: [c.draft_s for c in cells if len(c.widths) == depth] for depth in {len(c.widths) for c in cells}}
    alike = tuple((depth, float(np.median(by_depth[depth]))) for depth in sorted(by_depth))
    narrow = {len(cell.widths): cell.draft_s for cell in cells if max(cell.widths) == 1}
    chains = tuple(sorted(narrow.items()))
    trees = [cell for cell in cells if max(cell.widths) > 1]
    knots = sorted({width for cell in trees for width in cell.widths if width & (width - 1) == 0} | {1})
    widest = max((max(cell.widths) for cell in trees), default=1)
    knots = [*(knot for knot in knots if knot < widest), widest] if widest > 1 else [1]
    free = len(knots) - 1
    if not chains:
        return alike, like
    if free == 0 or len(trees) <= free + 1:
        return (chains, like) if like else (alike, like)
    from scipy.optimize import nnls
    from scipy.stats import f as f_law

    more = np.array([cell.draft_s for cell in trees]) - interpolated(np.array([len(c.widths) for c in trees]), chains)
    steps = np.array([cell.step_s for cell in trees])
    hats = np.array([[sum(_hat(w, knots, k) for w in cell.widths) for k in range(1, len(knots))] for cell in trees])
    found, left = nnls(hats / steps[:, None], more / steps)
    without, freedom = float(np.sum((more / steps) ** 2)), len(trees) - free
    explained = max(0.0, without - left**2)
    chance = f_law.sf((explained / free) / max(left**2 / freedom, 1e-300), free, freedom)
    if explained == 0 or chance > CHANCE or np.max(hats @ found / steps) < MATTERS:
        return alike, ()
    return chains, ((1, 0.0), *zip(knots[1:], found.tolist(), strict=True))


def _hat(width: int, knots: Sequence[int], place: int) -> float:
    """The share of a knot in the straight line between the knots around `width`."""
    return float(np.interp(width, knots, np.arange(len(knots)) == place))


def _by_size(cells: Sequence[Cell]) -> Points:
    sizes = sorted({cell.tokens for cell in cells})
    return tuple((size, float(np.median([c.rest_s for c in cells if c.tokens == size]))) for size in sizes)


def _per_token(cells: Sequence[Cell]) -> dict[int, float]:
    """By batch size what each further committed token a sequence takes; where it was not measured, as at the next."""
    known = {batch: _commit_s([c for c in cells if c.batch == batch]) for batch in {c.batch for c in cells if c.forced}}
    found = dict.fromkeys((cell.batch for cell in cells), 0.0)
    if known:
        found = {batch: known[min(known, key=lambda k: (abs(np.log(k / batch)), k))] for batch in found}
    return found


def _commit_s(cells: Sequence[Cell]) -> float:
    """Seconds for each further committed token a sequence, from runs that differ in nothing else; at least 0."""
    across = along = 0.0
    alike: dict[Any, list[Cell]] = {}
    for cell in cells:
        if cell.forced:
            alike.setdefault((cell.context, cell.tokens, cell.widths), []).append(cell)
    for same in alike.values():
        committed, seconds = (np.array([getattr(c, name) for c in same]) for name in ("committed", "step_s"))
        apart = committed - committed.mean()
        across, along = across + float(apart @ seconds), along + float(apart @ apart)
    return max(0.0, across / along) if along > 0 else 0.0


def _levelled(cell: Cell, committed: float, per_token: float) -> Cell:
    """The cell as it would be had it committed that many tokens; a plain step commits one."""
    if not cell.widths:
        return cell
    rest_s = max(cell.rest_s - (cell.committed - committed) * per_token, 0.5 * cell.rest_s)
    return replace(cell, rest_s=rest_s, committed=committed)


def _over_plain(cell: Cell, cells: Sequence[Cell]) -> float:
    here = [c.step_s for c in cells if not c.widths and (c.batch, c.context) == (cell.batch, cell.context)]
    return cell.step_s / float(np.median(here))


def _log_steps(profile: Profile, cells: Sequence[Cell]) -> Floats:
    """log(step / plain step) at the cells' own contexts."""
    found = []
    for cell in cells:
        times = next(t for t in profile.batches if (t.batch, t.context) == (cell.batch, cell.context))
        one = Profile((times,), (0, 2**62), 0.0, {}, profile.basis)
        step = one.step_s([StepShape(cell.batch, cell.tokens, cell.widths)])[0]
        found.append(np.log(step / times.plain_s))
    return np.array(found)
