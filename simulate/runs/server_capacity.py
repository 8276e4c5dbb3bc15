"""Capacity: the highest rate of requests that a simulated server carries, by bisection over simulated days."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import numpy as np

from simulate.profiles.profile import Profile
from simulate.runs.server import Decoding, Served
from simulate.runs.server_load import Load, replicate
from treeopt.cost_model import StepShape
from treeopt.errors import UsageError
from treeopt.statistics import Estimate, paired_ratio, ratio
from treeopt.tree import Tree

PILING = 0.01  # share of arrivals by which a queue may grow while a server counts as keeping up
NEAR = 0.01  # relative precision of a rate
LEAST, MOST = 1e-6, 1e6  # range of rates that are tried, requests per second
LARGEST = 0.95  # error of a step that is tried: a larger one would make steps infinitely slow
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
Day = Callable[[Decoding, np.random.Generator, float | None], tuple[Served, float]]


def kept(served: Served, load: Load, warmup_s: float) -> dict[str, float]:
    """Return `within` and `piled` of `figures`, for which steps need not be listed."""
    requests, end = served.requests, float(served.requests.arrived_s[-1])
    arriving = requests.arrived_s > warmup_s
    queued = served.waiting(np.array([warmup_s, np.nextafter(end, 0)]))  # before the last request arrives
    return {
        "within": float((load.met(requests) & arriving).sum() / arriving.sum()),
        "piled": float((queued[1] - queued[0]) / arriving.sum()),
    }


def keeps_up(figures: Mapping[str, float], *, share: float) -> bool:
    """Return whether at least `share` of a day's requests are within the limits and almost none pile up."""
    return figures["within"] >= share and figures["piled"] <= PILING


def highest_rate(holds: Callable[[float], bool], near: float = 1.0) -> float:
    """Return the highest rate at which `holds` is true, in requests per second, at most `NEAR` too low.

    Found by doubling or halving and bisection, assuming that it is true up to some rate and false above. 0: false even
    at `LEAST`. The powers of 2 between which it lies are looked for from `near`, which changes nothing but the time.

    Raises:
        UsageError: it is true at `MOST`, too.

    >>> 16.9 < highest_rate(lambda rate: rate <= 17) <= 17
    True
    """
    low = 2.0 ** math.floor(math.log2(max(near, 2 * LEAST)))
    high = 2 * low
    if holds(low):
        while holds(high):
            low, high = high, 2 * high
            if high > MOST:
                raise UsageError(f"the limits are met even at {low:.0f} requests per second: set tighter limits")
    else:
        low, high = low / 2, low
        while not holds(low):
            low, high = low / 2, low
            if low < LEAST:
                return 0.0
    while high > (1 + NEAR) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def capacity(
    decodings: Mapping[str, Decoding],
    load: Load,
    day: Day,
    profile: Profile,
    context: int | None,
    *,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Return the highest rate that every configuration carries, and its ratio to that of the last one.

    Each day has its own rate, at which it keeps the limits; gaps, texts and prompts of a day are the same at all rates
    and for all configurations, except for the gaps' scale. The days are simulated again with steps that are as slow and
    as fast as the error allows: capacity is not in proportion to the time of a step.
    """
    assert load.capacity is not None
    share, near, replications = load.capacity, MOST, load.settings["replications"]
    runs = {name: _off(decoding, profile, context) for name, decoding in decodings.items()}
    (trace,) = {decoding.trace for decoding in decodings.values()}
    length_error = ratio(trace.lengths, np.ones(trace.requests), trace.domain).relative
    length_error = length_error if math.isfinite(length_error) else 0.0  # one request says nothing

    def rates(decoding: Decoding) -> tuple[Estimate, list[float]]:
        of_days: list[float] = []

        def highest(rng: np.random.Generator) -> dict[str, float]:
            nonlocal near
            day_seed = int(rng.integers(2**63))

            def holds(rate: float) -> bool:
                served, warmup_s = day(decoding, np.random.default_rng(day_seed), rate)
                return keeps_up(kept(served, load, warmup_s), share=share)

            near = highest_rate(holds, near)
            of_days.append(near)
            advance(1)
            return {"requests_s": near}

        return replicate(highest, replications=replications, seed=seed)["requests_s"], of_days

    with progress("days", replications * sum(map(len, runs.values()))) as advance:
        carried = {name: [rates(decoding) for decoding in of_name] for name, of_name in runs.items()}
    (plain, last), *_ = carried[list(carried)[-1]]
    records, warnings = [], []
    for name, ((mean, of_days), *others) in carried.items():
        ends = [other.value for other, _ in others] or [mean.value] * 2
        over = _over(of_days, last)
        figures_of = {
            "requests_s": _widened(mean, ends, 0.0 if load.asked else length_error),
            "over": over and _widened(over, [end / plain.value for end in ends], 0.0),
        }
        records.append({"name": name, **figures_of})
        warnings += [] if mean.value else [f"no rate keeps the limits with {name}"]
    return {"rates": records, "warnings": warnings}


def _off(decoding: Decoding, profile: Profile, context: int | None) -> tuple[Decoding, ...]:
    """Return the trees as predicted; if they draft, also with steps that are slower and faster by the error.

    The error is that of a step over a plain step, and of tokens per step, which depend on the requests of the trace.
    """
    trace, smallest = decoding.trace, profile.batches[0].batch
    if not any(tree is not None and tree.nodes for tree in decoding.switching.trees):
        return (decoding,)
    steps = decoding.whole.left[:, trace.starts]
    trees = zip(decoding.switching.trees, steps, strict=True)
    taus = {tree: ratio(trace.lengths, of_tree, trace.domain).relative for tree, of_tree in trees}

    def error(tree: Tree, batch: int) -> float:
        shape = StepShape.of(tree, batch=max(batch, smallest), context=context)
        return min(math.hypot(profile.error(shape), taus[tree]), LARGEST)

    return (decoding, decoding.faster(error, -1), decoding.faster(error, 1))


def _widened(estimate: Estimate, ends: Sequence[float], relative_error: float) -> dict[str, float]:
    """Return an estimate that is 0 or more, with independent errors: up to `ends`, and a relative one."""
    value, more = estimate.value, estimate.value * relative_error
    low = value - math.hypot(value - estimate.low, value - min(value, *ends), more)
    high = value + math.hypot(estimate.high - value, max(value, *ends) - value, more)
    return asdict(Estimate(value, max(0.0, low), high))


def _over(rates: list[float], other: list[float]) -> Estimate | None:
    """Return the ratio of rates, paired by day; None for the other itself, and where a day carries nothing."""
    if rates is other or not (all(rates) and all(other)):
        return None
    ones = np.ones(len(rates))
    return paired_ratio((np.array(rates), ones), (np.array(other), ones))
