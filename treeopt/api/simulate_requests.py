"""`treeopt.simulate`: a run of all requests of a trace, or a server's days; `treeopt.verdict`: which drafts pay."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulate.runs.run_costs import FREE
from simulate.runs.simulate_settings import SimulateSettings, VerdictSettings
from treeopt.api.file_loading import as_plan, as_profile, as_trace
from treeopt.api.messages import Progress, silent, warn
from treeopt.comparison.mismatch_warnings import model_warnings, plan_device_warnings, plan_rule_warnings
from treeopt.errors import TraceError, UsageError
from treeopt.planning.search_warnings import run_warnings
from treeopt.results.kinds import Record
from treeopt.settings import takes
from treeopt.storage.provenance import assumption, look, this_run
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile


@takes(SimulateSettings)
def simulate(
    trace: Trace | Path | str,
    profile: "Profile | Path | str | None" = None,
    *,
    settings: SimulateSettings,
    progress: Progress = silent,
) -> Record:
    """Predict a run of all requests of a trace, or with `arrivals`, `capacity` or `requests_file` a server's days.

    Without plan and tree nothing is speculated. A server changes between the trees of a plan.

    Args:
        trace: the requests, and what the drafter got right.
        profile: step times; None finds the profile of the trace's target and drafter.
        progress: shows how many days are done, with `capacity`.

    Returns:
        The record that `treeopt simulate --json` prints; its `warnings` should be read.

    Raises:
        UsageError: settings that contradict each other.
        CostError: steps or prompts that the profile does not cover.
        TraceError: one request alone, or the trace does not record what its rule accepts of the tree.
        PlanError: no entry for the batch size, or no static tree.

    Examples:
        >>> import treeopt
        >>> record = treeopt.simulate("data/traces/medusa-t0.npz", tree=treeopt.Tree.chain(1), batch=4)
        >>> [(way["name"], round(way["tau"], 2), round(way["tokens_s"]["value"])) for way in record["configurations"]]
        [('chain of 1', 1.31, 770), ('no speculation', 1.0, 756)]
        >>> record.frame()["name"].tolist()
        ['chain of 1', 'no speculation']
    """
    from simulate.runs.batch_record import plan_conditions, simulated_run
    from simulate.runs.server_figures import simulated_server

    load = settings.load
    plan = as_plan(settings.plan)
    trace, trace_file = as_trace(trace)
    if trace.requests < 2:
        raise TraceError("a run needs at least 2 requests, one has no interval: record more")
    profile = as_profile(profile, trace, trace_file)
    warnings = model_warnings("trace and profile", trace.meta, profile.meta)
    if plan is not None:
        warnings += model_warnings("trace and plan", trace.meta, look(plan.meta, "trace"))
        warnings += [*plan_rule_warnings(plan, trace.meta), *plan_device_warnings(plan, profile.meta)]
    warn(warnings)
    prompts = settings.prompts.on(trace, profile, from_file=load.requests_file is not None)
    if load.given:
        record = simulated_server(trace, profile, plan, prompts, settings, progress)
    else:
        record = simulated_run(trace, profile, plan, prompts, settings)
    record["conditions"] += plan_conditions(plan, trace)
    size = int(record["rows"] if load.given else record["batch"])
    record["interpolated"] = profile.unmeasured([size])
    caveats = profile.caveats(context=prompts.context, trace=trace.meta, batches=(size,))
    known = [*(plan.warnings if plan else ()), *assumption(trace.meta), *caveats, *prompts.warnings]
    holds = look(plan.meta, "holds") if plan else None
    if holds is not None and size > holds["batch"]:
        said = "{device} holds {batch} sequences of {context} tokens with this plan".format_map(holds)
        known.append(f"{said}, not {size}")
    known += [FREE] if load.given and prompts.free else []
    known += [*record.get("warnings", ()), *run_warnings(trace, settings.seed)]
    record["warnings"] = list(dict.fromkeys(known))
    record["meta"] = {
        "settings": settings.recorded(),
        "trace": dict(trace.meta),
        "cost": dict(profile.meta),
        "provenance": this_run(),
    }
    return Record(record)


@takes(VerdictSettings)
def verdict(
    trace: Trace | Path | str, profile: "Profile | Path | str | None" = None, *, settings: VerdictSettings
) -> Record:
    """Compare no speculation, a fixed length, a schedule and adaptive verification at each number of running requests.

    Args:
        trace: the requests, and what the drafter got right; best with its confidences.
        profile: step times; None finds the profile of the trace's target and drafter.

    Returns:
        The record that `treeopt verdict --json` prints.

    Raises:
        UsageError: settings that contradict each other.
        TraceError: a trace of fewer than four requests.
        CostError: steps that the profile does not cover.

    Examples:
        >>> import treeopt
        >>> record = treeopt.verdict("data/traces/eagle3-t0.npz", batch=(4,))
        >>> record["loads"][0]["verdict"]
        'fixed'
    """
    from simulate.profiles.sglang_cost_table import profile_of_arms, write_cost_table
    from simulate.runs.server_load import read_running
    from simulate.runs.verdict_record import compare_lengths

    trace, trace_file = as_trace(trace)
    known, fixed = list[str](), dict[str, Any]()
    if settings.arms is not None:
        if profile is not None:
            raise UsageError("give one of --profile and --arms")
        profile, known = profile_of_arms(settings.arms, trace)
        fixed = {"fixed": profile.batches[0].deepest}
    profile = as_profile(profile, trace, trace_file)
    if settings.cost_table is not None:
        write_cost_table(profile, settings.cost_table)
    warn(model_warnings("trace and profile", trace.meta, profile.meta))
    sizes = sorted({*settings.batch} or {times.batch for times in profile.batches})
    loads = dict.fromkeys(sizes) if settings.running is None else read_running(settings.running)
    record = compare_lengths(trace, profile, loads, settings, **fixed)
    caveats = profile.caveats(trace=trace.meta, batches=tuple(loads))
    record["warnings"] = list(dict.fromkeys([*record["warnings"], *known, *assumption(trace.meta), *caveats]))
    running = None if settings.running is None else settings.running.name
    how = {name: getattr(settings, name) for name in ("pad", "adaptive_s", "seed")}
    record["meta"] = {
        "settings": settings.prompts.settings | {"batch": list(loads), "running": running} | how | fixed,
        "trace": dict(trace.meta),
        "cost": dict(profile.meta),
        "provenance": this_run(),
    }
    return Record(record)
