"""Measure a profile: step times of a runner on real prompts, in shuffled rounds that fit a budget and can be resumed.

Times are those of steps with every row busy. Plain decoding and all drafts alternate after the same prompts, in blocks
that are short and come back often, so that caches and clocks are those of decoding and a drift of the machine falls on
all alike. What a block is, and how blocks become a profile, is the runner's; see `Runner.timing`.
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from executor.models import tokens_hash
from executor.profiling.configurations import REQUIRED, Configuration
from executor.profiling.profile_settings import Measuring
from executor.runners.runner import Run, Runner, Tokens, Visit, Visits, resumable
from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import Prefill
from treeopt.errors import CostError, UsageError
from treeopt.registry import load
from treeopt.storage.typed_records import Count, NotNegative
from treeopt.storage.work_file import WorkFile

PREFILL = 0.05  # largest share of the budget, unless reading all prompts once takes longer
FEWEST = 2  # rounds: a median of one block has no spread
AGAIN = 2  # times the rounds that are made at most, where they disagree
ENOUGH = 3  # rounds, before configurations are left out
MARGIN = 1.15  # blocks take longer than in the first look
SHOWN = 6  # configurations that did not fit the budget, in words
LOG = logging.getLogger("treeopt")


Rounds = Sequence[Sequence[Sequence[tuple[int, Run]]]]  # of each round the groups, of each the runs in their order


class Timing(ABC):
    """The timer of a runner's blocks, a context: `LoopBlocks` or `EngineWaves`, which say more."""

    settings: Measuring

    @property
    @abstractmethod
    def ranked(self) -> list[tuple[int, Configuration]]:
        """All configurations with their importance, the most important first."""

    @abstractmethod
    def order(self, configurations: Sequence[Configuration], number: int) -> list[list[Visit]]:
        """Return the blocks of a round in groups that are compared; a visit is an index, the round, and more."""

    @abstractmethod
    def block(self, configuration: Configuration, number: int) -> Run:
        """Time one block of a round."""

    @abstractmethod
    def expected(self, every: Sequence[Configuration]) -> tuple[Callable[[Configuration], float], float]:
        """Return what gives the seconds that a block is expected to take, and the seconds that looking took."""

    @abstractmethod
    def profile(
        self, configurations: Sequence[Configuration], rounds: Rounds, *, prefill: Prefill | None, meta: dict[str, Any]
    ) -> Profile:
        """Return the profile that the blocks make, each with the index of its configuration."""

    def prefill(self, limit_s: float) -> Prefill | None:
        """Measure the seconds of reading prompts; None where they cannot be seen alone."""
        return None

    def disagree(self, configurations: Sequence[Configuration], rounds: Rounds) -> bool:
        """Return whether the rounds differ so much that more of them are made."""
        return False

    def __enter__(self) -> Self:
        """Prepare the runner."""
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - most have nothing to undo
        """Leave the runner as it was."""


