"""Samples of speculative decoding's counters, in any container: by name and labels, their differences and sums.

Containers are Prometheus text (also behind what `kubectl logs`, a quotation or a log puts before each line), answers of
Prometheus' own API, the objects of vLLM's `LLM.get_metrics()` as JSON, and AIPerf's scrapes
(server_metrics_export.jsonl). Names are as the text has them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.trace_source import Content

PART = "spec_decode"  # part of the name of every sample that is read
DIGITS = 6  # most digits of a position
AT_ONCE = "keep one, and give an earlier one as --before"
_LINE = re.compile(r"(?:.*[\s\]|>])?((?:[a-z]\w*[:_])spec_decode_\w+(?:\{.*\}|\s).*?)\s*(?:\s#\s.*)?")
Key = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Key, float]


@dataclass(frozen=True)
class CounterNames:
    """The names of an engine's counters.

    Attributes:
        prefix: how all names begin.
        accepted: accepted tokens by position.
        position: the label of the position.
        drafted: drafted tokens: all of them, or by position if `steps` is None.
        steps: drafts, one for each step.
        accepted_total: all accepted tokens.
        cuts: what to say of drafts that were cut, which the engine does as a rule; "": they are an error.
    """

    prefix: str
    accepted: str = "num_accepted_tokens_per_pos_total"
    position: str = "position"
    drafted: str = "num_draft_tokens_total"
    steps: str | None = "num_drafts_total"
    accepted_total: str = "num_accepted_tokens_total"
    cuts: str = ""


def holds_samples(content: Content) -> bool:
    """Return True if samples of speculative decoding are in the content, and not their names alone."""
    if content.values is None:
        return any(_sample(line) is not None for _, line in _lines(content.text))
    return PART in content.text and any(container(content) is not None for container in _CONTAINERS)


def samples_of(content: Content, model: str | None) -> Samples:
    """Return every sample of one model, by name and labels.

    Raises:
        TraceError: what is no sample or no count; a counter with two values; several models and none named.
    """
    if content.values is None:
        return _of_model(_of_text(content.text), model)
    samples = next((found for container in _CONTAINERS if (found := container(content)) is not None), None)
    if samples is None:
        raise TraceError("it has no counters of speculative decoding")
    return _of_model(samples, model)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that must be samples, and their numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if PART in line and not line.lstrip().startswith("#"):
            yield number, line


def _sample(line: str) -> Any:
    """Return the sample that a line holds, or None."""
    from prometheus_client.parser import text_string_to_metric_families

    match = _LINE.fullmatch(line.strip())
    try:
        families = list(text_string_to_metric_families(match[1] + "\n")) if match else []
    except (ValueError, KeyError, IndexError):  # the parser's of damaged lines
        return None
    return families[0].samples[0] if families and families[0].samples else None


def _of_text(text: str) -> Samples:
    samples: Samples = {}
    for number, line in _lines(text):
        sample = _sample(line)
        if sample is None:
            raise TraceError(f"line {number} is not a sample of Prometheus text: {line[:60]!r}")
        _add(samples, (sample.name, tuple(sorted(sample.labels.items()))), sample.value, f"line {number}")
    return samples


def _of_api(content: Content) -> Samples | None:
    """Return the samples in answers of Prometheus' API to a query for one moment."""
    samples: Samples = {}
    for record in content.records:
        metric = record.get("metric")
        if not isinstance(metric, dict) or PART not in str(metric.get("__name__")):
            continue
        name = str(metric["__name__"])
        if "value" not in record:
            raise TraceError(f"`{name}` has a range of time: query one moment (api/v1/query); {AT_ONCE}")
        value = record["value"]
        number = _number(value[1] if isinstance(value, list) and len(value) == 2 else value, name)
        _add(samples, _key(name, {label: word for label, word in metric.items() if label != "__name__"}), number, "it")
    return samples or None


def _of_get_metrics(content: Content) -> Samples | None:
    """Return the counters of `LLM.get_metrics()` as the samples that /metrics has of them."""
    samples: Samples = {}
    for record in content.records:
        name, labels = record.get("name"), record.get("labels") or {}
        if not (isinstance(name, str) and PART in name and isinstance(labels, dict)):
            continue
        vector = isinstance(record.get("values"), list)
        for position, value in enumerate(record["values"] if vector else [record.get("value")]):
            if type(value) not in (int, float) or abs(value) >= 2**63:
                raise TraceError(f"`{name}` must be a count, found {value!r:.40}")
            more = {"position": str(position)} if vector else {}
            _add(samples, _key(f"{name.removesuffix('_total')}_total", labels | more), value, "it")
    return samples or None


def _of_aiperf(content: Content) -> Samples | None:
    """Return what each counter grew by from an endpoint's first scrape to its last; of a single scrape, its counts.

    Raises:
        TraceError: a counter fell from one scrape to the next.
    """
    scrapes = [
        record for record in content.records if "timestamp_ns" in record and isinstance(record.get("metrics"), dict)
    ]
    samples: Samples = {}
    for endpoint in dict.fromkeys(str(scrape.get("endpoint_url")) for scrape in scrapes):
        own = [scrape for scrape in scrapes if str(scrape.get("endpoint_url")) == endpoint]
        own.sort(key=lambda scrape: _number(scrape["timestamp_ns"], "timestamp_ns"))
        counters = [dict(_of_scrape(scrape["metrics"])) for scrape in own]
        last: Samples = {}
        for counts in counters:
            for key, value in counts.items():
                if value < last.get(key, value):
                    raise TraceError(f"`{key[0]}` fell from {last[key]:.15g} to {value:.15g}: the engine was restarted")
                last[key] = value
        first = counters[0] if len(counters) > 1 else {}
        for key, value in last.items():
            samples[key] = samples.get(key, 0.0) + value - first.get(key, 0.0)
    return samples or None


def _of_scrape(metrics: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    for name, values in metrics.items():
        for number, sample in enumerate(values if PART in name and isinstance(values, list) else ()):
            if isinstance(sample, dict) and "value" in sample:
                labels = sample.get("labels") if isinstance(sample.get("labels"), dict) else {}
                yield (
                    _key(f"{name.removesuffix('_total')}_total", labels),
                    _number(sample["value"], f"{name}[{number}]"),
                )


_CONTAINERS = (_of_get_metrics, _of_api, _of_aiperf)


def _key(name: str, labels: Any) -> Key:
    return name, tuple(sorted((str(label), str(word)) for label, word in labels.items()))


def _number(value: Any, name: str) -> float:
    try:
        return float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"`{name}` must be a count, found {value!r:.40}") from error


def _add(samples: Samples, key: Key, value: float, where: str) -> None:
    """Add a cumulative count, which may be there already.

    Raises:
        TraceError: it is there with another value.
    """
    if key in samples and samples[key] != value:
        raise TraceError(f"{where} repeats `{key[0]}` with another value: {AT_ONCE}")
    samples[key] = value


def _of_model(samples: Samples, model: str | None) -> Samples:
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
