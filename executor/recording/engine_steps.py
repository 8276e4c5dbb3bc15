"""Record a trace in an engine: its texts for treeopt's recorder, its own steps, or a step at every anchor.

An engine's first token comes from its prefill, before anything is drafted. So in a trace of an engine's own steps a
request begins behind that token, which counts as part of the prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from executor.runners.engine_runner import EngineRunner
from executor.runners.runner import RequestSteps
from treeopt.engines.driver import Draft, EngineRequest, EngineStep
from treeopt.errors import EngineError, UsageError, counted
from treeopt.storage.typed_records import Count, Index
from treeopt.storage.work_file import WorkFile
from treeopt.traces.importers.chain_counts import chain_from_steps, chain_trace
from treeopt.traces.importers.synthetic_trace import trace_from_ranks
from treeopt.traces.trace import MISSED, Trace


@dataclass(frozen=True)
class RequestRecord:
    """The steps of one request that ended.

    Attributes:
        request: its number.
        committed: tokens of each step in order, the prefill's one token first.
        drafted: tokens drafted in each step, 0 in the prefill; None where the engine does not report it.
        tokens: the ids of the text; None where the engine does not report them.
    """

    request: Index
    committed: tuple[Count, ...]
    drafted: tuple[Index, ...] | None = None
    tokens: tuple[Index, ...] | None = None

    def __post_init__(self) -> None:
        """Check that the fields tell of the same steps."""
        if not self.committed or (self.drafted is not None and len(self.drafted) != len(self.committed)):
            raise ValueError("`committed` and `drafted` must have one entry per step")
        if self.tokens is not None and len(self.tokens) != sum(self.committed):
            raise ValueError(f"{len(self.tokens)} `tokens`, {sum(self.committed)} committed")

    @property
    def steps(self) -> RequestSteps:
        """The steps after the prefill."""
        return RequestSteps(self.request, self.committed[1:], None if self.drafted is None else self.drafted[1:])

    @classmethod
    def of(cls, steps: Sequence[EngineStep]) -> "RequestRecord":
        """Return the record of a request's steps; raise EngineError if the first is not the prefill."""
        if not steps[0].prefill:
            raise EngineError(f"request {steps[0].request} does not begin with its prefill")
        drafted = [0 if step.prefill else step.drafted for step in steps]
        tokens = [step.tokens for step in steps]
        return cls(
            steps[0].request,
            tuple(step.committed for step in steps),
            None if None in drafted else tuple(number for number in drafted if number is not None),
            None if None in tokens else tuple(token for some in tokens if some is not None for token in some),
        )


def record_requests(
    runner: EngineRunner,
    requests: Sequence[EngineRequest],
    *,
    draft: Draft,
    work: WorkFile,
    name: str = "request",
    progress: Callable[[int], None] = lambda requests: None,
) -> list[RequestRecord]:
    """Decode the requests in a runner that is entered, and return the record of each, in their order.

    Records are kept in `work` under `name` as requests end; those that it holds are not decoded again.

    Raises:
        EngineError: the engine fails; says how many requests are kept.
    """
    done = {record.request: record for record in work.pieces(name, RequestRecord)}
    if any(number >= len(requests) for number in done):
        raise work.damaged(f"{name} {max(done)} of {counted(len(requests), 'request')}")
    progress(len(done))
    left, open_requests = [n for n in range(len(requests)) if n not in done], dict[int, list[EngineStep]]()
    try:
        some = [requests[number] for number in left]
        decoded = runner.driver.decode(some, draft=draft, concurrency=runner.concurrency)
        with closing(decoded) as steps:  # type: ignore[type-var]  # a generator, in every driver
            for step in steps:
                open_requests.setdefault(step.request, []).append(step)
                if not step.ended:
                    continue
                record = RequestRecord.of(open_requests.pop(step.request))
                record = replace(record, request=left[record.request])
                done[record.request] = record
                work.put(name, {field: value for field, value in asdict(record).items() if value is not None})
                progress(1)
    except EngineError as error:
        kept = f"; {len(done)} of {counted(len(requests), 'request')} are kept in {work.path}: the same command resumes"
        raise EngineError(f"{error}{kept if done and work.path else ''}") from error
    if len(done) < len(requests):
        raise EngineError(f"{len(requests) - len(done)} of {counted(len(requests), 'request')} did not end")
    return [done[number] for number in range(len(requests))]


def engine_texts(records: Sequence[RequestRecord]) -> list[list[int]]:
    """Return the tokens of each text; raise EngineError if the engine does not report token ids."""
    missing = next((record.request for record in records if record.tokens is None), None)
    if missing is not None:
        raise EngineError(
            f"request {missing}: the engine does not report token ids, which our recorder needs; record its steps "
            "instead: leave out --drafter"
        )
    return [list(record.tokens or ()) for record in records]


def visited_trace(requests: Sequence[RequestSteps], *, depth: int, meta: Mapping[str, Any], seed: int = 0) -> Trace:
    """Return the trace of a run's own steps: exact where the chain of `depth` went, drawn from its rates elsewhere.

    Raises:
        EngineError: no request has a step after its prefill.
    """
    accepted = [[size - 1 for size in request.committed] for request in requests]
    if not any(accepted):
        raise EngineError("no request has a step after its prefill: decode more tokens")
    drafted = [request.drafted for request in requests if request.drafted is not None]
    known = drafted if len(drafted) == len(requests) else []
    chain = chain_from_steps(accepted, drafted=known, depth=depth)
    return chain_trace(chain, rng=np.random.default_rng(seed), meta=meta)


def every_anchor_trace(
    runner: EngineRunner,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    *,
    depth: int,
    meta: Mapping[str, Any],
    work: WorkFile,
    progress: Callable[[int], None] = lambda anchors: None,
) -> Trace:
    """Return a trace with one real step of the engine, which is entered, at every position of the texts that it wrote.

    The text is cut at each position and decoded for a prefill and one step: `depth` + 2 tokens. With prefix caching the
    prefill is short.

    Raises:
        EngineError: the engine fails, or writes another token than in the text.
    """
    places = [(number, place) for number, text in enumerate(texts) for place in range(len(text) - 1)]
    if not places:
        raise UsageError("every text ends with its first token: decode more tokens")
    cut = [EngineRequest((*prompts[i], *texts[i][:place]), depth + 2, ignore_stop=True) for i, place in places]
    steps = record_requests(runner, cut, draft=depth, work=work, name="anchor", progress=progress)
    rank = np.full((len(places), depth), MISSED, dtype=np.int16)
    for row, ((number, place), step) in enumerate(zip(places, steps, strict=True)):
        if step.tokens is not None and step.tokens[0] != texts[number][place]:
            raise EngineError(
                f"request {number}, position {place}: the engine wrote token {step.tokens[0]}, and "
                f"{texts[number][place]} after the same text before: texts depend on the batch, or are sampled"
            )
        rank[row, : step.committed[1] - 1 if len(step.committed) > 1 else 0] = 0
    return trace_from_ranks(rank, [len(text) - 1 for text in texts if len(text) > 1], width=1, meta=meta)