class Measurement:
    """A measurement that is under way: its schedule, and the blocks that are done. Use it in a `with`."""

    def __init__(
        self, runner: Runner, prompts: Sequence[Tokens], settings: Measuring, *, work: Path | None = None
    ) -> None:
        """Check the settings.

        Args:
            runner: what decodes; not entered.
            prompts: token ids of requests; enough of them to keep the largest batch busy.
            settings: what is measured.
            work: where finished blocks are stored; None: nowhere.

        Raises:
            UsageError: settings without meaning, or too few prompts.
        """
        self.runner, self._prompts, self._work_path = runner, prompts, work if runner.processes == 1 else None
        self._timing: Timing = load(runner.timing)(runner, prompts, settings.ordered())
        self.settings = self._timing.settings
        self._stack = ExitStack()
        self._looked_s = 0.0

    def __enter__(self) -> Self:
        """Read and open the work file, and prepare the runner."""
        settings = {**asdict(self.settings), "prompts": tokens_hash(self._prompts), **resumable(self.runner.record)}
        self._work = self._stack.enter_context(WorkFile(self._work_path, settings))
        self._stack.enter_context(self.runner)
        self._stack.enter_context(self._timing)
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop the runner and close the work file."""
        self._stack.__exit__(*error)

    @cached_property
    def schedule(self) -> "Schedule":
        """The schedule: all configurations, or those that fit the budget after a first look at each place."""
        ranked = self._timing.ranked
        every = tuple(configuration for _, configuration in ranked)
        planned = next(iter(self._work.pieces("planned", Planned)), None)
        required, rounds = sum(importance == REQUIRED for importance, _ in ranked), self.settings.rounds or 0
        if planned and not (required <= planned.configurations <= len(ranked) and FEWEST <= planned.rounds <= rounds):
            raise self._work.damaged(f"planned: {planned.configurations} configurations in {planned.rounds} rounds")
        if planned is None:
            _ = self.prefill  # first: what it takes is missing from the budget of the configurations
            planned = Planned(*self._fit_budget(ranked), self._looked_s)
            self._work.put("planned", asdict(planned), worth_keeping=False)
        self._looked_s = planned.took_s
        return Schedule(every[: planned.configurations], planned.rounds, every[planned.configurations :])

    @cached_property
    def prefill(self) -> Prefill | None:
        """Seconds of reading prompts: measured, or read from the work file."""
        try:
            known = next(iter(self._work.pieces("prefill", Prefill)), None)
        except CostError as error:
            raise self._work.damaged(f"prefill: {error}") from error
        if known is not None:
            return known
        started, budget_s = time.perf_counter(), self.settings.budget_s
        prefill = self._timing.prefill(math.inf if budget_s is None else PREFILL * budget_s)
        self._looked_s += time.perf_counter() - started
        if prefill is not None:
            self._work.put("prefill", asdict(prefill), worth_keeping=False)
        return prefill

    @cached_property
    def _rounds(self) -> list[list[list[Visit]]]:
        """The groups of visits of each round, and of as many again, which are made where rounds disagree."""
        every = range(AGAIN * self.schedule.rounds)
        return [self._timing.order(self.schedule.configurations, number) for number in every]

    @cached_property
    def _visits(self) -> Visits:
        """The blocks that are done, first those of the work file."""
        return Visits(self._work, [group for groups in self._rounds for group in groups])

    @property
    def blocks(self) -> int:
        """Blocks of the whole schedule."""
        return sum(len(group) for groups in self._rounds[: self.schedule.rounds] for group in groups)

    @property
    def left(self) -> int:
        """Blocks that are still to be measured."""
        return max(0, self.blocks - len(self._visits.runs))

    def note_schedule(self) -> None:
        """Log what the time budget leaves out, and what was measured before an interruption."""
        schedule = self.schedule
        if schedule.left_out:
            some = "; ".join(map(str, schedule.left_out[:SHOWN])) + ("; ..." if len(schedule.left_out) > SHOWN else "")
            LOG.info(
                f"{schedule.rounds} rounds of {len(schedule.configurations)} configurations fit the budget; "
                f"{len(schedule.left_out)} are left out: {some}"
            )
        if self.left < self.blocks:
            LOG.info(f"resuming: {self.blocks - self.left} of {self.blocks} blocks were measured before")

    def run(self, progress: Callable[[int], None] = lambda blocks: None) -> Profile:
        """Measure what is not done, and make the profile. A round that would pass the budget is not begun."""
        configurations, runs, made = self.schedule.configurations, self._visits.runs, 0
        limit, took = self.settings.budget_s, list[float]()
        for groups in self._rounds:
            if limit is not None and made >= FEWEST and self._looked_s + sum(took) + max(took) > limit:
                break
            if made >= self.schedule.rounds and not self._timing.disagree(configurations, self._made(made)):
                break
            for group in groups:
                self._visits.make(group, lambda visit: self._timing.block(configurations[visit[0]], visit[1]), progress)
            took.append(sum(runs[visit].wall_s for group in groups for visit in group))
            made += 1
        prefill = self.prefill
        meta = {
            **self.runner.record,
            **{name: value for name, value in asdict(self.settings).items() if name not in ("batches", "rounds")},
            "rounds": made,
            "left_out": [str(configuration) for configuration in self.schedule.left_out],
            "provenance": self.runner.provenance,
        }
        profile = self._timing.profile(configurations, self._made(made), prefill=prefill, meta=meta)
        memory = {str(context): self.runner.memory(context) for context in profile.context}
        known = {context: asdict(each) for context, each in memory.items() if each is not None}
        return replace(profile, meta={**profile.meta, "memory": known}) if known else profile

    def _made(self, rounds: int) -> list[list[list[tuple[int, Run]]]]:
        """Return the blocks of the first rounds."""
        runs = self._visits.runs
        return [[[(visit[0], runs[visit]) for visit in group] for group in groups] for groups in self._rounds[:rounds]]

    def _fit_budget(self, ranked: Sequence[tuple[int, Configuration]]) -> tuple[int, int]:
        """Look at each batch size and context; return the configurations that fit the budget, and their rounds."""
        rounds, budget_s = self.settings.rounds, self.settings.budget_s
        assert rounds is not None, "filled in where blocks are timed"
        if budget_s is None:
            return len(ranked), rounds
        block_s, looked_s = self._timing.expected([configuration for _, configuration in ranked])
        self._looked_s += looked_s
        return fit_schedule(ranked, rounds=rounds, block_s=block_s, budget_s=budget_s - self._looked_s)


@dataclass(frozen=True)
class Planned:
    """A schedule in a work file: the first configurations by importance, rounds, and the seconds before."""

    configurations: Count
    rounds: Count
    took_s: NotNegative


@dataclass(frozen=True)
class Schedule:
    """The configurations that are measured.

    Attributes:
        configurations: configurations in the order of importance.
        rounds: blocks of each.
        left_out: configurations that did not fit.
    """

    configurations: tuple[Configuration, ...]
    rounds: int
    left_out: tuple[Configuration, ...]


def fit_schedule(
    ranked: Sequence[tuple[int, Configuration]],
    *,
    rounds: int,
    block_s: Callable[[Configuration], float],
    budget_s: float,
) -> tuple[int, int]:
    """Return how many configurations fit the budget, by importance, and their rounds: all for as many as fit.

    If fewer than three rounds fit, drop the least important configurations; at worst keep two rounds of the required
    ones.

    Args:
        ranked: importance and configuration, the most important first; see `ranked_configurations`.
        rounds: wanted.
        block_s: expected seconds of one block.
        budget_s: seconds for all blocks.

    Raises:
        UsageError: not even the required configurations fit.
    """
    costs = [MARGIN * block_s(configuration) for _, configuration in ranked]
    required = sum(importance == REQUIRED for importance, _ in ranked)
    for tried in range(rounds, min(rounds, ENOUGH) - 1, -1):
        if tried * sum(costs) <= budget_s:
            return len(ranked), tried
    for tried in range(min(rounds, ENOUGH), FEWEST - 1, -1):
        total, count = 0.0, 0
        while count < len(costs) and tried * (total + costs[count]) <= budget_s:
            total, count = total + costs[count], count + 1
        if count >= required:
            return count, tried
    raise UsageError(
        f"a budget of {max(0.0, budget_s):.1f} s is left, and the smallest profile takes about "
        f"{FEWEST * sum(costs[:required]):.1f} s: ask for fewer batch sizes, contexts or no policies, or give more time"
    )
