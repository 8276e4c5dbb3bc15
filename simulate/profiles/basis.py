"""The basis: step time as a fitted non-negative sum of terms: tokens, tiles, keys and values, masks, experts.

Fitted by least squares of relative errors. A profile uses it to interpolate between measured sizes and across contexts;
at a measured size the measurement counts, see `simulate.profiles.step_tables`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.profiles.step_tables import BatchTimes, Points
from treeopt.cost_model import far
from treeopt.errors import CostError
from treeopt.storage.typed_records import Finite, NotNegative

Floats = NDArray[np.float64]

TILES = (16, 64, 128, 256)  # rows that kernels round up to (walltime measurements of A100, H100 and A40)
CONTEXT_TERMS = ("cache", "attention")  # left out unless contexts lie far apart: they would stand in for other terms
ROUNDING = 1e-9  # share of a step; terms that never take more come from rounding
SPREADS = tuple(round(0.05 * i, 2) for i in range(1, 21))


def terms_of(
    tokens: ArrayLike, *, batch: ArrayLike, context: ArrayLike, experts: Experts | None = None, spread: float = 1.0
) -> dict[str, Floats]:
    """Return the amount of each term in steps of these sizes; float64, of their common shape.

    With t = batch x tokens rows: `step` 1; `tokens` t; `tileN` t rounded up to a multiple of N; `sequences` batch;
    `cache` keys and values read, batch x context; `attention` t x context; `mask` batch x tokens**2; `experts` the
    experts of a layer that the rows need between them.

    Args:
        tokens: verified tokens per sequence.
        batch: sequences.
        context: tokens of each sequence in the cache.
        experts: the target's experts; None: the term is left out.
        spread: lambda of `Experts.touched`.

    >>> terms_of(5, batch=4, context=100)["tile16"].item()
    32.0
    """
    size, sequences, cached = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (tokens, batch, context))
    )
    rows = size * sequences
    amounts = {"step": np.ones_like(rows), "tokens": rows}
    amounts |= {f"tile{tile}": np.ceil(rows / tile) * tile for tile in TILES}
    amounts |= {"sequences": sequences.copy(), "cache": sequences * cached, "attention": rows * cached}
    amounts["mask"] = sequences * size**2
    if experts is not None:
        amounts["experts"] = experts.touched(rows, spread=spread)
    return amounts


TERMS = (*terms_of(1, batch=1, context=0), "experts")


@dataclass(frozen=True)
class Basis:
    """A fitted sum of terms.

    Terms that are missing cost nothing.
    """

    seconds: Annotated[Mapping[str, NotNegative], Meta(description="by term: seconds per unit")] = field(
        default_factory=dict
    )
    experts: Annotated[Experts | None, Meta(description="the target's experts, if `experts` is a term")] = None
    spread: Annotated[Finite, Meta(description="lambda of `Experts.touched`, fitted")] = 1.0

    def __post_init__(self) -> None:
        """Check names and signs.

        Raises:
            CostError: names the term.
        """
        for name in self.seconds:
            if name not in TERMS:
                raise CostError(f"basis: there is no term {name!r:.40}, only {', '.join(TERMS)}")
        if not any(value > 0 for name, value in self.seconds.items() if name not in CONTEXT_TERMS):
            raise CostError("basis: a term that any step has must be above 0")
        if "experts" in self.seconds and self.experts is None:
            raise CostError("basis: the term experts needs their counts")
        if not 0 < self.spread <= 1:
            raise CostError(f"basis: spread must be above 0 and at most 1, found {self.spread}")
        object.__setattr__(self, "seconds", MappingProxyType(dict(self.seconds)))

    def rest_s(self, tokens: ArrayLike, *, batch: ArrayLike, context: ArrayLike) -> Floats:
        """Return the seconds of everything but drafting; sizes as in `terms_of`.

        >>> Basis({"step": 0.5, "tile16": 0.25}).rest_s([1, 5], batch=4, context=0).tolist()
        [4.5, 8.5]
        """
        amounts = terms_of(tokens, batch=batch, context=context, experts=self.experts, spread=self.spread)
        total = np.zeros_like(amounts["step"])
        for name, value in self.seconds.items():
            total += value * amounts[name]
        return total


def fit_basis(
    tokens: ArrayLike, seconds: ArrayLike, *, batch: ArrayLike, context: ArrayLike, experts: Experts | None = None
) -> Basis:
    """Fit the sum by least squares of relative errors, no term below 0 (Lawson and Hanson 1974, by scipy).

    Args:
        tokens: verified tokens per sequence of each measured step, (n,).
        seconds: seconds of each step besides drafting, (n,), positive.
        batch: sequences of each step, (n,).
        context: tokens per sequence in the cache of each step, (n,).
        experts: the target's experts; if given, the spread with the least error is used.

    >>> basis = fit_basis([1, 8, 16, 24, 32], [3, 3, 3, 5, 5], batch=1, context=0)
    >>> {name: round(value, 6) for name, value in basis.seconds.items()}
    {'step': 1.0, 'tile16': 0.125}
    """
    from scipy.optimize import nnls

    measured = np.asarray(seconds, dtype=np.float64)
    contexts = np.asarray(context, dtype=np.float64)
    left_out = () if far(float(contexts.max()), float(contexts.min())) else CONTEXT_TERMS
    best: tuple[float, dict[str, float], float] | None = None
    for spread in SPREADS if experts is not None else (1.0,):
        amounts = terms_of(tokens, batch=batch, context=context, experts=experts, spread=spread)
        names = [name for name in amounts if name not in left_out]
        columns = np.stack([np.broadcast_to(amounts[name], measured.shape) for name in names], 1)
        columns = columns / measured[:, None]
        scale = columns.max(axis=0)
        scale[scale == 0] = 1.0
        shares, error = nnls(columns / scale, np.ones(len(measured)))
        if best is None or error < best[0] * (1 - 1e-9):
            shares[shares < ROUNDING] = 0
            best = error, {n: v for n, v in zip(names, (shares / scale).tolist(), strict=True) if v > 0}, spread
    assert best is not None
    _, fitted, spread = best
    if all(name in CONTEXT_TERMS for name in fitted):  # no step without a cache would take any time
        return fit_basis(tokens, seconds, batch=batch, context=0, experts=experts)
    if "experts" not in fitted:  # other terms explain their cost
        experts, spread = None, 1.0
    return Basis(fitted, experts, spread)


def basis_of(tables: Sequence[BatchTimes], experts: Experts | None = None) -> Basis:
    """Return the basis that fits the tables; `experts`: the target's."""
    points = [(size, seconds, times.batch, times.context) for times in tables for size, seconds in times.rest]
    tokens, measured_s, batches, contexts = zip(*points, strict=True)
    return fit_basis(tokens, measured_s, batch=batches, context=contexts, experts=experts)


def over_basis(times: BatchTimes, basis: Basis) -> Points:
    """Return the ratio of measured seconds besides drafting to those of the basis, by tokens."""
    tokens, seconds = zip(*times.rest, strict=True)
    fitted_s = basis.rest_s(tokens, batch=times.batch, context=times.context)
    return tuple(zip(tokens, (np.array(seconds) / fitted_s).tolist(), strict=True))
