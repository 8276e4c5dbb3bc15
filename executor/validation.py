"""Compare a plan's predictions with what a runner does, live on fresh prompts or with a trace's acceptance imposed."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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


@dataclass(frozen=True, eq=False)
class LiveComparison:
    """A plan beside what a runner does with the same requests.

    Attributes:
        runner: what decodes; not entered.
        plan: the plan to be checked.
        requests: what is decoded; none of them in the trace that the plan was made from. If they replay a trace,
            policies are left out.
        blocks: parts that the prompts are cut into; every part is decoded at all batch sizes before the next.
        seed: of the order.
    """

    runner: Runner
    plan: Plan
    requests: Requests
    blocks: int = BLOCKS
    seed: int = 0

    def check(self) -> None:
        """Check that `run` can run to its end.

        Raises:
            UsageError: a plan that drafts nothing, or too few prompts to fill the largest batch in every block.
            ExecutorError: a tree that the drafter cannot draft, or requests beyond the target's context.
            EngineError: the engine does not draft what the plan chose.
            TraceError: a tree that the replayed trace does not cover.
        """
        runner, entries = self.runner, self.plan.entries
        for entry in entries:
            chosen = (entry.choice.tree, entry.choice.grown and entry.choice.grown.policy)
            for shape, choice in self._drafting(entry).items():
                reason = runner.why_not(shape, entry.batch)
                if reason is not None and shape in chosen:
                    raise EngineError(f"batch {entry.batch}: {choice.name} cannot be run: {reason}")
        if not any(map(self.shapes, entries)):
            raise UsageError("the plan holds no tree that can be run: there is nothing to validate")
        largest, count = max(entry.batch for entry in entries), len(self.requests.prompts)
        least = runner.least_batches * self.blocks * largest
        if count < least:
            raise UsageError(f"{self.blocks} blocks at batch {largest} need at least {least} prompts, got {count}")
        for entry in entries:
            for shape, choice in self.shapes(entry).items():
                try:
                    runner.check(shape, entry.batch, self.requests)
                except ExecutorError as error:
                    raise ExecutorError(f"{choice.name} at batch {entry.batch}: {error}") from error

    def left_out(self, entry: PlanEntry) -> dict[str, str]:
        """Return why configurations of an entry are not measured, by name."""
        return {**entry.skipped, **self._cannot_run(entry)}

    @property
    def not_measured(self) -> list[str]:
        """A line for each reason for which the runner does not run something of the plan."""
        names: dict[str, list[str]] = {}
        for entry in self.plan.entries:
            for name, reason in self._cannot_run(entry).items():
                names.setdefault(reason, []).append(f"{name} (batch {entry.batch})")
        return [f"not measured: {', '.join(some)}: {reason}" for reason, some in names.items()]

    def _cannot_run(self, entry: PlanEntry) -> dict[str, str]:
        """Return why the runner does not run something of an entry, by name."""
        reasons: dict[str, str] = {}
        for shape, choice in ways_of(entry).items():
            replayed_alone = self.requests.replayed is not None and not isinstance(shape, Tree)
            reason = REPLAYED_ALONE if replayed_alone else self.runner.why_not(shape, entry.batch)
            if reason is not None:
                reasons[choice.name] = reason
        return reasons

    def _drafting(self, entry: PlanEntry) -> dict[Shape, Choice]:
        """Return what an entry drafts; if a trace is replayed, only static trees."""
        return ways_of(entry, static=self.requests.replayed is not None)

    def shapes(self, entry: PlanEntry) -> dict[Shape, Choice]:
        """Return what is measured for an entry, the chosen tree first."""
        return {s: c for s, c in self._drafting(entry).items() if self.runner.why_not(s, entry.batch) is None}

    # --- the schedule

    @cached_property
    def pieces(self) -> dict[int, tuple[int, int]]:
        """By batch size, the number of pieces that a block is cut into, and of passes over the block."""
        if self.runner.relaunches:
            return {entry.batch: (1, 1) for entry in self.plan.entries}
        largest = max(entry.batch for entry in self.plan.entries)
        token_s = dict[int, float]()  # expected, summed over all configurations; 0 if the plan has none of them
        for entry in self.plan.entries:
            plain = [choice for choice in (entry.choice, *entry.compared) if choice.plain][:1]
            choices = (*plain, *self._drafting(entry).values())
            token_s[entry.batch] = sum(1 / choice.tokens_s(entry.batch) for choice in choices)
        longest = max(token_s.values())
        return {
            batch: (min(largest // batch, MAX_PIECES), min(round(longest / seconds), MAX_PASSES) if seconds else 1)
            for batch, seconds in token_s.items()
        }

    @property
    def _parts(self) -> list[NDArray[np.int64]]:
        """The numbers of the requests of each block."""
        return np.array_split(np.arange(len(self.requests.prompts)), self.blocks)

    @property
    def sizes(self) -> Runs:
        """The sizes of the runs; none where the runner itself decides when requests join."""
        limit = self.requests.new_tokens
        lengths, new_tokens = tuple(map(len, self.requests.prompts)), limit if isinstance(limit, int) else max(limit)
        if self.runner.late is None:
            return Runs({}, lengths, new_tokens)
        sizes = {
            batch: tuple(len(piece) for part in self._parts for piece in np.array_split(part, number))
            for batch, (number, _) in self.pieces.items()
        }
        return Runs(sizes, lengths, new_tokens, self.runner.late)

    @property
    def runs(self) -> int:
        """The number of runs, over all configurations and passes."""
        entries = self.plan.entries
        return self.blocks * sum(math.prod(self.pieces[e.batch]) * (1 + len(self.shapes(e))) for e in entries)

    @cached_property
    def _all_shapes(self) -> dict[int, list[Shape]]:
        """The configurations decoded at each batch size, plain decoding first."""
        return {entry.batch: [EMPTY, *self.shapes(entry)] for entry in self.plan.entries}

    def _order(self, number: int, rng: np.random.Generator) -> Iterator[list[Visit]]:
        """Yield the visits of a block in groups that are compared: batch size, configuration, block, piece, pass."""
        shapes = self._all_shapes
        if isinstance(self.runner, EngineRunner):
            every = sorted({shape for some in shapes.values() for shape in some}, key=str)
            group: list[Visit] = []
            for shape in self.runner.order(every, number, self.seed):
                batches = [batch for batch, some in shapes.items() if shape in some]
                group += [(b, shapes[b].index(shape), number, 0, 0) for b in rng.permutation(batches).tolist()]
            yield group
            return
        for batch in rng.permutation(list(shapes)).tolist():
            count, passes = self.pieces[batch]
            for turn in range(passes):
                for piece in range(count):
                    places = rng.permutation(len(shapes[batch])).tolist()
                    yield [(batch, place, number, piece, turn) for place in places]

    # --- the measurement

    def run(
        self,
        *,
        forms: Mapping[tuple[int, str], FormsRecord] | None = None,
        whole: Mapping[tuple[int, str], Estimate] | None = None,
        work: Path | None = None,
        progress: Callable[[int], None] = lambda runs: None,
    ) -> list[Comparison]:
        """Decode the requests plainly and with every tree and policy of each entry of the plan, in shuffled blocks.

        In each block the batch sizes come in random order, and within each so do plain decoding and the trees, so that
        the machine's drift falls on all of them. Small batch sizes decode a block in several pieces, one piece with all
        configurations before the next. Batch sizes that the plan expects to finish in two thirds of the longest time or
        less decode it several times. Where a draft takes a launch, drafts come in random order, and all batch sizes of
        one decode the whole block.

        Args:
            forms: closed forms to report with each tree, by batch size and tree id.
            whole: predictions of whole runs, by batch size and tree id.
            work: file that finished runs are kept in, so that the same comparison resumes; None: nowhere.
            progress: called with 1 after every run of one configuration.

        Raises:
            UsageError, ExecutorError, TraceError, EngineError: see `check`; or the engine fails.
        """
        self.check()
        runner, shapes, rng = self.runner, self._all_shapes, np.random.default_rng(self.seed)
        if isinstance(runner, EngineRunner):
            runner.expect(shape for some in shapes.values() for shape in some)
        groups = [group for number in range(self.blocks) for group in self._order(number, rng)]
        with WorkFile(work if runner.processes == 1 else None, self._settings) as kept:
            visits = Visits(kept, groups)
            progress(len(visits.runs))
            with runner:
                self._measure(visits, groups, progress)
        predicted = partial(Figures.of_run, judged=judged_on(self.plan), requests=len(self.requests.prompts))
        return [
            comparison
            for entry in self.plan.entries
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

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings that the runs of a comparison depend on."""
        replayed = self.requests.replayed
        return {
            **resumable(self.runner.record),
            "plan": [[entry.batch, [str(s) for s in self.shapes(entry)]] for entry in self.plan.entries],
            "prompts": tokens_hash(self.requests.prompts),
            "limits": self.requests.limits,
            "replayed": None if replayed is None else sha256(replayed.rank.tobytes()).hexdigest(),
            "blocks": self.blocks,
            "seed": self.seed,
        }

    def _measure(self, visits: Visits, groups: Sequence[Sequence[Visit]], progress: Callable[[int], None]) -> None:
        """Make all runs that are not made yet, each configuration warmed up before, and again after a launch."""
        runner, requests, shapes, parts = self.runner, self.requests, self._all_shapes, self._parts
        warm: set[Any] = set()
        first = requests.part(parts[0])

        def run(visit: Visit) -> Run:
            batch, place, number, piece, _ = visit
            shape = shapes[batch][place]
            if runner.relaunches and shape not in warm:
                warm.clear()  # another draft was launched
                warm.add(shape)
                runner.warm_up(shape, max(b for b, some in shapes.items() if shape in some), requests)
            some = requests.part(np.array_split(parts[number], self.pieces[batch][0])[piece])
            return runner.run(shape, batch, some)

        if not runner.relaunches and any(visit not in visits.runs for group in groups for visit in group):
            for batch, some in shapes.items():
                for shape in some:
                    runner.warm_up(shape, batch, first)
        for number, group in enumerate(groups):
            runner.begin(number)
            visits.make(group, run, progress)


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
