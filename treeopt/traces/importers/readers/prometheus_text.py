"""The parser of Prometheus text: samples of speculative decoding by name and labels, their differences and sums.

Also of answers of Prometheus' own API, and of the objects that vLLM's `LLM.get_metrics()` returns, dumped as JSON or
printed. Lines may stand behind what `kubectl logs`, a quotation or a log puts before them.

The counters of each engine are read in `prometheus_counters`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.source_file import counts_in, objects

PART = "spec_decode"  # part of the name of every sample that is read, but for TGI's
TGI = "tgi_request_"  # TGI's samples
DIGITS = 6  # most digits of a position
_SAMPLE = re.compile(
    r"(?:.*[\s\]|>])?(?P<name>(?:(?:vllm|lmdeploy|llamacpp)[:_]|trtllm_)?spec_decode_\w+|tgi_request_\w+)"
    r"(?:\{(?P<labels>.*?)\})?\s+(?P<value>[^\s{}]+)(?:\s+-?\d+(?:\.\d+)?)?\s*(?:#\s.*)?"
)
_API = re.compile(r'"resultType"\s*:\s*"(vector|matrix)"')
_LABEL = re.compile(r'\s*(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\w+))\s*(?:,|$)')

_PRINTED = re.compile(
    r"(Counter|Vector)\(name='(?P<name>vllm:spec_decode_\w{1,60})', labels=\{(?P<labels>[^{}]{0,2000})\}, "
    r"values?=\[?(?P<values>[\d,\s]{1,2000})\]?\)"
)
_DUMPED = re.compile(r'"name"\s*:\s*"vllm:spec_decode_num_')

Key = tuple[str, tuple[tuple[str, str], ...]]
_Points = list[tuple[float, float]]  # of time and value


def read_samples(text: str, model: str | None) -> dict[Key, float]:
    """Return every sample of one model, by name and labels.

    Raises:
        TraceError: a line that is not a sample, several models and none named, or no model of that name.
    """
    samples: dict[Key, float] = {}
    for number, line in _sample_lines(text):
        match = _SAMPLE.fullmatch(line.strip())
        labels = _labels(match["labels"] or "") if match else None
        if match is None or labels is None:
            raise TraceError(f"line {number} is not a sample of Prometheus text: {line[:60]!r}")
        try:
            value = float(match["value"])
        except ValueError as error:
            raise TraceError(f"line {number} must end with a number, found {match['value'][:20]!r}") from error
        key = _with_colon(match["name"]), tuple(sorted(labels.items()))
        _add(samples, key, value, f"line {number}", "scrape")
    return of_model(samples, model)


def _sample_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that must be samples, and their numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if (PART in line or TGI in line) and not line.lstrip().startswith("#"):
            yield number, line


def holds_samples(text: str) -> bool:
    """Return True if samples of speculative decoding are in the text, and not their names alone."""
    return is_metric_list(text) or any(_SAMPLE.fullmatch(line.strip()) for _, line in _sample_lines(text))


def _add(samples: dict[Key, float], key: Key, value: float, where: str, what: str) -> None:
    """Add a cumulative count, which may be there already.

    Raises:
        TraceError: it is there with another value.
    """
    if key in samples and samples[key] != value:
        raise TraceError(
            f"{where} repeats `{key[0]}` with another value: keep one {what}, and give an earlier one as --before"
        )
    samples[key] = value


def _with_colon(name: str) -> str:
    """Return the name that an engine gives a counter; collectors write an underscore for the colon."""
    return re.sub(r"^(vllm|lmdeploy|llamacpp)_spec", r"\1:spec", name)


def is_api_answer(text: str) -> bool:
    """Return True if the text is an answer of Prometheus' API with counters of speculative decoding."""
    return PART in text and _API.search(text) is not None


