"""The formulas of the page's sliders, in Python: see `treeopt.report.slider_model`; the oracle of `sliders.js`."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.report.slider_model import Drafted
from treeopt.statistics import Estimate

MILLION = 1e6
HOUR_S = 3600.0


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
    """Return what a tree does at a setting.

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
