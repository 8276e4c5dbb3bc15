"""When the tokens of a run came: seconds of its steps and requests, and the rates and latencies that follow.

The tokens of a step arrive together when it ends, so a request sees bursts. Its first tokens come with its first
step: a prompt's last token is that step's root, and prefill by itself emits nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.statistics.clustered_estimate import CONFIDENCE, Estimate, ratio

RESAMPLES = 200
LATENCIES = ("ttft", "tpot", "itl", "e2e")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Emissions:
    """What each step gave to each request in it; E rows, ordered by request and then by step.

    Attributes:
        request: int64 (E,).
        step: int64 (E,), number of the step in the run.
        tokens: int64 (E,), committed.
    """

    request: Ints
    step: Ints
    tokens: Ints


@dataclass(frozen=True, eq=False)
class Timeline:
    """A run of R requests in N steps; seconds are since its beginning.

    Attributes:
        tokens: int64 (R,), committed by each request.
        steps: int64 (R,), that each took part in.
        arrived_s: float64 (R,).
        admitted_s: float64 (R,), when a row was free and its prefill was due.
        first_s: float64 (R,), end of its first step.
        done_s: float64 (R,), end of its last.
        share_s: float64 (R,), of the machine's time: its own prefill, and each step shared by those who were in it.
        gap_s: float64 (G,), between the ends of a request's successive steps.
        gap_request: int64 (G,).
        started_s: float64 (N,), beginning of each step, prefill of those who join being over.
        step_s: float64 (N,), its seconds.
        occupancy: int64 (N,), requests in it.
        committed: int64 (N,), tokens that it gave to all of them.
    """

    tokens: Ints
    steps: Ints
    arrived_s: Floats
    admitted_s: Floats
    first_s: Floats
    done_s: Floats
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
        given: Emissions,
        *,
        started_s: Floats,
        step_s: Floats,
        prefill_s: Floats,
        admitted_s: Floats,
        arrived_s: Floats | None = None,
    ) -> "Timeline":
        """The timeline of requests that each were in one step at least.

        Args:
            given: by whom each step was used.
            started_s: float64 (N,).
            step_s: float64 (N,).
            prefill_s: float64 (R,), seconds of each request's own prefill.
            admitted_s: float64 (R,).
            arrived_s: float64 (R,); None: when admitted, as from a queue that never runs empty.
        """
        ends = (started_s + step_s)[given.step]
        first = np.flatnonzero(np.diff(given.request, prepend=-1))
        last = np.append(first[1:], len(given.request)) - 1
        later = np.delete(np.arange(len(given.request)), first)
        occupancy = np.bincount(given.step, minlength=len(step_s))
        part_s = (step_s / occupancy)[given.step]
        return cls(
            tokens=_sums(given.request, given.tokens, len(first)),
            steps=last - first + 1,
            arrived_s=admitted_s if arrived_s is None else arrived_s,
            admitted_s=admitted_s,
            first_s=ends[first],
            done_s=ends[last],
            share_s=np.bincount(given.request, part_s, len(first)) + prefill_s,
            gap_s=ends[later] - ends[later - 1],
            gap_request=given.request[later],
            started_s=started_s,
            step_s=step_s,
            occupancy=occupancy,
            committed=_sums(given.step, given.tokens, len(step_s)),
        )

    @property
    def tau(self) -> float:
        """Committed tokens a step and sequence, the bonus counted."""
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def total_s(self) -> float:
        """Until the last step ended."""
        return float(self.started_s[-1] + self.step_s[-1])

    @property
    def mean_occupancy(self) -> float:
        """Requests in a step, over the time that steps take."""
        return float(self.occupancy @ self.step_s / self.step_s.sum())

    @property
    def rate(self) -> Estimate:
        """Tokens a second of all requests together while the machine is busy, a ratio of sums.

        The interval is clustered by request: a request brings its tokens and its share of the machine's time.
        """
        return ratio(self.tokens, self.share_s)

    @property
    def ttft_s(self) -> Floats:
        """Time to first token, float64 (R,)."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first, (end − first) / (tokens − 1), float64 (R,); nan of one token."""
        after = np.where(self.tokens > 1, self.tokens - 1, np.nan)
        return np.asarray((self.done_s - self.first_s) / after)

    @property
    def e2e_s(self) -> Floats:
        """From arrival to the last token, float64 (R,)."""
        return self.done_s - self.arrived_s

    def percentiles(self, latency: str, shares: tuple[float, ...], *, seed: int = 0) -> tuple[Estimate, ...]:
        """Percentiles of a latency over requests, of `itl` over tokens, with 95 % intervals.

        The smallest value that a share of all does not exceed; intervals by resampling requests, since a request's
        tokens resemble each other. The zeros inside a burst count as inter-token latencies.

        Args:
            latency: `ttft`, `tpot`, `itl` (inter-token latency) or `e2e`.
            shares: of all values, in (0, 1].
            seed: of the resampling.

        Raises:
            UsageError: another latency.
        """
        values, weights, request = self.samples(latency)
        known = (weights > 0) & np.isfinite(values)
        return _percentiles(values[known], weights[known], request[known], len(self.tokens), shares, seed)

    def samples(self, latency: str) -> tuple[Floats, Ints, Ints]:
        """All values of a latency, how often each occurs, and the requests that they belong to.

        Raises:
            UsageError: another latency.
        """
        if latency not in LATENCIES:
            raise UsageError(f"a latency is one of {', '.join(LATENCIES)}, got {latency!r}")
        everyone = np.arange(len(self.tokens))
        if latency != "itl":
            return getattr(self, f"{latency}_s"), np.ones(len(everyone), dtype=np.int64), everyone
        values, request = np.append(np.zeros(len(everyone)), self.gap_s), np.append(everyone, self.gap_request)
        return values, np.append(self.tokens - self.steps, np.ones(len(self.gap_s), dtype=np.int64)), request


