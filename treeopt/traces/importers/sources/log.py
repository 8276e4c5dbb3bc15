"""Read acceptance by position from log lines of vLLM, LMDeploy and llama.cpp: rates of three decimals, pooled.

A line of vLLM or LMDeploy covers a window of time, one of llama.cpp a request or the whole run.
"""

import operator
import re
from collections.abc import Sequence

import numpy as np

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import MAX_STEPS, TOLERATED, Chain, chain_from_steps
from treeopt.traces.importers.sources.llama_trace import holds_lines as holds_steps
from treeopt.traces.importers.sources.printed import Printed, printed_chain, unrounded
from treeopt.traces.importers.trace_source import Content, Output, TraceSource

ROUNDING = 5e-4  # largest error of a printed rate
MOST_GUESSES = 2000  # numbers of steps that are tried to explain rounded rates
ROUNDED = "rates have three decimals"
UNEVEN = (
    "drafts had different lengths, {:.1%} of the tokens that full drafts would have were not drafted: they count as "
)
REJECTED = "rejected"
CUT = "rejected (llama.cpp cuts drafts at max_tokens, and where the drafter is not sure)"
_RATES = r"((?:\d\.\d+|nan)(?:,\s*(?:\d\.\d+|nan))*)"
_INTERVAL = re.compile(rf"SpecDecoding metrics:.*Per-position acceptance rate: {_RATES}")
_TIME = re.compile(r"\d\d:\d\d:\d\d")
_ACCEPTED, _DRAFTED = (re.compile(rf"{word}: (\d{{1,15}}) tokens") for word in ("Accepted", "Drafted"))
# llama.cpp: statistics of the whole run by drafter, printed after each request (calls to begin, to draft and to
# accept); below, those of one request.
_WHOLE = re.compile(
    r"statistics\s+(?P<drafter>\S+?):? *#calls\(b,g,a\) =\s*\d+\s+(?P<calls>\d{1,15})\s+(?P<steps>\d{1,15}),"
    rf".*#acc tokens =\s*(?P<accepted>\d{{1,15}}),.*#acc rate/pos = \({_RATES}\)"
)
_GENERATED = re.compile(r"#gen tokens =\s*(\d{1,15}),")
_REQUEST = re.compile(r"draft acceptance = [\d.]+ \(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)")
_POSITIONS = re.compile(rf"(?:acc per pos|acceptance rate per position) = \({_RATES}\)")


def holds_lines(content: Content) -> bool:
    """Return True if lines that print acceptance by position are in the text; llama.cpp's beside its steps are not."""
    if content.values is not None:
        return False
    own = any(pattern.search(content.text) for pattern in (_WHOLE, _POSITIONS))
    return _INTERVAL.search(content.text) is not None or (own and not holds_steps(content))


def read_log(content: Content) -> Chain:
    """Return the chain whose rates the lines print.

    A line of vLLM or LMDeploy is a window, weighted by the steps in it; one that is there again at the same time counts
    once. For llama.cpp the last statistics of each run count, or the lines of its requests if these have all steps of
    the runs.

    Raises:
        TraceError: no such lines, lines of several engines, drafters or lengths, or that contradict themselves.
    """
    lines = content.text.splitlines()
    intervals = [(match, line) for line in _once(lines) if (match := _INTERVAL.search(line))]
    runs = [match for line in lines if (match := _WHOLE.search(line))]
    drafters = sorted({match["drafter"] for match in runs})
    requests = _requests(lines)
    if intervals and (runs or requests):
        raise TraceError("it holds lines of several engines: keep those of one")
    if len(drafters) > 1:
        raise TraceError(f"it holds statistics of {' and '.join(drafters)}: keep those of one drafter")
    if intervals:
        return _chain(*_of_intervals([(_numbers(match[1]), line) for match, line in intervals]))
    rows, idle = _of_runs(runs) if runs else ([], [])
    steps = [sum(row.steps or 0 for row in part) for part in ([row for row, _ in requests], rows)]
    if requests and (not runs or steps[0] == steps[1]) and steps[0] <= MAX_STEPS:
        return _of_requests(requests, idle)
    if requests and not runs:
        return _chain([row for row, _ in requests], _cut_requests(requests))
    return _chain(rows, idle)


def _once(lines: Sequence[str]) -> list[str]:
    """Return the lines without copies of those that have a time of the day."""
    places = {line.strip() if _TIME.search(line) else number: number for number, line in enumerate(lines)}
    return [lines[number] for number in places.values()]


def _chain(rows: Sequence[Printed], assumed: Sequence[str]) -> Chain:
    if not rows:
        raise TraceError("no line prints acceptance by position of steps that drafted")
    return printed_chain(rows, assumed=(ROUNDED, *assumed))


