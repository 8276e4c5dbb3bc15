"""From a trace and a cost model to a plan: propose, replay, choose, report on requests held out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from treeopt.constraints import Constraint
from treeopt.cost_model import CostModel, covered, far
from treeopt.defaults import HELD_OUT, NEAR, NODES
from treeopt.errors import CostError, InfeasibleError, TraceError, UsageError
from treeopt.planning.baselines import Rivals
from treeopt.planning.choose_trees import changes, choose, prices
from treeopt.planning.evaluator import Judge
from treeopt.planning.learning_curve import MIN_REQUESTS, advice, resemblance
from treeopt.planning.search_request import Ask, Method
from treeopt.planning.tree_candidates import Proposals
from treeopt.plans.plan import Plan, PlanEntry, Proof
from treeopt.replay.objective import THROUGHPUT, WORST_DOMAIN, Objective
from treeopt.replay.static_tree import check_ranks
from treeopt.searchers.constrained_trees.dinkelbach import WORK
from treeopt.searchers.dynamic_trees.step_prices import Padding
from treeopt.storage.provenance import assumed_in, look, this_run
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import EAGLE, MEDUSA, published_trees

BASELINES = {"Medusa's tree": MEDUSA, "EAGLE-1's tree": EAGLE}
UNPRICED = (
    "what drawing a tree anew takes is not known of {}: they are priced as static trees of their levels and nodes, so "
    "their speedups are too high; `treeopt profile --policies` measures what it takes, `treeopt validate --plan` what "
    "they gain"
)


@runtime_checkable
class Measured(Protocol):
    """A cost model that was measured, and tells what the measurement leaves open."""

    @property
    def widths_known(self) -> bool:
        """Whether it is known what the nodes fed to a level make of its drafting."""

    def priced_at(self, context: int | None = None) -> int | None:
        """Tokens a sequence in the cache that steps are priced at where this is asked for; None: nobody knows."""

    def caveats(self, *, context: int | None = None, trace: Any = None) -> Sequence[str]:
        """What it does not know of steps at this context, one sentence each, for a plan's warnings.

        `trace` is the provenance of the trace whose steps are priced.
        """


def search(
    trace: Trace,
    cost: CostModel,
    *,
    batch: int | Sequence[int] = 1,
    max_nodes: int | None = None,
    max_depth: int | None = None,
    method: Method = "renewal",
    objective: Objective = THROUGHPUT,
    shapes: int | None = None,
    max_tpot_s: float | None = None,
    near: float = NEAR,
    rules: Sequence[Constraint] = (),
    policies: Sequence[str] = (),
    padding: Padding = "widest",
    shrink: float | None = None,
    solver_work: float = WORK,
    compare: Mapping[str, Tree] | None = None,
    held_out: float = HELD_OUT,
    context: int | None = None,
    seed: int = 0,
) -> Plan:
    """The fastest topology for each batch size, or none, chosen on one part of the requests and judged on the rest.

    Args:
        trace: what the drafter got right.
        cost: seconds of steps.
        batch: batch sizes.
        max_nodes: largest tree tried; default 63, or the largest that the cost model covers at all batch sizes.
        max_depth: deepest tree tried, the trace's depth at most; default that, or what the cost model covers.
        method: `best-first` takes the best position-averaged trees and replays a shortlist; `renewal` also
            refines them for the positions they visit; `hydra` grows by replay, one node at a time, as is always done
            for rules that may keep several siblings.
        objective: how tokens are counted.
        shapes: most different trees in the plan; default one a batch size.
        max_tpot_s: most seconds a token that the recommended batch size may take.
        near: of trees as fast up to this share, and with overlapping intervals, the smallest is taken.
        rules: that trees must keep; what the binding ones cost is told.
        policies: kinds of trees that are drawn anew at each step, swept by replay on the trace's candidates.
        padding: how their trees of different sizes become one forward, see `step_prices`.
        shrink: anchors' worth of a back-off that path counts are shrunk towards; default found on the requests, 0 none.
        solver_work: for an integer programme, a batch size, where the cost depends on level widths or where rules leave
            trees that enumeration does not prove best; in CP-SAT's deterministic time, see `refine`; 0 for none.
        compare: further trees to judge, by name; default Medusa's and EAGLE-1's.
        held_out: share of requests that predictions are made on.
        context: tokens a sequence in the cache; default what the cost model was made for, of a profile of several
            contexts the shortest.
        seed: of the split.

    Raises:
        UsageError: a setting without meaning.
        TraceError: too few requests to hold some out, or a rule whose acceptance ranks do not tell.
        CostError: a batch size, or a tree size that was asked for, that the cost model does not cover; or no tree is.
        EngineError: no tree keeps the rules; names the one that cannot be kept.
        InfeasibleError: no batch size keeps `max_tpot_s`.
    """
    sizes = np.atleast_1d(np.asarray(batch)).tolist()
    ask = Ask(
        tuple(sizes),
        method,
        NODES if max_nodes is None else max_nodes,
        trace.depth if max_depth is None else min(max_depth, trace.depth),
        tuple(rules),
        shapes,
        near,
        max_tpot_s,
        shrink,
        solver_work,
    )
    if trace.tree_kept is not None and (policies or shrink is not None):
        raise UsageError(
            f"rule {trace.meta['verification']} may keep several siblings: {'policies' if policies else 'shrink'} "
            "cannot be had, trees are static ones and grown by replay"
        )
    if policies and objective is not THROUGHPUT:
        raise UsageError(f"policies are swept for throughput, not for {objective.name}")
    fit, held = hold_out(trace, held_out=held_out, seed=seed)
    if objective is WORST_DOMAIN:
        _check_domains(fit, held)
    ask, beyond = _within(ask, cost, nodes=max_nodes is None, depth=max_depth is None, context=context)
    judge = Judge(fit, held, cost, objective, context=context)
    proposals = Proposals(judge, ask, ask.rules)
    chosen = choose(judge, ask, proposals)
    costs = prices(judge, replace(ask, shrink=proposals.shrink))
    rivals = Rivals(
        proposals.chains,
        baselines() if compare is None else compare,
        tuple(policies),
        padding,
        ask.nodes,
        ask.depth,
        seed,
        take_policies=not ask.rules and shapes is None,
        near=near,
    )
    entries = tuple(
        rivals.entry(judge, size, chosen[size], _proof(judge, proposals, size), costs[size]) for size in ask.batches
    )
    measured = cost if isinstance(cost, Measured) else None
    meta = {
        "search": {
            "method": "hydra" if proposals.grown else method,
            "objective": objective.name,
            "max_nodes": ask.nodes,
            "max_depth": ask.depth,
            "rules": [f"{rule.name} ({rule.source})" for rule in rules],
            "shapes": shapes,
            "max_tpot_s": max_tpot_s,
            "near": near,
            "shrink": proposals.shrink,
            "solver_work": solver_work,
            "policies": list(policies),
            "padding": padding if policies else None,
            "context": context if measured is None else measured.priced_at(context),
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
    best, over = _preferred(judge, entries, max_tpot_s)
    largest = max((tree.nodes for tree in chosen.values() if tree is not None), default=1)
    assumed = (f"assumed: {each}" for each in assumed_in(trace.meta))
    alike = (f"of the requests that trees are judged on, {each}" for each in resemblance(held))
    unknown = () if measured is None else measured.caveats(context=context, trace=trace.meta)
    deeper = _as_deep_as_told(trace, chosen)
    elsewhere = _elsewhere(trace, measured.priced_at()) if measured and context is None else ()
    warnings = (
        *over,
        *beyond,
        *deeper,
        *elsewhere,
        *assumed,
        *_few(fit, largest),
        *alike,
        *_unpriced(entries, cost),
        *unknown,
    )
    ways = {e.batch: e.choice.grown.policy if e.choice.grown else e.choice.tree for e in entries}
    switches = changes(ways, lambda way, size: rivals.rate(judge, way, size), near=near)
    return Plan(entries, meta, switches, best, warnings)


def _within(ask: Ask, cost: CostModel, *, nodes: bool, depth: bool, context: int | None) -> tuple[Ask, tuple[str, ...]]:
    """What is asked for, with the limits that nobody gave within what the cost model covers; and what that leaves out.

    Raises:
        CostError: no tree is covered; says how to go on.
    """
    if not nodes and not depth:
        return ask, ()
    sizes = ", ".join(map(str, ask.batches))
    most, deepest = covered(cost, ask.batches, nodes=ask.nodes, depth=ask.depth, context=context)
    if not most:
        raise CostError(
            f"the step times cover no tree at batch {sizes}: measure more of them, or choose trees by others, "
            "`treeopt search --output plan.json`, and check those, `treeopt validate --plan plan.json`"
        )
    found = replace(ask, nodes=most if nodes else ask.nodes, depth=deepest if depth else ask.depth)
    limits = (("nodes", found.nodes, ask.nodes), ("levels", found.depth, ask.depth))
    said = "trees of more than {} {} were not looked at: the step times cover none at batch {}"
    return found, tuple(said.format(kept, what, sizes) for what, kept, wanted in limits if kept < wanted)


def _as_deep_as_told(trace: Trace, chosen: Mapping[int, Tree | None]) -> tuple[str, ...]:
    """Where a choice might be deeper if the trace told of more levels; heads that it tells of all have no more."""
    kind, heads = (look(trace.meta, "drafter", key) for key in ("kind", "heads"))
    if heads == trace.depth or kind == "hydra" or trace.tree is not None:  # Hydra's are not counted there
        return ()
    sizes = ", ".join(str(batch) for batch, tree in chosen.items() if tree and tree.depth == trace.depth)
    said = f"the choice is as deep as the trace, {trace.depth} levels: what deeper trees do is not known"
    return (f"batch {sizes}: {said}",) if sizes else ()


def _elsewhere(trace: Trace, priced_at: int | None) -> tuple[str, ...]:
    """Where the trace's own requests come to another context than the one that steps are priced at."""
    if trace.prompt_tokens is None or priced_at is None:
        return ()
    usual = round(float(np.average(trace.prompt_tokens + trace.lengths / 2, weights=trace.lengths)))
    said = f"the trace's requests come to {usual} tokens of context in the mean, steps are priced at {priced_at}"
    return (said,) if far(usual, priced_at) else ()


