"""`treeopt.search`: the fastest tree for each batch size, from a trace and step times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from treeopt.api.file_loading import as_profile, as_trace
from treeopt.api.messages import Progress, note, silent, warn
from treeopt.comparison.mismatch_warnings import model_warnings
from treeopt.constraints import Constraint, broken
from treeopt.cost_model import CostModel
from treeopt.defaults import HELD_OUT, NEAR
from treeopt.engines import ENGINE_RULES
from treeopt.engines.rules_for_trace import engine_constraints
from treeopt.errors import UsageError
from treeopt.planning import search_pipeline
from treeopt.planning.learning_curve import more_requests
from treeopt.planning.search_pipeline import baselines
from treeopt.planning.search_settings import Method
from treeopt.plans.plan import Plan
from treeopt.policies import Policy
from treeopt.policies.beam import reach
from treeopt.policies.eagle2 import EAGLE2
from treeopt.policies.policy_kinds import sweeps
from treeopt.replay.objective import OBJECTIVES, THROUGHPUT, Objective
from treeopt.replay.sampled_rules import ranks_and_rules
from treeopt.searchers.constrained_trees.dinkelbach import WORK
from treeopt.searchers.dynamic_trees.step_prices import Padding
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


def search(
    trace: Trace | Path | str,
    profile: CostModel | Path | str | None = None,
    *,
    batch: int | Sequence[int] = 1,
    max_nodes: int | None = None,
    max_depth: int | None = None,
    method: Method = "renewal",
    objective: Objective | str = THROUGHPUT,
    max_tpot_s: float | None = None,
    shapes: int | None = None,
    near: float = NEAR,
    shrink: float | None = None,
    engine: str | None = None,
    rules: Sequence[Constraint] = (),
    policies: Sequence[str] = (),
    dynamic: Sequence[Policy] = (),
    padding: Padding | None = None,
    target_interval: float | None = None,
    compare: Mapping[str, Tree] | None = None,
    held_out: float = HELD_OUT,
    context: int | None = None,
    solver_work: float = WORK,
    seed: int = 0,
    progress: Progress = silent,
) -> Plan:
    """Choose the fastest tree, or none, for each batch size: chosen on some requests, predicted on the others.

    Args:
        trace: what the drafter got right: a trace, its .npz file or its folder of shards.
        profile: step times: a cost model or a file; None finds the profile of the trace's target and drafter.
        batch: batch sizes; those outside measured step times are left out of the plan, with a warning, unless all are.
        max_nodes: largest tree tried; default 63, or the largest that the step times cover at all batch sizes.
        max_depth: deepest tree tried; default the trace's depth, or what the step times cover.
        method: how trees are proposed: `renewal`, `best-first` or `hydra`.
        objective: how tokens are counted: `throughput`, `latency` or `worst-domain`.
        max_tpot_s: most seconds per output token that the recommended batch size may take.
        shapes: most different trees in the plan; default one per batch size.
        near: share of the fastest tree's rate within which the smallest tree is taken.
        shrink: strength of shrinkage towards similar paths, in pseudo-anchors; default fitted on the requests.
        engine: only trees that this engine can run, a key of `treeopt.engines.ENGINE_RULES`.
        rules: further rules that trees must keep.
        policies: kinds of dynamic policies to sweep, on a trace with candidates; ("all",) for all kinds. With an engine
            that has dynamic trees, those that it can run.
        dynamic: dynamic policies with given settings, also judged, such as those that run in an engine now.
        padding: how dynamic trees become one forward: `full`, `widest` (default) or `none`.
        target_interval: relative half-width of tau; `meta["missing"]` of the plan then says how many more requests
            would reach it.
        compare: further trees to judge, by name; default Medusa's and EAGLE-1's.
        held_out: share of requests that predictions are made on.
        context: tokens in the cache per sequence; default as profiled, the shortest of several contexts.
        solver_work: work of an integer programme per batch size, in CP-SAT's deterministic time; 0 for none.
        seed: of the split of requests.
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
    trace, trace_file = as_trace(trace, ranks_only=not policies and not dynamic)
    cost: CostModel = as_profile(profile, trace, trace_file, engine=engine)
    warn(model_warnings("trace and profile", trace.meta, cost.meta))
    if max_depth is not None and max_depth > trace.depth:
        raise UsageError(
            f"max-depth {max_depth}: the trace records depth {trace.depth}; give less, or record it with `treeopt "
            f"trace collect --depth {max_depth}`"
        )
    if padding is not None and not policies and not dynamic:
        raise UsageError("--padding applies only to dynamic policies; add --policy")
    if dynamic:
        reach(trace)  # raises where the trace holds no candidates
    known = None if engine is None else ENGINE_RULES.get(engine)
    if known is not None and known.cannot_run is None and (policies or dynamic):
        warn([f"{engine} runs no dynamic trees: they are judged for comparison alone"])
    trace, own_rules = ranks_and_rules(trace, seed)
    judged, reasons = _kept_by(baselines() if compare is None else compare, own_rules)
    note(f"not judged: {name}: {reason}" for name, reason in reasons.items())
    if context is None:
        note(_shortest_context(cost))
    sizes = 1 if isinstance(batch, int) else len(batch)
    with progress("searching", 2 * sizes) as advance:
        plan = search_pipeline.search(
            trace,
            cost,
            batch=batch,
            max_nodes=max_nodes,
            max_depth=max_depth,
            method=method,
            objective=_objective(objective),
            max_tpot_s=max_tpot_s,
            shapes=shapes,
            near=near,
            shrink=shrink,
            rules=(*own_rules, *engine_constraints(engine, trace), *rules),
            policies=_kinds(policies, engine),
            dynamic=dynamic,
            cannot_run=None if engine is None else ENGINE_RULES[engine].cannot_run,
            padding=padding or "widest",
            compare=judged,
            held_out=held_out,
            context=context,
            solver_work=solver_work,
            seed=seed,
            engine=engine,
            advance=advance,
        )
    if target_interval is None:
        return plan
    return replace(plan, meta={**plan.meta, "missing": more_requests(plan, target_interval)})


def _kinds(policies: Sequence[str], engine: str | None) -> tuple[str, ...]:
    """Return the kinds of dynamic policies to sweep; engines with dynamic trees run those of EAGLE-2 alone."""
    if engine is None or ENGINE_RULES[engine].cannot_run is None:
        return tuple(sweeps()) if "all" in policies else tuple(dict.fromkeys(policies))
    if other := set(policies) - {EAGLE2, "all"}:
        raise UsageError(f"--engine {engine} runs dynamic trees of {EAGLE2} alone, not {min(other)}: --policy {EAGLE2}")
    return (EAGLE2,) if policies else ()


def _shortest_context(cost: CostModel) -> list[str]:
    """Return a note where a profile of several contexts prices steps at the shortest."""
    from simulate.profiles.profile import Profile

    if not isinstance(cost, Profile) or not cost.apart:
        return []
    return [f"context: {cost.priced_at()} tokens per sequence, the shortest that was profiled"]


def _objective(objective: Objective | str) -> Objective:
    if not isinstance(objective, str):
        return objective
    if objective not in OBJECTIVES:
        raise UsageError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    return OBJECTIVES[objective]


def _kept_by(trees: Mapping[str, Tree], rules: Sequence[Constraint]) -> tuple[dict[str, Tree], dict[str, str]]:
    """Return the trees that keep the rules, and for each of the others the rule that it breaks."""
    reasons = {name: reason for name, tree in trees.items() if (reason := broken(tree, rules))}
    return {name: tree for name, tree in trees.items() if name not in reasons}, reasons
