"""Warnings about a search: too few requests, looping texts, clustered domains, limits, contexts, unpriced policies."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from treeopt.cost_model import CostModel, Measured, covered_limits, far
from treeopt.errors import CostError, TraceError, counted
from treeopt.planning.evaluator import Judge
from treeopt.planning.held_out_split import MIN_REQUESTS, check_requests
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import PlanEntry
from treeopt.replay.sampled_rules import ranks_for_trees
from treeopt.replay.static_tree import ALL_STEPS, covers, plain_share, replay_tree
from treeopt.replay.walk import StepCounts
from treeopt.statistics import Counts, evidence, group_factor
from treeopt.storage.provenance import from_figure, look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

FEW_REQUESTS = 30
LEAST_COVERED = 0.63  # of simulated traces with fewer requests, where long texts are easy: `make coverage`
LITTLE_EVIDENCE = 10.0  # effective number of requests behind a variance; normal ones reach it with 30: `make coverage`
ANCHORS_PER_NODE = 50  # below, raw counts choose badly and promise too much: reference tree_search.md §3.5
LARGE_REQUEST = 0.1  # share of the anchors
REPEATED = 0.1  # by how much the repeated share of the written text may exceed that of the prompts
CHAIN = 5  # length of the chain whose tau shows whether requests resemble each other
UNTRUSTED = (
    f"below {FEW_REQUESTS}, no 95 % interval can be trusted (in simulations, as few as {LEAST_COVERED:.0%} hold the "
    "true tau)"
)
MORE_REQUESTS = "record more requests rather than longer ones"
UNPRICED = (
    "the time to build the dynamic trees of {} was not measured, so their speedups are too high; measure it with "
    "`treeopt profile --policies` (on CUDA with --graphs off), or the speedup itself with `treeopt validate --plan`"
)


def clamp_limits(
    settings: SearchSettings, asked: SearchSettings, cost: CostModel
) -> tuple[SearchSettings, tuple[str, ...]]:
    """Clamp the limits that the caller left open to what the cost model covers, with a warning for each one clamped.

    Args:
        settings: limits as the trace allows them.
        asked: limits as the caller gave them.
        cost: seconds of steps.

    Raises:
        CostError: no tree is covered; says what to do.
    """
    if asked.max_nodes is not None and asked.max_depth is not None:
        return settings, ()
    sizes = ", ".join(map(str, settings.batch))
    largest, deepest = covered_limits(
        cost, settings.batch, nodes=settings.nodes, depth=settings.depth, context=asked.context
    )
    if not largest:
        raise CostError(
            f"the step times cover no tree at batch {sizes}: measure more tree sizes, or choose trees with other step "
            "times, `treeopt search --output plan.json`, and check them with `treeopt validate --plan plan.json`"
        )
    limited = settings.changed(
        max_nodes=asked.max_nodes or largest, max_depth=settings.depth if asked.max_depth else deepest
    )
    limits = (("nodes", limited.nodes, settings.nodes), ("levels", limited.depth, settings.depth))
    warning = (
        "trees of more than {} {} were not considered: the step times cover none at batch {}; profile larger trees"
    )
    return limited, tuple(warning.format(limit, unit, sizes) for unit, limit, wanted in limits if limit < wanted)


def split_by_price(
    cost: CostModel, batches: Sequence[int]
) -> tuple[tuple[int, ...], dict[str, Any] | None, tuple[str, ...]]:
    """Return the batch sizes that have a price, a record of the others, and a warning about them.

    The record has `batches`, `way` (where they lie and how to price them, in words) and `command`; None if all have a
    price.

    Raises:
        CostError: none has one; says what to run.
    """
    outside = cost.outside(batches) if isinstance(cost, Measured) else ()
    if not outside or not isinstance(cost, Measured):
        return tuple(batches), None, ()
    way, command = cost.way_to(outside)
    shown = f"{way}{command and f' (`{command}`)'}"
    inside = tuple(batch for batch in batches if batch not in outside)
    if not inside:
        raise CostError(shown)
    record = {"batches": list(outside), "way": way, "command": command}
    return inside, record, (shown,)


def depth_warnings(trace: Trace, chosen: Mapping[int, Tree | None]) -> tuple[str, ...]:
    """Warn where a choice might be deeper if more levels had been recorded; not where the drafter has no more heads."""
    kind, heads = (look(trace.meta, "drafter", key) for key in ("kind", "heads"))
    if heads == trace.depth or kind == "hydra" or trace.tree is not None:  # a trace of Hydra does not count its heads
        return ()
    sizes = ", ".join(str(batch) for batch, tree in chosen.items() if tree and tree.depth == trace.depth)
    warning = f"the choice is as deep as the trace, {trace.depth} levels: record more levels to try deeper trees"
    if from_figure(trace.meta):
        warning = f"the choice is as long as the figure reaches, {trace.depth} tokens: give rates of more positions"
    return (f"batch {sizes}: {warning}",) if sizes else ()


def context_warnings(trace: Trace, priced_at: int | None) -> tuple[str, ...]:
    """Warn where the trace's own requests have another context than the one that steps are priced at."""
    if trace.prompt_tokens is None or priced_at is None:
        return ()
    usual = round(float(np.average(trace.prompt_tokens + trace.lengths / 2, weights=trace.lengths)))
    warning = f"the trace's requests have {usual} tokens of context on average, but steps are priced at {priced_at}"
    return (f"{warning}; give --context, or profile at that context",) if far(usual, priced_at) else ()


