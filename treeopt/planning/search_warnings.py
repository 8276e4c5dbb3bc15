"""Warnings about a search: too few requests, looping texts, clustered domains, limits, contexts, unpriced policies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from treeopt.cost_model import CostModel, covered, far
from treeopt.errors import CostError, TraceError
from treeopt.planning.evaluator import Judge
from treeopt.planning.held_out_split import MIN_REQUESTS, check_requests
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans.plan import PlanEntry
from treeopt.replay.priced_walk import plain_share
from treeopt.replay.static_tree import covers, replay_tree
from treeopt.statistics.clustered_estimate import ratio
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

FEW_REQUESTS = 30
ANCHORS_PER_NODE = 50  # below, raw counts choose badly and promise too much: reference tree_search.md §3.5
LARGE_REQUEST = 0.1  # share of the anchors
REPEATED = 0.1  # by how much the repeated share of the written text may exceed that of the prompts
MANY_DOMAINS = 25  # fewer are categories that an author picked, and say little about the spread between sources of text
WIDER = 1.3  # what 25 domains reach by chance 1 time in 25: 400 draws of labels for each of two shipped traces
CHAIN = 5  # length of the chain whose tau shows whether requests resemble each other
UNPRICED = (
    "the time to build the dynamic trees of {} was not measured, so their speedups are too high; measure it with "
    "`treeopt profile --policies`, or the speedup itself with `treeopt validate --plan`"
)


def clamped(
    settings: SearchSettings, cost: CostModel, *, nodes: bool, depth: bool, context: int | None
) -> tuple[SearchSettings, tuple[str, ...]]:
    """Clamp the limits that the caller left open to what the cost model covers, with a warning for each one clamped.

    Args:
        settings: limits as wanted.
        cost: seconds of steps.
        nodes: whether the largest tree was left open.
        depth: whether the deepest tree was left open.
        context: tokens per sequence in the cache.

    Raises:
        CostError: no tree is covered; says what to do.
    """
    if not nodes and not depth:
        return settings, ()
    sizes = ", ".join(map(str, settings.batches))
    largest, deepest = covered(cost, settings.batches, nodes=settings.nodes, depth=settings.depth, context=context)
    if not largest:
        raise CostError(
            f"the step times cover no tree at batch {sizes}: measure more tree sizes, or choose trees with other step "
            "times, `treeopt search --output plan.json`, and check them with `treeopt validate --plan plan.json`"
        )
    limited = replace(settings, nodes=largest if nodes else settings.nodes, depth=deepest if depth else settings.depth)
    limits = (("nodes", limited.nodes, settings.nodes), ("levels", limited.depth, settings.depth))
    warning = (
        "trees of more than {} {} were not considered: the step times cover none at batch {}; profile larger trees"
    )
    return limited, tuple(warning.format(limit, unit, sizes) for unit, limit, wanted in limits if limit < wanted)


def depth_warnings(trace: Trace, chosen: Mapping[int, Tree | None]) -> tuple[str, ...]:
    """Warn where a choice might be deeper if more levels had been recorded; not where the drafter has no more heads."""
    kind, heads = (look(trace.meta, "drafter", key) for key in ("kind", "heads"))
    if heads == trace.depth or kind == "hydra" or trace.tree is not None:  # a trace of Hydra does not count its heads
        return ()
    sizes = ", ".join(str(batch) for batch, tree in chosen.items() if tree and tree.depth == trace.depth)
    warning = f"the choice is as deep as the trace, {trace.depth} levels: record more levels to try deeper trees"
    return (f"batch {sizes}: {warning}",) if sizes else ()


def context_warnings(trace: Trace, priced_at: int | None) -> tuple[str, ...]:
    """Warn where the trace's own requests have another context than the one that steps are priced at."""
    if trace.prompt_tokens is None or priced_at is None:
        return ()
    usual = round(float(np.average(trace.prompt_tokens + trace.lengths / 2, weights=trace.lengths)))
    warning = f"the trace's requests have {usual} tokens of context on average, but steps are priced at {priced_at}"
    return (f"{warning}; give --context, or profile at that context",) if far(usual, priced_at) else ()


def plain_steps(judge: Judge, chosen: Mapping[int, Tree | None]) -> tuple[str, ...]:
    """Say in which share of the steps of each chosen tree nothing is drafted, where the trace records it."""
    if judge.held.drafted is None:
        return ()
    sizes: dict[Tree, list[int]] = {}
    for batch, tree in chosen.items():
        if tree is not None:
            sizes.setdefault(tree, []).append(batch)
    return tuple(
        f"batch {', '.join(map(str, batches))}: nothing is drafted in "
        f"{plain_share(judge.counts(tree).drafted_counts):.1%} of the steps of the chosen tree; they are priced as "
        "plain steps"
        for tree, batches in sizes.items()
    )


