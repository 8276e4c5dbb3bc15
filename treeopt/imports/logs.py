"""Acceptance by position in log lines of vLLM, LMDeploy and llama.cpp: rates of three decimals, pooled."""

import re

import numpy as np

from treeopt.errors import TraceError
from treeopt.imports.chains import Chain

ROUNDING = 5e-4  # of a printed rate
ROUNDED = "rates are of three decimals"
_RATES = r"((?:\d\.\d+|nan)(?:,\s*(?:\d\.\d+|nan))*)"
_INTERVAL = re.compile(rf"SpecDecoding metrics:.*Per-position acceptance rate: {_RATES}")
_ACCEPTED, _DRAFTED = (re.compile(rf"{word}: (\d{{1,15}}) tokens") for word in ("Accepted", "Drafted"))
# llama.cpp: of the whole run, by drafter, after each request; and of one request.
_WHOLE = re.compile(
    rf"statistics\s+(\S+?):? *#calls\(b,g,a\) =\s*\d+\s+\d+\s+(\d{{1,15}}),.*#acc rate/pos = \({_RATES}\)"
)
_REQUEST = re.compile(r"draft acceptance = [\d.]+ \(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)")
_POSITIONS = re.compile(rf"(?:acc per pos|acceptance rate per position) = \({_RATES}\)")


def read_log(text: str) -> Chain:
    """The chain whose rates the lines print.

    Lines of vLLM and LMDeploy are of an interval each, and weighted by the steps in it. Of llama.cpp the last
    statistics of the run count, or, without them, the lines of its requests.

    Raises:
        TraceError: no such lines, of two engines or drafters, or of different lengths.
    """
    lines = text.splitlines()
    intervals = [(match, line) for line in lines if (match := _INTERVAL.search(line))]
    whole = {match[1]: match for line in lines if (match := _WHOLE.search(line))}
    requests = _requests(lines)
    if intervals and (whole or requests):
        raise TraceError("it holds lines of several engines: keep those of one")
    if len(whole) > 1:
        raise TraceError(f"it holds statistics of {' and '.join(sorted(whole))}: keep those of one drafter")
    if intervals:
        rows = [_interval(_numbers(match[1]), line) for match, line in intervals]
        return _pooled([row for row in rows if row is not None])
    if whole:
        (match,) = whole.values()
        return _pooled([(_numbers(match[3]), float(match[2]))])
    return _pooled(requests)


def _requests(lines: list[str]) -> list[tuple[list[float], float]]:
    """Rates and steps of each request; its two figures are on one line or follow each other."""
    found, kept, drafted = [], 0, 0
    for line in lines:
        if match := _REQUEST.search(line):
            kept, drafted = int(match[1]), int(match[2])
        if (match := _POSITIONS.search(line)) and drafted:
            rates = _numbers(match[1])
            # Rates are accepted tokens by position over steps, so all accepted tokens over their sum are the steps.
            found.append((rates, kept / sum(rates) if sum(rates) else drafted / len(rates)))
            drafted = 0
    return found


def _interval(rates: list[float], line: str) -> tuple[list[float], float] | None:
    counts = [pattern.search(line) for pattern in (_ACCEPTED, _DRAFTED)]
    if None in counts:
        raise TraceError(f"a line says no numbers of tokens: {line[-80:]!r}")
    kept, drafted = (int(match[1]) for match in counts if match)
    if drafted == 0:
        return None
    steps = drafted / len(rates)
    slack = steps * len(rates) * ROUNDING + 1
    if abs(steps * sum(rates) - kept) > slack:
        raise TraceError(
            f"a line has {kept} accepted tokens where {drafted} drafted ones, {len(rates)} a step, and its rates make "
            f"{steps * sum(rates):.0f}: the length of drafts changed, take responses or counters"
        )
    return rates, steps


def _pooled(rows: list[tuple[list[float], float]]) -> Chain:
    if not rows:
        raise TraceError("no line prints acceptance by position of a step (llama.cpp does at --verbosity 4)")
    depth = max(len(rates) for rates, _ in rows)
    if any(len(rates) != depth for rates, _ in rows):
        raise TraceError(f"lines have {min(len(rates) for rates, _ in rows)} to {depth} positions: keep those of one")
    weights = np.array([steps for _, steps in rows])
    rates = weights @ np.array([rates for rates, _ in rows]) / weights.sum()
    return Chain(tuple(rates.tolist()), max(round(float(weights.sum())), 1), assumed=(ROUNDED,))


def _numbers(text: str) -> list[float]:
    return [0.0 if word.strip() == "nan" else float(word) for word in text.split(",")]
