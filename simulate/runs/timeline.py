"""Timeline of a run: when each step and request began and ended, and its rates and latencies (TTFT, TPOT, ITL).

The tokens of a step arrive together when it ends, so a request sees bursts. Its first tokens come with its first
step: a prompt's last token is that step's root, and prefill alone emits no token.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.statistics import CONFIDENCE, Estimate, Groups, ratio

RESAMPLES = 200
LATENCIES = ("ttft", "tpot", "itl", "e2e")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Emissions:
    """Tokens that each step committed to each request in it; E rows, ordered by request and then by step.

    Attributes:
        request: int64 (E,).
        step: int64 (E,), number of the step in the run.
        tokens: int64 (E,), committed.
    """

    request: Ints
    step: Ints
    tokens: Ints


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """Times of R requests; seconds are since the beginning.

    Attributes:
        tokens: int64 (R,), tokens committed to each request.
        arrived_s: float64 (R,).
        admitted_s: float64 (R,), when a row was free and prefill began.
        first_s: float64 (R,), end of its first step.
        done_s: float64 (R,), end of its last.
    """

    tokens: Ints
    arrived_s: Floats
    admitted_s: Floats
    first_s: Floats
    done_s: Floats

    @property
    def ttft_s(self) -> Floats:
        """Time to first token, float64 (R,)."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first, (end − first) / (tokens − 1), float64 (R,); nan for one token."""
        after = np.where(self.tokens > 1, self.tokens - 1, np.nan)
        return np.asarray((self.done_s - self.first_s) / after)

    @property
    def e2e_s(self) -> Floats:
        """Seconds from arrival to the last token, float64 (R,)."""
        return self.done_s - self.arrived_s


