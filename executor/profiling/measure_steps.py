"""Measure a profile: the real loop on real prompts, phase by phase, in shuffled blocks that can be gone on with.

Times are those of steps with every row busy. Plain decoding and all trees alternate behind the same prompts, in blocks
that are short and come back often, so that caches and clocks are those of decoding and a drift of the machine falls on
all alike; see `executor.profiling.drift`.
"""

import json
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
from executor.drafters.drafter import Drafter
from executor.models.fingerprint import clock_mhz, device_name, identity, tokens_hash
from executor.profiling.block_prompts import Openings
from executor.profiling.drift import at_one_pace, cell_of
from executor.profiling.measured_shapes import LEAST, Way
from executor.profiling.prefill_times import measure_prefill
from executor.profiling.profile_settings import Settings as Settings
from executor.profiling.schedule import FEWEST, TOGETHER, Schedule, Visit, fitted
from executor.profiling.timed_block import WARM_UP, Block, Tokens, block, keeping
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from executor.verification.replayed_acceptance import Imposed
from simulate.model_sizes.mixture_of_experts import Experts
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.calibration import profile_of
from simulate.profiles.measured_cells import Cell
from simulate.profiles.prefill import Prefill
from simulate.profiles.profile import Profile, read_prefill
from treeopt.errors import TreeoptError, UsageError
from treeopt.storage.json_lines import appended, read_lines
from treeopt.storage.json_records import RecordError, get
from treeopt.storage.provenance import this_run
from treeopt.tree import Tree

