"""Compare a plan's predictions with what an engine does, in shuffled rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.engines.step_times import Waves, decode_wave, warm_up
from simulate.validation.predicted_vs_measured import Comparison, Figures
from simulate.validation.predictions import ClosedForms, judged_on, ways_of
from treeopt.engines import ENGINE_RULES
from treeopt.engines.driver import Draft, Driver, EngineRequest
from treeopt.errors import EngineError, UsageError, counted
from treeopt.plans.plan import Choice, Plan, PlanEntry
from treeopt.policies import DynamicTree, Policy
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.statistics.robust_mean import TRIMMED_ERROR, trimmed_mean
from treeopt.tree import Tree


@dataclass(frozen=True)
class EngineRun:
    """The requests that are decoded to check a plan.

    Attributes:
        prompts: token ids; none of them in the trace that the plan was made from.
        new_tokens: tokens decoded after each prompt.
        rounds: parts that the prompts are cut into; every configuration decodes every part.
        seed: of the order.
    """

    prompts: Sequence[Sequence[int]]
    new_tokens: int
    rounds: int
    seed: int = 0

    @property
    def context(self) -> int:
        """Approximate tokens per sequence in the cache, the mean over a run."""
        return round(float(np.mean([len(prompt) for prompt in self.prompts]) + self.new_tokens / 2))


def drafts_of(entry: PlanEntry, engine: Driver) -> dict[Draft, Choice]:
    """Return the configurations of an entry that an engine drafts, the chosen one first."""
    drafts = {_draft_of(shape): choice for shape, choice in ways_of(entry).items()}
    return {d: choice for d, choice in drafts.items() if d is not None and _reason(d, entry.batch, engine) is None}


def _draft_of(shape: Tree | Policy) -> Draft | None:
    """Return a chain as its length and a dynamic tree of EAGLE-2 as it is; None for what no driver runs."""
    if isinstance(shape, DynamicTree):
        return shape
    return shape.nodes if isinstance(shape, Tree) and shape == Tree.chain(shape.nodes) else None


def _reason(draft: Draft | None, batch: int, engine: Driver) -> str | None:
    """Return why an engine does not draft this at a batch size, None if it does."""
    name, most = engine.meta["name"], engine.tree_requests
    if isinstance(draft, int):
        return None
    if most == 0:
        return f"{name} runs chains alone: search with --for an engine of chains, or give --shapes chain:N"
    if draft is None:
        return f"{name} runs chains and dynamic trees of EAGLE-2: search --for {name}"
    if batch > most:
        return f"{name} runs dynamic trees with {counted(most, 'request')} in flight: search with --batch {most}"
    cannot_run = ENGINE_RULES[name].cannot_run if name in ENGINE_RULES else None
    return cannot_run(draft, batch) if cannot_run else None


def runs_in(plan: Plan, engine: Driver, rounds: int) -> int:
    """Return the number of runs that `compare_in_engine` makes."""
    return rounds * sum(1 + len(drafts_of(entry, engine)) for entry in plan.entries)


def check_engine_run(plan: Plan, run: EngineRun, engine: Driver) -> list[str]:
    """Check that the comparison can run to its end; return lines on the configurations that are left out.

    Raises:
        UsageError: nothing that drafts, or too few prompts.
        EngineError: the engine does not draft what the plan chose.
    """
    left_out: dict[str, list[str]] = {}
    for entry in plan.entries:
        for shape, choice in ways_of(entry).items():
            reason = _reason(_draft_of(shape), entry.batch, engine)
            if reason is not None and shape in (entry.choice.tree, entry.choice.grown and entry.choice.grown.policy):
                raise EngineError(f"batch {entry.batch}: {choice.name} cannot be run: {reason}")
            if reason is not None:
                left_out.setdefault(reason, []).append(f"{choice.name} (batch {entry.batch})")
    if not any(drafts_of(entry, engine) for entry in plan.entries):
        raise UsageError("the plan holds no chain and no dynamic tree: there is nothing to validate")
    largest = max(entry.batch for entry in plan.entries)
    if len(run.prompts) < run.rounds * largest:
        raise UsageError(
            f"{run.rounds} blocks at batch {largest} need at least {run.rounds * largest} prompts, got "
            f"{len(run.prompts)}"
        )
    return [f"not measured: {', '.join(names)}: {reason}" for reason, names in left_out.items()]


def compare_in_engine(
    engine: Driver,
    plan: Plan,
    run: EngineRun,
    *,
    forms: Mapping[tuple[int, str], ClosedForms] | None = None,
    progress: Callable[[int], None] = lambda runs: None,
) -> list[Comparison]:
    """Decode the prompts plainly and with every draft of the plan, each part in waves of full batches.

    The order of drafts and batch sizes is shuffled in each round. The measured speedup is tau times the
    trimmed mean, over rounds, of plain step over step.

    Args:
        engine: a driver, entered.
        plan: predictions by batch size (requests in flight).
        run: what is decoded.
        forms: closed forms to report with each chain, by batch size and tree id.
        progress: called with 1 after every run of one configuration.

    Raises:
        UsageError, EngineError: see `check_engine_run`; or the engine fails.
    """
    check_engine_run(plan, run, engine)
    rng, waves = np.random.default_rng(run.seed), dict[tuple[int, Draft], list[Waves]]()
    parts = np.array_split(np.arange(len(run.prompts)), run.rounds)
    drafts: dict[int, list[Draft]] = {entry.batch: [0, *drafts_of(entry, engine)] for entry in plan.entries}
    every = sorted({draft for at_batch in drafts.values() for draft in at_batch}, key=str)
    for part in parts:
        for place in rng.permutation(len(every)).tolist():  # servers are launched by draft
            draft = every[place]
            batches = [batch for batch, at_batch in drafts.items() if draft in at_batch]
            warm_up(engine, run.prompts[: max(batches)], draft=draft)
            for batch in rng.permutation(batches).tolist():
                waves.setdefault((batch, draft), []).append(_measured(engine, run, part.tolist(), batch, draft))
                progress(1)
    judged = judged_on(plan)
    return [
        _compared(entry, draft, choice, waves, judged=judged, requests=len(run.prompts), forms=forms or {})
        for entry in plan.entries
        for draft, choice in drafts_of(entry, engine).items()
    ]


def _measured(engine: Driver, run: EngineRun, part: Sequence[int], batch: int, draft: Draft) -> Waves:
    """Decode the prompts of a part in waves; a last wave that would not be full is left out."""
    waves = Waves()
    for first in range(0, len(part) - batch + 1, batch):
        numbers = part[first : first + batch]
        requests = [EngineRequest(tuple(run.prompts[i]), run.new_tokens, ignore_stop=True) for i in numbers]
        steps, again = decode_wave(engine, requests, draft=draft)
        waves.repeated += again
        waves.add(steps, {i: len(run.prompts[i]) for i in numbers})
    return waves


def _compared(
    entry: PlanEntry,
    draft: Draft,
    choice: Choice,
    waves: Mapping[tuple[int, Draft], Sequence[Waves]],
    *,
    judged: int,
    requests: int,
    forms: Mapping[tuple[int, str], ClosedForms],
) -> Comparison:
    plain, runs = waves[entry.batch, 0], waves[entry.batch, draft]
    predicted_s = next((other.step_s for other in (entry.choice, *entry.compared) if other.plain), None)
    tree = Tree.chain(draft) if isinstance(draft, int) else None
    figures = _figures(runs, plain)
    return Comparison(
        entry.batch,
        choice.name,
        tree,
        Figures.of_run(choice, judged=judged, requests=requests),
        figures,
        end_to_end=_rate(runs) / _rate(plain),
        forms=ClosedForms() if tree is None else forms.get((entry.batch, tree.id), ClosedForms()),
        plain_s=None if predicted_s is None else (predicted_s, float(np.median(_seconds(plain)))),
        grown=choice.grown,
    )


def _seconds(runs: Sequence[Waves]) -> list[float]:
    return [run.mean_step_s for run in runs]


def _rate(runs: Sequence[Waves]) -> float:
    """Return tokens per second of whole runs, prefill included."""
    return sum(run.tokens for run in runs) / sum(run.wall_s for run in runs)


def _figures(runs: Sequence[Waves], plain: Sequence[Waves]) -> Figures:
    """Return tau, step time and speedup; step times are compared round by round, since the machine drifts."""
    committed = [tokens for run in runs for tokens in run.committed.values()]
    steps = [count for run in runs for count in run.steps.values()]
    tau = ratio(np.array(committed), np.array(steps))
    quotients = np.array(_seconds(plain)) / _seconds(runs)
    spread: Estimate = ratio(quotients, np.ones(len(quotients)))
    quotient = float(np.exp(trimmed_mean(np.log(quotients).tolist())))
    speedup = tau.times(quotient, relative_error=TRIMMED_ERROR * spread.relative)
    return Figures(tau, float(np.median(_seconds(runs))), speedup)


def validation_meta(engine: Driver, run: EngineRun) -> dict[str, Any]:
    """Return what a validation file records about the engine and the run."""
    return {
        "engine": dict(engine.meta),
        "acceptance": "live",
        "prompts": len(run.prompts),
        "prompt_tokens": [min(map(len, run.prompts)), max(map(len, run.prompts))],
        "new_tokens": run.new_tokens,
        "blocks": run.rounds,
        "seed": run.seed,
    }
