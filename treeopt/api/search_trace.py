"""`treeopt.search`: the fastest tree for each batch size, from a trace and step times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import Any

from treeopt.api.file_loading import as_profile, as_trace
from treeopt.api.messages import Progress, note, silent, warn
from treeopt.api.ray_workers import RaySetup, on_ray
from treeopt.comparison.mismatch_warnings import model_warnings
from treeopt.constraints import broken
from treeopt.cost_model import CostModel
from treeopt.engines import ENGINES, engine_rules
from treeopt.errors import UsageError
from treeopt.planning import search_pipeline
from treeopt.planning.learning_curve import more_requests
from treeopt.planning.search_pipeline import baselines
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import Plan
from treeopt.policies.beam import reach
from treeopt.policies.eagle2 import DYNAMIC_TREE, EAGLE2
from treeopt.policies.policy_kinds import sweeps
from treeopt.replay.sampled_rules import ranks_and_rules
from treeopt.settings import group, takes
from treeopt.storage.provenance import look
from treeopt.storage.user_files import checksum
from treeopt.traces.resumable_shards import MANIFEST, Blocks, ShardedTrace, Shards, ranks_suffice
from treeopt.traces.trace import Trace


@dataclass(frozen=True, kw_only=True)
class TraceSearch(SearchSettings):
    """The settings of `search`, and where it runs."""

    cluster: RaySetup = group(RaySetup)


def _blocks(folder: Path) -> tuple[None, dict[str, Any], Blocks]:
    """Return what reads and counts shards in a worker; see `on_ray`."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not on {gethostname()}: --ray reads shards by their path, on all nodes")
    return None, {MANIFEST: checksum(folder / MANIFEST)}, Blocks(Shards.listed(folder))


@takes(TraceSearch)
def search(
    trace: Trace | Path | str,
    profile: CostModel | Path | str | None = None,
    *,
    settings: SearchSettings,
    progress: Progress = silent,
) -> Plan:
    """Choose the fastest tree, or none, for each batch size: chosen on some requests, predicted on the others.

    Batch sizes outside measured step times are left out of the plan, with a warning, unless all are.

    Args:
        trace: what the drafter got right: a trace, its .npz file or its folder of shards.
        profile: step times: a cost model or a file; None finds the profile of the trace's target and drafter.
        progress: shows how much of the search is done.

    Raises:
        UsageError: settings that contradict each other.
        TraceError: too few requests, or a rule that ranks do not describe.
        CostError: no profile was found, or it does not cover what was asked for.
        EngineError: no tree keeps the engine's rules.
        InfeasibleError: no batch size keeps `max_tpot_s`.

    Examples:
        >>> import treeopt
        >>> plan = treeopt.search("data/traces/medusa-t0.npz", batch=(1, 4), max_nodes=8, solver_work=0)
        >>> [(entry.batch, entry.choice.nodes, round(entry.choice.speedup.value, 2)) for entry in plan.entries]
        [(1, 3, 1.31), (4, 2, 1.15)]
        >>> list(plan.frame().columns[:5])
        ['batch', 'name', 'chosen', 'tree', 'nodes']
    """
    engine, policies, dynamic = settings.engine, settings.policies, settings.dynamic
    known = None if engine is None else ENGINES[engine]
    grows = known is not None and known.cannot_run is not None
    ranks_only = not policies and not dynamic and not grows
    if isinstance(settings, TraceSearch) and settings.cluster.ray is not None:
        cluster, folder = settings.cluster, Path() if isinstance(trace, Trace) else Path(trace).absolute()
        shards = Shards.listed(folder) if folder.is_dir() and not isinstance(trace, Trace) else None
        if shards is None or not ranks_only or not ranks_suffice(folder):
            raise UsageError("--ray searches a folder of shards (`trace collect --parts`) for static trees")
        with on_ray(cluster, lambda setup: _blocks(folder), cluster, shared=False) as (_, parts):
            sharded = ShardedTrace(shards, parts)
            cost = as_profile(profile, sharded, folder, engine=engine)
            return search(sharded, cost, settings=settings.changed(ray=None, ray_needs=()), progress=progress)
    trace, trace_file = as_trace(trace, ranks_only=ranks_only, to_split=True)
    cost = as_profile(profile, trace, trace_file, engine=engine)
    warn(model_warnings("trace and profile", trace.meta, cost.meta))
    if settings.max_depth is not None and settings.max_depth > trace.depth:
        raise UsageError(
            f"max-depth {settings.max_depth}: the trace records depth {trace.depth}; give less, or record it with "
            f"`treeopt trace collect --depth {settings.max_depth}`"
        )
    if dynamic:
        reach(trace)  # raises where the trace holds no candidates
    if grows and not policies and not dynamic:
        policies = _dynamic_trees(trace, cost, engine)
    if known is not None and not grows and (policies or dynamic):
        warn([f"{engine} runs no dynamic trees: they are judged for comparison alone"])
    trace, own_rules = ranks_and_rules(trace, settings.seed)
    compared = baselines() if settings.compare is None else settings.compare
    reasons = {name: reason for name, tree in compared.items() if (reason := broken(tree, own_rules))}
    note(f"not judged: {name}: {reason}" for name, reason in reasons.items())
    from simulate.profiles.profile import Profile

    if settings.context is None and isinstance(cost, Profile) and cost.apart:
        note([f"context: {cost.priced_at()} tokens per sequence, the shortest that was profiled"])
    settings = settings.changed(
        rules=(*own_rules, *engine_rules(engine, trace), *settings.rules),
        policies=_kinds(policies, engine),
        compare={name: tree for name, tree in compared.items() if name not in reasons},
    )
    cannot_run = None if engine is None else ENGINES[engine].cannot_run
    with progress("searching", 2 * len(settings.batch)) as advance:
        plan = search_pipeline.search(trace, cost, settings=settings, cannot_run=cannot_run, advance=advance)
    plan = _held(plan, cost)
    if settings.target_interval is None:
        return plan
    return replace(plan, meta={**plan.meta, "missing": more_requests(plan, settings.target_interval)})


