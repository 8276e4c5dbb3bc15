"""Measure a profile: the real loop on real prompts, phase by phase, in shuffled blocks that can be resumed.

Times are those of steps with every row busy. Plain decoding and all trees alternate after the same prompts, in blocks
that are short and come back often, so that caches and clocks are those of decoding and a drift of the machine falls on
all alike; see `executor.profiling.drift`.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Drafter
from executor.models.fingerprint import clock_mhz, device_name, identity, run_provenance, tokens_hash
from executor.profiling.block_prompts import BlockPrompts
from executor.profiling.drift import cell_of, remove_drift
from executor.profiling.first_look import IMPOSED, LONG_S, Look
from executor.profiling.measured_shapes import REQUIRED, Configuration
from executor.profiling.prefill_times import measure_prefill
from executor.profiling.profile_settings import Settings as Settings
from executor.profiling.schedule import Schedule, Visit, fit_schedule
from executor.profiling.timed_block import Block, Tokens, imposed_trace, run_block
from executor.profiling.work_file import BlockKey, WorkFile, block_record
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from executor.verification.replayed_acceptance import Imposed
from simulate.model_sizes.mixture_of_experts import Experts
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.calibration import profile_of
from simulate.profiles.measured_cells import Cell
from simulate.profiles.prefill import Prefill
from simulate.profiles.profile import Profile
from treeopt.errors import TreeoptError
from treeopt.tree import Tree

PREFILL = 0.05  # largest share of the budget, unless reading all prompts once takes longer


def measure_profile(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Tokens],
    *,
    work: Path | None = None,
    progress: Callable[[int], None] = lambda blocks: None,
    who: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Profile:
    """Measure the profile of `target` with `drafter` on the target's device.

    Args:
        target: the verifying model.
        drafter: what proposes.
        prompts: token ids of requests; enough of them to keep the largest batch busy.
        work: where finished blocks are stored; None: nowhere.
        progress: called with 1 after every block.
        who: result of `identity` for these models, if it is known: it reads all their weights.
        settings: see `Settings`.

    Raises:
        UsageError: settings without meaning, too few prompts, or a work file of another measurement.
    """
    settings |= {name: tuple(settings[name]) for name in ("batches", "contexts") if name in settings}
    with Measurement(target, drafter, prompts, Settings(**settings), work=work, who=who) as measurement:
        return measurement.run(progress)


class Measurement:
    """A measurement that is under way: its schedule, and the blocks that are done. Use it in a `with`."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        prompts: Sequence[Tokens],
        settings: Settings,
        *,
        work: Path | None,
        who: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the settings; see `measure_profile`."""
        self.settings = settings.check(drafter, prompts)
        self.target, self.drafter, self.prompts, self.work = target, drafter, prompts, work
        self.identity = {**(who or identity(target, drafter)), "device": device_name(target.device)}
        self._done: dict[BlockKey, Block] = {}
        self._block_prompts = BlockPrompts(target, prompts, self.settings)
        self._stack = ExitStack()
        self._looked_s = 0.0

    def __enter__(self) -> "Measurement":
        """Read and open the work file, and prepare the target."""
        self._stack.enter_context(self.target.keeping_prompts())
        settings = {**self.settings.record, "prompts": tokens_hash(self.prompts), **self.identity}
        self._work_file = WorkFile(self.work, settings)
        self._put = self._stack.enter_context(self._work_file.appending())
        return self

    def __exit__(self, *_: object) -> None:
        """Close the work file; remove it if it holds no block."""
        self._stack.close()
        if not self._done:
            self._work_file.remove_if_empty()

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule: all configurations, or those that fit the budget after a first look at each place."""
        ranked = self.settings.ranked
        every = [configuration for _, configuration in ranked]
        required = sum(importance == REQUIRED for importance, _ in ranked)
        planned = self._work_file.planned(required=required, count=len(ranked), rounds=self.settings.rounds)
        if planned is None:
            _ = self.prefill  # first: what it takes is missing from the budget of the configurations
            fit = self._fit_budget(ranked)
            planned = {
                "ways": [every.index(configuration) for configuration in fit.ways],
                "rounds": fit.rounds,
                "took_s": self._looked_s,
            }
            self._put({"planned": planned})
        self._looked_s = planned["took_s"]
        count = len(planned["ways"])
        schedule = Schedule(tuple(every[:count]), planned["rounds"], tuple(every[count:]))
        self._done = self._work_file.blocks(
            [
                [(index, number, turn) for index, turn in place]
                for number in range(schedule.rounds)
                for place in self._order(number, schedule)
            ]
        )
        return schedule

    @cached_property
    def prefill(self) -> Prefill:
        """Seconds of reading prompts, from the shortest to the longest: measured, or read from the work file."""
        if (known := self._work_file.prefill()) is not None:
            return known
        settings, lengths = self.settings, self.settings.contexts or [max(2, len(prompt)) for prompt in self.prompts]
        started = time.perf_counter()
        prefill = measure_prefill(
            self.target,
            self.drafter,
            self._block_prompts.stream,
            low=min(lengths),
            high=max(lengths),
            rows=max(settings.batches),
            rule=settings.rule,
            rng=np.random.default_rng(settings.seed),
            limit_s=math.inf if settings.budget_s is None else PREFILL * settings.budget_s,
        )
        self._looked_s += time.perf_counter() - started
        self._put({"prefill": asdict(prefill)})
        return prefill

    @property
    def left(self) -> int:
        """Blocks that are still to be measured."""
        return self.blocks - len(self._done)

    @property
    def blocks(self) -> int:
        """Blocks of the whole schedule."""
        return sum(map(len, self._order(0, self.schedule))) * self.schedule.rounds

    def run(self, progress: Callable[[int], None] = lambda blocks: None) -> Profile:
        """Measure what is not done, and make the profile. A round that would pass the budget is not begun."""
        schedule, rounds = self.schedule, 0
        for number in range(schedule.rounds):
            took = [sum(b.took_s for (_, r, _), b in self._done.items() if r == done) for done in range(number)]
            limit = self.settings.budget_s
            if limit is not None and number >= 2 and self._looked_s + sum(took) + max(took) > limit:
                break
            for index, turn in chain.from_iterable(self._order(number, schedule)):
                key = (index, number, turn)
                if key not in self._done:
                    self._done[key] = self._block(schedule.ways[index], self.settings.steps, number)
                    self._put(block_record(key, self._done[key]))
                    progress(1)
            rounds += 1
        return self._profile(rounds)

    def _order(self, number: int, schedule: Schedule) -> list[list[Visit]]:
        """Return the blocks of a round, by place."""
        return schedule.order([self.settings.seed, number])

    def _fit_budget(self, ranked: Sequence[tuple[int, Configuration]]) -> Schedule:
        """Look at each batch size and context, and schedule what fits the budget."""
        settings, every = self.settings, tuple(configuration for _, configuration in ranked)
        if settings.budget_s is None:
            return Schedule(every, settings.rounds)
        places = dict.fromkeys((configuration.batch, configuration.context) for configuration in every)
        looks = {place: self._look([c for c in every if (c.batch, c.context) == place]) for place in places}

        def block_s(configuration: Configuration) -> float:
            look = looks[configuration.batch, configuration.context]
            return look.block_s(configuration, steps=settings.steps, spare=self._block_prompts.spare)

        return fit_schedule(
            ranked,
            rounds=settings.rounds,
            block_s=block_s,
            budget_s=settings.budget_s - self._looked_s,
        )

    def _look(self, configurations: Sequence[Configuration]) -> Look:
        """Time short blocks of plain decoding and of the largest tree, at one batch size and context."""
        free = [configuration for configuration in configurations if configuration.imposed is None]
        largest = max((c for c in free if c.growth is None), key=lambda configuration: configuration.tree.nodes)
        plain, first, second = (self._block(configuration, 1, 0) for configuration in (free[0], largest, largest))
        self._looked_s += plain.took_s + sum(block.took_s for block in (first, second))
        return Look.of(plain, first, second, sharing=len(free), nodes=largest.tree.nodes)

    def _block(self, configuration: Configuration, steps: int, number: int) -> Block:
        """Time one block after the prompts of its round, which all configurations of a place share."""
        settings, started = self.settings, time.perf_counter()
        steps = steps if configuration.imposed is None else min(steps, IMPOSED)
        prompts, new_tokens = self._block_prompts.of(configuration, number, steps)
        # Several processes must all take the same number of steps, whatever their clocks say.
        tree, rule, long_s = configuration.tree, settings.rule, LONG_S if processes() == 1 else math.inf
        if configuration.imposed is not None:
            assert isinstance(tree, Tree)
            trace = imposed_trace(configuration.imposed, tree, len(prompts), max(new_tokens))
            rule, long_s = Imposed(trace, tree, rule=settings.rule), math.inf
        decoder = Decoder(
            self.target,
            self.drafter,
            tree=tree,
            batch=configuration.batch,
            rule=rule,
            graphs=settings.graphs,
            trim=False,
        )
        timed = run_block(decoder, prompts, steps=steps, new_tokens=new_tokens, long_s=long_s)
        return Block.of(timed, prompt=min(map(len, prompts)), took_s=time.perf_counter() - started)

    def _cells(self, rounds: int, context: float) -> tuple[list[Cell], int]:
        """Return a cell per configuration, from the first `rounds` rounds, and the longest length of a sequence."""
        schedule = self.schedule
        cells: list[Cell] = []
        longest = 0.0
        orders = [self._order(number, schedule) for number in range(rounds)]
        for place in schedule.places:
            visits = [next(p for p in order if p[0][0] in place) for order in orders]
            blocks, spread = remove_drift(
                [[(i, self._done[i, number, turn]) for i, turn in visit] for number, visit in enumerate(visits)]
            )
            measured = {schedule.ways[index]: same for index, same in blocks.items()}
            lengths = [b.length for c, same in measured.items() if c.imposed is None for b in same]
            at_context = context if self.settings.contexts == () else float(np.mean(lengths))
            cells += [cell_of(c, same, context=at_context, spread=spread) for c, same in measured.items()]
            longest = max(longest, *(b.length for same in measured.values() for b in same))
        return cells, round(longest)

    def _profile(self, rounds: int) -> Profile:
        """Fit the profile to the first `rounds` rounds."""
        lengths = [len(prompt) for prompt in self.prompts]
        low, high = min(lengths), max(lengths) + self.settings.new_tokens
        cells, longest = self._cells(rounds, self._block_prompts.context)
        if self.settings.contexts:
            low, high = self.settings.contexts[0], longest
        left_out = [str(configuration) for configuration in self.schedule.left_out]
        meta = {
            **self.identity,
            **{name: value for name, value in self.settings.record.items() if name not in ("batches", "rounds")},
            "rounds": rounds,
            "prompts": len(self.prompts),
            "left_out": left_out,
            "clock_mhz": clock_mhz(self.target.device),
            "provenance": run_provenance(self.target, self.drafter),
        }
        profile = profile_of(cells, context=(low, high), experts=_experts(self.target), meta=meta)
        return replace(profile, prefill=self.prefill)


def _experts(target: Target) -> Experts | None:
    try:
        return Shape.from_config(target.model.config.to_dict()).experts
    except TreeoptError:  # of a family whose sizes are not known here
        return None
