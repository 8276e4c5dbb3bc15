"""Time an engine for a profile: waves of full batches by draft, in shuffled rounds, as ratios to plain decoding.

A draft is a chain of some length, or a dynamic tree. A shared machine changes its speed. Each round measures every
draft in random order, and the ratio of each to plain decoding of the same round is what enters the profile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from executor.profiling.configurations import Configuration, chain_configurations
from executor.profiling.profile_settings import Measuring
from executor.runners.engine_runner import EngineRunner, draft_of
from executor.runners.runner import Requests, Run, Tokens, Visit
from simulate.profiles.calibration import engine_cell, engine_profile
from simulate.profiles.cell_tables import Cell
from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import Prefill
from treeopt.defaults import ENGINE_LENGTH, ENGINE_ROUNDS
from treeopt.engines.driver import Draft
from treeopt.errors import EngineError, UsageError, counted
from treeopt.policies import DynamicTree
from treeopt.policies import settings as settings_of
from treeopt.replay.static_tree import ALL_STEPS

WAVES = 4  # runs of a full batch per configuration and round
RARE = 0.5  # share of a chain's tokens below which it is rarely drafted

Runs = Mapping[Configuration, Sequence[Run]]  # of each round


class EngineWaves:
    """Waves of an engine, as a context; a configuration's requests are the next prompts in turn.

    Attributes:
        settings: with the depth filled in.
        ranked: all configurations with their importance.
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
        self.ranked = chain_configurations(
            settings.batch,
            settings.context or (None,),
            max_nodes=settings.max_nodes,
            max_depth=depth,
            policies=settings.policies,
        )
        runner.concurrency = largest = max(settings.batch)
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

    def __enter__(self) -> Self:
        """Return the waves; the runner is entered apart."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the engine to its runner."""

    def order(self, configurations: Sequence[Configuration], number: int) -> list[list[Visit]]:
        """Return the runs of a round, one group: drafts in random order, since engines are launched by draft."""
        rng = np.random.default_rng([self.settings.seed, number])
        trees, visits = list(dict.fromkeys(configuration.tree for configuration in configurations)), list[Visit]()
        for place in rng.permutation(len(trees)).tolist():
            same = [index for index, configuration in enumerate(configurations) if configuration.tree == trees[place]]
            visits += [(index, number) for index in rng.permutation(same).tolist()]
        return [visits]

    def block(self, configuration: Configuration, number: int) -> Run:
        """Decode the waves of a configuration, warmed up where another draft was launched before."""
        batch, tree, settings = configuration.batch, configuration.tree, self.settings
        if self._launched != tree:
            first = Requests(self._prompts[: max(settings.batch)], settings.new_tokens)
            self.runner.warm_up(tree, len(first.prompts), first)
            self._launched = tree
        start, count = number * WAVES * batch, WAVES * batch
        prompts = [self._prompts[(start + i) % len(self._prompts)][: configuration.context] for i in range(count)]
        return self.runner.run(tree, batch, Requests(prompts, settings.new_tokens))

    def expected(self, every: Sequence[Configuration]) -> tuple[Callable[[Configuration], float], float]:
        """Refuse a time budget: launches take most of the time, and are not foreseen."""
        raise UsageError("--engine does not take --budget: omit --budget")

    def prefill(self, limit_s: float) -> Prefill | None:
        """Return None: the driver sees no prefill alone."""
        return None

    def profile(
        self,
        configurations: Sequence[Configuration],
        rounds: Sequence[Sequence[Sequence[tuple[int, Run]]]],
        *,
        prefill: Prefill | None,
        meta: dict[str, Any],
    ) -> Profile:
        """Return the profile that the runs of all rounds make; see `LoopBlocks.profile`."""
        runs: dict[Configuration, list[Run]] = {}
        for groups in rounds:
            for index, run in (visit for group in groups for visit in group):
                runs.setdefault(configurations[index], []).append(run)
        lengths = self.settings.context or [len(prompt) for prompt in self._prompts]
        chains = [same for configuration, same in runs.items() if isinstance(draft_of(configuration.tree), int)]
        meta = {
            **meta,
            "spread": _spread(runs),
            ALL_STEPS: any(_mean_drafted(same) is None for same in chains),
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


def _cells(runs: Runs) -> list[Cell]:
    """Return one cell per configuration: the median plain step, times the ratio to it of a step that drafts in full.

    Raises:
        UsageError: an engine that reports what it drafts drafted nothing.
    """
    cells = []
    for configuration, same in _ordered(runs):
        draft = _draft(configuration)
        by_draft = {
            _draft(other): of_other
            for other, of_other in runs.items()
            if (other.batch, other.context) == (configuration.batch, configuration.context)
        }
        plain = _seconds(by_draft[0])
        place = float(np.mean([run.context for run in by_draft[0]]))
        logs = np.log(_seconds(same)) - np.log(plain) if draft else np.log(plain)
        error, ratio, committed = float(np.std(logs, ddof=1)) / len(logs) ** 0.5, 1.0, 1.0
        if draft:
            ratio, factor = _full_draft(draft, by_draft)
            error *= factor
            committed = sum(run.tokens for run in same) / sum(run.steps for run in same)
        step_s = float(np.median(plain)) * ratio
        cells.append(engine_cell(configuration.batch, draft, step_s, context=place, error=error, committed=committed))
    return cells


def _full_draft(draft: Draft, by_draft: Mapping[Draft, Sequence[Run]]) -> tuple[float, float]:
    """Return the ratio to a plain step of a step that drafts in full, and the factor on its relative error.

    A drafter that finds nothing in most steps, such as prompt lookup, drafts m of K tokens per step on average. What a
    step takes beyond a plain one is taken to grow with the drafted tokens, so it is K / m times what was measured.
    Where m is below half of K this multiplies noise, and all such lengths share one time per drafted token: the least
    squares of ratio - 1 over m. A length at which nothing was drafted is one of them.
    """
    plain = _seconds(by_draft[0])

    def ratio_of(other: Draft) -> float:
        return float(np.median(np.array(_seconds(by_draft[other])) / plain))

    means = {other: _mean_drafted(runs) for other, runs in by_draft.items() if isinstance(other, int) and other}
    if isinstance(draft, DynamicTree) or (mean := means[draft]) is None:
        return ratio_of(draft), 1.0
    measured = ratio_of(draft)
    if mean >= RARE * draft:
        per_token = (measured - 1) / mean
    else:
        rare = {other: m for other, m in means.items() if m is not None and 0 < m < RARE * other}
        if not rare:
            raise UsageError(
                "in no timed step did the engine draft anything: decode more tokens (--new-tokens) or other prompts"
            )
        excess = sum((ratio_of(other) - 1) * m for other, m in rare.items())
        per_token = excess / sum(m**2 for m in rare.values())
        mean = mean or min(rare.values())
    full = max(1 + per_token * draft, min(measured, 1.0))
    return full, max(1.0, measured * draft / mean / full)


def _mean_drafted(runs: Sequence[Run]) -> float | None:
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
        mean = {} if isinstance(draft, DynamicTree) else {"mean_drafted": _mean_drafted(same)}
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
