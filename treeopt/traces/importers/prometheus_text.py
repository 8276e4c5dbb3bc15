"""Prometheus text: samples of speculative decoding by name and labels, their differences and sums."""

import re
from collections.abc import Mapping

from treeopt.errors import TraceError

PART = "spec_decode"  # of the names of all that is read
DIGITS = 6  # of a position
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\w+))\s*(?:,|$)')

Key = tuple[str, tuple[tuple[str, str], ...]]


def samples_of(text: str, model: str | None) -> dict[Key, float]:
    """Every sample by name and labels, of one model.

    Raises:
        TraceError: a line that is no sample, several models and none named, or none of that name.
    """
    found: dict[Key, float] = {}
    models: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if PART not in line or line.lstrip().startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line.strip())
        labels = _labels(match[2] or "") if match else None
        if match is None or labels is None:
            raise TraceError(f"line {number} is no sample of Prometheus text: {line[:60]!r}")
        try:
            value = float(match[3])
        except ValueError as error:
            raise TraceError(f"line {number} must end with a number, found {match[3][:20]!r}") from error
        name = labels.get("model_name")
        if name is not None:
            models.add(name)
        if model is None or name in (None, model):
            found[match[1], tuple(sorted(labels.items()))] = value
    if model is not None and models and model not in models:
        raise TraceError(f"it has model {', '.join(sorted(models))}, not {model}")
    if model is None and len(models) > 1:
        raise TraceError(f"which model of {', '.join(sorted(models))}? say with --model")
    return found


def _labels(text: str) -> dict[str, str] | None:
    found, at = {}, 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        quoted = None if match[2] is None else re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], match[2])
        found[match[1]] = match[3] if quoted is None else quoted
        at = match.end()
    return found


def difference(after: Mapping[Key, float], before: Mapping[Key, float]) -> dict[Key, float]:
    """What was counted between two scrapes.

    Raises:
        TraceError: a counter fell or vanished.
    """
    for (name, labels), value in before.items():
        now = after.get((name, labels))
        if now is None or now < value:
            where = f"{name}{{{','.join(f'{key}={word}' for key, word in labels)}}}"
            raise TraceError(
                f"{where} fell from {value:.15g} to {'nothing' if now is None else f'{now:.15g}'}: the engine was "
                "restarted between the two, or they are of different ones"
            )
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def total(samples: Mapping[Key, float], name: str) -> int:
    """A counter, over all its labels (data-parallel engines, workers).

    Raises:
        TraceError: it is missing, or no count.
    """
    values = [value for (key, _), value in samples.items() if key == name]
    if not values:
        raise TraceError(f"`{name}` is missing")
    return _whole(sum(values), name)


def by_position(samples: Mapping[Key, float], name: str, label: str) -> list[int]:
    """A counter by the position in a label, 0 first, over all other labels.

    Raises:
        TraceError: positions are missing, or values that are no counts.
    """
    found: dict[int, float] = {}
    for (key, labels), value in samples.items():
        if key == name:
            word = dict(labels).get(label, "")
            if not word.isdecimal() or len(word) > DIGITS:
                raise TraceError(f"`{name}` must have a position as `{label}`, found {word!r}")
            found[int(word)] = found.get(int(word), 0.0) + value
    lost = [position for position in range(len(found)) if position not in found]
    if lost:
        raise TraceError(f"`{name}` has {len(found)} positions, but none for {lost[0]}")
    return [_whole(found[position], f"{name}, position {position}") for position in range(len(found))]


def _whole(value: float, name: str) -> int:
    if not (value >= 0 and value == int(min(value, 2**63))):
        raise TraceError(f"`{name}` must be a count, found {value:.6g}")
    return int(value)