def position_warnings(positions: Any, lengths: Sequence[int], verb: str = "pass") -> tuple[str, ...]:
    """Warn of texts that pass the positions that a drafter has by its configuration; None: it has no limit."""
    beyond = [length for length in lengths if type(positions) is int and length > positions]
    if not beyond:
        return ()
    return (
        f"{len(beyond)} of {counted(len(lengths), 'text')}, of up to {max(beyond)} tokens, {verb} the drafter's "
        f"{positions} positions (max_position_embeddings): beyond them vLLM stops drafting or crashes (vllm#48894, "
        "vllm#57964), SGLang drafts with positions that may be untrained (sglang#6783); raise the field in a copy of "
        "config.json if the drafter was trained with more, else keep texts and --context within it",
    )


def plain_steps(judge: Judge, chosen: Mapping[int, Tree | None]) -> tuple[str, ...]:
    """Say in which share of the steps of each chosen tree nothing is drafted, where the trace records it."""
    if judge.held.drafted is None:
        return ()
    means = look(judge.cost.meta, ALL_STEPS)
    priced = "step times are means over all steps" if means else "they are priced as plain steps"
    sizes: dict[Tree, list[int]] = {}
    for batch, tree in chosen.items():
        if tree is not None:
            sizes.setdefault(tree, []).append(batch)
    return tuple(
        f"batch {', '.join(map(str, batches))}: nothing is drafted in "
        f"{plain_share(judge.counts(tree).drafted_counts):.1%} of the steps of the chosen tree; {priced}"
        for tree, batches in sizes.items()
    )


def unjudged_policies(entries: Sequence[PlanEntry], published: Collection[str]) -> tuple[str, ...]:
    """Warn of dynamic trees that were asked for and could not be run, replayed or priced, with the reason."""
    skipped: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        for name, reason in entry.skipped.items():
            if name not in published:
                skipped.setdefault((name, reason), []).append(entry.batch)
    return tuple(
        f"{name} was not judged at batch {', '.join(map(str, batches))}: {reason}"
        for (name, reason), batches in skipped.items()
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
            f"a tree of {counted(nodes, 'node')} needs at least {counted(nodes, 'anchor')}, one per node; the trace "
            f"has {trace.anchors}: choose smaller trees (--max-nodes, --shapes), or record more requests"
        )
    warnings = []
    if trace.anchors < ANCHORS_PER_NODE * nodes:
        warnings.append(
            f"{trace.anchors:,} anchors are few for {counted(nodes, 'node')}: below {ANCHORS_PER_NODE} per node "
            f"({ANCHORS_PER_NODE * nodes}), trees fit chance; "
            f"{'shrink counts, or ' if trace.tree_kept is None else ''}record more"
        )
    if trace.requests < FEW_REQUESTS:
        warnings.append(f"{few_requests(trace.requests)}; {MORE_REQUESTS}")
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
            f"{counted(repeated, 'prompt')} of the recording {'repeats' if repeated == 1 else 'repeat'} others, so "
            "requests are not independent and intervals are too narrow; record each prompt once"
        )
    return tuple(warnings)


