"""Simulated days of a server: figures of each configuration under one load, or the highest rate it carries; as JSON.

Figures are means over days, with intervals.
"""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulate.profiles.profile import Profile
from simulate.runs.batch_record import run_conditions
from simulate.runs.length_server import length_decoding
from simulate.runs.run_costs import Prompts
from simulate.runs.server import Decoding, Served, serve_day
from simulate.runs.server_capacity import PILING, Day, Progress, capacity, kept
from simulate.runs.server_load import Load, replicate
from simulate.runs.simulate_settings import SimulateSettings
from simulate.runs.timeline import LATENCIES, Floats, quantiles
from simulate.runs.tree_switching import LOG, Switching, static_entry
from treeopt.errors import UsageError
from treeopt.planning.evaluator import PLAIN
from treeopt.plans import Plan
from treeopt.replay.sampled_rules import ranks_for_trees
from treeopt.results.run import PERCENTS
from treeopt.results.words import paths_words
from treeopt.traces.trace import Trace

FULL = 0.97  # share of a server's rows in use above which the queue depends on the length of a day
MOMENTS = 60  # times of the first day at which its load is recorded


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
    if load.switch_s is not None and settings.length is None:
        raise UsageError("--switch-s is for a --plan of several trees, or a --length that changes")
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
        when = f"the last arrival at {end:.6g} s, got {warmup_s:.6g} s"
        raise UsageError(f"warm-up must end before {when}; requests that arrive at once are a run without --arrivals")

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
