"""An inference engine as a runner: its driver's steps, timed while all rows are busy, and kept by request."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import numpy as np

from executor.runners.runner import Requests, RequestSteps, Run, Runner, Shape
from treeopt.engines import ENGINES
from treeopt.engines.driver import Draft, Driver, EngineRequest, EngineStep
from treeopt.errors import EngineError, EngineStartError, counted
from treeopt.policies import DynamicTree
from treeopt.storage.provenance import this_run
from treeopt.tree import Tree

WARM_UP = 8  # tokens
SEEN, OFTEN = 100, 0.1  # steps, and the share that ends at one depth, from which no step beyond it is noticed
ABSURD = 5.0  # a step that takes so many times the median one was interrupted: it is not timed
UNTIMED = "in no wave do two steps lie between the last prefill and the first end: decode more tokens"
LOG = logging.getLogger("treeopt")


def draft_of(shape: Shape) -> Draft | None:
    """Return a chain as its length and a dynamic tree of EAGLE-2 as it is; None for what no driver runs."""
    if isinstance(shape, DynamicTree):
        return shape
    return shape.nodes if isinstance(shape, Tree) and shape == Tree.chain(shape.nodes) else None


class EngineRunner(Runner):
    """An engine behind its driver; see `Runner`. The driver is made when it is first needed."""

    relaunches = True
    timing = "executor.profiling.engine_waves:EngineWaves"

    def __init__(self, make: Callable[[int], Driver], *, models: Mapping[str, Any] | None = None) -> None:
        """Keep how the driver is made.

        Args:
            make: returns a driver for a largest number of requests in flight.
            models: names and hashes of the models that the engine loads.
        """
        self._make, self._models = make, models or {}
        self._accepted: dict[Draft, Counter[int]] = {}  # steps of each draft by accepted tokens

    @cached_property
    def driver(self) -> Driver:
        """The driver; nothing is started before the runner is entered."""
        return self._make(self.concurrency)

    @property
    def name(self) -> str:
        """The engine's name."""
        return str(self.driver.meta["name"])

    @property
    def record(self) -> dict[str, Any]:
        """Models, device and engine; engines decode greedily here."""
        machine = this_run()
        device = f"{machine.get('processor', 'unknown processor')}, {counted(machine.get('cores', 0), 'core')}"
        rule = {"verification": "greedy", "temperature": 0.0}
        return {**self._models, "device": device, "engine": dict(self.driver.meta), **rule}

    @property
    def provenance(self) -> dict[str, Any]:
        """Software and machine."""
        return this_run()

    def why_not(self, shape: Shape, batch: int) -> str | None:
        """Return why the engine does not draft this at a batch size, None if it does."""
        draft, name, most = draft_of(shape), self.name, self.driver.tree_requests
        if isinstance(draft, int):
            urls = self.driver.meta.get("urls")
            known = urls is None or str(draft) in urls
            return None if known else f"--url names no server for a draft of {draft}"
        if most == 0:
            return f"{name} runs chains alone: search with --for an engine of chains, or give --shapes chain:N"
        if draft is None:
            return f"{name} runs chains and dynamic trees of EAGLE-2: search --for {name}"
        if batch > most:
            return f"{name} runs dynamic trees with {counted(most, 'request')} in flight: search with --batch {most}"
        cannot_run = ENGINES[name].cannot_run if name in ENGINES else None
        return cannot_run(draft, batch) if cannot_run else None

    def expect(self, shapes: Iterable[Shape]) -> None:
        """Tell the driver the longest draft that will be asked for."""
        lengths = [draft for shape in shapes if isinstance(draft := draft_of(shape), int)]
        self.driver.longest = max(lengths, default=0)

    def order(self, shapes: Sequence[Shape], number: int, seed: int) -> list[Shape]:
        """Return the drafts of a round in the order in which they are measured.

        Those that may be alive together come in random order. Else launches follow one another, those of an odd round
        in the reverse order of the round before, so that each is begun once in two rounds, but for the last.
        """
        rng, driver = np.random.default_rng([seed, number]), self.driver
        shuffled = [shapes[place] for place in rng.permutation(len(shapes)).tolist()]
        launches = {shape: driver.launch(draft) for shape in shapes if (draft := draft_of(shape)) is not None}
        distinct = list(dict.fromkeys(launches.values()))
        if len(distinct) <= driver.alive:
            return shuffled
        pair = np.random.default_rng([seed, number // 2]).permutation(len(distinct)).tolist()
        places = {distinct[place]: at for at, place in enumerate(reversed(pair) if number % 2 else pair)}
        return sorted(shuffled, key=lambda shape: places[launches[shape]])

    def warm_up(self, shape: Shape, batch: int, requests: Requests) -> None:
        """Decode a few tokens after the first prompts, all in flight."""
        some = [EngineRequest(tuple(prompt), WARM_UP, ignore_stop=True) for prompt in requests.prompts[:batch]]
        self._wave(some, shape)

    def run(self, shape: Shape, batch: int, requests: Requests) -> Run:
        """Decode the requests in waves of full batches; a last wave that would not be full is left out.

        Requests of a wave begin together and none follows one that ends, so that no prefill falls between the steps
        that are timed: those after the last prefill and before the first end.

        Raises:
            EngineError: the engine broke off twice in a wave, or no wave has steps to be timed.
        """
        waves, limits = _Waves(), requests.limits
        for first in range(0, len(requests.prompts) - batch + 1, batch):
            numbers = range(first, first + batch)
            prompts = [tuple(requests.prompts[i]) for i in numbers]
            wave = [EngineRequest(p, limits[i], ignore_stop=True) for i, p in zip(numbers, prompts, strict=True)]
            steps, again = self._wave(wave, shape)
            waves.add(steps, [len(prompt) for prompt in prompts], first=requests.first + first)
            waves.repeated += again
        accepted = (size - 1 for request in waves.requests for size in request.committed)
        self._accepted.setdefault(draft_of(shape) or 0, Counter()).update(accepted)
        return waves.run()

    def _wave(self, requests: Sequence[EngineRequest], shape: Shape) -> tuple[list[EngineStep], bool]:
        """Decode requests, all in flight; return their steps, and True if it took a second attempt.

        A wave whose engine breaks off is decoded once more: drivers start an engine again that died.
        """
        draft = draft_of(shape)
        assert draft is not None, "callers ask `why_not`"
        try:
            return list(self.driver.decode(requests, draft=draft, concurrency=len(requests))), False
        except EngineStartError:
            raise
        except EngineError as error:
            LOG.warning("%s; the requests are decoded once more", error)
            return list(self.driver.decode(requests, draft=draft, concurrency=len(requests))), True

    def __enter__(self) -> Self:
        """Enter the driver."""
        self.driver.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what the driver started, and warn of drafts that are shorter than stated."""
        self.driver.__exit__(kind, error, trace)
        for draft, counts in self._accepted.items():
            longest, steps = max(counts), counts.total()
            if isinstance(draft, int) and longest < draft and steps >= SEEN and counts[longest] >= OFTEN * steps > 0:
                LOG.warning(
                    "draft of %d: none of %d steps accepted more than %d: does the engine draft as many as stated?",
                    draft,
                    steps,
                    longest,
                )
        self._accepted.clear()


@dataclass
class _Waves:
    """Steps of waves; a wave is timed if two steps of a row lie between the last prefill and the first end."""

    steps_s: list[float] = field(default_factory=list)
    drafts: list[int | None] = field(default_factory=list)
    requests: list[RequestSteps] = field(default_factory=list)
    context: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    repeated: int = 0

    def run(self) -> Run:
        """Return the run; steps that take far longer than the median one were interrupted, and are left out."""
        seconds = np.array(self.steps_s)
        if not len(seconds) or seconds.sum() <= 0:
            raise EngineError(UNTIMED)
        usual = seconds <= ABSURD * np.median(seconds[seconds > 0])
        drafts = [number for number, kept in zip(self.drafts, usual, strict=True) if kept]
        return Run(
            draft_s=(0.0,),
            rest_s=(float(seconds[usual].mean()),),
            requests=tuple(self.requests),
            context=float(np.mean(self.context)),
            wall_s=self.wall_s,
            timed=len(drafts),
            drafted=None if None in drafts else sum(number for number in drafts if number is not None),
            repeated=self.repeated,
        )

    def add(self, steps: Iterable[EngineStep], prompts: Sequence[int], *, first: int) -> None:
        """Add a wave of requests from `first` on, whose prompts have these lengths."""
        rows: list[list[EngineStep]] = [[] for _ in prompts]
        for step in steps:
            rows[step.request].append(step)
        for row, of_row in enumerate(rows):
            decoded = [step for step in of_row if not step.prefill]
            if not decoded:
                raise EngineError(f"request {row} has no step after its prefill: decode more tokens")
            drafted = [step.drafted for step in decoded if step.drafted is not None]
            known = tuple(drafted) if len(drafted) == len(decoded) else None
            self.requests.append(RequestSteps(first + row, tuple(step.committed for step in decoded), known))
        self.wall_s += max(of_row[-1].at_s for of_row in rows)
        self._time(rows, prompts)

    def _time(self, rows: Sequence[Sequence[EngineStep]], prompts: Sequence[int]) -> None:
        begin_s = max(row[0].at_s for row in rows)
        end_s = min(row[-1].at_s for row in rows)
        lengths = list[float]()
        for row, prompt in zip(rows, prompts, strict=True):
            inside = [step for step in row if begin_s <= step.at_s <= end_s]
            if len(inside) > 1:  # else some row ended before the last one began
                self.steps_s += [after.at_s - before.at_s for before, after in pairwise(inside)]
                self.drafts += [step.drafted for step in inside[1:]]
                written = sum(step.committed for step in row if step.at_s < begin_s)
                lengths.append(prompt + written + sum(step.committed for step in inside) / 2)
        if lengths:
            self.context.append(float(np.mean(lengths)))
