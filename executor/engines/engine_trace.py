"""Traces recorded inside an engine: its texts for our recorder, the ordered record of a run, or a step at every anchor.

An engine's first token comes from its prefill, before anything is drafted. So in a trace of an engine's own steps a
request begins behind that token, which counts as part of the prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from executor.engines.engine_record import RequestRecord, record_run
from treeopt.engines.driver import Driver, EngineRequest
from treeopt.errors import EngineError, UsageError
from treeopt.traces.importers.chain_counts import chain_from_steps, chain_trace
from treeopt.traces.importers.synthetic_trace import trace_from_ranks
from treeopt.traces.trace import Trace
from treeopt.traces.trace_checks import MISSED


def engine_texts(records: Sequence[RequestRecord]) -> list[list[int]]:
    """Return the tokens of each text.

    Raises:
        EngineError: the engine does not report token ids.
    """
    missing = next((record.request for record in records if record.tokens is None), None)
    if missing is not None:
        raise EngineError(
            f"request {missing}: the engine does not report token ids, which our recorder needs; record its steps "
            "instead: leave out --drafter"
        )
    return [list(record.tokens or ()) for record in records]


def visited_trace(records: Sequence[RequestRecord], *, depth: int, meta: Mapping[str, Any], seed: int = 0) -> Trace:
    """Return the trace of a run's own steps: exact where the chain went, drawn from its rates elsewhere.

    Args:
        records: of the requests.
        depth: draft length of the run.
        meta: `meta` of the trace.
        seed: of the draws.

    Raises:
        EngineError: no request has a step after its prefill.
    """
    requests = [[size - 1 for size in record.committed[1:]] for record in records]
    if not any(requests):
        raise EngineError("no request has a step after its prefill: decode more tokens")
    drafted = [] if any(record.drafted is None for record in records) else [r.drafted[1:] for r in records if r.drafted]
    chain = chain_from_steps(requests, drafted=drafted, depth=depth, ordered=True)
    return chain_trace(chain, rng=np.random.default_rng(seed), meta=meta)


def every_anchor_trace(
    engine: Driver,
    prompts: Sequence[Sequence[int]],
    records: Sequence[RequestRecord],
    *,
    depth: int,
    concurrency: int,
    meta: Mapping[str, Any],
    work: Path | None = None,
    settings: dict[str, Any] | None = None,
    resume: bool = False,
    progress: Callable[[int], None] = lambda anchors: None,
) -> Trace:
    """Return a trace with one real step of the engine at every position of the texts.

    The text is cut at each position and decoded for a prefill and one step: `depth` + 2 tokens. With prefix caching the
    prefill is short.

    Args:
        engine: a driver, entered.
        prompts: token ids.
        records: of the texts that the engine wrote after them.
        depth: draft length.
        concurrency: requests in flight.
        meta: `meta` of the trace.
        work: see `record_run`.
        settings: see `record_run`.
        resume: see `record_run`.
        progress: called with the number of anchors that were measured.

    Raises:
        EngineError: the engine fails, or writes another token than in the text.
    """
    texts = engine_texts(records)
    places = [(number, place) for number, text in enumerate(texts) for place in range(len(text) - 1)]
    if not places:
        raise UsageError("every text ends with its first token: decode more tokens")
    cut = [EngineRequest((*prompts[i], *texts[i][:place]), depth + 2, ignore_stop=True) for i, place in places]
    steps = record_run(
        engine,
        cut,
        draft=depth,
        concurrency=concurrency,
        work=work,
        settings=settings,
        resume=resume,
        progress=progress,
    )
    rank = np.full((len(places), depth), MISSED, dtype=np.int16)
    for row, ((number, place), step) in enumerate(zip(places, steps, strict=True)):
        if step.tokens is not None and step.tokens[0] != texts[number][place]:
            raise EngineError(
                f"request {number}, position {place}: the engine wrote token {step.tokens[0]}, and "
                f"{texts[number][place]} after the same text before: texts depend on the batch, or are sampled"
            )
        rank[row, : step.committed[1] - 1 if len(step.committed) > 1 else 0] = 0
    return trace_from_ranks(rank, [len(text) - 1 for text in texts if len(text) > 1], width=1, meta=meta)
