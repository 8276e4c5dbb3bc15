"""Compare a plan's predictions with what an engine does, in shuffled rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.engines.engine import Engine, EngineRequest
from executor.engines.step_times import Waves, decode_wave, warm_up
from simulate.validation.predicted_vs_measured import Comparison, Figures
from simulate.validation.predictions import ClosedForms, judged_on, ways_of
from treeopt.errors import EngineError, UsageError
from treeopt.plans.plan import Choice, Plan, PlanEntry
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


def chains_of(entry: PlanEntry) -> dict[int, Choice]:
    """Return the chains of an entry by length, the chosen one first.

    Raises:
        EngineError: a configuration that is no chain.
    """
    chains: dict[int, Choice] = {}
    for tree, choice in ways_of(entry).items():
        if not isinstance(tree, Tree) or tree != Tree.chain(tree.nodes):
            raise EngineError(
                f"batch {entry.batch}: {choice.name} is no chain: search with --engine, and --shapes chain:N"
            )
        chains[tree.nodes] = choice
    return chains


def runs_in(plan: Plan, rounds: int) -> int:
    """Return the number of runs that `compare_in_engine` makes."""
    return rounds * sum(1 + len(chains_of(entry)) for entry in plan.entries)


def check_engine_run(plan: Plan, run: EngineRun) -> None:
    """Check that the comparison can run to its end.

    Raises:
        UsageError: no chain, or too few prompts.
        EngineError: a configuration that is no chain.
    """
    chains = [chains_of(entry) for entry in plan.entries]
    if not any(chains):
        raise UsageError("the plan holds no chain: there is nothing to validate")
    largest = max(entry.batch for entry in plan.entries)
    if len(run.prompts) < run.rounds * largest:
        raise UsageError(
            f"{run.rounds} blocks at batch {largest} need at least {run.rounds * largest} prompts, got "
            f"{len(run.prompts)}"
        )


def compare_in_engine(
    engine: Engine,
    plan: Plan,
    run: EngineRun,
    *,
    forms: Mapping[tuple[int, str], ClosedForms] | None = None,
    progress: Callable[[int], None] = lambda runs: None,
) -> list[Comparison]:
    """Decode the prompts plainly and with every chain of the plan, each part in waves of full batches.

    The order of draft lengths and batch sizes is shuffled in each round. The measured speedup is tau times the
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
    check_engine_run(plan, run)
    rng, waves = np.random.default_rng(run.seed), dict[tuple[int, int], list[Waves]]()
    parts = np.array_split(np.arange(len(run.prompts)), run.rounds)
    lengths = {entry.batch: [0, *chains_of(entry)] for entry in plan.entries}
    every = sorted({length for at_batch in lengths.values() for length in at_batch})
    for part in parts:
        for draft in rng.permutation(every).tolist():  # servers are launched by draft length
            warm_up(engine, run.prompts[: max(lengths)], draft=draft)
            for batch in rng.permutation([b for b, at in lengths.items() if draft in at]).tolist():
                waves.setdefault((batch, draft), []).append(_measured(engine, run, part.tolist(), batch, draft))
                progress(1)
    judged = judged_on(plan)
    return [
        _compared(entry, length, choice, waves, judged=judged, requests=len(run.prompts), forms=forms or {})
        for entry in plan.entries
        for length, choice in chains_of(entry).items()
    ]


def _measured(engine: Engine, run: EngineRun, part: Sequence[int], batch: int, draft: int) -> Waves:
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
    length: int,
    choice: Choice,
    waves: Mapping[tuple[int, int], Sequence[Waves]],
    *,
    judged: int,
    requests: int,
    forms: Mapping[tuple[int, str], ClosedForms],
) -> Comparison:
    plain, runs = waves[entry.batch, 0], waves[entry.batch, length]
    predicted_s = next((other.step_s for other in (entry.choice, *entry.compared) if other.plain), None)
    tree = Tree.chain(length)
    figures = _figures(runs, plain)
    return Comparison(
        entry.batch,
        choice.name,
        tree,
        Figures.of_run(choice, judged=judged, requests=requests),
        figures,
        end_to_end=_rate(runs) / _rate(plain),
        forms=forms.get((entry.batch, tree.id), ClosedForms()),
        plain_s=None if predicted_s is None else (predicted_s, float(np.median(_seconds(plain)))),
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


def validation_meta(engine: Engine, run: EngineRun) -> dict[str, Any]:
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