def unpriced_policies(entries: Sequence[PlanEntry], cost: CostModel) -> tuple[str, ...]:
    """Warn of the policies that are priced too low, as static trees of their levels and nodes."""
    dynamic = (choice.grown for entry in entries for choice in (entry.choice, *entry.compared))
    kinds = dict.fromkeys(g.kind for g in dynamic if g and g.policy and g.policy.growth not in cost.growths)
    return (UNPRICED.format(", ".join(kinds)),) if kinds else ()


def fitting_warnings(fit: Trace, nodes: int) -> tuple[str, ...]:
    """Warn of weak spots of the requests that trees of up to `nodes` nodes are chosen on."""
    if fit.requests < MIN_REQUESTS:
        return (f"trees are chosen on {fit.requests} requests, so by chance more than by merit; record more requests",)
    return tuple(f"in the requests used to choose trees, {warning}" for warning in advice(fit, nodes))


def advice(trace: Trace, nodes: int) -> tuple[str, ...]:
    """Warn of what weakens the choice of a tree of `nodes` nodes on this trace; empty where nothing does.

    Raises:
        TraceError: too little data for any answer, naming the rule: fewer than 4 requests (two to choose on and two
            to report on; one has no interval), or fewer anchors than nodes (each node would rest on one anchor or on
            none, and be chosen by chance).
    """
    check_requests(trace)
    if trace.anchors < nodes:
        raise TraceError(
            f"a tree of {nodes} nodes needs at least {nodes} anchors, one per node; the trace has {trace.anchors}"
        )
    warnings = []
    if trace.anchors < ANCHORS_PER_NODE * nodes:
        warnings.append(
            f"{trace.anchors} anchors are few for {nodes} nodes: below {ANCHORS_PER_NODE} per node "
            f"({ANCHORS_PER_NODE * nodes}), trees fit chance; "
            f"{'shrink counts, or ' if trace.tree_kept is None else ''}record more"
        )
    if trace.requests < FEW_REQUESTS:
        warnings.append(
            f"{trace.requests} requests are few: below {FEW_REQUESTS}, intervals are wide (Student's t); record more "
            "requests rather than longer ones"
        )
    longest = int(trace.lengths.argmax())
    if trace.lengths[longest] > LARGE_REQUEST * trace.anchors:
        warnings.append(
            f"request {trace.request[trace.starts[longest]]} holds {trace.lengths[longest] / trace.anchors:.0%} of the "
            f"anchors, more than {LARGE_REQUEST:.0%}, and dominates the results; record more requests"
        )
    written, prompts = (look(trace.meta, "repeated_4grams", part) for part in ("written", "prompts"))
    if isinstance(written, float) and isinstance(prompts, float) and written > prompts + REPEATED:
        warnings.append(
            f"{written:.1%} of the written 4-grams are repeated (prompts: {prompts:.1%}): looping text flatters every "
            "drafter; record prompts on which the target loops less"
        )
    repeated = look(trace.meta, "repeated_prompts")
    if type(repeated) is int and repeated > 0:
        warnings.append(
            f"{repeated} prompts of the recording repeat others, so requests are not independent and intervals are too "
            "narrow; record each prompt once"
        )
    return tuple(warnings)


def resemblance(trace: Trace) -> tuple[str, ...]:
    """Warn if intervals clustered by request are too narrow because requests of one domain resemble each other.

    The check uses the tau of a chain. Empty where it shows nothing: fewer than `MANY_DOMAINS` domains, or a tau
    without spread.
    """
    if trace.domain is None or len(labels := np.unique(trace.domain)) < MANY_DOMAINS:
        return ()
    chain = next((chain for k in range(CHAIN, 0, -1) if covers(trace, chain := Tree.chain(k))), None)
    if chain is None:
        return ()
    counts = replay_tree(chain, trace)
    committed, steps = (np.bincount(trace.domain, count)[labels] for count in (counts.committed, counts.steps))
    by_request, by_domain = ratio(counts.committed, counts.steps).relative, ratio(committed, steps).relative
    if by_request == 0 or by_domain <= WIDER * by_request:
        return ()
    return (
        f"requests of one domain resemble each other: intervals of tau would be {by_domain / by_request:.1f} times as "
        "wide if clustered by domain; record more domains",
    )