def _of_runs(lines: Sequence[re.Match[str]]) -> tuple[list[Printed], list[str]]:
    """Return rates and steps of each run, and sentences for `assumed`; counts grow until a server is restarted."""
    counts = [tuple(int(line[name]) for name in ("calls", "steps", "accepted")) for line in lines]
    last = [i for i, now in enumerate(counts) if i + 1 == len(counts) or any(map(operator.lt, counts[i + 1], now))]
    rows, full, drafted = [], 0, 0
    for line in (lines[i] for i in last):
        rates, steps, accepted = _numbers(line[line.lastindex or 0]), int(line["steps"]), int(line["accepted"])
        if abs(steps * sum(rates) - accepted) > steps * len(rates) * ROUNDING + 1:
            raise TraceError(
                f"statistics of {steps} steps have {accepted} accepted tokens, their rates by position make "
                f"{steps * sum(rates):.0f}: positions are missing"
            )
        rows.append(Printed(tuple(rates), ROUNDING, steps, accepted))
        if tokens := _GENERATED.search(line[0]):
            full, drafted = full + steps * len(rates), drafted + int(tokens[1])
    calls, steps = (sum(counts[i][column] for i in last) for column in (0, 1))
    idle = [f"{calls - steps} of {calls} steps drafted nothing and are not in the trace"] if calls > steps else []
    return rows, idle + _cut(full, drafted)


def _cut(full: int, drafted: int) -> list[str]:
    """Return a sentence about tokens that llama.cpp did not draft."""
    return [] if drafted >= full else [UNEVEN.format(1 - drafted / full) + CUT]


def _requests(lines: list[str]) -> list[tuple[Printed, int]]:
    """Return rates and steps of each request, and tokens drafted; its figures are on one line or follow each other."""
    rows, accepted, drafted = [], 0, 0
    for line in lines:
        if match := _REQUEST.search(line):
            accepted, drafted = int(match[1]), int(match[2])
        if (match := _POSITIONS.search(line)) and drafted:
            rates = _numbers(match[1])
            rows.append((Printed(tuple(rates), ROUNDING, _steps(rates, accepted, drafted), accepted), drafted))
            drafted = 0
    return rows


def _steps(rates: Sequence[float], accepted: int, drafted: int) -> int:
    """Return the steps behind rates, which are accepted tokens by position over steps: nearest to full drafts."""
    total = sum(rates)
    if not total:
        return max(-(-drafted // len(rates)), 1)
    guess = round(accepted / total)
    spread = min(int(guess * len(rates) * ROUNDING / total) + 1, MOST_GUESSES)
    wanted = max(-(-drafted // len(rates)), 1)
    for steps in sorted(range(max(guess - spread, 1), guess + spread + 1), key=lambda steps: abs(steps - wanted)):
        counts = np.rint(np.array(rates) * steps)
        if counts.sum() == accepted and (np.abs(counts / steps - rates) <= ROUNDING * 1.001).all():
            return steps
    return max(guess, 1)


def _cut_requests(rows: Sequence[tuple[Printed, int]]) -> list[str]:
    full = sum(len(row.rates) * (row.steps or 0) for row, _ in rows)
    return _cut(full, sum(drafted for _, drafted in rows))


def _of_requests(rows: Sequence[tuple[Printed, int]], idle: Sequence[str]) -> Chain:
    """Return the chain of llama.cpp's requests, their steps in an order that is not known."""
    depths = {len(row.rates) for row, _ in rows}
    if len(depths) > 1:
        raise TraceError(f"lines have {min(depths)} to {max(depths)} positions: keep lines of one length")
    requests = []
    for row, _ in rows:
        counts = np.rint(unrounded(row) * (row.steps or 0)).astype(int)
        exactly = -np.diff([row.steps or 0, *np.minimum.accumulate(counts), 0])
        requests.append(np.repeat(np.arange(len(exactly)), exactly).tolist())
    assumed = [ROUNDED, *(idle or _cut_requests(rows))]
    return chain_from_steps(requests, depth=depths.pop(), assumed=assumed)


def _of_intervals(lines: Sequence[tuple[list[float], str]]) -> tuple[list[Printed], list[str]]:
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
        rows.append(Printed(tuple(rates), ROUNDING, max(round(steps), 1), accepted))
    if not missing:
        return rows, []
    return rows, [UNEVEN.format(missing / (drafted_in_all + missing)) + REJECTED]


def _numbers(text: str) -> list[float]:
    return [0.0 if word.strip() == "nan" else float(word) for word in text.split(",")]


ENTRY = TraceSource(
    name="log",
    title="log lines of acceptance by position",
    form="lines of vLLM, LMDeploy or llama.cpp that print acceptance by position",
    trace_holds="lines of vLLM and LMDeploy are windows; those of llama.cpp's requests are requests",
    settings={},
    assumes=(ROUNDED,),
    holds=holds_lines,
    chain=read_log,
    outputs=(
        Output("vLLM", "windows of ten seconds", "the server's log (`SpecDecoding metrics`)", first=2),
        Output("llama.cpp", "requests", "llama-server's log at `--verbosity 4`", first=1),
        Output("LMDeploy", "windows", "the server's log", first=2),
    ),
)