SCHEMA = "treeopt.measuring/5"
ANEW = 1.2  # of steps that draw their trees anew, about: EAGLE's took 1.06 to 1.39 times as long as static ones
LONG_S = 0.3  # a block is not gone on with: its steps have the machine's pace in common, and more blocks tell more
PREFILL = 0.05  # of the budget, at most, but for prompts that take longer once
IMPOSED = 3  # steps of a block whose acceptance is imposed, always, so that all come to one context


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
    """The profile of `target` with `drafter` on the target's device.

    Args:
        target: the verifying model.
        drafter: what proposes.
        prompts: token ids of requests; enough of them to keep the largest batch busy.
        work: where finished blocks are kept; None: nowhere.
        progress: told every finished block.
        who: what `identity` told of these models, where it was asked before: it reads all their weights.
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
        """Check the settings, and read what is done; see `measure_profile`."""
        self.settings = settings.check(drafter, prompts)
        self.target, self.drafter, self.prompts, self.work = target, drafter, prompts, work
        self.identity = {**(who or identity(target, drafter)), "device": device_name(target.device)}
        self._done: dict[tuple[int, int, int], Block] = {}  # by way, round, and turn in it
        self._kept: list[dict[str, Any]] = []
        self._openings = Openings(target, prompts, self.settings)
        self._stack = ExitStack()
        self._looked_s = 0.0

    def __enter__(self) -> "Measurement":
        """Open the work file, and prepare the target."""
        self._stack.enter_context(self.target.keeping_prompts())
        settings = {**self.settings.record, "prompts": tokens_hash(self.prompts), **self.identity}
        head = json.loads(json.dumps({"schema": SCHEMA, "settings": settings}))  # tuples are lists, as in the file
        self._put: Callable[[dict[str, Any]], None] = lambda record: None
        if self.work is not None and processes() == 1:
            self._kept = self._read(self.work, head)
            self._put = self._stack.enter_context(appended(self.work, head))
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; one that holds no block is removed."""
        self._stack.close()
        if self.work is not None and processes() == 1 and not self._done and not self._kept:
            self.work.unlink(missing_ok=True)

    @cached_property
    def schedule(self) -> Schedule:
        """What is measured: everything, or what fits the budget after a first look at each batch size and context."""
        ranked = self.settings.ranked
        every = [way for _, way in ranked]
        planned = self._planned(ranked)
        if planned is None:
            _ = self.prefill  # first: what it takes is not there for the ways
            found = self._look(ranked)
            planned = {
                "ways": [every.index(way) for way in found.ways],
                "rounds": found.rounds,
                "took_s": self._looked_s,
            }
            self._put({"planned": planned})
        self._looked_s = planned["took_s"]
        count = len(planned["ways"])
        schedule = Schedule(tuple(every[:count]), planned["rounds"], tuple(every[count:]))
        self._done = self._whole(schedule)
        return schedule

    @cached_property
    def prefill(self) -> Prefill:
        """What prompts take, from the shortest to the longest: measured, or kept from before."""
        for number, record in enumerate(self._kept, 2):
            if isinstance(record, dict) and "prefill" in record:
                try:
                    return read_prefill(record["prefill"], "prefill")
                except RecordError as error:
                    raise self._broken(number, "prefill", error) from error
        wanted, lengths = self.settings, self.settings.contexts or [max(2, len(prompt)) for prompt in self.prompts]
        started = time.perf_counter()
        found = measure_prefill(
            self.target,
            self.drafter,
            self._openings.stream,
            low=min(lengths),
            high=max(lengths),
            rows=max(wanted.batches),
            rule=wanted.rule,
            rng=np.random.default_rng(wanted.seed),
            limit_s=math.inf if wanted.budget_s is None else PREFILL * wanted.budget_s,
        )
        self._looked_s += time.perf_counter() - started
        self._put({"prefill": asdict(found)})
        return found

    def _planned(self, ranked: Sequence[tuple[int, Way]]) -> dict[str, Any] | None:
        """The schedule that a measurement before decided on, if one did: the first so many ways."""
        for number, record in enumerate(self._kept, 2):
            if isinstance(record, dict) and "planned" in record:
                try:
                    planned: dict[str, Any] = get(record, "planned", dict, "schedule")
                    ways, rounds = get(planned, "ways", list, "planned"), get(planned, "rounds", int, "planned")
                    took_s = get(planned, "took_s", float, "planned")
                    least = sum(importance == LEAST for importance, _ in ranked)
                    if ways != list(range(len(ways))) or not least <= len(ways) <= len(ranked):
                        raise RecordError(f"planned: `ways` must be the first {least} to {len(ranked)} by number")
                    if not FEWEST <= rounds <= self.settings.rounds or took_s < 0:
                        raise RecordError(f"planned: `rounds` or `took_s` is out of range: {rounds}, {took_s}")
                except RecordError as error:
                    raise self._broken(number, "schedule", error) from error
                return planned
        return None

    def _whole(self, schedule: Schedule) -> dict[tuple[int, int, int], Block]:
        """Blocks that were kept, where all of a place and round are there.

        Others are measured anew: what one took before an interruption says nothing of the machine after it.
        """
        places = [
            [(index, number, turn) for index, turn in place]
            for number in range(schedule.rounds)
            for place in self._order(number, schedule)
        ]
        visits = {visit for place in places for visit in place}
        kept: dict[tuple[int, int, int], Block] = {}
        for number, record in enumerate(self._kept, 2):
            if isinstance(record, dict) and ("planned" in record or "prefill" in record):
                continue
            try:
                way, turned, turn = (get(record, name, int, "visit") for name in ("way", "round", "turn"))
                if (way, turned, turn) not in visits:
                    raise RecordError(f"way {way}, round {turned}, turn {turn} is not in the schedule")
                kept[way, turned, turn] = Block.read(get(record, "block", dict, "visit"))
            except RecordError as error:
                raise self._broken(number, "block", error) from error
        return {visit: kept[visit] for place in places if all(visit in kept for visit in place) for visit in place}

    def _broken(self, line: int, what: str, error: RecordError) -> UsageError:
        return UsageError(f"{self.work}: line {line} is no {what}: {error}; remove the file to begin anew")

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
                if (index, number, turn) not in self._done:
                    found = self._block(schedule.ways[index], self.settings.steps, number)
                    self._done[index, number, turn] = found
                    self._put({"way": index, "round": number, "turn": turn, "block": vars(found)})
                    progress(1)
            rounds += 1
        return self._profile(rounds)

    def _order(self, number: int, schedule: Schedule) -> list[list[Visit]]:
        """The blocks of a round, by place."""
        return schedule.order([self.settings.seed, number])

    def _look(self, ranked: Sequence[tuple[int, Way]]) -> Schedule:
        """Short blocks of the plain way and of the largest tree of each batch size and context."""
        wanted, every = self.settings, tuple(way for _, way in ranked)
        if wanted.budget_s is None:
            return Schedule(every, wanted.rounds)
        looks: dict[tuple[int, int | None], tuple[tuple[float, float], float, float, int]] = {}
        for batch, context in dict.fromkeys((way.batch, way.context) for way in every):
            here = [way for way in every if (way.batch, way.context) == (batch, context) and way.kept is None]
            largest = max((way for way in here if way.growth is None), key=lambda way: way.tree.nodes)
            # Prompts are filled in twice, without and with features; then only what the drafter does with them is left.
            plain, *wide = (self._block(way, 1, 0) for way in (here[0], largest, largest))
            self._looked_s += plain.took_s + sum(found.took_s for found in wide)
            once, each = (max(0.0, found.took_s - (1 + WARM_UP) * found.step_s) for found in (wide[0], wide[1]))
            opening = each + 2 * once / len(here)
            looks[batch, context] = (opening, each + once), plain.step_s, wide[1].step_s, largest.tree.nodes

        def steps_s(step: float) -> float:
            return WARM_UP * step + min(wanted.steps * step, LONG_S + step)

        def block_s(way: Way) -> float:
            (opening, imposed), narrow, wide, nodes = looks[way.batch, way.context]
            if way.kept is not None:  # behind prompts of its own length
                return imposed + (WARM_UP + min(wanted.steps, IMPOSED)) * wide
            step = narrow + max(0.0, wide - narrow) * max(way.tree.nodes, sum(way.widths)) / nodes
            step *= 1.0 if way.growth is None else ANEW
            if not way.tree.nodes:
                opening += self._openings.spare / 2 * narrow  # what is written of the texts
            return opening + steps_s(step) + (opening + steps_s(narrow)) / TOGETHER * bool(way.tree.nodes)

        left = wanted.budget_s - self._looked_s
        return fitted(ranked, rounds=wanted.rounds, block_s=block_s, budget_s=left)

    def _block(self, way: Way, steps: int, number: int) -> Block:
        """One block, its prompts those of the round: all ways of a place decode behind the same."""
        wanted, started = self.settings, time.perf_counter()
        steps = steps if way.kept is None else min(steps, IMPOSED)
        drawn, new_tokens = self._openings.of(way, number, steps)
        # Several processes must all take as many steps, whatever their clocks say.
        rule, long_s = wanted.rule, LONG_S if processes() == 1 else math.inf
        if way.kept is not None:
            assert isinstance(way.tree, Tree)
            kept = keeping(way.kept, way.tree, len(drawn), max(new_tokens))
            rule, long_s = Imposed(kept, way.tree, rule=wanted.rule), math.inf
        decoder = Decoder(self.target, self.drafter, tree=way.tree, batch=way.batch, rule=rule, graphs=wanted.graphs)
        found = block(decoder, drawn, steps=steps, new_tokens=new_tokens, long_s=long_s)
        return Block.of(found, prompt=min(map(len, drawn)), took_s=time.perf_counter() - started)

    def _read(self, work: Path, head: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            found = read_lines(work, SCHEMA)
            if found is None:
                return []
            before, here = get(found[0], "settings", dict, "line 1"), head["settings"]
        except RecordError as error:
            raise UsageError(f"{work}: {error}; remove it to begin anew") from error
        for name in dict.fromkeys([*here, *before]):
            if before.get(name) != here.get(name):
                raise UsageError(
                    f"{work} was begun with other settings ({name} {before.get(name)}, now {here.get(name)}): "
                    "give those, or remove it to begin anew"
                )
        return found[1]

    def _cells(self, rounds: int, context: float) -> tuple[list[Cell], int]:
        """Of every way, from so many rounds; and the longest sequences that they came to."""
        schedule = self.schedule
        cells: list[Cell] = []
        longest = 0.0
        orders = [self._order(number, schedule) for number in range(rounds)]
        for place in schedule.places:
            visits = [next(p for p in order if p[0][0] in place) for order in orders]
            blocks, spread = at_one_pace(
                [[(i, self._done[i, number, turn]) for i, turn in here] for number, here in enumerate(visits)]
            )
            ways = {schedule.ways[index]: found for index, found in blocks.items()}
            lengths = [b.length for way, found in ways.items() if way.kept is None for b in found]
            where = context if self.settings.contexts == () else float(np.mean(lengths))
            cells += [cell_of(way, found, context=where, spread=spread) for way, found in ways.items()]
            longest = max(longest, *(b.length for found in ways.values() for b in found))
        return cells, round(longest)

    def _profile(self, rounds: int) -> Profile:
        lengths = [len(prompt) for prompt in self.prompts]
        low, high = min(lengths), max(lengths) + self.settings.new_tokens
        cells, longest = self._cells(rounds, self._openings.context)
        if self.settings.contexts:
            low, high = self.settings.contexts[0], longest
        left_out = [str(way) for way in self.schedule.left_out]
        meta = {
            **self.identity,
            **{name: value for name, value in self.settings.record.items() if name not in ("batches", "rounds")},
            "rounds": rounds,
            "prompts": len(self.prompts),
            "left_out": left_out,
            "clock_mhz": clock_mhz(self.target.device),
            "provenance": this_run(),
        }
        found = profile_of(cells, context=(low, high), experts=_experts(self.target), meta=meta)
        return replace(found, prefill=self.prefill)


def _experts(target: Target) -> Experts | None:
    try:
        return Shape.from_config(target.model.config.to_dict()).experts
    except TreeoptError:  # of a family whose sizes nobody counts here
        return None
