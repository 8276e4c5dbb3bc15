"""Time an engine for a profile: waves of full batches by draft, in shuffled rounds, as ratios to plain decoding.

A draft is a chain of some length, or a dynamic tree. A shared machine changes its speed. Each round measures every
draft in random order, and the ratio of each to plain decoding of the same round is what enters the profile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.profiling.configurations import Configuration, chain_configurations
from executor.profiling.measurement_rounds import FEWEST, Rounds, Timing
from executor.profiling.profile_settings import Measuring
from executor.runners.engine_runner import EngineRunner, draft_of
from executor.runners.runner import Requests, Run, Tokens, Visit, joined
from simulate.profiles.measured_cells import Cell
from simulate.profiles.profile import Profile
from simulate.profiles.profile_from_cells import engine_cell, engine_profile
from simulate.profiles.step_tables import Prefill
from treeopt.defaults import ENGINE_LENGTH, ENGINE_ROUNDS
from treeopt.engines.driver import Draft
from treeopt.errors import EngineError, UsageError, counted
from treeopt.policies import DynamicTree
from treeopt.policies import settings as settings_of
from treeopt.replay.static_tree import ALL_STEPS
from treeopt.tree import Tree

WAVES = 4  # runs of a full batch per configuration and round, at least
LEAST = 24  # steps of a row that a round times, at least
MOST = 4  # times that many waves
APART = 0.15  # rounds whose ratios to plain decoding lie further from their median disagree: more are made
ABSURD = 2.0  # a round whose ratio is so many times the median, or that share of it, does not count
RARE = 0.5  # share of a chain's tokens below which it is rarely drafted

Runs = Mapping[Configuration, Sequence[Run]]  # of each round


class EngineWaves(Timing):
    """Waves of an engine, as a context; a configuration's requests are the next prompts in turn.

    Attributes:
        settings: with the depth filled in.
    """

    def __init__(self, runner: EngineRunner, prompts: Sequence[Tokens], settings: Measuring) -> None:
        """Check that the settings can be measured.

        Raises:
            UsageError: fewer prompts than the largest batch, or prompts shorter than a context.
            EngineError: the engine does not run dynamic trees at these batch sizes.
        """
        depth, rounds = settings.max_depth or ENGINE_LENGTH, settings.rounds or ENGINE_ROUNDS
        self.runner, self._prompts = runner, prompts
        self.settings = replace(settings, max_depth=depth, rounds=rounds)
        self._launched: Any = None
        every = chain_configurations(
            settings.batch,
            settings.context or (None,),
            max_nodes=settings.max_nodes,
            max_depth=depth,
            policies=settings.policies,
        )
        runner.concurrency = largest = max(settings.batch)
        self._ranked = [one for one in every if not isinstance(one[1].tree, Tree) or not runner.why_not(one[1].tree, 1)]
        runner.expect(configuration.tree for _, configuration in self._ranked)
        if len(prompts) < largest:
            raise UsageError(f"batch {largest} needs as many prompts, got {len(prompts)}")
        for context in settings.context:
            short = next((i for i, prompt in enumerate(prompts) if len(prompt) < context), None)
            if short is not None:
                raise UsageError(
                    f"prompt {short} has {len(prompts[short])} tokens: it cannot be measured at a context of {context}"
                )
        most = runner.driver.tree_requests
        if settings.policies and largest > most:
            raise EngineError(
                f"{runner.name} runs dynamic trees with {counted(most, 'request')} in flight: measure them with "
                f"--batch {most}"
                if most
                else f"{runner.name} runs chains, no dynamic trees: leave out --policies"
            )

    @property
    def ranked(self) -> list[tuple[int, Configuration]]:
        """All configurations that the engine runs, with their importance."""
        return self._ranked

    def order(self, configurations: Sequence[Configuration], number: int) -> list[list[Visit]]:
        """Return the runs of a round, one group: drafts in random order, since engines are launched by draft."""
        trees, visits = list(dict.fromkeys(configuration.tree for configuration in configurations)), list[Visit]()
        rng = np.random.default_rng([self.settings.seed, number])
        for tree in self.runner.order(trees, number, self.settings.seed):
            same = [index for index, configuration in enumerate(configurations) if configuration.tree == tree]
            visits += [(index, number) for index in rng.permutation(same).tolist()]
        return [visits]

    def block(self, configuration: Configuration, number: int) -> Run:
        """Decode waves of a configuration until enough steps are timed, warmed up where another draft ran before."""
        batch, tree, settings = configuration.batch, configuration.tree, self.settings
        if self._launched != tree:
            first = Requests(self._prompts[: max(settings.batch)], settings.new_tokens)
            self.runner.warm_up(tree, len(first.prompts), first)
            self._launched = tree
        runs, count = list[Run](), WAVES * batch
        while not runs or (sum(run.timed for run in runs) < LEAST * batch and len(runs) < MOST):
            start = (number + len(runs)) * count
            prompts = [self._prompts[(start + i) % len(self._prompts)][: configuration.context] for i in range(count)]
            runs.append(self.runner.run(tree, batch, Requests(prompts, settings.new_tokens)))
        return joined(runs)

    def disagree(self, configurations: Sequence[Configuration], rounds: Rounds) -> bool:
        """Return whether the rounds of some draft disagree, in its ratio to plain decoding."""
        runs = _by_configuration(configurations, rounds)
        return any(np.ptp(_logs(c, runs, every=True)) > 2 * APART for c in runs if c.tree.nodes)

    def expected(self, every: Sequence[Configuration]) -> tuple[Callable[[Configuration], float], float]:
        """Refuse a time budget: launches take most of the time, and are not foreseen."""
        raise UsageError("--engine does not take --budget: omit --budget")

    def profile(
        self, configurations: Sequence[Configuration], rounds: Rounds, *, prefill: Prefill | None, meta: dict[str, Any]
    ) -> Profile:
        """Return the profile that the runs of all rounds make; the driver sees no prefill alone."""
        runs = _by_configuration(configurations, rounds)
        lengths = self.settings.context or [len(prompt) for prompt in self._prompts]
        chains = [same for configuration, same in runs.items() if isinstance(draft_of(configuration.tree), int)]
        meta = {
            **meta,
            "spread": _spread(runs),
            ALL_STEPS: any(mean_drafted(same) is None for same in chains),
            "repeated_waves": sum(run.repeated for same in runs.values() for run in same),
        }
        return engine_profile(_cells(runs), context=(min(lengths), max(lengths) + self.settings.new_tokens), meta=meta)


def _draft(configuration: Configuration) -> Draft:
    draft = draft_of(configuration.tree)
    assert draft is not None
    return draft


def _ordered(runs: Runs) -> list[tuple[Configuration, Sequence[Run]]]:
    return sorted(runs.items(), key=lambda item: str((item[0].batch, _draft(item[0]), item[0].context)))


def _seconds(runs: Sequence[Run]) -> list[float]:
    """Return the seconds per step of each round."""
    return [run.step_s for run in runs]


def _by_configuration(configurations: Sequence[Configuration], rounds: Rounds) -> dict[Configuration, list[Run]]:
    runs: dict[Configuration, list[Run]] = {}
    for groups in rounds:
        for index, run in (visit for group in groups for visit in group):
            runs.setdefault(configurations[index], []).append(run)
    return runs


def _beside(configuration: Configuration, runs: Runs) -> dict[Draft, Sequence[Run]]:
    """Return the runs of all drafts at the batch size and context of a configuration."""
    place = (configuration.batch, configuration.context)
    return {_draft(other): some for other, some in runs.items() if (other.batch, other.context) == place}


def _logs(configuration: Configuration, runs: Runs, *, every: bool = False) -> NDArray[np.float64]:
    """Return the logarithms of the ratios to plain decoding of a draft's rounds; of plain decoding, of its seconds.

    Unless `every`, rounds without sense are left out: those that are far from the median of three or more.
    """
    logs = np.log(_seconds(runs[configuration]))
    if configuration.tree.nodes:
        logs -= np.log(_seconds(_beside(configuration, runs)[0]))
    usual = np.abs(logs - np.median(logs)) <= np.log(ABSURD)
    return logs if every or usual.sum() < FEWEST else logs[usual]


def _cells(runs: Runs) -> list[Cell]:
    """Return one cell per configuration: the median plain step, times the ratio to it of a step that drafts in full.

    Raises:
        UsageError: an engine that reports what it drafts drafted nothing.
    """
    cells = []
    for configuration, same in _ordered(runs):
        draft = _draft(configuration)
        by_draft = _beside(configuration, runs)
        plain = _seconds(by_draft[0])
        place = float(np.mean([run.context for run in by_draft[0]]))
        logs = _logs(configuration, runs)
        error, ratio, committed = float(np.std(logs, ddof=1)) / len(logs) ** 0.5, 1.0, 1.0
        if draft:
            ratios = {
                other: float(np.median(np.array(_seconds(some)) / plain)) for other, some in by_draft.items() if other
            }
            ratio, factor = ratios[draft], 1.0
            if isinstance(draft, int):
                lengths = {other: other_ratio for other, other_ratio in ratios.items() if isinstance(other, int)}
                ratio, factor = full_draft(draft, lengths, {other: mean_drafted(by_draft[other]) for other in lengths})
            error *= factor
            committed = sum(run.tokens for run in same) / sum(run.steps for run in same)
        step_s = float(np.median(plain)) * ratio
        cells.append(engine_cell(configuration.batch, draft, step_s, context=place, error=error, committed=committed))
    return cells


def full_draft(draft: int, ratios: Mapping[int, float], means: Mapping[int, float | None]) -> tuple[float, float]:
    """Return the ratio to a plain step of a step that drafts in full, and the factor on its relative error.

    A drafter that finds nothing in most steps, such as prompt lookup, drafts m of K tokens per step on average. What a
    step takes beyond a plain one is taken to grow with the drafted tokens, so it is K / m times what was measured.
    Where m is below half of K this multiplies noise, and all such lengths share one time per drafted token: the least
    squares of ratio - 1 over m. A length at which nothing was drafted is one of them.

    Args:
        draft: K.
        ratios: of measured steps to plain ones, by length.
        means: tokens drafted per step and row, by length; None: not reported, every step drafts.

    Raises:
        UsageError: nothing was drafted at any length.
    """
    measured, mean = ratios[draft], means[draft]
    if mean is None:
        return measured, 1.0
    if mean >= RARE * draft:
        per_token = (measured - 1) / mean
    else:
        rare = {other: m for other, m in means.items() if m is not None and 0 < m < RARE * other}
        if not rare:
            raise UsageError(
                "in no timed step did the engine draft anything: decode more tokens (--new-tokens) or other prompts"
            )
        excess = sum((ratios[other] - 1) * m for other, m in rare.items())
        per_token = excess / sum(m**2 for m in rare.values())
        mean = mean or min(rare.values())
    full = max(1 + per_token * draft, min(measured, 1.0))
    return full, max(1.0, measured * draft / mean / full)


def mean_drafted(runs: Sequence[Run]) -> float | None:
    """Return the tokens drafted per step and row over all rounds; None if the engine does not report them."""
    numbers = [run.drafted for run in runs if run.drafted is not None]
    return None if len(numbers) < len(runs) else sum(numbers) / sum(run.timed for run in runs)


def _spread(runs: Runs) -> list[dict[str, Any]]:
    """Return the lowest, middle and highest seconds per step of each configuration over its rounds, as measured.

    Steps that drafted nothing count. `mean_drafted` has the tokens drafted per step and row, if the engine reports it.
    """
    rows = []
    for configuration, same in _ordered(runs):
        draft = _draft(configuration)
        low, middle, high = np.quantile(_seconds(same), [0, 0.5, 1]).tolist()
        mean = {} if isinstance(draft, DynamicTree) else {"mean_drafted": mean_drafted(same)}
        drafted = settings_of(draft) if isinstance(draft, DynamicTree) else draft
        rows.append(
            {
                "batch": configuration.batch,
                "drafted": drafted,
                "context": configuration.context,
                "step_s": [low, middle, high],
                **mean,
            }
        )
    return rows
