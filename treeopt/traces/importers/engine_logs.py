"""Acceptance by position in log lines of vLLM, LMDeploy and llama.cpp: rates of three decimals, pooled."""

import operator
import re
from collections.abc import Sequence

import numpy as np

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import TOLERATED, Chain

Row = tuple[list[float], float]  # rates by position, and steps
ROUNDING = 5e-4  # of a printed rate
ROUNDED = "rates are of three decimals"
_RATES = r"((?:\d\.\d+|nan)(?:,\s*(?:\d\.\d+|nan))*)"
_INTERVAL = re.compile(rf"SpecDecoding metrics:.*Per-position acceptance rate: {_RATES}")
_ACCEPTED, _DRAFTED = (re.compile(rf"{word}: (\d{{1,15}}) tokens") for word in ("Accepted", "Drafted"))
# llama.cpp: of the whole run, by drafter, after each request (calls to begin, to draft and to accept); of one request.
_WHOLE = re.compile(
    r"statistics\s+(?P<drafter>\S+?):? *#calls\(b,g,a\) =\s*\d+\s+(?P<calls>\d{1,15})\s+(?P<steps>\d{1,15}),"
    rf".*#acc tokens =\s*(?P<kept>\d{{1,15}}),.*#acc rate/pos = \({_RATES}\)"
)
_REQUEST = re.compile(r"draft acceptance = [\d.]+ \(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)")
_POSITIONS = re.compile(rf"(?:acc per pos|acceptance rate per position) = \({_RATES}\)")


def read_log(text: str) -> Chain:
    """The chain whose rates the lines print.

    Lines of vLLM and LMDeploy are of an interval each, and weighted by the steps in it. Of llama.cpp the last
    statistics of each run count, or, without them, the lines of its requests.

    Raises:
        TraceError: no such lines, of two engines or drafters, or of different lengths.
    """
    lines = text.splitlines()
    intervals = [(match, line) for line in lines if (match := _INTERVAL.search(line))]
    whole = [match for line in lines if (match := _WHOLE.search(line))]
    drafters = sorted({match["drafter"] for match in whole})
    requests = _requests(lines)
    if intervals and (whole or requests):
        raise TraceError("it holds lines of several engines: keep those of one")
    if len(drafters) > 1:
        raise TraceError(f"it holds statistics of {' and '.join(drafters)}: keep those of one drafter")
    if intervals:
        return _pooled(*_of_intervals([(_numbers(match[1]), line) for match, line in intervals]))
    if whole:
        return _pooled(*_of_runs(whole))
    return _pooled(requests)


def _of_runs(lines: Sequence[re.Match[str]]) -> tuple[list[Row], tuple[str, ...]]:
    """Rates and steps of each run: counts grow until a server is started anew; and what has to be said of them."""
    counts = [tuple(int(line[name]) for name in ("calls", "steps", "kept")) for line in lines]
    last = [i for i, here in enumerate(counts) if i + 1 == len(counts) or any(map(operator.lt, counts[i + 1], here))]
    rows = []
    for line in (lines[i] for i in last):
        rates, steps, kept = _numbers(line[line.lastindex or 0]), int(line["steps"]), int(line["kept"])
        if abs(steps * sum(rates) - kept) > steps * len(rates) * ROUNDING + 1:
            raise TraceError(
                f"statistics of {steps} steps have {kept} accepted tokens, their rates by position make "
                f"{steps * sum(rates):.0f}: positions are missing"
            )
        rows.append((rates, float(steps)))
    calls, steps = (sum(counts[i][which] for i in last) for which in (0, 1))
    said = f"{calls - steps} of {calls} steps drafted nothing and are not in the trace"
    return rows, (said,) if calls > steps else ()


def _requests(lines: list[str]) -> list[Row]:
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


def _of_intervals(lines: Sequence[tuple[list[float], str]]) -> tuple[list[Row], tuple[str, ...]]:
    """Rates and steps of each interval that drafted; and what has to be said of them."""
    rows, drafted_of_all, missing = [], 0, 0.0
    for rates, line in lines:
        counts = [pattern.search(line) for pattern in (_ACCEPTED, _DRAFTED)]
        if None in counts:
            raise TraceError(f"a line says no numbers of tokens: {line[-80:]!r}")
        kept, drafted = (int(match[1]) for match in counts if match)
        if drafted == 0:
            continue
        steps = drafted / len(rates)
        if abs(steps * sum(rates) - kept) > steps * len(rates) * ROUNDING + 1:
            steps, all_of_them = kept / sum(rates) if sum(rates) else 0.0, steps
            if not all_of_them < steps <= all_of_them / (1 - TOLERATED):
                raise TraceError(
                    f"a line has {kept} accepted tokens where {drafted} drafted ones, {len(rates)} a step, and its "
                    f"rates make {all_of_them * sum(rates):.0f}: the length of drafts changed, take responses or "
                    "counters"
                )
            missing += steps * len(rates) - drafted
        drafted_of_all += drafted
        rows.append((rates, steps))
    if not missing:
        return rows, ()
    share = missing / (drafted_of_all + missing)
    return rows, (
        f"drafts were of different lengths, {share:.1%} of the tokens were not drafted: they count as rejected",
    )


def _pooled(rows: Sequence[Row], assumed: tuple[str, ...] = ()) -> Chain:
    if not rows:
        raise TraceError("no line prints acceptance by position of a step (llama.cpp does at --verbosity 4)")
    depth = max(len(rates) for rates, _ in rows)
    if any(len(rates) != depth for rates, _ in rows):
        raise TraceError(f"lines have {min(len(rates) for rates, _ in rows)} to {depth} positions: keep those of one")
    weights = np.array([steps for _, steps in rows])
    rates = weights @ np.array([rates for rates, _ in rows]) / weights.sum()
    return Chain(tuple(rates.tolist()), max(round(float(weights.sum())), 1), assumed=(ROUNDED, *assumed))


def _numbers(text: str) -> list[float]:
    return [0.0 if word.strip() == "nan" else float(word) for word in text.split(",")]