def _unpriced(entries: Sequence[PlanEntry], cost: CostModel) -> list[str]:
    """Which policies are priced too low."""
    grown = (choice.grown for entry in entries for choice in (entry.choice, *entry.compared))
    kinds = dict.fromkeys(g.kind for g in grown if g and g.policy and g.policy.growth not in cost.growths)
    return [UNPRICED.format(", ".join(kinds))] if kinds else []


def hold_out(trace: Trace, *, held_out: float = HELD_OUT, seed: int = 0) -> tuple[Trace, Trace]:
    """The requests that `search` chooses on, and those that it predicts on.

    Raises:
        UsageError: a share that is none.
        TraceError: too few requests, or ranks that do not tell what the rule keeps.
    """
    if type(seed) is not int or seed < 0:
        raise UsageError(f"seed must be an integer of at least 0, got {seed!r}")
    if not 0 < held_out < 1:
        raise UsageError(f"held-out must lie between 0 and 1, got {held_out}")
    check_ranks(trace)
    if trace.requests < MIN_REQUESTS:
        raise TraceError(f"search holds requests out and needs at least {MIN_REQUESTS}, the trace has {trace.requests}")
    fit, held = trace.split(share=1 - held_out, rng=np.random.default_rng(seed))
    if held.requests < 2:
        raise TraceError(f"an interval needs at least 2 requests held out, {held_out} of {trace.requests} are fewer")
    return fit, held