@dataclass(frozen=True, eq=False)
class Timeline(RequestTimes):
    """A run of R requests in N steps.

    Attributes:
        steps: int64 (R,), steps that each took part in.
        share_s: float64 (R,), share of the machine's time: its own prefill, and an equal part of each step it was in.
        gap_s: float64 (G,), between the ends of a request's successive steps.
        gap_request: int64 (G,).
        started_s: float64 (N,), beginning of each step, after the prefill of requests that join.
        step_s: float64 (N,), its seconds.
        occupancy: int64 (N,), requests in it.
        committed: int64 (N,), tokens committed to all of them.
    """

    steps: Ints
    share_s: Floats
    gap_s: Floats
    gap_request: Ints
    started_s: Floats
    step_s: Floats
    occupancy: Ints
    committed: Ints

    @classmethod
    def of(
        cls,
        emissions: Emissions,
        *,
        started_s: Floats,
        step_s: Floats,
        prefill_s: Floats,
        admitted_s: Floats,
        arrived_s: Floats | None = None,
    ) -> "Timeline":
        """Return the timeline of requests that each were in at least one step.

        Args:
            emissions: the requests of each step.
            started_s: float64 (N,).
            step_s: float64 (N,).
            prefill_s: float64 (R,), seconds of each request's prefill.
            admitted_s: float64 (R,).
            arrived_s: float64 (R,); None: equal to `admitted_s`, as from a queue that never runs empty.
        """
        ends = (started_s + step_s)[emissions.step]
        first = np.flatnonzero(np.diff(emissions.request, prepend=-1))
        last = np.append(first[1:], len(emissions.request)) - 1
        later = np.delete(np.arange(len(emissions.request)), first)
        occupancy = np.bincount(emissions.step, minlength=len(step_s))
        part_s = (step_s / occupancy)[emissions.step]
        return cls(
            tokens=np.bincount(emissions.request, emissions.tokens, len(first)).astype(np.int64),  # exact below 2**53
            steps=last - first + 1,
            arrived_s=admitted_s if arrived_s is None else arrived_s,
            admitted_s=admitted_s,
            first_s=ends[first],
            done_s=ends[last],
            share_s=np.bincount(emissions.request, part_s, len(first)) + prefill_s,
            gap_s=ends[later] - ends[later - 1],
            gap_request=emissions.request[later],
            started_s=started_s,
            step_s=step_s,
            occupancy=occupancy,
            committed=np.bincount(emissions.step, emissions.tokens, len(step_s)).astype(np.int64),
        )

    @property
    def tau(self) -> float:
        """Committed tokens per step and sequence, bonus counted."""
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def total_s(self) -> float:
        """Seconds until the end of the last step."""
        return float(self.started_s[-1] + self.step_s[-1])

    @property
    def mean_occupancy(self) -> float:
        """Mean number of requests in a step, weighted by the step's time."""
        return float(self.occupancy @ self.step_s / self.step_s.sum())

    def rate(self, group: Groups = None) -> Estimate:
        """Return tokens per second of all requests together while the machine is busy, a ratio of sums.

        The interval is clustered by request: a request brings its tokens and its share of the machine's time. With
        `group`, such as domains, it is clustered by group where that is wider; see `ratio`.
        """
        return ratio(self.tokens, self.share_s, group)

    def percentiles(self, latency: str, shares: tuple[float, ...], *, seed: int = 0) -> tuple[Estimate, ...]:
        """Return percentiles of a latency over requests, of `itl` over tokens, with 95 % intervals.

        A percentile is the smallest value that a share of all does not exceed. Intervals end at order statistics, by
        the binomial law of the values below (Conover, Practical Nonparametric Statistics, 3.2), at the outermost where
        there are too few; those of `itl` come from resampling requests, since a request's tokens resemble each other.
        The zeros inside a burst count as inter-token latencies. Nan if no request has the latency.

        Args:
            latency: `ttft`, `tpot`, `itl` (inter-token latency) or `e2e`.
            shares: shares of all values, in (0, 1].
            seed: seed of the resampling.
        """
        values, weights, request = self.samples(latency)
        order = values.argsort(kind="stable")
        order = order[(weights[order] > 0) & np.isfinite(values[order])]
        if len(order) == 0:
            return (Estimate(np.nan, np.nan, np.nan),) * len(shares)
        values, weights, request = values[order], weights[order], request[order]
        edges = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
        point = quantiles(values, weights, shares)
        if latency != "itl":
            from scipy.special import bdtr  # slow to import, needed only here

            below = np.arange(len(values))
            places = np.array([bdtr(below, len(values), share).searchsorted(edges) for share in shares]) - (1, 0)
            low, high = values[places.clip(0, len(values) - 1)].T
            return tuple(map(Estimate, point.tolist(), low.tolist(), high.tolist()))
        resampled, rng, requests = [], np.random.default_rng(seed), len(self.tokens)
        for _ in range(RESAMPLES):
            copies = np.bincount(rng.integers(0, requests, requests), minlength=requests)
            resampled.append(quantiles(values, weights * copies[request], shares))
        low, high = np.nanquantile(np.array(resampled), edges, axis=0, method="inverted_cdf")
        return tuple(map(Estimate, point.tolist(), np.minimum(low, point).tolist(), np.maximum(high, point).tolist()))

    def samples(self, latency: str) -> tuple[Floats, Ints, Ints]:
        """Return all values of one of the `LATENCIES`, how often each occurs, and the request it belongs to."""
        everyone = np.arange(len(self.tokens))
        if latency != "itl":
            return getattr(self, f"{latency}_s"), np.ones(len(everyone), dtype=np.int64), everyone
        values, request = np.append(np.zeros(len(everyone)), self.gap_s), np.append(everyone, self.gap_request)
        return values, np.append(self.tokens - self.steps, np.ones(len(self.gap_s), dtype=np.int64)), request


@dataclass(frozen=True)
class Speedup:
    """The speedup of a run over another run of the same requests.

    Attributes:
        per_request: mean over requests of the ratio of times from admission to the last token.
        throughput: ratio of the machine's total times.
    """

    per_request: Estimate
    throughput: Estimate


def speedup(run: Timeline, plain: Timeline, *, relative_error: float = 0.0, group: Groups = None) -> Speedup:
    """Return how much faster `run` is than `plain`, with intervals clustered by request, or by group where wider.

    Args:
        run: a run of the same requests as `plain`, in the same order.
        plain: the run that it is compared with.
        relative_error: the cost model's, of a ratio of step times, 95 % half-width.
        group: int (R,), such as domains; see `ratio`.
    """
    quotients = (plain.done_s - plain.admitted_s) / (run.done_s - run.admitted_s)
    return Speedup(
        ratio(quotients, np.ones(len(quotients)), group).times(1.0, relative_error=relative_error),
        ratio(plain.share_s, run.share_s, group).times(1.0, relative_error=relative_error),
    )


def quantiles(values: Floats, weights: Ints, shares: tuple[float, ...]) -> Floats:
    """Return the sorted values at these shares of the weights; nan if there is no weight."""
    total = np.cumsum(weights)
    if total[-1] == 0:
        return np.full(len(shares), np.nan)
    # A share that is a whole number of values means the last of them: rounding must not move to the next.
    wanted = np.ceil(np.array(shares) * total[-1] * (1 - 1e-12))
    return np.asarray(values[np.searchsorted(total, wanted)], dtype=np.float64)
