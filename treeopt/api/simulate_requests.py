"""`treeopt.simulate`: a run of all requests of a trace, or a server's days, from step times."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.file_loading import as_plan, as_profile, as_trace
from treeopt.api.messages import Progress, note, silent, warn
from treeopt.comparison.mismatch_warnings import model_warnings, plan_device_warnings, plan_rule_warnings
from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.results.kinds import Record
from treeopt.storage.provenance import assumed_in, look, this_run
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.runs.prompt_costs import Prompts
    from simulate.runs.server_load import Load


def simulate(
    trace: Trace | Path | str,
    profile: "Profile | Path | str | None" = None,
    *,
    plan: Plan | Path | str | None = None,
    tree: Tree | None = None,
    batch: int | None = None,
    prefill_s: float | None = None,
    prefill_s_per_token: float | None = None,
    prompt_tokens: int | None = None,
    pad: bool = True,
    arrivals: float | None = None,
    capacity: float | None = None,
    requests_file: Path | str | None = None,
    requests: int | None = None,
    replications: int | None = None,
    warmup: float | None = None,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    switch_s: float | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Record:
    """Predict a run of all requests of a trace, or with `arrivals`, `capacity` or `requests_file` a server's days.

    Args:
        trace: the requests, and what the drafter got right.
        profile: step times; None finds the profile of the trace's target and drafter.
        plan: decode as it says for the batch size; a server changes between its trees.
        tree: a static tree; None, without a plan, decodes without speculation.
        batch: requests that decode together, at most; default the plan's.
        prefill_s: seconds of every prompt's prefill; default the profile's.
        prefill_s_per_token: additional prefill seconds per prompt token.
        prompt_tokens: prompt length in tokens; default the lengths recorded in the trace, if any.
        pad: batch sizes below the profile's smallest cost what that does; False raises CostError. Sizes between two
            profiled ones are interpolated.
        arrivals: requests per second of a server, a Poisson process.
        capacity: find the highest rate at which this share of the requests keeps `ttft_s` and `tpot_s`.
        requests_file: lengths of a server's requests, JSON lines.
        requests: number of arrivals; default 1000, or the file's.
        replications: independent days; default 5.
        warmup: share of a day that is left out; default 0.1.
        ttft_s: limit of the time to the first token.
        tpot_s: limit of the time per output token after it.
        switch_s: seconds of a change to another tree; default 0.
        seed: of every random choice.
        progress: shows how many days are done, with `capacity`.

    Returns:
        The record that `treeopt simulate --json` prints; its `warnings` should be read.

    Raises:
        UsageError: settings that contradict each other.
        CostError: steps or prompts that the profile does not cover.
        TraceError: the trace does not record what its rule accepts of the tree.
        PlanError: no entry for the batch size, or no static tree.

    Examples:
        >>> import treeopt
        >>> record = treeopt.simulate("data/traces/medusa-t0.npz", tree=treeopt.Tree.chain(1), batch=4)
        >>> [(way["name"], round(way["tau"], 2), round(way["tokens_s"]["value"])) for way in record["ways"]]
        [('chain of 1', 1.31, 770), ('no speculation', 1.0, 756)]
        >>> record.frame()["name"].tolist()
        ['chain of 1', 'no speculation']
    """
    from simulate.runs.prompt_costs import FREE, PromptSettings
    from simulate.runs.server_load import Load

    file = None if requests_file is None else Path(requests_file)
    load = Load(arrivals, capacity, file, requests, replications, warmup, ttft_s, tpot_s, switch_s)
    if plan is not None and tree is not None:
        raise UsageError("give one of --plan and --tree")
    plan = as_plan(plan)
    trace, trace_file = as_trace(trace)
    profile = as_profile(profile, trace, trace_file)
    warn(_mismatches(trace, profile, plan))
    settings = PromptSettings(prefill_s, prefill_s_per_token, prompt_tokens)
    prompts = settings.on(trace, profile, from_file=file is not None)
    if load.given:
        record = _server(trace, profile, plan, tree, batch, prompts, load, pad=pad, seed=seed, progress=progress)
    else:
        record = _run(trace, profile, plan, tree, batch, prompts, pad=pad, seed=seed)
    free = (FREE,) if load.given and prompts.free else ()
    size = int(record["rows"] if load.given else record["batch"])
    record["interpolated"] = profile.unmeasured([size])
    record["warnings"] = _warnings(trace, profile, plan, size, prompts, (*free, *record.get("warnings", ())))
    record["meta"] = {
        "settings": settings.settings | {"pad": pad} | (load.settings if load.given else {}) | {"seed": seed},
        "trace": dict(trace.meta),
        "cost": dict(profile.meta),
        "provenance": this_run(),
    }
    return Record(record)


def _mismatches(trace: Trace, profile: "Profile", plan: Plan | None) -> list[str]:
    warnings = model_warnings("trace and profile", trace.meta, profile.meta)
    if plan is not None:
        warnings += model_warnings("trace and plan", trace.meta, look(plan.meta, "trace"))
        warnings += plan_rule_warnings(plan, trace.meta)
        warnings += plan_device_warnings(plan, profile.meta)
    return warnings


def _warnings(
    trace: Trace, profile: "Profile", plan: Plan | None, batch: int, prompts: "Prompts", more: tuple[str, ...]
) -> list[str]:
    """Return each warning of the record once: the plan's, the trace's, the profile's, the prompts' and the run's."""
    assumed = (f"assumed: {sentence}" for sentence in assumed_in(trace.meta))
    caveats = profile.caveats(context=prompts.context, trace=trace.meta, batches=(batch,))
    return list(dict.fromkeys([*(plan.warnings if plan else ()), *assumed, *caveats, *prompts.warnings, *more]))


def _run(
    trace: Trace,
    profile: "Profile",
    plan: Plan | None,
    tree: Tree | None,
    batch: int | None,
    prompts: "Prompts",
    *,
    pad: bool,
    seed: int,
) -> dict[str, Any]:
    from simulate.runs.batch_record import configuration_of, plan_conditions, simulated_run

    name, chosen, size, dynamic = configuration_of(plan, tree, batch)
    note([dynamic])
    record = simulated_run(trace, profile, chosen, prompts, name=name, batch=size, pad=pad, seed=seed)
    if plan is not None:
        record["conditions"] += plan_conditions(plan, trace)
    return record


def _server(
    trace: Trace,
    profile: "Profile",
    plan: Plan | None,
    tree: Tree | None,
    batch: int | None,
    prompts: "Prompts",
    load: "Load",
    *,
    pad: bool,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    from simulate.runs.batch_record import plan_conditions
    from simulate.runs.server_record import server_configurations, simulated_server

    configurations, dynamic = server_configurations(plan, tree, load)
    note(dynamic)
    if batch is None:
        if plan is None:
            raise UsageError("give --batch, the rows of the server, or a --plan")
        batch = max(entry.batch for entry in plan.entries)
    record = simulated_server(
        trace, profile, configurations, prompts, load, rows=batch, pad=pad, seed=seed, progress=progress
    )
    if plan is not None:
        record["conditions"] += plan_conditions(plan, trace)
    return record
