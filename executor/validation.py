"""Compare a plan's predictions with what a runner does, live on fresh prompts or with a trace's acceptance imposed."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.models import tokens_hash
from executor.runners.engine_runner import EngineRunner
from executor.runners.runner import Requests, Run, Runner, Shape, Visit, Visits, resumable
from simulate.validation.predicted_vs_measured import Comparison, Figures
from simulate.validation.predictions import NO_FORMS, FormsRecord, Runs, judged_on, ways_of
from treeopt.defaults import BLOCKS
from treeopt.errors import EngineError, ExecutorError, UsageError
from treeopt.plans import Choice, Plan, PlanEntry
from treeopt.statistics import TRIMMED_ERROR, Estimate, ratio, trimmed_mean
from treeopt.storage.work_file import WorkFile
from treeopt.tree import EMPTY, Tree

MAX_PIECES = 8  # of a block: each begins with a prefill
MAX_PASSES = 4  # over a block, at batch sizes that finish it sooner than others
REPLAYED_ALONE = "a trace's acceptance is replayed in static trees only"


def check_comparison(runner: Runner, plan: Plan, requests: Requests, *, blocks: int) -> None:
    """Check that `compare` can run to its end.

    Raises:
        UsageError: a plan that drafts nothing, or too few prompts to fill the largest batch in every block.
        ExecutorError: a tree that the drafter cannot draft, or requests beyond the target's context.
        EngineError: the engine does not draft what the plan chose.
        TraceError: a tree that the replayed trace does not cover.
    """
    for entry in plan.entries:
        chosen = (entry.choice.tree, entry.choice.grown and entry.choice.grown.policy)
        for shape, choice in _drafting(entry, requests).items():
            reason = runner.why_not(shape, entry.batch)
            if reason is not None and shape in chosen:
                raise EngineError(f"batch {entry.batch}: {choice.name} cannot be run: {reason}")
    if not any(shapes_of(entry, runner, requests) for entry in plan.entries):
        raise UsageError("the plan holds no tree that can be run: there is nothing to validate")
    largest, count = max(entry.batch for entry in plan.entries), len(requests.prompts)
    least = runner.least_batches * blocks * largest
    if count < least:
        raise UsageError(f"{blocks} blocks at batch {largest} need at least {least} prompts, got {count}")
    for entry in plan.entries:
        for shape, choice in shapes_of(entry, runner, requests).items():
            try:
                runner.check(shape, entry.batch, requests)
            except ExecutorError as error:
                raise ExecutorError(f"{choice.name} at batch {entry.batch}: {error}") from error


def left_out(entry: PlanEntry, runner: Runner, requests: Requests) -> dict[str, str]:
    """Return why configurations of an entry are not measured, by name."""
    return {**entry.skipped, **_cannot_run(entry, runner, requests)}


def not_measured(plan: Plan, runner: Runner, requests: Requests) -> list[str]:
    """Return a line for each reason for which the runner does not run something of a plan."""
    names: dict[str, list[str]] = {}
    for entry in plan.entries:
        for name, reason in _cannot_run(entry, runner, requests).items():
            names.setdefault(reason, []).append(f"{name} (batch {entry.batch})")
    return [f"not measured: {', '.join(some)}: {reason}" for reason, some in names.items()]


def _cannot_run(entry: PlanEntry, runner: Runner, requests: Requests) -> dict[str, str]:
    """Return why the runner does not run something of an entry, by name."""
    reasons: dict[str, str] = {}
    for shape, choice in ways_of(entry).items():
        replayed_alone = requests.replayed is not None and not isinstance(shape, Tree)
        reason = REPLAYED_ALONE if replayed_alone else runner.why_not(shape, entry.batch)
        if reason is not None:
            reasons[choice.name] = reason
    return reasons


def _drafting(entry: PlanEntry, requests: Requests) -> dict[Shape, Choice]:
    """Return what an entry drafts; if a trace is replayed, only static trees."""
    return ways_of(entry, static=requests.replayed is not None)


def shapes_of(entry: PlanEntry, runner: Runner, requests: Requests) -> dict[Shape, Choice]:
    """Return what is measured for an entry, the chosen tree first."""
    return {s: c for s, c in _drafting(entry, requests).items() if runner.why_not(s, entry.batch) is None}


def compare(
    runner: Runner,
    plan: Plan,
    requests: Requests,
    *,
    blocks: int = BLOCKS,
    seed: int = 0,
    forms: Mapping[tuple[int, str], FormsRecord] | None = None,
    whole: Mapping[tuple[int, str], Estimate] | None = None,
    work: Path | None = None,
    progress: Callable[[int], None] = lambda runs: None,
) -> list[Comparison]:
    """Decode the requests plainly and with every tree and policy of each entry of the plan, in shuffled blocks.

    If a trace is replayed, policies are left out.

    In each block the batch sizes come in random order, and within each so do plain decoding and the trees, so that the
    machine's drift falls on all of them. Small batch sizes decode a block in several pieces, one piece with all
    configurations before the next. Batch sizes that the plan expects to finish in two thirds of the longest time or
    less decode it several times. Where a draft takes a launch, drafts come in random order, and all batch sizes of one
    decode the whole block.

    Args:
        runner: what decodes; not entered.
        plan: the plan to be checked.
        requests: what is decoded; none of them in the trace that the plan was made from.
        blocks: parts that the prompts are cut into; every part is decoded at all batch sizes before the next.
        seed: of the order.
        forms: closed forms to report with each tree, by batch size and tree id.
        whole: predictions of whole runs, by batch size and tree id.
        work: file that finished runs are kept in, so that the same comparison resumes; None: nowhere.
        progress: called with 1 after every run of one configuration.

    Raises:
        UsageError, ExecutorError, TraceError, EngineError: see `check_comparison`; or the engine fails.
    """
    check_comparison(runner, plan, requests, blocks=blocks)
    shapes = {entry.batch: [EMPTY, *shapes_of(entry, runner, requests)] for entry in plan.entries}
    parts = _parts(requests, blocks)
    if isinstance(runner, EngineRunner):
        runner.expect(shape for some in shapes.values() for shape in some)
    rng, cuts = np.random.default_rng(seed), pieces(plan, runner, requests)
    groups = [
        group for number in range(blocks) for group in _order(shapes, cuts, number, rng, runner=runner, seed=seed)
    ]
    settings = _settings(runner, plan, requests, blocks, seed)
    with WorkFile(work if runner.processes == 1 else None, settings) as kept:
        visits = Visits(kept, groups)
        progress(len(visits.runs))
        with runner:
            _measure(runner, visits, groups, shapes, requests, parts, cuts, progress)
    predicted = partial(Figures.of_run, judged=judged_on(plan), requests=len(requests.prompts))
    return [
        comparison
        for entry in plan.entries
        for comparison in _compare_entry(
            entry,
            {
                shape: [visits.runs[v] for group in groups for v in group if v[:2] == (entry.batch, place)]
                for place, shape in enumerate(shapes[entry.batch])
            },
            predicted,
            forms or {},
            whole or {},
        )
    ]


def _settings(runner: Runner, plan: Plan, requests: Requests, blocks: int, seed: int) -> dict[str, Any]:
    """Return what the runs of a comparison depend on."""
    return {
        **resumable(runner.record),
        "plan": [[entry.batch, [str(s) for s in shapes_of(entry, runner, requests)]] for entry in plan.entries],
        "prompts": tokens_hash(requests.prompts),
        "limits": requests.limits,
        "replayed": None if requests.replayed is None else sha256(requests.replayed.rank.tobytes()).hexdigest(),
        "blocks": blocks,
        "seed": seed,
    }


def _order(
    shapes: Mapping[int, Sequence[Shape]],
    cuts: Mapping[int, tuple[int, int]],
    number: int,
    rng: np.random.Generator,
    *,
    runner: Runner,
    seed: int,
) -> Iterator[list[Visit]]:
    """Yield the visits of a block in groups that are compared: batch size, configuration, block, piece, pass."""
    if isinstance(runner, EngineRunner):
        every = sorted({shape for some in shapes.values() for shape in some}, key=str)
        group: list[Visit] = []
        for shape in runner.order(every, number, seed):
            batches = [batch for batch, some in shapes.items() if shape in some]
            group += [(b, shapes[b].index(shape), number, 0, 0) for b in rng.permutation(batches).tolist()]
        yield group
        return
    for batch in rng.permutation(list(shapes)).tolist():
        count, passes = cuts[batch]
        for turn in range(passes):
            for piece in range(count):
                yield [(batch, place, number, piece, turn) for place in rng.permutation(len(shapes[batch])).tolist()]


def _measure(
    runner: Runner,
    visits: Visits,
    groups: Sequence[Sequence[Visit]],
    shapes: Mapping[int, Sequence[Shape]],
    requests: Requests,
    parts: Sequence[NDArray[np.int64]],
    cuts: Mapping[int, tuple[int, int]],
    progress: Callable[[int], None],
) -> None:
    """Make all runs that are not made yet, each configuration warmed up before, and again after a launch."""
    warm: set[Any] = set()
    first = requests.part(parts[0])

    def run(visit: Visit) -> Run:
        batch, place, number, piece, _ = visit
        shape = shapes[batch][place]
        if runner.relaunches and shape not in warm:
            warm.clear()  # another draft was launched
            warm.add(shape)
            runner.warm_up(shape, max(b for b, some in shapes.items() if shape in some), requests)
        some = requests.part(np.array_split(parts[number], cuts[batch][0])[piece])
        return runner.run(shape, batch, some)

    if not runner.relaunches and any(visit not in visits.runs for group in groups for visit in group):
        for batch, some in shapes.items():
            for shape in some:
                runner.warm_up(shape, batch, first)
    for number, group in enumerate(groups):
        runner.begin(number)
        visits.make(group, run, progress)


def pieces(plan: Plan, runner: Runner, requests: Requests) -> dict[int, tuple[int, int]]:
    """Return, by batch size, the number of pieces that `compare` cuts a block into, and of passes over the block."""
    if runner.relaunches:
        return {entry.batch: (1, 1) for entry in plan.entries}
    largest = max(entry.batch for entry in plan.entries)
    token_s = {entry.batch: _token_s(entry, requests) for entry in plan.entries}
    longest = max(token_s.values())
    return {
        batch: (min(largest // batch, MAX_PIECES), min(round(longest / seconds), MAX_PASSES) if seconds else 1)
        for batch, seconds in token_s.items()
    }


def _token_s(entry: PlanEntry, requests: Requests) -> float:
    """Return the expected seconds per token, summed over all configurations; 0 if the plan has none of them."""
    plain = [choice for choice in (entry.choice, *entry.compared) if choice.plain][:1]
    return sum(1 / choice.tokens_s(entry.batch) for choice in (*plain, *_drafting(entry, requests).values()))


def runs_of(plan: Plan, runner: Runner, requests: Requests, *, blocks: int) -> Runs:
    """Return the sizes of the runs that `compare` makes; none where the runner itself decides when requests join."""
    limit = requests.new_tokens
    lengths, new_tokens = tuple(map(len, requests.prompts)), limit if isinstance(limit, int) else max(limit)
    if runner.late is None:
        return Runs({}, lengths, new_tokens)
    sizes = {
        batch: tuple(len(piece) for part in _parts(requests, blocks) for piece in np.array_split(part, number))
        for batch, (number, _) in pieces(plan, runner, requests).items()
    }
    return Runs(sizes, lengths, new_tokens, runner.late)


def _parts(requests: Requests, blocks: int) -> list[NDArray[np.int64]]:
    """Return the numbers of the requests of each block."""
    return np.array_split(np.arange(len(requests.prompts)), blocks)


def runs_in(plan: Plan, runner: Runner, requests: Requests, *, blocks: int) -> int:
    """Return the number of runs that `compare` makes, over all configurations and passes."""
    cuts = pieces(plan, runner, requests)
    return blocks * sum(
        math.prod(cuts[entry.batch]) * (1 + len(shapes_of(entry, runner, requests))) for entry in plan.entries
    )


def _compare_entry(
    entry: PlanEntry,
    runs: Mapping[Shape, Sequence[Run]],
    predicted: Callable[[Choice], Figures],
    forms: Mapping[tuple[int, str], FormsRecord],
    whole: Mapping[tuple[int, str], Estimate],
) -> list[Comparison]:
    """Return the comparisons of one entry, with plain decoding as the baseline."""
    plain, comparisons = runs[EMPTY], []
    predicted_s = next((choice.step_s for choice in (entry.choice, *entry.compared) if choice.plain), None)
    plain_s = None if predicted_s is None else (predicted_s, float(np.median(_all_steps(plain))))
    for shape, choice in ways_of(entry).items():
        if shape not in runs:
            continue
        static = shape if isinstance(shape, Tree) else None
        key = None if static is None else (entry.batch, static.id)
        comparison = Comparison(
            entry.batch,
            choice.name,
            static,
            predicted(choice),
            _measured_figures(runs[shape], plain, np.median if static else np.mean),
            end_to_end=_rate(runs[shape]) / _rate(plain),
            forms=NO_FORMS if key is None else forms.get(key, NO_FORMS),
            plain_s=plain_s,
            grown=choice.grown,
            whole=None if key is None else whole.get(key),
        )
        comparisons.append(comparison)
    return comparisons


def _all_steps(runs: Sequence[Run]) -> NDArray[np.float64]:
    return np.concatenate([run.steps_s for run in runs])


def _rate(runs: Sequence[Run]) -> float:
    """Return tokens per second of whole runs, prefill included."""
    return sum(run.tokens for run in runs) / sum(run.wall_s for run in runs)


def _tau(runs: Sequence[Run]) -> Estimate:
    """Return tokens per step, clustered by request."""
    counts: dict[int, NDArray[np.int64]] = {}
    for run in runs:
        for request in run.requests:
            more = np.array((len(request.committed), sum(request.committed)))
            counts[request.request] = counts.get(request.request, 0) + more
    steps_of, committed_of = np.array(list(counts.values())).T
    return ratio(committed_of, steps_of)


def _measured_figures(runs: Sequence[Run], plain: Sequence[Run], middle: Callable[[Any], Any]) -> Figures:
    """Return tau, step time and speedup.

    Step times are compared run by run, since those of a group follow one another on a machine that drifts.
    """
    quotients = np.array([middle(p.steps_s) / middle(r.steps_s) for p, r in zip(plain, runs, strict=True)])
    spread = ratio(quotients, np.ones(len(quotients)))
    quotient, tau = float(np.exp(trimmed_mean(np.log(quotients).tolist()))), _tau(runs)
    step_s = float(middle(_all_steps(runs)))
    return Figures(tau, step_s, tau.times(quotient, relative_error=TRIMMED_ERROR * spread.relative))
