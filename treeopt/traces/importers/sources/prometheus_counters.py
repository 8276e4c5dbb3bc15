"""Counters of engines: the steps that accepted position 0, 1, ..., since the engine started or between two scrapes.

Sources: vLLM 0.33.0, LMDeploy 0.18.0, llama.cpp (llama-cpp-python 0.3.36), TensorRT-LLM (#12636), and SGLang 0.5.23,
which counts no positions.

They stand in any container: Prometheus text (also behind what `kubectl logs`, a quotation or a log puts before each
line), the objects of vLLM's `LLM.get_metrics()` as JSON, and answers of Prometheus to a query. Names are as the text
has them.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from treeopt.errors import TraceError
from treeopt.registry import load
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts, with_undrafted
from treeopt.traces.importers.trace_source import GUIDE, Content, Output, TraceSource, ask

PARTS = ("spec_decode", "spec_verify")  # one is part of the name of every sample that is read
RATES = "acceptance_rate"  # part of the names of samples that are rates and no counts: `sources.rates` reads them
DIGITS = 6  # most digits of a position
AT_ONCE = "keep one, and give an earlier one as --before"
# Ends of names of samples that tell of all steps.
WHOLE = ("generation_tokens_total", "request_success_total", "num_requests_total")
_NAMES = f"(?:{'|'.join(PARTS)})_\\w+|{'|'.join(WHOLE)}"
_LINE = re.compile(rf"(?:.*[\s\]|>])?((?:[a-z]\w*[:_])(?:{_NAMES})(?:\{{.*\}}|\s).*?)\s*(?:\s#\s.*)?")
Key = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Key, float]


@dataclass(frozen=True)
class CounterNames:
    """The names of an engine's counters.

    Attributes:
        prefix: how all names begin.
        accepted: accepted tokens by position; "": they are not counted.
        position: the label of the position.
        drafted: drafted tokens: all of them, or by position if `steps` is None.
        steps: drafts, one for each step.
        accepted_total: all accepted tokens.
        cuts: what to say of drafts that were cut, which the engine does as a rule; "": they are an error.
        latency: whole name of the histogram of seconds between two outputs of a request; "": there is none.
        iterations: whole name of the count of the engine's steps.
        generated: whole name of the counter of all tokens written; "": none.
        ended: whole name of the counter of requests that ended.
    """

    prefix: str
    accepted: str = "num_accepted_tokens_per_pos_total"
    position: str = "position"
    drafted: str = "num_draft_tokens_total"
    steps: str | None = "num_drafts_total"
    accepted_total: str = "num_accepted_tokens_total"
    cuts: str = ""
    latency: str = ""
    iterations: str = ""
    generated: str = ""
    ended: str = ""


def holds_samples(content: Content) -> bool:
    """Return True if samples of speculative decoding are in the content, and not their names alone."""
    if content.values is None:
        return any(_sample(line) for _, line in _lines(content.text) if _part_of(line))
    return _part_of(content.text) and bool(_of_get_metrics(content))


def _part_of(text: str) -> bool:
    return any(part in text for part in PARTS)


def samples_of(content: Content, model: str | None) -> Samples:
    """Return every sample of one model, by name and labels.

    Raises:
        TraceError: what is no sample or no count; a counter with two values; several models and none named.
    """
    samples = _of_text(content.text) if content.values is None else _of_get_metrics(content)
    if not samples:
        raise TraceError("it has no counters of speculative decoding")
    return of_model(samples, model)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that must be samples, and their numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if any(part in line for part in (*PARTS, *WHOLE)) and RATES not in line and not line.lstrip().startswith("#"):
            yield number, line


def all_samples(text: str) -> Samples:
    """Return all samples of Prometheus text; raise TraceError if it is none."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        read = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(sample.name, tuple(sorted(sample.labels.items()))): float(sample.value) for sample in read}
    except (ValueError, KeyError, IndexError, OverflowError) as error:  # the parser's of damaged lines
        raise TraceError(f"it is not Prometheus text: {str(error).strip() or text[:40]!r}") from error


def _sample(line: str) -> Samples:
    """Return the sample that a line holds; empty if it holds none."""
    match = _LINE.fullmatch(line.strip())
    with suppress(TraceError):  # Grafana draws a bar between name and value
        return all_samples(match[1].replace("} | ", "} ") + "\n") if match else {}
    return {}


def _of_text(text: str) -> Samples:
    samples: Samples = {}
    for number, line in _lines(text):
        if not (sample := _sample(line)):
            raise TraceError(f"line {number} is not a sample of Prometheus text: {line[:60]!r}")
        _add(samples, *sample.popitem(), f"line {number}")
    return samples


def _of_get_metrics(content: Content) -> Samples:
    """Return the counters of `LLM.get_metrics()` or of a query of Prometheus as the samples that /metrics has."""
    samples: Samples = {}
    for record in map(_of_query, content.records):
        name, labels = record.get("name"), record.get("labels") or {}
        if not (isinstance(name, str) and _part_of(name) and isinstance(labels, dict)):
            continue
        vector = isinstance(record.get("values"), list)
        for position, value in enumerate(record["values"] if vector else [record.get("value")]):
            if type(value) not in (int, float) or abs(value) >= 2**63:
                raise TraceError(f"`{name}` must be a count, found {value!r:.40}")
            more = {"position": str(position)} if vector else {}
            key = tuple(sorted((str(label), str(word)) for label, word in (labels | more).items()))
            _add(samples, (f"{name.removesuffix('_total')}_total", key), value, "it")
    return samples


