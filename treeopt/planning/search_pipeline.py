"""The search from a trace and a cost model to a plan: propose trees, replay, choose, report on requests held out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import broken
from treeopt.cost_model import CostModel, Measured
from treeopt.errors import InfeasibleError, UsageError
from treeopt.planning.baselines import Rivals
from treeopt.planning.evaluator import Judge
from treeopt.planning.held_out_split import check_domains, hold_out
from treeopt.planning.proof_sentences import proof_of
from treeopt.planning.search_settings import SearchSettings
from treeopt.planning.search_warnings import (
    clamp_limits,
    context_warnings,
    depth_warnings,
    fitting_warnings,
    plain_steps,
    position_warnings,
    reporting_warnings,
    split_by_price,
    unjudged_policies,
    unpriced_policies,
)
from treeopt.planning.tree_candidates import Chosen, Proposals, choose, faster_trees
from treeopt.plans import Plan, PlanEntry, Price, Switch
from treeopt.policies import Policy
from treeopt.replay.objective import THROUGHPUT, WORST_DOMAIN
from treeopt.searchers.choose_policy import CannotRun
from treeopt.settings import takes
from treeopt.storage.provenance import assumption, from_figure, look, this_run
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import EAGLE, MEDUSA, published_trees

BASELINES = {"Medusa's tree": MEDUSA, "EAGLE-1's tree": EAGLE}
Configuration = Tree | Policy | None


@takes(SearchSettings)
def search(
    trace: Trace,
    cost: CostModel,
    *,
    settings: SearchSettings,
    cannot_run: CannotRun | None = None,
    advance: Callable[[int], None] = lambda pieces: None,
) -> Plan:
    """Return the fastest topology for each batch size, or none, chosen on some requests and reported on the others.

    Batch sizes outside measured step times are left out of the plan, with a warning, unless all are. Method
    `best-first` takes the best position-averaged trees and replays a shortlist; `renewal` also refines them for the
    positions they visit; `hydra` grows trees by replay, one node at a time (always used for rules that may accept
    several siblings).

    Args:
        trace: what the drafter got right.
        cost: seconds of steps.
        settings: see `SearchSettings`; or its fields as keywords.
        cannot_run: returns why the engine cannot run a dynamic policy; None: it runs none, or there is no engine.
        advance: called with 1 twice for each batch size: trees proposed, configurations compared.

    Raises:
        UsageError: a setting without meaning.
        TraceError: too few requests to hold some out, or a rule whose acceptance does not follow from ranks.
        CostError: the cost model covers no batch size, not a tree size that was given, or no tree.
        EngineError: no tree keeps the rules; names the one that cannot be kept.
        InfeasibleError: no batch size keeps `max_tpot_s`.
    """
    asked, objective = settings, settings.judged_by
    if trace.tree_kept is not None and (asked.policies or asked.dynamic or asked.shrink is not None):
        omitted = "policies" if asked.policies else "dynamic trees" if asked.dynamic else "shrink"
        raise UsageError(
            f"rule {trace.meta['verification']} may accept several siblings, so trees are static and grown by replay; "
            f"omit {omitted}"
        )
    sizes, outside, unanswered = split_by_price(cost, asked.batch)
    depth = trace.depth if asked.max_depth is None else min(asked.max_depth, trace.depth)
    settings = asked.changed(batch=sizes, max_nodes=asked.nodes, max_depth=depth)
    fit, held = hold_out(trace, held_out=asked.held_out, seed=asked.seed)
    if objective is WORST_DOMAIN and from_figure(trace.meta):
        raise UsageError(f"{from_figure(trace.meta)} has no domains: the worst domain needs a recorded trace")
    if objective is WORST_DOMAIN:
        check_domains(fit, held)
    settings, limited = clamp_limits(settings, asked, cost)
    judge = Judge(fit, held, cost, objective, context=asked.context)
    proposals = Proposals(judge, settings, settings.rules)
    for size in settings.batch:
        proposals.trees(size)  # what is slow about a proposal is kept
        advance(1)
    chosen = choose(judge, settings, proposals)
    rule_prices = prices(judge, replace(settings, shrink=proposals.shrink))
    rivals = Rivals(
        proposals.chains,
        baselines() if asked.compare is None else asked.compare,
        settings,
        take_policies=not settings.rules or cannot_run is not None,
        cannot_run=cannot_run,
    )
    entries = []
    for size in settings.batch:
        entries.append(rivals.entry(judge, size, chosen[size], proof_of(judge, proposals, size), rule_prices[size]))
        advance(1)
    measured = cost if isinstance(cost, Measured) else None
    found = {
        "method": "hydra" if proposals.grown else settings.method,
        "shrink": proposals.shrink,
        "faster": faster_trees(judge, settings, proposals, chosen),
        "context": asked.context if measured is None else measured.priced_at(asked.context),
        "interpolated": [] if measured is None else list(measured.unmeasured(settings.batch)),
        "outside": outside,
        "requests_chosen_on": fit.requests,
        "requests_judged_on": held.requests,
        "anchors": trace.anchors,
    }
    meta = {
        "search": settings.recorded() | found,
        "trace": dict(trace.meta),
        "cost": dict(cost.meta),
        "provenance": this_run(),
    }
    best, too_slow = _preferred_batch(judge, entries, asked.max_tpot_s)
    largest = max((tree.nodes for tree in chosen.values() if tree is not None), default=1)
    warnings = (
        *unanswered,
        *too_slow,
        *limited,
        *depth_warnings(trace, chosen),
        *position_warnings(
            look(trace.meta, "drafter", "positions"),
            [] if trace.prompt_tokens is None else (trace.prompt_tokens + trace.lengths).tolist(),
        ),
        *(context_warnings(trace, measured.priced_at()) if measured and asked.context is None else ()),
        *assumption(trace.meta),
        *fitting_warnings(fit, largest),
        *reporting_warnings(held, fit),
        *plain_steps(judge, chosen),
        *unpriced_policies(entries, cost),
        *unjudged_policies(entries, rivals.trees),
        *(
            ()
            if measured is None
            else measured.caveats(context=asked.context, trace=trace.meta, batches=settings.batch)
        ),
    )
    configurations = {e.batch: e.choice.grown.policy if e.choice.grown else e.choice.tree for e in entries}
    switches = changes(configurations, partial(rivals.rate, judge), near=asked.near)
    return Plan(tuple(entries), meta, switches, best, warnings)


def baselines() -> dict[str, Tree]:
    """Return the published trees that every plan is compared with, by name."""
    return {name: published_trees()[key] for name, key in BASELINES.items()}


def _preferred_batch(
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


def prices(judge: Judge, settings: SearchSettings) -> dict[int, tuple[Price, ...]]:
    """Return by batch size what each binding rule costs by itself, and the objective against plain throughput.

    The trees that are compared for this are not refined, neither for their walk nor by integer programme.
    """
    settings = replace(settings, method="best-first", solver_work=0.0)
    costs: dict[int, list[Price]] = {size: [] for size in settings.batch}
    free: Chosen = {}
    if settings.rules:
        free = choose(judge, settings, Proposals(judge, settings, ()))
        for rule in settings.rules:
            binding = [size for size, tree in free.items() if tree is not None and broken(tree, [rule])]
            alone = choose(judge, settings, Proposals(judge, settings, (rule,))) if binding else {}
            for size in binding:
                share = judge.loss(judge.seconds(alone[size], size), judge.seconds(free[size], size))
                costs[size].append(Price(rule.name, rule.source, share))
    several = [size for size, rule_costs in costs.items() if len(rule_costs) > 1]
    ruled: Chosen = {}
    if several or judge.objective is not THROUGHPUT:
        ruled = choose(judge, settings, Proposals(judge, settings, settings.rules))
    for size in several:
        share = judge.loss(judge.seconds(ruled[size], size), judge.seconds(free[size], size))
        costs[size].append(Price("all rules together", "trees not refined", share))
    if judge.objective is not THROUGHPUT:
        average = Judge(judge.fit, judge.held, judge.cost, THROUGHPUT, context=judge.context)
        fastest = choose(average, settings, Proposals(average, settings, settings.rules))
        for size, tree in ruled.items():
            share = average.loss(average.seconds(tree, size), average.seconds(fastest[size], size))
            costs[size].append(Price(f"objective {judge.objective.name}", "against throughput", share))
    return {size: tuple(rule_costs) for size, rule_costs in costs.items()}


def changes(
    chosen: Mapping[int, Configuration], rate: Callable[[Configuration, int], float], *, near: float
) -> tuple[Switch, ...]:
    """Return where a running engine changes its configuration; `rate` is tokens per second of one at a batch size."""
    sizes = sorted(chosen)
    configurations = list(dict.fromkeys(chosen[size] for size in sizes))
    rates = np.array([[rate(configuration, size) for configuration in configurations] for size in sizes])
    return switches(sizes, [configurations.index(chosen[size]) for size in sizes], rates, margin=near)


def switches(
    batches: Sequence[int], chosen: Sequence[int], rates: NDArray[np.float64], *, margin: float
) -> tuple[Switch, ...]:
    """Return where to change between the configurations of neighbouring batch sizes, with a dead band against flutter.

    Args:
        batches: planned batch sizes, rising.
        chosen: configuration of each, an index into the columns of `rates`.
        rates: float64 (batch sizes, configurations), tokens per second of each, plain decoding among them.
        margin: share by which a configuration must be better before it is changed to.

    >>> rates = np.array([[3.0, 2.0], [2.01, 2.0], [1.0, 1.2]])
    >>> switches([1, 2, 4], [0, 0, 1], rates, margin=0.01)
    (Switch(small=2, large=4, up=4, down=1),)
    """
    points = []
    for i in range(len(batches) - 1):
        if chosen[i] == chosen[i + 1]:
            continue
        gain = rates[:, chosen[i + 1]] / rates[:, chosen[i]] - 1
        up = next((j for j in range(i + 1, len(batches)) if gain[j] > margin), i + 1)
        down = next((j for j in range(i, -1, -1) if gain[j] < -margin), i)
        points.append(Switch(small=batches[i], large=batches[i + 1], up=batches[up], down=batches[down]))
    return tuple(points)