def api_samples(text: str, model: str | None) -> dict[Key, float]:
    """Return the samples in answers of Prometheus' API; of ranges of time, what each counter grew by.

    Raises:
        TraceError: a value is no number, a counter fell, or answers overlap; several models and none named.
    """
    answers: dict[Key, list[_Points]] = {}
    for record in objects(text):
        metric, values = record.get("metric"), record.get("values", [record.get("value")])
        if not isinstance(metric, dict) or not isinstance(values, list) or PART not in str(metric.get("__name__")):
            continue
        name = _with_colon(str(metric["__name__"]))
        try:
            points = [(float(at), float(value)) for at, value in values]
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"`{name}` must have values of a time and a number, found {values!r:.60}") from error
        numbers = [number for _, number in points]
        if numbers != sorted(numbers):
            raise TraceError(f"`{name}` fell within the range: the engine was restarted; ask for a shorter range")
        key = name, tuple(sorted((str(label), str(word)) for label, word in metric.items() if label != "__name__"))
        answers.setdefault(key, []).append(points)
    return of_model({key: _grown(key, parts) for key, parts in answers.items()}, model)


def _grown(key: Key, answers: Sequence[_Points]) -> float:
    """Return what a counter grew by in ranges of time that follow each other, or its one value.

    Raises:
        TraceError: ranges overlap, or another value is there.
    """
    single: dict[Key, float] = {}
    ranges = list[_Points]()
    for points in answers:
        if len(points) == 1:
            _add(single, key, points[0][1], "it", "answer")
        elif points and points not in ranges:
            ranges.append(points)
    if single and ranges:
        raise TraceError(f"it holds `{key[0]}` over a range and at one moment: keep one answer")
    ranges.sort(key=lambda points: points[0][0])
    if any(later[0][0] < earlier[-1][0] for earlier, later in pairwise(ranges)):
        raise TraceError(f"`{key[0]}` has ranges that overlap: keep one of them")
    return single.get(key, 0.0) + sum(points[-1][1] - points[0][1] for points in ranges)


def of_model(samples: dict[Key, float], model: str | None) -> dict[Key, float]:
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


def is_metric_list(text: str) -> bool:
    """Return True if the text holds what `LLM.get_metrics()` returns, as JSON or printed."""
    return bool(_PRINTED.search(text) or _DUMPED.search(text))


def metric_samples(text: str, model: str | None) -> dict[Key, float]:
    """Return the counters of `LLM.get_metrics()` as the samples that /metrics has of them.

    Raises:
        TraceError: a value is no count, or a counter has two; several models and none named, or no model of that name.
    """
    samples: dict[Key, float] = {}
    for name, labels, values, vector in _metrics(text):
        for position, value in enumerate(values):
            if type(value) not in (int, float) or abs(value) >= 2**63:
                raise TraceError(f"`{name}` must be a count, found {value!r:.40}")
            more = {"position": str(position)} if vector else {}
            key = f"{name}_total", tuple(sorted((labels | more).items()))
            _add(samples, key, value, "it", "dump")
    return of_model(samples, model)


def _metrics(text: str) -> Iterator[tuple[str, dict[str, str], list[Any], bool]]:
    """Yield name, labels and values of each counter, and whether it is a vector."""
    if text.lstrip()[:1] in ("{", "[") and not _PRINTED.search(text):
        for record in objects(text):
            name, labels = record.get("name"), record.get("labels") or {}
            if not (isinstance(name, str) and PART in name and isinstance(labels, dict)):
                continue
            vector = isinstance(record.get("values"), list)
            values = record["values"] if vector else [record.get("value")]
            yield name.removesuffix("_total"), {str(key): str(word) for key, word in labels.items()}, values, vector
        return
    for match in _PRINTED.finditer(text):
        labels = dict(re.findall(r"'(\w+)': '([^']*)'", match["labels"]))
        yield match["name"], labels, counts_in(match["values"]), match[1] == "Vector"


def _labels(text: str) -> dict[str, str] | None:
    labels, at = {}, 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        quoted = None if match[2] is None else re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], match[2])
        labels[match[1]] = match[3] if quoted is None else quoted
        at = match.end()
    return labels


def difference(after: Mapping[Key, float], before: Mapping[Key, float]) -> dict[Key, float]:
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
    return whole(sum(values), name)


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
    return [whole(counts[position], f"{name}, position {position}") for position in range(len(counts))]


def whole(value: float, name: str) -> int:
    """Return a count.

    >>> whole(2.0, "steps")
    2

    Raises:
        TraceError: it is none; says `name`.
    """
    if not (value >= 0 and value == int(min(value, 2**63))):
        raise TraceError(f"`{name}` must be a count, found {value:.6g}")
    return int(value)