def _check_domains(fit: Trace, held: Trace) -> None:
    """Of every domain two requests on either side: one has no interval, none is not looked at."""
    for words, part in (("to choose on", fit), ("held out", held)):
        for number, name in enumerate(part.domain_names):
            count = 0 if part.domain is None else int((part.domain == number).sum())
            if part.domain is not None and count < 2:
                whole = sum(0 if part.domain is None else int((part.domain == number).sum()) for part in (fit, held))
                raise TraceError(
                    f"the worst domain needs 2 requests of each {words}, domain {name!r} has {count}: record more"
                    + (", or choose another seed or share" if whole >= 4 else f" than {whole} of it")
                )


def _few(fit: Trace, nodes: int) -> tuple[str, ...]:
    """What to beware of in the part that choices are made on."""
    if fit.requests < MIN_REQUESTS:
        return (f"trees are chosen on {fit.requests} requests: by chance more than by merit",)
    return tuple(f"of the requests that trees are chosen on, {each}" for each in advice(fit, nodes))


def baselines() -> dict[str, Tree]:
    """Published trees that every plan is compared with, by name."""
    return {name: published_trees()[key] for name, key in BASELINES.items()}


def _proof(judge: Judge, proposals: Proposals, batch: int) -> Proof:
    what = "replayed tokens a second"
    if judge.objective is not THROUGHPUT:
        what += f", {judge.objective.name}"
    kept = " that keep the rules" if proposals.rules else ""
    trees = f"trees of at most {proposals.ask.nodes} nodes and depth {proposals.ask.depth}{kept}"
    trees += "" if judge.fit.tree is None else ", parts of the one that the trace was recorded with"
    if proposals.grown:
        return Proof(what, optimal=False, statement=f"best of the trees grown; {trees}")
    averaged = f"tokens averaged over positions{' of shrunk counts' if proposals.shrink else ''}"
    if not proposals.options.exact:
        claim = f"grown for {averaged}, which proves nothing under these rules"
    elif judge.cost.separable:
        claim = f"proved optimal for {averaged}"
        if isinstance(judge.cost, Measured) and not judge.cost.widths_known:
            claim += " if wider levels cost the drafter nothing"
    else:
        claim = f"optimal for {averaged} alone: this cost depends on level widths"
    found = "the best found by replay on the fitted requests"
    if proposals.ask.shapes is not None:
        found = f"what serves all batch sizes best with {proposals.ask.shapes} shapes, by replay on the fitted requests"
    if proposals.ask.near:
        found = f"the smallest within {proposals.ask.near:.0%} of {found}"
    statement = (
        f"the candidates of each size and depth are {claim}; among them the choice is {found}, not proved; {trees}"
    )
    if refined := proposals.refined(batch):
        statement += f"; by integer programme, averaged over positions: {refined.statement}"
    return Proof(what, optimal=False, statement=statement)


def _preferred(
    judge: Judge, entries: Sequence[PlanEntry], max_tpot_s: float | None
) -> tuple[int | None, tuple[str, ...]]:
    """The batch size that the objective prefers within the ceiling, and which sizes exceed it.

    Decided, as all choices, on the fitted requests; of a policy by what it is predicted.
    """
    rates = {
        entry.batch: entry.choice.tau.value / entry.choice.step_s
        if entry.choice.grown
        else judge.rate(entry.choice.tree, entry.batch)
        for entry in entries
    }
    within, over = rates, []
    if max_tpot_s is not None:
        within = {batch: rate for batch, rate in rates.items() if 1 / rate <= max_tpot_s * (1 + 1e-12)}
        over = [
            f"batch {batch}: no way tried stays below {max_tpot_s * 1e3:g} ms a token on the fitted requests, the "
            f"fastest takes {1e3 / rate:.3f} ms"
            for batch, rate in rates.items()
            if batch not in within
        ]
        if not within:
            raise InfeasibleError("max-tpot: " + "; ".join(over))
    if len(entries) == 1:
        return None, tuple(over)
    throughput = judge.objective is THROUGHPUT
    return max(within, key=lambda batch: within[batch] * (batch if throughput else 1)), tuple(over)
