"""Step times of an engine: seconds between the steps of a request while all rows are busy."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from treeopt.engines.driver import Draft, Driver, EngineRequest, EngineStep
from treeopt.errors import EngineError

WARM_UP = 8  # tokens
LOG = logging.getLogger("treeopt")


def warm_up(engine: Driver, prompts: Sequence[Sequence[int]], *, draft: Draft) -> None:
    """Decode a few tokens after each prompt, all in flight, so that a new engine has made what it makes once."""
    requests = [EngineRequest(tuple(prompt), WARM_UP, ignore_stop=True) for prompt in prompts]
    decode_wave(engine, requests, draft=draft)


def decode_wave(engine: Driver, requests: Sequence[EngineRequest], *, draft: Draft) -> tuple[list[EngineStep], bool]:
    """Decode requests, all in flight; return their steps, and True if it took a second attempt.

    A wave whose engine breaks off is decoded once more: drivers start an engine again that died.

    Raises:
        EngineError: the engine broke off twice.
    """
    try:
        return list(engine.decode(requests, draft=draft, concurrency=len(requests))), False
    except EngineError as error:
        LOG.warning("%s; the requests are decoded once more", error)
        return list(engine.decode(requests, draft=draft, concurrency=len(requests))), True


@dataclass
class Waves:
    """Runs of as many requests as there are rows, begun together, with the steps of each request.

    Requests of a wave begin together and none follows one that ends, so that no prefill falls between the steps that
    are timed: those after the last prefill and before the first end.

    Attributes:
        step_s: seconds per step of each wave, the mean over its rows and steps.
        timed: steps that each mean is over.
        drafted: tokens drafted in these steps; None: not reported, every step drafts.
        committed: tokens per request and step, by request, prefill left out.
        steps: steps by request.
        context: mean tokens per sequence in the cache while steps were timed, by wave.
        wall_s: seconds of all waves, prefill included.
        repeated: waves that took a second attempt.
    """

    step_s: list[float] = field(default_factory=list)
    timed: list[int] = field(default_factory=list)
    drafted: int | None = 0
    committed: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    context: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    repeated: int = 0

    @property
    def mean_step_s(self) -> float:
        """Seconds per step over all waves.

        Raises:
            EngineError: no wave was timed.
        """
        if not self.timed:
            raise EngineError(
                "in no wave do two steps lie between the last prefill and the first end: decode more tokens"
            )
        return float(np.average(self.step_s, weights=self.timed))

    @property
    def tokens(self) -> int:
        """Tokens that all requests committed in steps."""
        return sum(self.committed.values())

    def add(self, steps: Iterable[EngineStep], prompts: Mapping[int, int]) -> None:
        """Add a wave; it is timed if two steps of a row lie between the last prefill and the first end.

        Args:
            steps: of its requests.
            prompts: tokens of each request's prompt, by the number of the request in the whole run; a wave's requests
                are numbered from 0 in this order.

        Raises:
            EngineError: a request without a step after its prefill.
        """
        rows: dict[int, list[EngineStep]] = {}
        for step in steps:
            rows.setdefault(step.request, []).append(step)
        numbers = list(prompts)
        for row, of_row in rows.items():
            decoded = [step for step in of_row if not step.prefill]
            if not decoded:
                raise EngineError(f"request {row} has no step after its prefill: decode more tokens")
            number = numbers[row]
            self.committed[number] = self.committed.get(number, 0) + sum(step.committed for step in decoded)
            self.steps[number] = self.steps.get(number, 0) + len(decoded)
        self.wall_s += max(of_row[-1].at_s for of_row in rows.values())
        self._time([rows[row] for row in sorted(rows)], list(prompts.values()))

    def _time(self, rows: Sequence[Sequence[EngineStep]], prompts: Sequence[int]) -> None:
        begin_s = max(row[0].at_s for row in rows)
        end_s = min(row[-1].at_s for row in rows)
        spans, counts, lengths, drafts = 0.0, 0, list[float](), list[int | None]()
        for row, prompt in zip(rows, prompts, strict=True):
            inside = [step for step in row if begin_s <= step.at_s <= end_s]
            if len(inside) > 1:
                spans += inside[-1].at_s - inside[0].at_s
                counts += len(inside) - 1
                drafts += [step.drafted for step in inside[1:]]
                written = sum(step.committed for step in row if step.at_s < begin_s)
                lengths.append(prompt + written + sum(step.committed for step in inside) / 2)
        if not counts or spans <= 0:
            return  # some row ended before the last one began
        known = [number for number in drafts if number is not None]
        self.drafted = None if self.drafted is None or len(known) < len(drafts) else self.drafted + sum(known)
        self.step_s.append(spans / counts)
        self.timed.append(counts)
        self.context.append(float(np.mean(lengths)))
