"""Prometheus counters of speculative decoding, in any container: by name and labels, their differences and sums.

Containers are Prometheus text (also behind what `kubectl logs`, a quotation or a log puts before each line) and the
objects of vLLM's `LLM.get_metrics()` as JSON. Names are as the text has them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.trace_source import Content

PART = "spec_decode"  # part of the name of every sample that is read
RATES = "acceptance_rate"  # part of the names of samples that are rates and no counts: `sources.rates` reads them
DIGITS = 6  # most digits of a position
AT_ONCE = "keep one, and give an earlier one as --before"
WHOLE = ("generation_tokens_total", "request_success_total")  # ends of names of samples that tell of all steps
_NAMES = f"spec_decode_\\w+|{'|'.join(WHOLE)}"
_LINE = re.compile(rf"(?:.*[\s\]|>])?((?:[a-z]\w*[:_])(?:{_NAMES})(?:\{{.*\}}|\s).*?)\s*(?:\s#\s.*)?")
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
        return any(_sample(line) is not None for _, line in _lines(content.text) if PART in line)
    return PART in content.text and bool(_of_get_metrics(content))


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
        if any(part in line for part in (PART, *WHOLE)) and RATES not in line and not line.lstrip().startswith("#"):
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


def _of_get_metrics(content: Content) -> Samples:
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
    return samples


def _key(name: str, labels: Any) -> Key:
    return name, tuple(sorted((str(label), str(word)) for label, word in labels.items()))


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
