"""The formulas behind the sliders of the page; `sliders.js` computes the same in the browser.

With replayed tau, conditional acceptance rates a_1, a_2, ... of the walk (a_d: share of the steps that accepted d - 1
drafted tokens that accept one more), a scale s of acceptance, a scale v of the cost of speculating, and a price per
hour:

* F(s) = 1 + sum over depths d of min(1, s a_1) ... min(1, s a_d): tokens per step of a chain with these rates;
* tau(s) = tau F(s) / F(1), exact at s = 1, an approximation elsewhere: the walk would change with acceptance;
* step(v) = plain + v (step - plain), where step and plain are the library's predictions for the batch size;
* speedup = tau(s) plain / step(v), with tau's interval and the error of step times (`Estimate.times`);
* tokens/s = batch tau(s) / step(v); time per token = step(v) / tau(s); price of a million tokens = price per hour over
  tokens per hour, in millions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from treeopt.statistics.clustered_estimate import Estimate

MILLION = 1e6
HOUR_S = 3600.0


@dataclass(frozen=True)
class Drafted:
    """A static tree that a slider can choose, with what was replayed of it.

    Attributes:
        name: in words.
        shape: `chain` or `tree`.
        nodes: drafted nodes.
        depth: drafted levels.
        tau: replayed tokens per step.
        rates: a_1, a_2, ...: conditional acceptance by depth along the walk.
        step_s: batch size -> seconds per step; batch sizes at which it has no price are missing.
        error: batch size -> relative error of step / plain step, half of a 95 % interval.
    """

    name: str
    shape: str
    nodes: int
    depth: int
    tau: Estimate
    rates: tuple[float, ...]
    step_s: Mapping[int, float]
    error: Mapping[int, float]


@dataclass(frozen=True)
class Setting:
    """The places of the sliders."""

    batch: int
    acceptance: float = 1.0
    cost: float = 1.0
    price: float = 2.0


@dataclass(frozen=True)
class Outcome:
    """The result of a setting: tokens per step, seconds per step, speedup, tokens per second, price."""

    tau: Estimate
    step_s: float
    speedup: Estimate
    tokens_s: float
    tpot_s: float
    million: float


def chain_tokens(rates: Sequence[float], scale: float = 1.0) -> float:
    """Return F(s), tokens per step of a chain with these conditional acceptance rates.

    >>> chain_tokens([0.5, 0.5]), chain_tokens([0.5, 0.5], 2.0)
    (1.75, 3.0)
    """
    total, reached = 1.0, 1.0
    for rate in rates:
        reached *= min(1.0, scale * rate)
        total += reached
    return total


def recompute(drafted: Drafted, plain_s: float, setting: Setting) -> Outcome:
    """Return what a tree does at a setting; see the module.

    Raises:
        KeyError: the tree has no price at this batch size.
    """
    batch = setting.batch
    tau = drafted.tau.times(chain_tokens(drafted.rates, setting.acceptance) / chain_tokens(drafted.rates))
    step_s = plain_s + setting.cost * (drafted.step_s[batch] - plain_s)
    speedup = tau.times(plain_s / step_s, relative_error=drafted.error[batch])
    tokens_s = batch * tau.value / step_s
    million = setting.price / (tokens_s * HOUR_S) * MILLION
    return Outcome(tau, step_s, speedup, tokens_s, step_s / tau.value, million)


def embedded(drafted: Sequence[Drafted], plain_s: Mapping[int, float]) -> dict[str, Any]:
    """Return the data that the page holds, JSON values; batch sizes become texts."""
    return {
        "plain_s": {str(batch): seconds for batch, seconds in plain_s.items()},
        "trees": [asdict(tree) for tree in drafted],
    }


def conditional_rates(accepted_counts: Sequence[int]) -> tuple[float, ...]:
    """Return a_1, a_2, ... from the numbers of steps that accepted 0, 1, ... drafted tokens.

    >>> conditional_rates([2, 1, 1])
    (0.5, 0.5)
    """
    left = [sum(accepted_counts[depth:]) for depth in range(len(accepted_counts))]
    return tuple(after / before if before else 0.0 for before, after in pairwise(left))


def finite(estimate: Estimate) -> Estimate:
    """Return the estimate with ends that JSON can hold: an infinite interval ends at 0 and twice the value."""
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        return estimate
    return Estimate(estimate.value, 0.0, 2 * estimate.value)
