"""Figures of a simulated day of a server, and their means over days with intervals."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulate.runs.server import Served
from simulate.runs.server_load import Slo
from simulate.runs.timeline import LATENCIES, Floats, Timeline
from treeopt.errors import UsageError
from treeopt.statistics import Estimate, ratio

PERCENTS = (50, 95, 99)
PILING = 0.01  # share of arrivals by which a queue may grow while a server counts as keeping up


def figures(served: Served, *, slo: Slo | None = None, warmup_s: float = 0.0) -> dict[str, float]:
    """Return means and percentiles from `warmup_s` until the last arrival; latencies of the requests that arrive then.

    * `tokens_s`, `requests_s` (ended), `goodput_s` (ended within `slo`): per second.
    * `within`: share of arrivals that met `slo`; `piled`: share of arrivals by which the queue is longer at the end.
    * `running`, `waiting`: mean numbers of requests; `busy`: share of time.
    * `tree_0`, ...: share of the steps' time with each tree; `switches`: changes of tree per second.
    * `ttft_s_p50` and so on: latencies in seconds.

    Raises:
        UsageError: no request arrives after the warm-up.
    """
    slo, end = slo or Slo(), float(served.requests.arrived_s[-1])
    if not warmup_s < end:
        raise UsageError(f"warm-up must end before the last arrival at {end:.6g} s, got {warmup_s:.6g} s")
    run, length = served.timeline, end - warmup_s

    def share(begins: Floats, ends: Floats) -> Floats:
        """Return the share of the window that lies in each interval."""
        return np.asarray((np.minimum(ends, end) - np.maximum(begins, warmup_s)).clip(min=0) / length)

    def inside(times: Floats) -> NDArray[np.bool_]:
        """Return which times lie in the window."""
        return np.asarray((times > warmup_s) & (times <= end))

    step_end = run.started_s + run.step_s
    arriving, ending, met = inside(run.arrived_s), inside(run.done_s), slo.met(run)
    stepping = share(run.started_s, step_end)
    values = {
        "tokens_s": float(run.committed[inside(step_end)].sum() / length),
        "requests_s": float(ending.sum() / length),
        "goodput_s": float((met & ending).sum() / length),
        **kept(served, slo, warmup_s),
        "running": float(share(run.admitted_s, run.done_s).sum()),
        "waiting": float(share(run.arrived_s, run.admitted_s).sum()),
        "busy": 1 - float(share(served.idle_s[:, 0], served.idle_s[:, 1]).sum()),
        "switches": float(inside(served.switched_s).sum() / length),
    }
    all_steps = float(stepping.sum())  # 0 for a server that only prefills
    for index in range(int(served.tree_index.max()) + 1):
        in_tree = float(stepping[served.tree_index == index].sum())
        values[f"tree_{index}"] = in_tree / all_steps if all_steps else math.nan
    for latency in LATENCIES:
        for percent, value in zip(PERCENTS, _percentiles(run, latency, arriving), strict=True):
            values[f"{latency}_s_p{percent}"] = value
    return values


def kept(served: Served, slo: Slo, warmup_s: float) -> dict[str, float]:
    """Return `within` and `piled` of `figures`, for which steps need not be listed."""
    requests, end = served.requests, float(served.requests.arrived_s[-1])
    arriving = requests.arrived_s > warmup_s
    queued = served.waiting(np.array([warmup_s, np.nextafter(end, 0)]))  # before the last request arrives
    return {
        "within": float((slo.met(requests) & arriving).sum() / arriving.sum()),
        "piled": float((queued[1] - queued[0]) / arriving.sum()),
    }


def piles_up(piled: Estimate) -> bool:
    """Return whether requests pile up: more than `PILING`, and with an interval above 0."""
    return piled.value > PILING and piled.low > 0


def replicate(
    simulation: Callable[[np.random.Generator], Mapping[str, float]], *, replications: int, seed: int = 0
) -> dict[str, Estimate]:
    """Return the mean figures of independent runs with 95 % intervals (Student's t over the runs).

    Args:
        simulation: one run, given its random numbers.
        replications: number of runs; a single run has no interval.
        seed: seed of all runs.

    Raises:
        UsageError: fewer than one run.
    """
    if replications < 1:
        raise UsageError(f"replications must be at least 1, got {replications}")
    seeds = np.random.SeedSequence(seed).spawn(replications)
    runs = [simulation(np.random.default_rng(seed_of_run)) for seed_of_run in seeds]
    names: Sequence[str] = list(dict.fromkeys(name for run in runs for name in run))
    ones = np.ones(replications)
    return {name: _possible(name, ratio(np.array([run.get(name, 0.0) for run in runs]), ones)) for name in names}


def _possible(name: str, estimate: Estimate) -> Estimate:
    """Return the estimate with its interval clipped to possible values: only the growth of a queue can be below 0."""
    if name == "piled":
        return estimate
    maximum = 1.0 if name in ("within", "busy") or name.startswith("tree_") else math.inf
    return Estimate(estimate.value, max(0.0, estimate.low), min(maximum, estimate.high))


def _percentiles(run: Timeline, latency: str, chosen: NDArray[np.bool_]) -> list[float]:
    """Return the `PERCENTS` of a latency over the chosen requests; nan if they have none."""
    values, weights, request = run.samples(latency)
    known = chosen[request] & (weights > 0) & np.isfinite(values)
    if not known.any():
        return [float("nan")] * len(PERCENTS)
    shares = [percent / 100 for percent in PERCENTS]
    quantiles = np.quantile(values[known], shares, weights=weights[known], method="inverted_cdf")
    return [float(value) for value in quantiles]
