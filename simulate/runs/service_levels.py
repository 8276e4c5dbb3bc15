"""Service levels of a simulated server: rates, latencies, goodput under limits, with intervals over several runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulate.runs.server import Served
from simulate.runs.timeline import LATENCIES, Floats, Timeline
from treeopt.errors import UsageError
from treeopt.statistics.clustered_estimate import Estimate, ratio

PERCENTS = (50, 95, 99)
PILING = 0.01  # share of arrivals by which a queue grows, beyond which a server is said not to keep up
FULL = 0.97  # share of a server's rows taken, from which on what waits depends on the length of a day


@dataclass(frozen=True)
class Slo:
    """Limits of a request's latencies; None: no limit.

    Attributes:
        ttft_s: of the time to first token.
        tpot_s: of the time per output token after the first.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met(self, timeline: Timeline) -> NDArray[np.bool_]:
        """Which requests are within the limits, bool (R,)."""
        within = np.ones(len(timeline.tokens), dtype=bool)
        if self.ttft_s is not None:
            within &= timeline.ttft_s <= self.ttft_s
        if self.tpot_s is not None:
            within &= ~(timeline.tpot_s > self.tpot_s)  # one token alone has none
        return within


def figures(served: Served, *, slo: Slo | None = None, warmup_s: float = 0.0) -> dict[str, float]:
    """Means and percentiles from `warmup_s` until the last arrival; latencies are of the requests that arrive then.

    `tokens_s`, `requests_s` (that ended) and `goodput_s` (that ended, and met `slo`) are a second; `within` the share
    of arrivals that met it; `piled` the share of arrivals by which the queue is longer at the end;
    `running` and `waiting` mean numbers of requests; `busy` a share of time, `ways` such shares by way, `way_0`, ...,
    of the steps' time; `switches` changes a second; latencies `ttft_s_p50` and so on in seconds.

    Raises:
        UsageError: nobody arrives after the warm-up.
    """
    run, slo = served.timeline, slo or Slo()
    end = float(run.arrived_s[-1])
    if not warmup_s < end:
        raise UsageError(f"warm-up must end before the last arrival at {end:.6g} s, got {warmup_s:.6g} s")
    length = end - warmup_s

    def mean(begins: Floats, ends: Floats) -> Floats:
        """Share of the window that lies in each interval."""
        return np.asarray((np.minimum(ends, end) - np.maximum(begins, warmup_s)).clip(min=0) / length)

    def a_second(times: Floats) -> NDArray[np.bool_]:
        return np.asarray((times > warmup_s) & (times <= end))

    step_end = run.started_s + run.step_s
    arriving, ending, met = a_second(run.arrived_s), a_second(run.done_s), slo.met(run)
    stepping = mean(run.started_s, step_end)
    queued = served.waiting(np.array([warmup_s, np.nextafter(end, 0)]))  # before the last one comes
    found = {
        "tokens_s": float(run.committed[a_second(step_end)].sum() / length),
        "requests_s": float(ending.sum() / length),
        "goodput_s": float((met & ending).sum() / length),
        "within": float((met & arriving).sum() / arriving.sum()),
        "piled": float((queued[1] - queued[0]) / arriving.sum()),
        "running": float(mean(run.admitted_s, run.done_s).sum()),
        "waiting": float(mean(run.arrived_s, run.admitted_s).sum()),
        "busy": 1 - float(mean(served.idle_s[:, 0], served.idle_s[:, 1]).sum()),
        "switches": float(a_second(served.switched_s).sum() / length),
    }
    all_steps = float(stepping.sum())  # 0 of a server that does nothing but prefill
    for way in range(int(served.way.max()) + 1):
        found[f"way_{way}"] = float(stepping[served.way == way].sum()) / all_steps if all_steps else math.nan
    for latency in LATENCIES:
        for percent, value in zip(PERCENTS, _percentiles(run, latency, arriving), strict=True):
            found[f"{latency}_s_p{percent}"] = value
    return found


def piles_up(piled: Estimate) -> bool:
    """Whether requests pile up: more than `PILING`, and surely more than none."""
    return piled.value > PILING and piled.low > 0


def replicate(
    simulation: Callable[[np.random.Generator], Mapping[str, float]], *, replications: int, seed: int = 0
) -> dict[str, Estimate]:
    """Figures of independent runs, their means with 95 % intervals (Student's t over the runs).

    Args:
        simulation: one run, given its random numbers.
        replications: runs; one has no interval.
        seed: of all.

    Raises:
        UsageError: no run.
    """
    if replications < 1:
        raise UsageError(f"replications must be at least 1, got {replications}")
    seeds = np.random.SeedSequence(seed).spawn(replications)
    runs = [simulation(np.random.default_rng(own)) for own in seeds]
    names: Sequence[str] = list(dict.fromkeys(name for run in runs for name in run))
    ones = np.ones(replications)
    return {name: _possible(name, ratio(np.array([run.get(name, 0.0) for run in runs]), ones)) for name in names}


def _possible(name: str, estimate: Estimate) -> Estimate:
    """An interval within what the figure can be: a queue may grow by less than nothing, no rate or share can."""
    if name == "piled":
        return estimate
    most = 1.0 if name in ("within", "busy") or name.startswith("way_") else math.inf
    return Estimate(estimate.value, max(0.0, estimate.low), min(most, estimate.high))


def _percentiles(run: Timeline, latency: str, chosen: NDArray[np.bool_]) -> list[float]:
    values, weights, request = run.samples(latency)
    known = chosen[request] & (weights > 0) & np.isfinite(values)
    if not known.any():
        return [float("nan")] * len(PERCENTS)
    shares = [percent / 100 for percent in PERCENTS]
    found = np.quantile(values[known], shares, weights=weights[known], method="inverted_cdf")
    return [float(value) for value in found]
