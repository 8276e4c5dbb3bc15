"""Simulated days of a server: figures of each configuration under one load, or the highest rate it carries; as JSON.

Figures are means over days, with intervals. The highest rate is found by bisection over simulated days.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulate.profiles.profile import Profile
from simulate.runs.batch_record import run_conditions
from simulate.runs.length_server import length_decoding
from simulate.runs.run_costs import Prompts
from simulate.runs.server import LOG, Decoding, Served, Switching, serve_day, static_entry
from simulate.runs.server_load import Load
from simulate.runs.simulate_settings import SimulateSettings
from simulate.runs.timeline import LATENCIES, Floats, quantiles
from treeopt.cost_model import StepShape
from treeopt.errors import UsageError
from treeopt.planning.evaluator import PLAIN
from treeopt.plans import Plan
from treeopt.replay.sampled_rules import ranks_for_trees
from treeopt.results.run import PERCENTS
from treeopt.results.words import paths_words
from treeopt.statistics import Estimate, paired_ratio, ratio
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

FULL = 0.97  # share of a server's rows in use above which the queue depends on the length of a day
MOMENTS = 60  # times of the first day at which its load is recorded
PILING = 0.01  # share of arrivals by which a queue may grow while a server counts as keeping up
NEAR = 0.01  # relative precision of a rate
LEAST, MOST = 1e-6, 1e6  # range of rates that are tried, requests per second
LARGEST = 0.95  # error of a step that is tried: a larger one would make steps infinitely slow
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
Day = Callable[[Decoding, np.random.Generator, float | None], tuple[Served, float]]


def simulated_server(
    trace: Trace,
    profile: Profile,
    plan: Plan | None,
    prompts: Prompts,
    settings: SimulateSettings,
    progress: Progress = lambda label, total: nullcontext(lambda done: None),
) -> dict[str, Any]:
    """Simulate a server's days; return figures, or with `load.capacity` the highest rates, as JSON values.

    Raises:
        UsageError: no rows, changes between trees without a plan, a file of requests without arrival times, or with
            longer texts than the trace has.
        PlanError: a dynamic choice without a static tree beside it.
        CostError: steps that the profile does not cover.
    """
    load, pad, seed = settings.load, settings.pad, settings.seed
    configurations = _configurations(plan, settings)
    rows = max(entry.batch for entry in plan.entries) if plan and settings.batch is None else settings.batch
    if rows is None:
        raise UsageError("give --batch, the rows of the server, or a --plan")
    decodings: dict[str, Decoding] = {}
    if settings.length is not None:
        decoding, assumed = length_decoding(trace, settings.length, profile, rows=rows, **settings.lengths())
        decodings[f"length rule {settings.length}"] = decoding
        if assumed:
            LOG.warning("%s", assumed)
    _ = load.asked  # a broken file is an error before any work
    trees = [tree for switching in configurations.values() for tree in switching.trees]
    ranked = ranks_for_trees(trace, trees, seed)
    decodings |= {name: Decoding(ranked, s, profile, rows=rows, pad=pad) for name, s in configurations.items()}

    def day(decoding: Decoding, rng: np.random.Generator, rate: float | None) -> tuple[Served, float]:
        work = load.workload(ranked, prompts.tokens, rng, rate=rate)
        prefill_s = prompts.seconds(work.prompt_tokens, drafted=decoding.drafts)
        served = serve_day(decoding, work, rows=rows, prefill_s=prefill_s, by_context=prompts.by_context)
        return served, load.settings["warmup"] * float(work.arrived_s[-1])

    if load.capacity is None:
        schema, record = "treeopt.serving/2", _serving(decodings, load, day, rows=rows, seed=seed)
    else:
        found = capacity(decodings, load, day, profile, prompts.context, seed=seed, progress=progress)
        rates = [{"name": one["name"], **_changes(decodings[one["name"]].switching), **one} for one in found["rates"]]
        schema, record = (
            "treeopt.capacity/2",
            {"share": load.capacity, "slo": load.slo, "configurations": rates, "warnings": found["warnings"]},
        )
    conditions = [load.description(trace), *run_conditions(trace, profile, prompts.description(), pad=pad)]
    return {"schema": schema, "rows": rows, **record, "conditions": conditions}


def _configurations(plan: Plan | None, settings: SimulateSettings) -> dict[str, Switching]:
    """Return the configurations that are simulated, by name, plain decoding last."""
    load, tree = settings.load, settings.tree
    plain = {PLAIN: Switching((None,))}
    if plan is not None:
        entries = tuple(map(static_entry, plan.entries))
        plan = replace(plan, entries=entries, switches=plan.switches if entries == plan.entries else ())
        return {"plan": Switching.of(plan, switch_s=load.settings["switch_s"])} | plain
    if load.switch_s is not None:
        raise UsageError("--switch-s is for a --plan of several trees")
    if tree is not None and tree.nodes:
        return {paths_words(tree.paths): Switching((tree,))} | plain
    return plain


def _serving(decodings: Mapping[str, Decoding], load: Load, day: Day, *, rows: int, seed: int) -> dict[str, Any]:
    records, warnings = [], []
    for name, decoding in decodings.items():
        days: list[Served] = []

        def simulated(
            rng: np.random.Generator, decoding: Decoding = decoding, days: list[Served] = days
        ) -> dict[str, float]:
            served, warmup_s = day(decoding, rng, load.arrivals)
            days.append(served)
            return figures(served, load, warmup_s=warmup_s)

        values = replicate(simulated, replications=load.settings["replications"], seed=seed)
        piled = values["piled"]
        if piled.value > PILING and piled.low > 0:
            growth = f"the queue grows by {piled.value:.1%} of the arrivals"
            warnings.append(f"requests pile up with {name} ({growth}): waiting times grow with the length of a day")
        elif values["running"].value >= FULL * rows:
            taken = f"{values['running'].value:.2f} of {rows} rows are taken"
            warnings.append(f"{name} is near its limit ({taken}): waiting times depend on the length of a day")
        times = np.linspace(0, float(days[0].requests.arrived_s[-1]), MOMENTS)
        records.append(
            {
                "name": name,
                **_changes(decoding.switching),
                "figures": {key: None if math.isnan(e.value) else asdict(e) for key, e in values.items()},
                "first_day": {
                    "times_s": times.tolist(),
                    "running": days[0].running(times).tolist(),
                    "waiting": days[0].waiting(times).tolist(),
                },
            }
        )
    return {"slo": load.slo, "configurations": records, "warnings": warnings}


def _changes(switching: Switching) -> dict[str, Any]:
    """Return the trees of a configuration, and the numbers of requests at which it changes between them."""
    trees = [None if tree is None else [list(path) for path in tree.paths] for tree in switching.trees]
    return {"trees": trees, "up": list(switching.up), "down": list(switching.down)}


def figures(served: Served, load: Load, *, warmup_s: float) -> dict[str, float]:
    """Return means and percentiles from `warmup_s` until the last arrival; latencies of the requests that arrive then.

    * `tokens_s`, `requests_s` (ended), `goodput_s` (arrived, and kept the load's limits): per second.
    * `within`: share of arrivals within the limits; `piled`: share of arrivals by which the queue is longer at the end.
    * `running`, `waiting`: mean numbers of requests; `busy`: share of time.
    * `tree_0`, ...: share of the steps' time with each tree; `switches`: changes of tree per second.
    * `ttft_s_p50` and so on: latencies in seconds.

    Raises:
        UsageError: no request arrives after the warm-up.
    """
    run, end = served.timeline, float(served.requests.arrived_s[-1])
    length = end - warmup_s
    if not length > 0:
        raise UsageError(f"warm-up must end before the last arrival at {end:.6g} s, got {warmup_s:.6g} s")

    def share(begins: Floats, ends: Floats) -> Floats:
        """Return the share of the window that lies in each interval."""
        return np.asarray((np.minimum(ends, end) - np.maximum(begins, warmup_s)).clip(min=0) / length)

    def inside(times: Floats) -> NDArray[np.bool_]:
        """Return which times lie in the window."""
        return np.asarray((times > warmup_s) & (times <= end))

    step_end = run.started_s + run.step_s
    arriving, ending, met = inside(run.arrived_s), inside(run.done_s), load.met(run)
    stepping = share(run.started_s, step_end)
    values = {
        "tokens_s": float(run.committed[inside(step_end)].sum() / length),
        "requests_s": float(ending.sum() / length),
        "goodput_s": float((met & arriving).sum() / length),
        **kept(served, load, warmup_s),
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
        seconds, weights, request = run.samples(latency)
        order, weights = seconds.argsort(), np.where(arriving[request] & np.isfinite(seconds), weights, 0)
        known = quantiles(seconds[order], weights[order], tuple(percent / 100 for percent in PERCENTS))
        values |= {f"{latency}_s_p{percent}": float(s) for percent, s in zip(PERCENTS, known, strict=True)}
    return values


def kept(served: Served, load: Load, warmup_s: float) -> dict[str, float]:
    """Return `within` and `piled` of `figures`, for which steps need not be listed."""
    requests, end = served.requests, float(served.requests.arrived_s[-1])
    arriving = requests.arrived_s > warmup_s
    queued = served.waiting(np.array([warmup_s, np.nextafter(end, 0)]))  # before the last request arrives
    return {
        "within": float((load.met(requests) & arriving).sum() / arriving.sum()),
        "piled": float((queued[1] - queued[0]) / arriving.sum()),
    }


def replicate(
    simulation: Callable[[np.random.Generator], Mapping[str, float]], *, replications: int, seed: int = 0
) -> dict[str, Estimate]:
    """Return the mean figures of independent runs with 95 % intervals (Student's t over the runs).

    Args:
        simulation: one run, given its random numbers.
        replications: number of runs, at least 1; a single run has no interval.
        seed: seed of all runs.
    """
    seeds = np.random.SeedSequence(seed).spawn(replications)
    runs = [simulation(np.random.default_rng(seed_of_run)) for seed_of_run in seeds]
    names, ones = dict.fromkeys(name for run in runs for name in run), np.ones(replications)
    estimates = {}
    for name in names:
        mean = ratio(np.array([run.get(name, 0.0) for run in runs]), ones)
        least = -math.inf if name == "piled" else 0.0  # a queue may also become shorter
        most = 1.0 if name in ("within", "busy") or name.startswith("tree_") else math.inf
        estimates[name] = Estimate(mean.value, max(least, mean.low), min(most, mean.high))
    return estimates


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
