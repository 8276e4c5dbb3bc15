"""What a search maximises: tokens a step, counted over all requests, request by request, or in the worst domain.

Time a token is step time times a weighted sum of the steps that requests take. An objective is those weights, its
prices; where it has several rows of them, the dearest row counts. Knows nothing of trees.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.traces.trace import Trace

Steps = NDArray[np.int64] | NDArray[np.float64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Objective:
    """A way to count tokens a step.

    Attributes:
        name: how it is asked for.
        prices: of a trace, float64 (K, R): what a step of each request costs; Σ_r price · length is 1 in every row.

    >>> trace = Trace(np.int32([0, 0, 0, 0, 1, 1]), np.int32([0, 1, 2, 3, 0, 1]), np.int16([[0]] * 6), 1)
    >>> THROUGHPUT.tokens(np.array([1, 2]), trace)  # 6 tokens in 3 steps
    2.0
    >>> LATENCY.tokens(np.array([1, 2]), trace)  # 1/4 and 1 steps a token
    1.6
    """

    name: str
    prices: Callable[[Trace], Floats]

    def tokens(self, steps: Steps, trace: Trace) -> float:
        """Tokens a step, 1 / max_k prices[k] @ steps; tau where throughput is asked for.

        Args:
            steps: int64 (R,), steps of each request; given seconds, float64 (R,), the result is tokens a second.
            trace: the requests.

        Raises:
            TraceError: steps of other requests, or a trace without what the objective looks at.
        """
        return 1 / float((self._prices(steps, trace) @ steps).max())

    def estimate(self, steps: Steps, trace: Trace) -> Estimate:
        """`tokens` with a 95 % interval clustered by request: that of the row which counts.

        A row is the ratio Σ price · length / Σ price · steps. The choice of the worst domain adds nothing to it.
        """
        return ratio(*self._row(steps, trace)[1:])

    def share(self, own: Steps, best: Steps, trace: Trace) -> Estimate:
        """tokens(own) / tokens(best), paired by request; the requests of two domains share nothing.

        Where one row counts for both it is Σ price · best / Σ price · own, a ratio like any other.
        """
        row, other = (int((self._prices(steps, trace) @ steps).argmax()) for steps in (own, best))
        prices = self.prices(trace)
        if row == other:
            of = prices[row] > 0
            return ratio((prices[row] * best)[of], (prices[row] * own)[of])
        a, b = self.estimate(own, trace), self.estimate(best, trace)
        return a.times(1 / b.value, relative_error=b.relative)

    def _prices(self, steps: Steps, trace: Trace) -> Floats:
        if steps.shape != (trace.requests,):
            raise TraceError(f"steps must be of {trace.requests} requests, found shape {steps.shape}")
        return self.prices(trace)

    def _row(self, steps: Steps, trace: Trace) -> tuple[int, Floats, Floats]:
        """The row that counts, and of its requests what the ratio is made of."""
        prices = self._prices(steps, trace)
        row = int((prices @ steps).argmax())
        of = prices[row] > 0
        return row, (prices[row] * trace.lengths)[of], (prices[row] * steps)[of]


def _throughput(trace: Trace) -> Floats:
    return np.full((1, trace.requests), 1 / trace.anchors)


def _latency(trace: Trace) -> Floats:
    return 1 / (trace.requests * trace.lengths[None])


def _worst_domain(trace: Trace) -> Floats:
    if trace.domain is None:
        raise TraceError("the worst domain needs a trace with `domain`, which this one does not have")
    of = trace.domain == np.unique(trace.domain)[:, None]
    return np.asarray(of / (of @ trace.lengths)[:, None])


THROUGHPUT = Objective("throughput", _throughput)
LATENCY = Objective("latency", _latency)  # mean over requests of their own time a token
WORST_DOMAIN = Objective("worst-domain", _worst_domain)  # domains without requests do not count
OBJECTIVES = {objective.name: objective for objective in (THROUGHPUT, LATENCY, WORST_DOMAIN)}
