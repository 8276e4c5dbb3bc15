"""Read acceptance by position from log lines of vLLM, LMDeploy and llama.cpp: rates of three decimals, pooled."""

import operator
import re
from collections.abc import Sequence

import numpy as np

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import TOLERATED, Chain

Row = tuple[list[float], float]  # rates by position, and steps
ROUNDING = 5e-4  # largest error of a printed rate
ROUNDED = "rates have three decimals"
_RATES = r"((?:\d\.\d+|nan)(?:,\s*(?:\d\.\d+|nan))*)"
_INTERVAL = re.compile(rf"SpecDecoding metrics:.*Per-position acceptance rate: {_RATES}")
_ACCEPTED, _DRAFTED = (re.compile(rf"{word}: (\d{{1,15}}) tokens") for word in ("Accepted", "Drafted"))
# llama.cpp: statistics of the whole run by drafter, printed after each request (calls to begin, to draft and to
# accept); below, those of one request.
_WHOLE = re.compile(
    r"statistics\s+(?P<drafter>\S+?):? *#calls\(b,g,a\) =\s*\d+\s+(?P<calls>\d{1,15})\s+(?P<steps>\d{1,15}),"
    rf".*#acc tokens =\s*(?P<accepted>\d{{1,15}}),.*#acc rate/pos = \({_RATES}\)"
)
_REQUEST = re.compile(r"draft acceptance = [\d.]+ \(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)")
_POSITIONS = re.compile(rf"(?:acc per pos|acceptance rate per position) = \({_RATES}\)")


def read_log(text: str) -> Chain:
    """Return the chain whose rates the lines print.

    A line of vLLM or LMDeploy covers an interval, and is weighted by the steps in it. For llama.cpp the last statistics
    of each run count or, without them, the lines of its requests.

    Raises:
        TraceError: no such lines, or lines of several engines, drafters or lengths.
    """
    lines = text.splitlines()
    intervals = [(match, line) for line in lines if (match := _INTERVAL.search(line))]
    runs = [match for line in lines if (match := _WHOLE.search(line))]
    drafters = sorted({match["drafter"] for match in runs})
    requests = _requests(lines)
    if intervals and (runs or requests):
        raise TraceError("it holds lines of several engines: keep those of one")
    if len(drafters) > 1:
        raise TraceError(f"it holds statistics of {' and '.join(drafters)}: keep those of one drafter")
    if intervals:
        return _pooled(*_of_intervals([(_numbers(match[1]), line) for match, line in intervals]))
    if runs:
        return _pooled(*_of_runs(runs))
    return _pooled(requests)


def _of_runs(lines: Sequence[re.Match[str]]) -> tuple[list[Row], tuple[str, ...]]:
    """Return rates and steps of each run, and sentences for `assumed`; counts grow until a server is restarted."""
    counts = [tuple(int(line[name]) for name in ("calls", "steps", "accepted")) for line in lines]
    last = [i for i, now in enumerate(counts) if i + 1 == len(counts) or any(map(operator.lt, counts[i + 1], now))]
    rows = []
    for line in (lines[i] for i in last):
        rates, steps, accepted = _numbers(line[line.lastindex or 0]), int(line["steps"]), int(line["accepted"])
        if abs(steps * sum(rates) - accepted) > steps * len(rates) * ROUNDING + 1:
            raise TraceError(
                f"statistics of {steps} steps have {accepted} accepted tokens, their rates by position make "
                f"{steps * sum(rates):.0f}: positions are missing"
            )
        rows.append((rates, float(steps)))
    calls, steps = (sum(counts[i][column] for i in last) for column in (0, 1))
    assumption = f"{calls - steps} of {calls} steps drafted nothing and are not in the trace"
    return rows, (assumption,) if calls > steps else ()


def _requests(lines: list[str]) -> list[Row]:
    """Return rates and steps of each request; its two figures are on one line or follow each other."""
    rows, accepted, drafted = [], 0, 0
    for line in lines:
        if match := _REQUEST.search(line):
            accepted, drafted = int(match[1]), int(match[2])
        if (match := _POSITIONS.search(line)) and drafted:
            rates = _numbers(match[1])
            # Rates are accepted tokens by position over steps, so all accepted tokens over their sum are the steps.
            rows.append((rates, accepted / sum(rates) if sum(rates) else drafted / len(rates)))
            drafted = 0
    return rows


def _of_intervals(lines: Sequence[tuple[list[float], str]]) -> tuple[list[Row], tuple[str, ...]]:
    """Return rates and steps of each interval that drafted, and sentences for `assumed`."""
    rows, drafted_in_all, missing = [], 0, 0.0
    for rates, line in lines:
        counts = [pattern.search(line) for pattern in (_ACCEPTED, _DRAFTED)]
        if None in counts:
            raise TraceError(f"a line has no numbers of accepted and drafted tokens: {line[-80:]!r}")
        accepted, drafted = (int(match[1]) for match in counts if match)
        if drafted == 0:
            continue
        steps = drafted / len(rates)
        if abs(steps * sum(rates) - accepted) > steps * len(rates) * ROUNDING + 1:
            full_steps, steps = steps, accepted / sum(rates) if sum(rates) else 0.0
            if not full_steps < steps <= full_steps / (1 - TOLERATED):
                raise TraceError(
                    f"a line has {accepted} accepted tokens, but its {drafted} drafted tokens, {len(rates)} per step, "
                    f"and its rates make {full_steps * sum(rates):.0f}: the length of drafts changed; import responses "
                    "or counters instead"
                )
            missing += steps * len(rates) - drafted
        drafted_in_all += drafted
        rows.append((rates, steps))
    if not missing:
        return rows, ()
    share = missing / (drafted_in_all + missing)
    return rows, (f"drafts had different lengths, {share:.1%} of the tokens were not drafted: they count as rejected",)


def _pooled(rows: Sequence[Row], assumed: tuple[str, ...] = ()) -> Chain:
    """Return the chain of all rows, weighted by their steps."""
    if not rows:
        raise TraceError("no line prints acceptance by position (llama.cpp does at --verbosity 4)")
    depth = max(len(rates) for rates, _ in rows)
    shortest = min(len(rates) for rates, _ in rows)
    if shortest != depth:
        raise TraceError(f"lines have {shortest} to {depth} positions: keep lines of one length")
    weights = np.array([steps for _, steps in rows])
    rates = weights @ np.array([rates for rates, _ in rows]) / weights.sum()
    return Chain(tuple(rates.tolist()), max(round(float(weights.sum())), 1), assumed=(ROUNDED, *assumed))


def _numbers(text: str) -> list[float]:
    return [0.0 if word.strip() == "nan" else float(word) for word in text.split(",")]