def _dynamic_trees(trace: Trace, cost: CostModel, engine: str | None) -> tuple[str, ...]:
    """Return the policy of an engine that grows trees, to be tried beside chains; a note says what it takes."""
    if trace.width < 2:
        return ()
    if trace.candidates is not None and DYNAMIC_TREE in cost.growths:
        note([f"{engine} grows dynamic trees: they are tried beside chains (--policy {EAGLE2})"])
        return (EAGLE2,)
    missing = "a trace with --candidates" if trace.candidates is None else "a profile with --policies"
    note([f"{engine} also grows dynamic trees: to try them, record {missing} (`treeopt trace collect`, `profile`)"])
    return ()


def _kinds(policies: Sequence[str], engine: str | None) -> tuple[str, ...]:
    """Return the kinds of dynamic policies to sweep; engines with dynamic trees run those of EAGLE-2 alone."""
    if engine is None or ENGINES[engine].cannot_run is None:
        return tuple(sweeps()) if "all" in policies else tuple(dict.fromkeys(policies))
    if other := set(policies) - {EAGLE2, "all"}:
        raise UsageError(f"--for {engine} runs dynamic trees of {EAGLE2} alone, not {min(other)}: --policy {EAGLE2}")
    return (EAGLE2,) if policies else ()


def _held(plan: Plan, cost: CostModel) -> Plan:
    """Return the plan with the largest batch that fits, where the profile knows the memory that its models take."""
    records, context = look(cost.meta, "memory"), look(plan.meta, "search", "context")
    if not records or context is None:
        return plan
    from simulate.device_memory import DeviceMemory
    from simulate.whatif.scenarios import held

    return held(plan, DeviceMemory.at(records, context), device=str(look(cost.meta, "device")), context=context)