@dataclass(frozen=True)
class Speedup:
    """A run over another of the same requests.

    Attributes:
        per_request: mean over requests of the ratio of their times from admission to the last token.
        throughput: ratio of the machine's time for all of them.
    """

    per_request: Estimate
    throughput: Estimate


def speedup(run: Timeline, plain: Timeline, *, relative_error: float = 0.0) -> Speedup:
    """How much faster `run` is, with intervals clustered by request.

    Args:
        run: of the same requests as `plain`, request by request.
        plain: what it is compared with.
        relative_error: of a ratio of step times, 95 % half-width; the cost model's.

    Raises:
        UsageError: the runs are of different requests.
    """
    if not np.array_equal(run.tokens, plain.tokens):
        raise UsageError("a speedup compares runs of the same requests, these committed different numbers of tokens")
    quotients = (plain.done_s - plain.admitted_s) / (run.done_s - run.admitted_s)
    return Speedup(
        ratio(quotients, np.ones(len(quotients))).times(1.0, relative_error=relative_error),
        ratio(plain.share_s, run.share_s).times(1.0, relative_error=relative_error),
    )


def _sums(index: Ints, counts: Ints, size: int) -> Ints:
    """Counts added up by index; exact below 2**53."""
    return np.bincount(index, counts, size).astype(np.int64)


def _percentiles(
    values: Floats, weights: Ints, request: Ints, requests: int, shares: tuple[float, ...], seed: int
) -> tuple[Estimate, ...]:
    """Weighted percentiles; nan where there is no value."""
    if len(values) == 0:
        return (Estimate(np.nan, np.nan, np.nan),) * len(shares)
    order = values.argsort(kind="stable")
    values, weights, request = values[order], weights[order], request[order]
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(RESAMPLES):
        drawn = np.bincount(rng.integers(0, requests, requests), minlength=requests)
        found.append(_at(values, weights * drawn[request], shares))
    edges = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = np.nanquantile(np.array(found), edges, axis=0, method="inverted_cdf")
    here = _at(values, weights, shares)
    return tuple(map(Estimate, here.tolist(), np.minimum(low, here).tolist(), np.maximum(high, here).tolist()))


def _at(values: Floats, weights: Ints, shares: tuple[float, ...]) -> Floats:
    """The values, which rise, at these shares of the weights; nan if there is no weight."""
    total = np.cumsum(weights)
    if total[-1] == 0:
        return np.full(len(shares), np.nan)
    # A share of a whole number of values means the last of them: rounding must not move on to the next.
    due = np.ceil(np.array(shares) * total[-1] * (1 - 1e-12))
    return np.asarray(values[np.searchsorted(total, due)], dtype=np.float64)
