"""How acceptance falls from one draft token to the next: a law fitted to published curves, which completes few figures.

The k-th draft token, given that those before it were accepted, is accepted with probability h_k, where logit h_k =
a − b ln k. The slope b is the curves' own: over those of `data/published/acceptance.json` its median is `SLOPE`, and
SLOPE ± `SLOPE_HALF` is as wide as the 95 % prediction interval of a further one (Student's t). b = 0 is the geometric
law. What was fitted and how well curves of models that were left out are predicted: docs/results/acceptance_law.md
(`python -m tests.benchmarks.acceptance_law`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLOPE, SLOPE_HALF = 0.44, 1.47
NOISE = 0.25  # standard deviation of a published logit h_k around its curve,
TYPICAL = 0.75  # where h_k is about this
FURTHEST = 20.0  # largest |a|: acceptance within 2e-9 of 0 or 1
CERTAIN = 6.0  # largest |logit| of a given rate
HALVINGS = 60

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curves:
    """P(the first k draft tokens are accepted), float64 (length,): expected, and the ends of its 95 % interval.

    The ends are whole curves, one falling faster and one slower: where a sum of several is known, they cross.
    """

    expected: Floats
    faster: Floats
    slower: Floats


def survival(level: float, slope: float, length: int) -> Floats:
    """Return P(the first k draft tokens are accepted), k = 1 to `length`, float64 (length,), by the law.

    >>> survival(0.0, 0.0, 3).tolist()
    [0.5, 0.25, 0.125]
    """
    return np.asarray(np.cumprod(_rate(level - slope * np.log(np.arange(1, length + 1)))))


def from_sum(known: Callable[[Floats], float], value: float, length: int) -> Curves:
    """Return the curves on which one figure has a value.

    Args:
        known: the figure of a curve of `length` positions; it rises with acceptance.
        value: its value.
        length: positions.

    >>> curves = from_sum(lambda curve: float(curve[:3].sum()), 1.5, 4)
    >>> [round(float(curve[:3].sum()), 3) for curve in (curves.expected, curves.faster, curves.slower)]
    [1.5, 1.5, 1.5]
    """

    def curve(slope: float) -> Floats:
        low, high = -FURTHEST, FURTHEST
        for _ in range(HALVINGS):
            level = (low + high) / 2
            low, high = (level, high) if known(survival(level, slope, length)) < value else (low, level)
        return survival(high, slope, length)

    return Curves(curve(SLOPE), curve(SLOPE + SLOPE_HALF), curve(SLOPE - SLOPE_HALF))


def from_positions(rates: Sequence[float], length: int) -> Curves:
    """Return the curves that hold P(the first k are accepted) at the first positions, completed to `length`.

    The law's two numbers are estimated from the given positions, with the published slopes as the prior.

    >>> from_positions([0.8, 0.6], 4).expected.round(2).tolist()
    [0.8, 0.6, 0.43, 0.3]
    """
    known = np.asarray(rates, dtype=np.float64)
    before = np.append(1.0, known[:-1])
    alive = before > 0
    given = np.clip(known[alive] / before[alive], _rate(-CERTAIN), _rate(CERTAIN))
    logits = np.log(given / (1 - given))
    # What is measured with equal error is h_k: near 0 and 1 its logit says little.
    weights = (given * (1 - given) / (NOISE * TYPICAL * (1 - TYPICAL))) ** 2
    places = np.log(np.arange(1, length + 1))
    design = np.stack([np.ones_like(logits), -places[: len(logits)]], axis=1)
    prior = np.diag([0.0, 1 / (SLOPE_HALF / 2) ** 2])
    precision = design.T * weights @ design + prior
    fit = np.linalg.solve(precision, design.T * weights @ logits + prior @ [0.0, SLOPE])
    beyond = np.stack([np.ones(length - len(known)), -places[len(known) :]], axis=1)
    error = np.sqrt(np.einsum("ki,ij,kj->k", beyond, np.linalg.inv(precision), beyond) + NOISE**2)
    further = (_rate(beyond @ fit + 2 * sign * error) for sign in (0, -1, 1))
    return Curves(*(np.append(known, known[-1] * np.cumprod(rate)) for rate in further))


def _rate(logit: Floats | float) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.asarray(logit))))
