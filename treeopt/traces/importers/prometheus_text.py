"""The parser of Prometheus text: samples of speculative decoding by name and labels, their differences and sums.

The counters of each engine are read in `prometheus_counters`.
"""

import re
from collections.abc import Mapping

from treeopt.errors import TraceError

PART = "spec_decode"  # part of the name of every sample that is read
DIGITS = 6  # most digits of a position
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\w+))\s*(?:,|$)')

Key = tuple[str, tuple[tuple[str, str], ...]]


def read_samples(text: str, model: str | None) -> dict[Key, float]:
    """Return every sample of one model, by name and labels.

    Raises:
        TraceError: a line that is not a sample, several models and none named, or no model of that name.
    """
    samples: dict[Key, float] = {}
    models: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if PART not in line or line.lstrip().startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line.strip())
        labels = _labels(match[2] or "") if match else None
        if match is None or labels is None:
            raise TraceError(f"line {number} is not a sample of Prometheus text: {line[:60]!r}")
        try:
            value = float(match[3])
        except ValueError as error:
            raise TraceError(f"line {number} must end with a number, found {match[3][:20]!r}") from error
        name = labels.get("model_name")
        if name is not None:
            models.add(name)
        if model is None or name in (None, model):
            samples[match[1], tuple(sorted(labels.items()))] = value
    if model is not None and models and model not in models:
        raise TraceError(f"it has model {', '.join(sorted(models))}, not {model}")
    if model is None and len(models) > 1:
        raise TraceError(f"it has several models, {', '.join(sorted(models))}: name one with --model")
    return samples


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
