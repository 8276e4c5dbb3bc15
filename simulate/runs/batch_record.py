"""A simulated run of all requests of a trace as JSON values: tokens per second, latencies, speedup, conditions."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from simulate.profiles.profile import Profile
from simulate.runs.batch_run import run
from simulate.runs.length_server import LengthDecoding, run_lengths
from simulate.runs.run_costs import Prompts
from simulate.runs.server import static_entry
from simulate.runs.timeline import Timeline, speedup
from treeopt.cost_model import StepShape
from treeopt.errors import UsageError, counted
from treeopt.planning.evaluator import PLAIN
from treeopt.plans.plan import Plan
from treeopt.replay.sampled_rules import ranks_for_trees
from treeopt.results.run import LATENCIES, PERCENTS
from treeopt.results.words import CLUSTERED, describe_measurement, describe_models, describe_rule, paths_words
from treeopt.statistics.clustered_estimate import Groups
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


def simulated_run(
    trace: Trace,
    profile: Profile,
    tree: Tree | None,
    prompts: Prompts,
    *,
    name: str = "static tree",
    batch: int,
    pad: bool = True,
    seed: int = 0,
    lengths: Sequence[LengthDecoding] = (),
) -> dict[str, Any]:
    """Simulate a run of all requests with a tree and without speculation; return it as JSON values.

    Args:
        trace: the requests.
        profile: step times and prefill.
        tree: the tree; None, or one without nodes, decodes plainly only.
        prompts: lengths and prefill times.
        name: of the tree's configuration.
        batch: requests that decode together, at most.
        pad: batch sizes below the profile's smallest cost what that does.
        seed: of drawn ranks and of intervals.
        lengths: decodings with draft lengths that change, and without drafts; they take the tree's place, which is
            then the longest chain.

    Raises:
        CostError: steps that the profile does not cover.
        TraceError: the trace does not record what its rule accepts of the tree.
    """
    trace = ranks_for_trees(trace, [tree], seed)
    settings: dict[str, Any] = {
        "batch": batch,
        "prompt_tokens": prompts.tokens,
        "by_context": prompts.by_context,
        "pad": pad,
    }
    plain_s, drafted_s = (prompts.seconds(prompts.tokens, drafted=drafted) for drafted in (False, True))
    if lengths:
        drafted, plain = (run_lengths(decoding, prompts, batch=batch) for decoding in lengths)
    else:
        plain = run(trace, None, profile, prefill_s=plain_s, **settings)
    timelines = {PLAIN: plain}
    gain = None
    if tree is not None and tree.nodes:
        if not lengths:
            drafted = run(trace, tree, profile, prefill_s=drafted_s, **settings)
        timelines = {name: drafted} | timelines
        error = profile.error(StepShape.of(tree, batch=batch))
        gain = asdict(speedup(timelines[name], plain, relative_error=error, group=trace.domain))
    requests = (
        f"{counted(trace.requests, 'request')}, {counted(trace.anchors, 'token')}. A request's time to first "
        f"token counts from when its row is free. 95 % intervals, {CLUSTERED}; speedups with the step times' error."
    )
    return {
        "schema": "treeopt.run/2",
        "batch": batch,
        "mode": "rows refilled at once",
        "tree": None if tree is None else {"id": tree.id, "paths": [list(path) for path in tree.paths]},
        "configurations": [
            {"name": label, **_figures(timeline, trace.domain, seed)} for label, timeline in timelines.items()
        ],
        "speedup": gain,
        "conditions": [requests, *run_conditions(trace, profile, prompts.description(), pad=pad)],
    }


def configuration_of(
    plan: Plan | None, tree: Tree | None, batch: int | None
) -> tuple[str, Tree | None, int, str | None]:
    """Return name and tree of the configuration, the batch size, and a note if the plan's choice is dynamic.

    Raises:
        UsageError: no batch size, or a plan for several without one.
        PlanError: a dynamic choice without a static tree beside it.
    """
    if plan is None:
        if batch is None:
            raise UsageError("give --batch, or a --plan for one batch size")
        return PLAIN if tree is None else paths_words(tree.paths), tree, batch, None
    entry, note = static_entry(plan.entry(batch))
    return entry.choice.name, entry.choice.tree, entry.batch, note


def run_conditions(trace: Trace, profile: Profile, prompts: str, *, pad: bool) -> list[str]:
    """Return the conditions of a simulated run, one sentence each: prompts, trace and step times."""
    drawn = "" if trace.kept is None else "; accepted tokens are drawn, given the texts"
    between = "; batch sizes between measured ones are interpolated, smaller ones cost what the smallest does"
    return [
        f"{prompts}{between if pad else ''}.",
        f"Trace: {describe_models(trace.meta)}; {describe_rule(trace.meta)}{drawn}.",
        f"Step times: {describe_measurement(profile.meta)}.",
    ]


def plan_conditions(plan: Plan, trace: Trace) -> list[str]:
    """Return a sentence if the requests that are replayed are those that the plan was made from."""
    texts = look(trace.meta, "text_sha256")
    if texts is None or texts != look(plan.meta, "trace", "text_sha256"):
        return []
    fitted = look(plan.meta, "search", "requests_chosen_on")
    return [f"The plan's trees were chosen on {fitted} of these requests, which flatters them."]


def _figures(timeline: Timeline, domain: Groups, seed: int) -> dict[str, Any]:
    """Return rates and percentiles of latencies of a run as JSON values."""
    shares = tuple(percent / 100 for percent in PERCENTS)
    latencies = {
        key: {
            f"p{percent}": None if math.isnan(value.value) else asdict(value)
            for percent, value in zip(PERCENTS, timeline.percentiles(key[:-2], shares, seed=seed), strict=True)
        }
        for key in LATENCIES
    }
    return {
        "tokens": int(timeline.tokens.sum()),
        "steps": len(timeline.step_s),
        "total_s": timeline.total_s,
        "tokens_s": asdict(timeline.rate(domain)),
        "tau": timeline.tau,
        "occupancy": timeline.mean_occupancy,
        **latencies,
    }