def _of_query(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a result of Prometheus' /api/v1/query as `LLM.get_metrics()` has it; any other record itself."""
    if not isinstance(labels := record.get("metric"), dict) or not isinstance(value := record.get("value"), list):
        return record
    number: Any = value[-1] if value else None
    with suppress(TypeError, ValueError):
        number = float(number)
    return {
        "name": labels.get("__name__"),
        "labels": {k: v for k, v in labels.items() if k != "__name__"},
        "value": number,
    }


def _add(samples: Samples, key: Key, value: float, where: str) -> None:
    """Add a cumulative count, which may be there already.

    Raises:
        TraceError: it is there with another value.
    """
    if key in samples and samples[key] != value:
        raise TraceError(f"{where} repeats `{key[0]}` with another value: {AT_ONCE}")
    samples[key] = value


def of_model(samples: Samples, model: str | None) -> Samples:
    """Return the samples of one model, and those without the name of a model.

    Raises:
        TraceError: several models and none named, or no model of that name.
    """
    models = sorted({dict(labels)["model_name"] for _, labels in samples if "model_name" in dict(labels)})
    if model is not None and models and model not in models:
        raise TraceError(f"it has model {', '.join(models)}, not {model}")
    if model is None and len(models) > 1:
        raise TraceError(f"it has several models, {', '.join(models)}: name one with --model")
    return {
        (name, labels): value
        for (name, labels), value in samples.items()
        if model is None or dict(labels).get("model_name") in (None, model)
    }


def difference(after: Mapping[Key, float], before: Mapping[Key, float]) -> Samples:
    """Return the counts between two scrapes.

    Raises:
        TraceError: a counter fell or vanished.
    """
    for (name, labels), value in before.items():
        now = after.get((name, labels))
        if now is None or now < value:
            where = f"{name}{{{','.join(f'{key}={word}' for key, word in labels)}}}"
            raise TraceError(
                f"{where} fell from {value:.15g} to {'nothing' if now is None else f'{now:.15g}'}: the engine was "
                "restarted in between, or the two come from different engines"
            )
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def total(samples: Mapping[Key, float], name: str) -> int:
    """Return the sum of a counter over all its labels (data-parallel engines, workers).

    Raises:
        TraceError: the counter is missing, or not a count.
    """
    values = [value for (key, _), value in samples.items() if key == name]
    if not values:
        raise TraceError(f"`{name}` is missing")
    return _whole(sum(values), name)


def by_position(samples: Mapping[Key, float], name: str, label: str) -> list[int]:
    """Return a counter by the position in a label, 0 first, summed over all other labels.

    Raises:
        TraceError: positions are missing, or values are not counts.
    """
    counts: dict[int, float] = {}
    for (key, labels), value in samples.items():
        if key == name:
            word = dict(labels).get(label, "")
            if not word.isdecimal() or len(word) > DIGITS:
                raise TraceError(f"`{name}` must have a position as `{label}`, found {word!r}")
            counts[int(word)] = counts.get(int(word), 0.0) + value
    missing = [position for position in range(len(counts)) if position not in counts]
    if missing:
        raise TraceError(f"`{name}` has {len(counts)} positions, but position {missing[0]} is missing")
    return [_whole(counts[position], f"{name}, position {position}") for position in range(len(counts))]


def _whole(value: float, name: str) -> int:
    if not (value >= 0 and value == int(min(value, 2**63))):
        raise TraceError(f"`{name}` must be a count, found {value:.6g}")
    return int(value)


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

    Of an engine that counts no positions there are none.

    Raises:
        TraceError: no counters of an engine known here, those of several engines, or totals without their positions.
    """
    counts = _totals(samples)
    engine = _engine(counts)
    names = counter_names()[engine]
    if not names.accepted:
        return engine, total(counts, f"{names.prefix}{names.steps}"), []
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
            for whole in filter(None, (names.generated, names.ended)):
                if name.replace(":", "_").endswith(whole.replace(":", "_")):
                    totals[whole, labels] = value
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
            + (": keep the lines of one" if busy else f": is it on? Gauges of means do not determine it; see {GUIDE}")
        )
    return busy[0]


def _by_steps(counts: Mapping[Key, float], names: CounterNames, engine: str, uneven: bool) -> Chain:
    """Read an engine that counts its steps, all drafted and accepted tokens, and accepted ones by position."""
    if not names.accepted:
        calls = total(counts, f"{names.prefix}{names.steps}")
        tau = (total(counts, names.generated) - total(counts, names.ended)) / max(calls, 1)
        raise TraceError(
            f"{engine} counts no positions; its {calls} steps committed {tau:.2f} tokens each: give search or whatif "
            f"`--accepted-length {tau:.2f}@K` with K draft tokens, or take {ask(engine)}"
        )
    steps, drafted, accepted_total = (
        f"{names.prefix}{name}" for name in (names.steps, names.drafted, names.accepted_total)
    )
    for name in (steps, drafted, accepted_total):
        if all(key != name for key, _ in counts):
            raise TraceError(f"`{name}` is missing: its other totals have no positions; take {ask(engine)}")
    of = {name: {labels for key, labels in counts if key == name} for name in (steps, drafted, accepted_total)}
    if lacking := [name for name in of if of[name] != set.union(*of.values())]:
        raise TraceError(f"`{lacking[0]}` is missing of an engine whose other counters are there")
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
    if not of[steps] <= {labels for name, labels in counts if name == names.generated}:
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
