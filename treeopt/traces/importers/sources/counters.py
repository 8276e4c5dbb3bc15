"""Counters of engines: the steps that accepted position 0, 1, ..., since the engine started or between two scrapes.

Sources: vLLM 0.33.0, LMDeploy 0.18.0, llama.cpp (llama-cpp-python 0.3.36) and TensorRT-LLM (#12636).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from treeopt.errors import TraceError
from treeopt.registry import load
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts, with_undrafted
from treeopt.traces.importers.prometheus_counters import (
    CounterNames,
    Key,
    by_position,
    difference,
    holds_samples,
    samples_of,
    total,
)
from treeopt.traces.importers.trace_source import GUIDE, Content, Output, TraceSource, ask

ENGINES = "treeopt.engines:ENGINES"  # whose entries name their counters
ONE_POSITION = "only position 0 is counted, where its C++ runtime puts drafts of any position: true if it drafts one"


def read_counters(
    content: Content, *, before: Content | None = None, model: str | None = None, uneven: bool = False
) -> Chain:
    """Read the counts since the engine started, or between two scrapes, summed over engines, workers and instances.

    Args:
        content: the scrape, or the later one of two.
        before: the earlier one of two.
        model: the `model_name` to read, if the text has several.
        uneven: see `chain_counts.chain_from_counts`.

    Raises:
        TraceError: no counters of an engine known here, several engines or models, or counters that fell or
            contradict each other.
    """
    counts = _totals(samples_of(content, model))
    if before is not None:
        counts = difference(counts, _totals(samples_of(before, model)))
    engine = _engine(counts)
    names = counter_names()[engine]
    read = _by_drafted_position if names.steps is None else _by_steps
    return replace(read(counts, names, load(ENGINES)[engine].title.partition(" ")[0], uneven), engine=engine)


def counter_names() -> dict[str, CounterNames]:
    """Return the names of the counters of each engine that has them."""
    return {name: engine.metrics for name, engine in load(ENGINES).items() if engine.metrics is not None}


def totals_by_engine(samples: Mapping[Key, float]) -> tuple[str, int, list[int]]:
    """Return the engine of a scrape, its steps that drafted, and those that accepted position 0, 1, ...

    Raises:
        TraceError: no counters of an engine known here, those of several engines, or totals without positions.
    """
    counts = _totals(samples)
    engine = _engine(counts)
    names = counter_names()[engine]
    accepted = by_position(counts, f"{names.prefix}{names.accepted}", names.position)
    if names.steps is None:
        drafted = by_position(counts, f"{names.prefix}{names.drafted}", names.position)
        return engine, drafted[0] if drafted else 0, accepted
    steps = total(counts, f"{names.prefix}{names.steps}")
    if steps and not accepted:
        raise TraceError("it has totals, but no accepted tokens by position")
    return engine, steps, accepted


def _totals(samples: Mapping[Key, float]) -> dict[Key, float]:
    """Return the counters of engines, by the engine's names.

    Collectors write an underscore for the colon, put names before (`ray_vllm_spec_decode_...`), and omit `_total`.
    """
    totals: dict[Key, float] = {}
    for names in counter_names().values():
        written = re.compile(re.escape(names.prefix).replace(":", "[:_]"))
        for (name, labels), value in samples.items():
            if (match := written.search(name)) and not name.endswith(("_created", "_rate", "_efficiency", "_length")):
                totals[names.prefix + name[match.end() :].removesuffix("_total") + "_total", labels] = value
            elif name in (names.generated, names.ended):
                totals[name, labels] = value
    return totals


def _engine(counts: Mapping[Key, float]) -> str:
    """Return the engine whose counters these are; engines that counted nothing stand back behind one that did."""
    engines = {}
    for engine, names in counter_names().items():
        values = [value for (name, _), value in counts.items() if name.startswith(names.prefix)]
        if values:
            engines[engine] = sum(values)
    busy = [engine for engine, counted in engines.items() if counted > 0] or list(engines)
    if len(busy) != 1:
        raise TraceError(
            f"must hold one engine's counters of speculative decoding, found {' and '.join(busy) or 'none'}"
            + (": keep the lines of one" if busy else f": gauges of means do not determine it; see {GUIDE}")
        )
    return busy[0]


def _by_steps(counts: Mapping[Key, float], names: CounterNames, engine: str, uneven: bool) -> Chain:
    """Read an engine that counts its steps, all drafted and accepted tokens, and accepted ones by position."""
    steps, drafted, accepted_total = (
        f"{names.prefix}{name}" for name in (names.steps, names.drafted, names.accepted_total)
    )
    for name in (steps, drafted, accepted_total):
        if all(key != name for key, _ in counts):
            raise TraceError(f"`{name}` is missing: its other totals have no positions; take {ask(engine)}")
    drafts, tokens, accepted_tokens = (total(counts, name) for name in (steps, drafted, accepted_total))
    accepted = by_position(counts, f"{names.prefix}{names.accepted}", names.position)
    if accepted_tokens and not accepted:
        raise TraceError(f"it has totals, but no positions; take {ask(engine)}")
    if sum(accepted) != accepted_tokens:
        raise TraceError(
            f"positions have {sum(accepted)} accepted tokens, `{accepted_total}` has {accepted_tokens}: was the text "
            "scraped at one moment?"
        )
    cut = bool(names.cuts) and tokens < drafts * len(accepted)
    chain = chain_from_counts(accepted, steps=drafts, draft_tokens=tokens, uneven=uneven or cut)
    chain = replace(chain, assumed=(*chain.assumed, names.cuts)) if cut else chain
    if names.generated not in {name for name, _ in counts}:
        return chain
    ended = total(counts, names.ended) if names.ended in {name for name, _ in counts} else 0
    return with_undrafted(chain, total(counts, names.generated) - accepted_tokens - drafts - ended)


def _by_drafted_position(counts: Mapping[Key, float], names: CounterNames, engine: str, uneven: bool) -> Chain:
    """Read an engine that counts drafted tokens by position; every step drafts position 0."""
    drafted, accepted = (
        by_position(counts, f"{names.prefix}{name}", names.position) for name in (names.drafted, names.accepted)
    )
    if not drafted:
        raise TraceError(f"`{names.prefix}{names.drafted}` is missing: totals have no positions; take {ask(engine)}")
    chain = chain_from_counts(accepted, steps=drafted[0], drafted=drafted, uneven=uneven)
    if len(drafted) > 1:
        return chain
    return Chain(chain.survival, chain.steps, assumed=(*chain.assumed, ONE_POSITION))


ENTRY = TraceSource(
    name="counters",
    title="an engine's counters",
    settings={
        "before": "an earlier scrape, from which counting starts",
        "model": "the model_name to read, where there are several",
        "uneven": "count what short drafts left out as rejected",
        "requests": "most texts that stand for the steps",
        "steps": "number of counted steps, for a check",
    },
    holds=holds_samples,
    chain=read_counters,
    outputs=(
        Output("vLLM", "totals by position", "`/metrics`; `LLM.get_metrics()` as JSON", first=3),
        Output("llama.cpp", "totals by position", "its `/metrics` (`--metrics`)", first=3),
        Output("TensorRT-LLM", "totals by position", "`/prometheus/metrics`", first=3),
        Output("LMDeploy", "totals by position", "`/metrics`", first=1),
    ),
)
