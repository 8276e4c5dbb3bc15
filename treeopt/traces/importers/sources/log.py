"""Read acceptance by position from log lines of vLLM, LMDeploy and llama.cpp: rates of three decimals, pooled.

A line of vLLM or LMDeploy covers a window of time, one of llama.cpp the whole run or a request.
"""

import operator
import re
from collections.abc import Sequence

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import TOLERATED, Chain
from treeopt.traces.importers.sources.bench_serve import Printed, printed_chain
from treeopt.traces.importers.sources.llama_trace import holds_lines as holds_steps
from treeopt.traces.importers.trace_source import Content, Output, TraceSource

ROUNDING = 5e-4  # largest error of a printed rate
MEAN_ROUNDING = 0.01  # of a printed mean, of two decimals
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
_MEAN = re.compile(r"Mean acceptance length: (\d{1,4}\.\d+)")  # with the bonus token
# llama.cpp: statistics of the whole run by drafter, printed after each request (calls to begin, draft and accept).
_WHOLE = re.compile(
    r"statistics\s+(?P<drafter>\S+?):? *#calls\(b,g,a\) =\s*\d+\s+(?P<calls>\d{1,15})\s+(?P<steps>\d{1,15}),"
    rf".*#acc tokens =\s*(?P<accepted>\d{{1,15}}),.*#acc rate/pos = \({_RATES}\)"
)
# llama.cpp: a request, printed when it ends.
_REQUEST = re.compile(
    r"draft acceptance = [\d.]+ \(\s*(?P<accepted>\d{1,15}) accepted /\s*(?P<drafted>\d{1,15}) generated\), "
    rf"mean acceptance length = .*acceptance rate per position = \({_RATES}\)"
)
_GENERATED = re.compile(r"#gen tokens =\s*(\d{1,15}),")


def holds_lines(content: Content) -> bool:
    """Return True if lines that print acceptance by position are in the text; llama.cpp's beside its steps are not."""
    if content.values is not None:
        return False
    own = any(pattern.search(content.text) for pattern in (_WHOLE, _REQUEST)) and not holds_steps(content)
    return own or _INTERVAL.search(content.text) is not None


def read_log(content: Content) -> Chain:
    """Return the chain whose rates the lines print.

    A line of vLLM or LMDeploy is a window, weighted by the steps in it; one that is there again at the same time counts
    once. For llama.cpp the last statistics of each run count, or without any the requests.

    Raises:
        TraceError: no such lines, lines of several engines, drafters or lengths, or that contradict themselves.
    """
    lines = content.text.splitlines()
    intervals = [(match, line) for line in _once(lines) if (match := _INTERVAL.search(line))]
    runs = [match for line in lines if (match := _WHOLE.search(line))]
    requests = [match for line in lines if (match := _REQUEST.search(line))]
    drafters = sorted({match["drafter"] for match in runs})
    if intervals and (runs or requests):
        raise TraceError("it holds lines of several engines: keep those of one")
    if len(drafters) > 1:
        raise TraceError(f"it holds statistics of {' and '.join(drafters)}: keep those of one drafter")
    if intervals:
        return _chain(*_of_intervals([(_numbers(match[1]), line) for match, line in intervals]))
    return _chain(*(_of_runs(runs) if runs else _of_requests(requests)))


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


def _of_requests(lines: Sequence[re.Match[str]]) -> tuple[list[Printed], list[str]]:
    """Return rates and steps of each request of llama.cpp that drafted, and sentences for `assumed`."""
    rows, full, drafted = [], 0, 0
    for line in lines:
        rates, accepted, tokens = _numbers(line[line.lastindex or 0]), int(line["accepted"]), int(line["drafted"])
        if bool(accepted) != any(rates):
            raise TraceError(
                f"a request has {accepted} accepted tokens, its rates by position add up to {sum(rates):g}"
            )
        steps = max(round(accepted / sum(rates)) if accepted else 0, -(-tokens // len(rates)))
        if steps:
            rows.append(Printed(tuple(rates), ROUNDING, steps, accepted))
            full, drafted = full + steps * len(rates), drafted + tokens
    return rows, _cut(full, drafted)


def _cut(full: int, drafted: int) -> list[str]:
    """Return a sentence about tokens that llama.cpp did not draft."""
    return [] if drafted >= full else [UNEVEN.format(1 - drafted / full) + CUT]


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
        mean, due = _MEAN.search(line), 1 + sum(rates)
        if mean is not None and abs(float(mean[1]) - due) > MEAN_ROUNDING + len(rates) * ROUNDING:
            raise TraceError(
                f"a line states a mean acceptance length of {mean[1]}, but its rates by position make {due:.2f}: "
                "import counters instead"
            )
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
    settings={},
    holds=holds_lines,
    chain=read_log,
    outputs=(
        Output("vLLM", "windows of ten seconds", "the server's log (`SpecDecoding metrics`)", first=2),
        Output("llama.cpp", "totals by position", "llama-server's log at `--verbosity 4`", first=2),
        Output("llama.cpp", "totals of each request", "llama-server's log (`acceptance rate per position`)", first=2),
        Output("LMDeploy", "windows", "the server's log", first=2),
    ),
)
