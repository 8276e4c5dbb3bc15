"""A simulated run of all requests of a trace, put together step by step from walks and a cost model; as JSON values.

The row of a request that has ended goes to the next request, whose prompt is prefilled while the others wait. Requests
may come in pieces, each begun when the one before has ended entirely; a draining batch is a piece by itself.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from simulate.profiles.profile import Profile
from simulate.runs.length_server import LengthDecoding, length_decoding, run_lengths
from simulate.runs.run_costs import PAD, Prompts, Together, divide_prefill, price_steps, step_seconds
from simulate.runs.simulate_settings import SimulateSettings
from simulate.runs.timeline import Emissions, Floats, Ints, Timeline, speedup
from simulate.runs.tree_switching import LOG, static_entry
from treeopt.cost_model import CostModel, StepShape
from treeopt.errors import UsageError, counted
from treeopt.planning.evaluator import PLAIN
from treeopt.plans import Plan
from treeopt.replay.sampled_rules import ranks_for_trees
from treeopt.replay.static_tree import accepted_lengths
from treeopt.replay.walk import drafted_counts, walk_steps
from treeopt.results.run import LATENCIES, PERCENTS
from treeopt.results.words import CLUSTERED, describe_measurement, describe_models, describe_rule, paths_words
from treeopt.statistics import CONFIDENCE, Groups
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree


def run(
    trace: Trace,
    tree: Tree | None,
    cost: CostModel,
    *,
    batch: int,
    prefill_s: float | Floats | Together = 0.0,
    prompt_tokens: int | Ints | None = None,
    by_context: bool = True,
    piece: int | Sequence[int] | None = None,
    pad: bool = False,
    fixed_shape: bool = False,
    late: int = 0,
) -> Timeline:
    """Decode every request of the trace, in the trace's order, and return the times.

    Args:
        trace: the requests, and which drafted tokens are right.
        tree: drafted at every step; None decodes plainly.
        cost: seconds of a step; must cover every number of requests that a step holds.
        batch: maximum number of requests decoded together.
        prefill_s: seconds of prefill: one value for every request, or one each, (R,), summed over prompts that join
            together; or a function of the total tokens of these prompts, divided among them by tokens.
        prompt_tokens: prompt length of every request, or of each, (R,): a step is priced at its mean sequence length.
            None leaves the context to the cost model.
        by_context: False leaves the context to the cost model even so.
        piece: number of requests that begin when all before them have ended, or the sizes of such pieces, repeated in
            turn; None: rows are refilled to the end. `batch` makes a batch that drains.
        pad: a step of a batch size that the cost model lacks costs what the nearest one above does, up to `PAD` times
            `batch`.
        fixed_shape: steps cost what one of `batch` requests does, and prompts that join together cost as if each were
            as long as the longest. This is how treeopt's own loop works, which computes idle rows and pads prompts.
        late: steps for which the row of a request that has ended is held, because the host reads this much later; they
            count as the request's own. The last steps of a piece are not waited for.

    Raises:
        UsageError: a piece below 1.
        TraceError: the tree is deeper or wider than the trace.
        CostError: names the batch sizes that have no cost.

    >>> from simulate.profiles.profile import BatchTimes, Profile
    >>> trace = Trace(np.int32([0, 0, 0, 1]), np.int32([0, 1, 2, 0]), np.int16([[0]] * 4), 1)
    >>> profile = Profile((BatchTimes(1, 0.5, ((1, 0.25),), ((2, 0.75),)),), (0, 9), 0.0)
    >>> run(trace, Tree.chain(1), profile, batch=1).done_s.tolist()  # two steps, then one, of 1 s each
    [2.0, 3.0]
    """
    prompts = (
        None if prompt_tokens is None else np.broadcast_to(np.asarray(prompt_tokens, dtype=np.float64), trace.requests)
    )
    ends = piece_ends(trace.requests if piece is None else piece, trace.requests)
    emissions = schedule(accepted_lengths(tree or EMPTY, trace), trace, batch=batch, ends=ends, late=late)
    occupancy = np.bincount(emissions.step)
    written, context = _written(emissions), None
    if prompts is not None and by_context:  # in the cache, mean over a step's sequences
        cached = np.bincount(emissions.step, prompts[emissions.request] + written)
        context = np.rint(cached / occupancy).astype(np.int64)
    emits = emissions.tokens > 0
    committed = float(emissions.tokens[emits].mean())
    anchors = (trace.starts[emissions.request] + written)[emits]
    drafted = None if tree is None else drafted_counts(anchors, trace, tree.depth)
    price = price_steps(tree, cost, committed=committed, drafted=drafted, pad_to=PAD * batch if pad else 0)
    step_s = step_seconds(np.full_like(occupancy, batch) if fixed_shape else occupancy, context, price, padded=pad)

    joined = emissions.step[np.flatnonzero(np.diff(emissions.request, prepend=-1))]
    if callable(prefill_s):
        assert prompts is not None
        prefill = divide_prefill(prefill_s, prompts, joined, padded=fixed_shape)
    else:
        prefill = np.broadcast_to(prefill_s, joined.shape)
    before_s = np.bincount(joined, prefill, len(step_s))
    end_s = np.cumsum(before_s + step_s)
    return Timeline.of(
        emissions,
        started_s=end_s - step_s,
        step_s=step_s,
        prefill_s=prefill,
        admitted_s=np.append(0.0, end_s[:-1])[joined],
    )


def _written(emissions: Emissions) -> Ints:
    """Return the tokens that its request had written before each emission, int64 (N,)."""
    total = np.cumsum(emissions.tokens) - emissions.tokens
    first = np.flatnonzero(np.diff(emissions.request, prepend=-1))
    return np.asarray(total - total[first][emissions.request])


def piece_ends(piece: int | Sequence[int], requests: int) -> Ints:
    """Return for each request the number of the first request of the next piece, int64 (R,).

    Raises:
        UsageError: a piece below 1.

    >>> piece_ends([2, 1], 4).tolist()
    [2, 2, 3, 5]
    """
    sizes = np.atleast_1d(piece).astype(np.int64)
    if len(sizes) == 0 or (sizes < 1).any():
        raise UsageError(f"a piece must have at least 1 request, got {piece}")
    sizes = np.resize(sizes, requests)
    return np.repeat(np.cumsum(sizes), sizes)[:requests]


def schedule(accepted: Ints, trace: Trace, *, batch: int, ends: Ints, late: int) -> Emissions:
    """Schedule a batch in which every sequence advances by what it accepted.

    A request takes as many steps as it takes alone, so only its first step depends on the others.

    Args:
        accepted: drafted tokens that a step from each anchor accepts, int64 (P,).
        trace: the requests.
        batch: rows.
        ends: see `piece_ends`.
        late: steps for which the row of a request that has ended is held.
    """
    walk = walk_steps(accepted, trace)
    request = walk.request.astype(np.int64)
    steps = np.bincount(request, minlength=trace.requests)
    first = np.cumsum(steps) - steps
    begins = _first_steps(steps.tolist(), batch, ends.tolist(), late)
    number = np.arange(len(request)) - first[request]
    tokens = np.diff(walk.anchors, append=trace.anchors)  # requests stand one after the other
    emissions = Emissions(request, begins[request] + number, tokens)
    return _hold_rows(emissions, begins + steps, ends, late) if late else emissions


def _first_steps(steps: list[int], batch: int, ends: list[int], late: int) -> Ints:
    """Return the step at which each request begins, given the number of steps it takes."""
    batch, piece_over, begins = min(batch, len(steps)), 0, []
    free = [0] * batch
    for request, count in enumerate(steps):
        if request and ends[request] != ends[request - 1]:
            free = [piece_over] * batch
        begins.append(free[0])
        piece_over = max(piece_over, free[0] + count)
        heapq.heapreplace(free, free[0] + count + late)
    return np.array(begins, dtype=np.int64)


def _hold_rows(emissions: Emissions, over: Ints, ends: Ints, late: int) -> Emissions:
    """Return the emissions with the steps after each request's end, `over`, for which its row is held.

    No row is held beyond the end of its piece.
    """
    piece = np.unique(ends, return_inverse=True)[1]
    until = np.zeros_like(over)
    np.maximum.at(until, piece, over)
    request, extra = np.nonzero(over[:, None] + np.arange(late) < until[piece][:, None])
    requests = np.append(emissions.request, request)
    order = requests.argsort(kind="stable")
    step, tokens = np.append(emissions.step, over[request] + extra), np.append(emissions.tokens, np.zeros_like(request))
    return Emissions(requests[order], step[order], tokens[order])


def simulated_run(
    trace: Trace, profile: Profile, plan: Plan | None, prompts: Prompts, settings: SimulateSettings
) -> dict[str, Any]:
    """Simulate a run of all requests, with a tree or a rule of draft lengths and without speculation; as JSON values.

    Raises:
        UsageError: no batch size, or a plan for several without one.
        PlanError: a dynamic choice without a static tree beside it.
        CostError: steps that the profile does not cover.
        TraceError: the trace does not record what its rule accepts of the tree.
    """
    name, tree, batch = _configuration(plan, settings)
    pad, seed = settings.pad, settings.seed
    decodings: list[LengthDecoding] = []
    if settings.length is not None:
        decoding, assumed = length_decoding(trace, settings.length, profile, rows=batch, **settings.lengths())
        decodings = [decoding, length_decoding(trace, "none", profile, rows=batch, **settings.lengths())[0]]
        name, tree = f"length rule {settings.length}", Tree.chain(decoding.rule().depth) if decoding.drafts else None
        if assumed:
            LOG.warning("%s", assumed)
    trace = ranks_for_trees(trace, [tree], seed)

    def timeline_of(drafted: Tree | None) -> Timeline:
        if decodings:
            return run_lengths(decodings[0 if drafted else 1], prompts, batch=batch)
        prefill_s = prompts.seconds(prompts.tokens, drafted=drafted is not None)
        how: dict[str, Any] = {"prompt_tokens": prompts.tokens, "by_context": prompts.by_context, "pad": pad}
        return run(trace, drafted, profile, batch=batch, prefill_s=prefill_s, **how)

    timelines = {PLAIN: timeline_of(None)}
    gain = None
    if tree is not None and tree.nodes:
        timelines = {name: timeline_of(tree)} | timelines
        error = profile.error(StepShape.of(tree, batch=batch))
        gain = asdict(speedup(timelines[name], timelines[PLAIN], relative_error=error, group=trace.domain))
    requests = (
        f"{counted(trace.requests, 'request')}, {counted(trace.anchors, 'token')}. A request's time to first "
        f"token counts from when its row is free. 95 % intervals, {CLUSTERED}; speedups with the step times' error."
    )
    few = [f"p{percent}" for percent in PERCENTS if (percent / 100) ** trace.requests > (1 - CONFIDENCE) / 2]
    return {
        "schema": "treeopt.run/2",
        "batch": batch,
        "mode": "rows refilled at once",
        "tree": None if tree is None else {"id": tree.id, "paths": [list(path) for path in tree.paths]},
        "configurations": [
            {"name": label, **_figures(timeline, trace.domain, seed)} for label, timeline in timelines.items()
        ],
        "speedup": gain,
        "warnings": few and [f"{trace.requests} requests do not bound {', '.join(few)}: intervals end at the largest"],
        "conditions": [requests, *run_conditions(trace, profile, prompts.description(), pad=pad)],
    }


def _configuration(plan: Plan | None, settings: SimulateSettings) -> tuple[str, Tree | None, int]:
    """Return name and tree of the configuration, and the batch size."""
    if plan is None:
        if settings.batch is None:
            raise UsageError("give --batch, or a --plan for one batch size")
        return PLAIN if settings.tree is None else paths_words(settings.tree.paths), settings.tree, settings.batch
    entry = static_entry(plan.entry(settings.batch))
    return entry.choice.name, entry.choice.tree, entry.batch


def run_conditions(trace: Trace, profile: Profile, prompts: str, *, pad: bool) -> list[str]:
    """Return the conditions of a simulated run, one sentence each: prompts, trace and step times."""
    drawn = "" if trace.kept is None else "; accepted tokens are drawn, given the texts"
    between = "; batch sizes between measured ones are interpolated, smaller ones cost what the smallest does"
    return [
        f"{prompts}{between if pad else ''}.",
        f"Trace: {describe_models(trace.meta)}; {describe_rule(trace.meta)}{drawn}.",
        f"Step times: {describe_measurement(profile.meta)}.",
    ]


def plan_conditions(plan: Plan | None, trace: Trace) -> list[str]:
    """Return a sentence if the requests that are replayed are those that the plan was made from."""
    texts = look(trace.meta, "text_sha256")
    if plan is None or texts is None or texts != look(plan.meta, "trace", "text_sha256"):
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
