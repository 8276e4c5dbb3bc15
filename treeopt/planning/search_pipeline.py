"""The search from a trace and a cost model to a plan: propose trees, replay, choose, report on requests held out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from treeopt.constraints import Constraint
from treeopt.cost_model import CostModel, Measured
from treeopt.defaults import HELD_OUT, NEAR, NODES
from treeopt.errors import InfeasibleError, UsageError
from treeopt.planning.baselines import Rivals
from treeopt.planning.choose_trees import changes, choose, faster_trees, prices
from treeopt.planning.evaluator import Judge
from treeopt.planning.held_out_split import check_domains, hold_out
from treeopt.planning.proof import proof_of
from treeopt.planning.search_settings import (
    DEFAULT_METHOD,
    DEFAULT_PADDING,
    DEFAULT_SOLVER_WORK,
    Method,
    SearchSettings,
)
from treeopt.planning.search_warnings import (
    clamped,
    context_warnings,
    depth_warnings,
    fitting_warnings,
    plain_steps,
    reporting_warnings,
    split_by_price,
    unjudged_policies,
    unpriced_policies,
)
from treeopt.planning.tree_candidates import Proposals
from treeopt.plans.plan import Plan, PlanEntry
from treeopt.policies import Policy, named
from treeopt.replay.objective import THROUGHPUT, WORST_DOMAIN, Objective
from treeopt.searchers.dynamic_trees.settings_grid import CannotRun
from treeopt.searchers.dynamic_trees.step_prices import Padding
from treeopt.storage.provenance import assumed_in, this_run
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import EAGLE, MEDUSA, published_trees

BASELINES = {"Medusa's tree": MEDUSA, "EAGLE-1's tree": EAGLE}


def search(
    trace: Trace,
    cost: CostModel,
    *,
    batch: int | Sequence[int] = 1,
    max_nodes: int | None = None,
    max_depth: int | None = None,
    method: Method = DEFAULT_METHOD,
    objective: Objective = THROUGHPUT,
    shapes: int | None = None,
    max_tpot_s: float | None = None,
    near: float = NEAR,
    rules: Sequence[Constraint] = (),
    policies: Sequence[str] = (),
    dynamic: Sequence[Policy] = (),
    padding: Padding = DEFAULT_PADDING,
    shrink: float | None = None,
    solver_work: float = DEFAULT_SOLVER_WORK,
    compare: Mapping[str, Tree] | None = None,
    held_out: float = HELD_OUT,
    context: int | None = None,
    seed: int = 0,
    engine: str | None = None,
    cannot_run: CannotRun | None = None,
    advance: Callable[[int], None] = lambda pieces: None,
) -> Plan:
    """Return the fastest topology for each batch size, or none, chosen on some requests and reported on the others.

    Args:
        trace: what the drafter got right.
        cost: seconds of steps.
        batch: batch sizes; those outside measured step times are left out of the plan, with a warning, unless all are.
        max_nodes: largest tree; default `NODES`, or the largest that the cost model covers at all batch
            sizes.
        max_depth: deepest tree, at most the trace's depth; default that, or what the cost model covers.
        method: `best-first` takes the best position-averaged trees and replays a shortlist; `renewal` also refines
            them for the positions they visit; `hydra` grows trees by replay, one node at a time (always used for rules
            that may accept several siblings).
        objective: how tokens are counted.
        shapes: largest number of different trees in the plan; default one per batch size.
        max_tpot_s: largest time per output token, in seconds, of the recommended batch size.
        near: share by which a tree may be slower and still count as equally fast, if the intervals overlap; of equally
            fast trees the smallest is chosen.
        rules: rules that trees must keep; the plan records what each binding one costs.
        policies: kinds of dynamic policies, swept by replay on the trace's candidates.
        dynamic: dynamic policies with given settings, also judged; they are never chosen.
        padding: how dynamic trees of different sizes become one forward, see `step_prices`.
        shrink: strength of shrinkage of path counts towards similar paths, in pseudo-anchors; default fitted on the
            requests, 0 none.
        solver_work: work per batch size for an integer programme, where the cost depends on level widths or where
            enumeration proves nothing under the rules; in CP-SAT's deterministic time, see `refine`; 0 for none.
        compare: further trees to compare with, by name; default Medusa's and EAGLE-1's.
        held_out: share of requests that predictions are made on.
        context: cached tokens per sequence; default what the cost model was made for, and for a profile of several
            contexts the shortest.
        seed: seed of the split.
        engine: the engine that `rules` are those of, which the plan records.
        cannot_run: returns why that engine cannot run a dynamic policy; None: it runs none, or there is no engine.
        advance: called with 1 twice for each batch size: trees proposed, configurations compared.

    Raises:
        UsageError: a setting without meaning.
        TraceError: too few requests to hold some out, or a rule whose acceptance does not follow from ranks.
        CostError: the cost model covers no batch size, not a tree size that was given, or no tree.
        EngineError: no tree keeps the rules; names the one that cannot be kept.
        InfeasibleError: no batch size keeps `max_tpot_s`.
    """
    sizes, outside, unanswered = split_by_price(cost, np.atleast_1d(np.asarray(batch)).tolist())
    settings = SearchSettings(
        sizes,
        NODES if max_nodes is None else max_nodes,
        trace.depth if max_depth is None else min(max_depth, trace.depth),
        method,
        tuple(rules),
        shapes,
        near,
        max_tpot_s,
        shrink,
        solver_work,
    )
    if trace.tree_kept is not None and (policies or dynamic or shrink is not None):
        omitted = "policies" if policies else "dynamic trees" if dynamic else "shrink"
        raise UsageError(
            f"rule {trace.meta['verification']} may accept several siblings, so trees are static and grown by replay; "
            f"omit {omitted}"
        )
    if (policies or dynamic) and objective is not THROUGHPUT:
        option = "--policy" if policies else "--dynamic"
        raise UsageError(
            f"dynamic trees are judged by throughput, not by {objective.name}: omit {option} or --objective"
        )
    fit, held = hold_out(trace, held_out=held_out, seed=seed)
    if objective is WORST_DOMAIN:
        check_domains(fit, held)
    settings, limited = clamped(settings, cost, nodes=max_nodes is None, depth=max_depth is None, context=context)
    judge = Judge(fit, held, cost, objective, context=context)
    proposals = Proposals(judge, settings, settings.rules)
    for size in settings.batches:
        proposals.trees(size)  # what is slow about a proposal is kept
        advance(1)
    chosen = choose(judge, settings, proposals)
    rule_prices = prices(judge, replace(settings, shrink=proposals.shrink))
    rivals = Rivals(
        proposals.chains,
        baselines() if compare is None else compare,
        tuple(policies),
        tuple(dynamic),
        padding,
        settings.nodes,
        settings.depth,
        seed,
        take_policies=(not settings.rules or cannot_run is not None) and shapes is None,
        near=near,
        cannot_run=cannot_run,
    )
    entries = []
    for size in settings.batches:
        entries.append(rivals.entry(judge, size, chosen[size], proof_of(judge, proposals, size), rule_prices[size]))
        advance(1)
    measured = cost if isinstance(cost, Measured) else None
    meta = {
        "search": {
            "method": "hydra" if proposals.grown else method,
            "objective": objective.name,
            "max_nodes": settings.nodes,
            "max_depth": settings.depth,
            "engine": engine,
            "rules": [f"{rule.name} ({rule.source})" for rule in rules],
            "shapes": shapes,
            "max_tpot_s": max_tpot_s,
            "near": near,
            "faster": faster_trees(judge, settings, proposals, chosen),
            "shrink": proposals.shrink,
            "solver_work": solver_work,
            "policies": list(policies),
            "dynamic": [named(policy) for policy in dynamic],
            "padding": padding if policies or dynamic else None,
            "context": context if measured is None else measured.priced_at(context),
            "interpolated": [] if measured is None else list(measured.unmeasured(settings.batches)),
            "outside": outside,
            "held_out": held_out,
            "seed": seed,
            "requests_chosen_on": fit.requests,
            "requests_judged_on": held.requests,
            "anchors": trace.anchors,
        },
        "trace": dict(trace.meta),
        "cost": dict(cost.meta),
        "provenance": this_run(),
    }
    best, too_slow = _preferred(judge, entries, max_tpot_s)
    largest = max((tree.nodes for tree in chosen.values() if tree is not None), default=1)
    warnings = (
        *unanswered,
        *too_slow,
        *limited,
        *depth_warnings(trace, chosen),
        *(context_warnings(trace, measured.priced_at()) if measured and context is None else ()),
        *(f"assumed: {assumption}" for assumption in assumed_in(trace.meta)),
        *fitting_warnings(fit, largest),
        *reporting_warnings(held),
        *plain_steps(judge, chosen),
        *unpriced_policies(entries, cost),
        *unjudged_policies(entries, rivals.trees),
        *(() if measured is None else measured.caveats(context=context, trace=trace.meta, batches=settings.batches)),
    )
    configurations = {e.batch: e.choice.grown.policy if e.choice.grown else e.choice.tree for e in entries}
    switches = changes(configurations, partial(rivals.rate, judge), near=near)
    return Plan(tuple(entries), meta, switches, best, warnings)


def baselines() -> dict[str, Tree]:
    """Return the published trees that every plan is compared with, by name."""
    return {name: published_trees()[key] for name, key in BASELINES.items()}


def _preferred(
    judge: Judge, entries: Sequence[PlanEntry], max_tpot_s: float | None
) -> tuple[int | None, tuple[str, ...]]:
    """Return the batch size that the objective prefers within the ceiling, and a warning for each that exceeds it.

    Like all choices this one is made on the fitted requests; a policy counts with its prediction.

    Raises:
        InfeasibleError: all batch sizes exceed the ceiling.
    """
    rates = {
        entry.batch: entry.choice.tau.value / entry.choice.step_s
        if entry.choice.grown
        else judge.rate(entry.choice.tree, entry.batch)
        for entry in entries
    }
    within, too_slow = rates, []
    if max_tpot_s is not None:
        within = {batch: rate for batch, rate in rates.items() if 1 / rate <= max_tpot_s * (1 + 1e-12)}
        too_slow = [
            f"batch {batch}: the fastest configuration takes {1e3 / rate:.3f} ms per token on the requests that "
            f"trees are chosen on, above the limit of {max_tpot_s * 1e3:g} ms"
            for batch, rate in rates.items()
            if batch not in within
        ]
        if not within:
            fastest = ", ".join(f"{1e3 / rate:.3f} ms at batch {batch}" for batch, rate in rates.items())
            raise InfeasibleError(
                f"no batch size takes at most {max_tpot_s * 1e3:g} ms per token: the fastest configuration takes "
                f"{fastest}, on the requests that trees are chosen on; raise the limit, or give smaller batch sizes"
            )
    if len(entries) == 1:
        return None, tuple(too_slow)
    throughput = judge.objective is THROUGHPUT
    return max(within, key=lambda batch: within[batch] * (batch if throughput else 1)), tuple(too_slow)
