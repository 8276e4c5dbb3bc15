"""Measure what a tuner asks for in an engine, and the profile and trace that its results make.

A setting decodes a few waves of prompts. Every draft of a round decodes the same prompts at one batch size, so that
acceptance is compared request by request; rounds go through the prompts in turn.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from executor.profiling.engine_waves import full_draft, mean_drafted
from executor.recording.engine_steps import visited_trace
from executor.runners.engine_runner import EngineRunner
from executor.runners.runner import Requests, RequestSteps, Run, Tokens
from simulate.profiles.profile import Profile
from simulate.profiles.profile_from_cells import engine_cell, engine_profile
from treeopt.errors import EngineError
from treeopt.planning.tuner import BETWEEN, FIRST, Result, Setting, Tuner, Verdict
from treeopt.replay.static_tree import ALL_STEPS
from treeopt.storage.typed_records import Index, NotNegative
from treeopt.storage.work_file import WorkFile
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

REQUESTS, WAVES = 4, 2  # requests and waves of a setting, at least


@dataclass(frozen=True)
class SettingRecord:
    """A setting that was measured, in a work file; `took_s` are the seconds that it took."""

    batch: Index
    draft: Index
    round: Index
    took_s: NotNegative
    run: Run


@dataclass
class TunedRuns:
    """The runs of a tuner's settings in an engine.

    Attributes:
        runner: entered by the caller.
        tuner: what asks.
        prompts: token ids.
        new_tokens: tokens decoded after each.
        budget_s: seconds after which no further setting is begun, but for those of the first rounds.
        work: where finished settings are kept.
    """

    runner: EngineRunner
    tuner: Tuner
    prompts: Sequence[Tokens]
    new_tokens: int
    budget_s: float
    work: WorkFile
    runs: dict[Setting, Run] = field(default_factory=dict)
    took_s: float = 0.0

    def measure(self, progress: Callable[[int], None]) -> None:
        """Measure until the tuner is content, or the budget is spent and the first rounds are made.

        Raises:
            EngineError: the engine fails.
        """
        kept = {Setting(r.batch, r.draft, r.round): r for r in self.work.pieces("setting", SettingRecord)}
        began_s, warm = time.monotonic(), set[int]()
        while (setting := self.tuner.ask()) is not None:
            if (known := kept.get(setting)) is not None:
                run, self.took_s = known.run, self.took_s + known.took_s
                began_s = time.monotonic()
            else:
                spent_s = self.took_s + time.monotonic() - began_s
                if spent_s > self.budget_s and self.tuner.rounds >= FIRST:
                    break
                first_s = time.monotonic()
                if setting.draft not in warm:
                    some = Requests(self.prompts[: max(self.tuner.batches)], self.new_tokens)
                    self.runner.warm_up(_shape(setting.draft), len(some.prompts), some)
                    warm = {*(warm if self.tuner.takes_turns else ()), setting.draft}
                try:
                    run = self.runner.run(_shape(setting.draft), setting.batch, self._requests(setting)[0])
                except EngineError as error:
                    kept_in = f"; {len(self.runs)} settings are kept in {self.work.path}: the same command resumes"
                    raise EngineError(f"{error}{kept_in if self.runs and self.work.path else ''}") from error
                took_s = time.monotonic() - first_s
                self.work.put("setting", asdict(SettingRecord(**asdict(setting), took_s=took_s, run=run)))
            self.runs[setting] = run
            self.tuner.tell(setting, self._result(setting, run))
            progress(1)
        self.took_s += time.monotonic() - began_s

    def _requests(self, setting: Setting) -> tuple[Requests, list[int]]:
        """Return the prompts of a setting, and their numbers."""
        sizes = [count_of(batch) for batch in self.tuner.batches]
        place = list(self.tuner.batches).index(setting.batch)
        start = setting.round * sum(sizes) + list(accumulate(sizes, initial=0))[place]
        numbers = [(start + i) % len(self.prompts) for i in range(sizes[place])]
        return Requests([self.prompts[number] for number in numbers], self.new_tokens), numbers

    def _result(self, setting: Setting, run: Run) -> Result:
        numbers = self._requests(setting)[1]
        accepted = [size - 1 for request in run.requests for size in request.committed]
        return Result(
            run.step_s,
            {numbers[request.request]: len(request.committed) for request in run.requests},
            {numbers[request.request]: sum(request.committed) for request in run.requests},
            tuple(sum(size >= depth for size in accepted) for depth in range(1, setting.draft + 1)),
        )

    def trace(self, meta: Mapping[str, Any], *, seed: int) -> Trace:
        """Return the trace of the longest draft's own steps: exact where it went, drawn from its rates elsewhere."""
        longest = max(setting.draft for setting in self.runs)
        runs = [run for setting, run in self.runs.items() if setting.draft == longest]
        steps = [request for run in runs for request in run.requests]
        numbered = [RequestSteps(i, request.committed, request.drafted) for i, request in enumerate(steps)]
        return visited_trace(numbered, depth=longest, meta={**meta}, seed=seed)

    def profile(self, verdicts: Sequence[Verdict], meta: Mapping[str, Any]) -> Profile:
        """Return the profile of the measured step times; lengths that were not launched lie on lines between others."""
        cells, whole = [], True
        for batch in self.tuner.batches:
            of_batch = [verdict for verdict in verdicts if verdict.batch == batch]
            plain_s = next(verdict.step_s for verdict in of_batch if verdict.draft == 0)
            runs = {
                v.draft: [run for s, run in self.runs.items() if (s.batch, s.draft) == (batch, v.draft)]
                for v in of_batch
            }
            drafted = {draft: mean_drafted(same) for draft, same in runs.items() if draft and same}
            whole &= all(mean is not None for mean in drafted.values())
            ratios = {v.draft: v.tau.value / v.speedup.value for v in of_batch if v.draft}
            place = float(np.mean([run.context for run in runs[0]]))
            for verdict in of_batch:
                error = BETWEEN / 2 if not verdict.rounds else (verdict.speedup.high / verdict.speedup.low - 1) / 4
                full, factor = 1.0, 1.0
                if verdict.draft:
                    full, factor = (
                        full_draft(verdict.draft, ratios, drafted) if verdict.rounds else (ratios[verdict.draft], 1.0)
                    )
                cells.append(
                    engine_cell(
                        batch,
                        verdict.draft,
                        plain_s * full,
                        context=place,
                        error=min(error * factor, 1.0),
                        committed=verdict.tau.value,
                    )
                )
        lengths = [len(prompt) for prompt in self.prompts]
        context = (min(lengths), max(lengths) + self.new_tokens)
        return engine_profile(cells, context=context, meta={**meta, ALL_STEPS: not whole})


def count_of(batch: int) -> int:
    """Return the requests of a setting: full waves.

    >>> count_of(1), count_of(3), count_of(8)
    (4, 6, 16)
    """
    return batch * max(WAVES, -(-REQUESTS // batch))


def _shape(draft: int) -> Tree:
    return Tree.chain(draft) if draft else EMPTY