def reporting_warnings(held: Trace, fit: Trace) -> tuple[str, ...]:
    """Warn of weak spots of the requests that results are reported on; rare easy ones may be in the others alone."""
    if from_figure(held.meta):
        return ()
    parts = {"in the requests held out": held, "in the requests used to choose trees": fit}
    warnings = [f"{where}, {warning}" for where, part in parts.items() for warning in interval_warnings(part)]
    return (*warnings[:1], *resemblance(held))


def run_warnings(trace: Trace, seed: int) -> tuple[str, ...]:
    """Warn where 95 % intervals of a run of these requests cannot be trusted; empty for texts made up from a figure."""
    return () if from_figure(trace.meta) else interval_warnings(ranks_for_trees(trace, [Tree.chain(1)], seed))


def interval_warnings(trace: Trace) -> tuple[str, ...]:
    """Warn where 95 % intervals of results on these requests cannot be trusted, by the counts of a chain."""
    counts = _chain_counts(trace)
    if counts is None:
        doubt = few_requests(trace.requests) if trace.requests < FEW_REQUESTS else None
    else:
        doubt = doubts(counts.committed, counts.steps)
    return () if doubt is None else (f"{doubt}; {MORE_REQUESTS}",)


def doubts(committed: Counts, steps: Counts) -> str | None:
    """Return why a 95 % interval of Σ committed / Σ steps over requests cannot be trusted; None if it can.

    >>> doubts(np.full(40, 6), np.arange(2, 42) % 3 + 2)
    >>> doubts(np.array([6, 8]), np.array([3, 2]))[:51]
    '2 requests are few: below 30, no 95 % interval can '
    """
    if len(steps) < FEW_REQUESTS:
        return few_requests(len(steps))
    resting_on = evidence(committed, steps)
    if resting_on >= LITTLE_EVIDENCE:
        return None
    return (
        f"the spread of tau rests on {resting_on:.1f} of the {len(steps)} requests in effect: below "
        f"{LITTLE_EVIDENCE:.0f}, no 95 % interval can be trusted (requests that matter as much may be missing)"
    )


def few_requests(requests: int) -> str:
    """Return that this number of requests gives no interval."""
    return f"{counted(requests, 'request')} {'is' if requests == 1 else 'are'} few: {UNTRUSTED}"


def resemblance(trace: Trace) -> tuple[str, ...]:
    """Warn if requests of one domain resemble each other, or if there are too few domains to say.

    The check uses the tau of a chain. Empty without domains, with only one, or where domains are alike.
    """
    counts = None if trace.domain is None else _chain_counts(trace)
    factor = None
    if trace.domain is not None and counts is not None:
        factor = group_factor(counts.committed, counts.steps, trace.domain)
    if trace.domain is None or factor is None:
        return ()
    domains = len(np.unique(trace.domain))
    if factor == math.inf:
        return (
            f"intervals hold for new requests of these {domains} domains only: too few to show how far other domains "
            "differ; record more domains",
        )
    return (
        f"requests of one domain resemble each other: intervals are clustered by the {domains} domains, that of tau is "
        f"{factor:.1f} times as wide as by request",
    )


def _chain_counts(trace: Trace) -> StepCounts | None:
    """Return the counts of the longest chain, up to `CHAIN`, that the trace covers; None if it covers none."""
    chain = next((chain for k in range(CHAIN, 0, -1) if covers(trace, chain := Tree.chain(k))), None)
    return None if chain is None else replay_tree(chain, trace)
