"""The objective of a search: tokens per step over all requests (throughput), per request (latency), or worst domain.

The time per token is the step time times a weighted sum of the steps that requests take. An objective is those weights,
its prices; if it has several rows of them, the dearest row counts. Knows nothing of trees.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.statistics import Estimate, ratio
from treeopt.traces.trace import Trace

Steps = NDArray[np.int64] | NDArray[np.float64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Objective:
    """A definition of tokens per step.

    Attributes:
        name: the name on the command line.
        prices: maps a trace to the price of a step of each request, float64 (K, R); Σ_r price · length is 1 in every
            row.

    >>> trace = Trace(np.int32([0, 0, 0, 0, 1, 1]), np.int32([0, 1, 2, 3, 0, 1]), np.int16([[0]] * 6), 1)
    >>> THROUGHPUT.tokens(np.array([1, 2]), trace)  # 6 tokens in 3 steps
    2.0
    >>> LATENCY.tokens(np.array([1, 2]), trace)  # 1/4 and 1 steps per token
    1.6
    """

    name: str
    prices: Callable[[Trace], Floats]

    def tokens(self, steps: Steps, trace: Trace) -> float:
        """Return the tokens per step, 1 / max_k prices[k] @ steps; for throughput this is tau.

        Args:
            steps: int64 (R,), steps of each request; given seconds, float64 (R,), the result is tokens per second.
            trace: the requests.

        Raises:
            TraceError: steps of other requests, or a trace without the arrays that the objective needs.
        """
        return 1 / float((self._prices(steps, trace) @ steps).max())

    def row(self, steps: Steps, trace: Trace) -> int:
        """Return the row of prices that counts: for `worst-domain`, the place of the worst domain among all."""
        return int((self._prices(steps, trace) @ steps).argmax())

    def estimate(self, steps: Steps, trace: Trace, *, row: int | None = None) -> Estimate:
        """Return `tokens` with a 95 % interval clustered by request, for one row of prices.

        A row is the ratio Σ price · length / Σ price · steps. The row that counts on the same requests is the worst of
        several noisy ones: its tokens are too few, by up to 11 % where domains are alike (`make coverage`). A row that
        was chosen on other requests has no such bias.

        Args:
            steps: as for `tokens`.
            trace: the requests.
            row: the row; default the one that counts on these requests.
        """
        row = self.row(steps, trace) if row is None else row
        prices = self._prices(steps, trace)[row]
        priced = prices > 0
        return ratio((prices * trace.lengths)[priced], (prices * steps)[priced], _groups(trace, priced))

    def share(self, own: Steps, best: Steps, trace: Trace) -> Estimate:
        """Return tokens(own) / tokens(best), paired by request; requests of two different domains are independent.

        If the same row counts for both, this is the ratio Σ price · best / Σ price · own.
        """
        row, other = self.row(own, trace), self.row(best, trace)
        prices = self.prices(trace)
        if row == other:
            priced = prices[row] > 0
            return ratio((prices[row] * best)[priced], (prices[row] * own)[priced], _groups(trace, priced))
        a, b = self.estimate(own, trace), self.estimate(best, trace)
        return a.times(1 / b.value, relative_error=b.relative)

    def _prices(self, steps: Steps, trace: Trace) -> Floats:
        if steps.shape != (trace.requests,):
            raise TraceError(f"steps must have one entry for each of {trace.requests} requests, found {steps.shape}")
        return self.prices(trace)


def _groups(trace: Trace, priced: NDArray[np.bool_]) -> NDArray[np.int16] | None:
    """Return the domain of each priced request, int (priced,); None without domains."""
    return None if trace.domain is None else trace.domain[priced]


def _throughput(trace: Trace) -> Floats:
    return np.full((1, trace.requests), 1 / trace.anchors)


def _latency(trace: Trace) -> Floats:
    return 1 / (trace.requests * trace.lengths[None])


def _worst_domain(trace: Trace) -> Floats:
    if trace.domain is None:
        raise TraceError("the worst domain needs a trace with `domain`, which this one does not have")
    members = trace.domain == np.unique(trace.domain)[:, None]
    return np.asarray(members / (members @ trace.lengths)[:, None])


THROUGHPUT = Objective("throughput", _throughput)
LATENCY = Objective("latency", _latency)  # mean over requests of each one's time per token
WORST_DOMAIN = Objective("worst-domain", _worst_domain)  # domains without requests do not count
OBJECTIVES = {objective.name: objective for objective in (THROUGHPUT, LATENCY, WORST_DOMAIN)}
