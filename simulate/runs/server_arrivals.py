"""Workload of a server: arrival times, prompt lengths and texts of requests; Poisson arrivals and request logs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulate.runs.timeline import Floats, Ints
from treeopt.errors import UsageError
from treeopt.storage.atomic_files import why
from treeopt.storage.json_records import RecordError, get
from treeopt.storage.user_files import read_text
from treeopt.traces.trace import Trace

MOST = 2**31  # tokens of a request


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order in which they arrive.

    Attributes:
        arrived_s: float64 (n,), non-decreasing.
        request: int64 (n,), index of the trace's request whose text is written.
        tokens: int64 (n,), tokens of that text that are written, from its beginning.
        prompt_tokens: int64 (n,), or None where they are not known.
        source: index of a request -> the file and line it was read from, for messages; empty without a file.

    Raises:
        UsageError: names the field and the index.
    """

    arrived_s: Floats
    request: Ints
    tokens: Ints
    prompt_tokens: Ints | None = None
    source: Callable[[int], str] = lambda index: ""

    def __post_init__(self) -> None:
        """Check lengths and order."""
        fields = [self.arrived_s, self.request, self.tokens]
        fields += [] if self.prompt_tokens is None else [self.prompt_tokens]
        if len(self.arrived_s) == 0 or any(field.shape != self.arrived_s.shape for field in fields):
            raise UsageError(f"a workload has arrays of one length, found {[field.shape for field in fields]}")
        late = ~np.isfinite(self.arrived_s) | (np.diff(self.arrived_s, prepend=0.0) < 0)
        if late.any():
            raise UsageError(
                f"arrived_s[{late.argmax()}] must not fall, nor be negative, got {self.arrived_s[late][0]}"
            )
        if self.tokens.min() < 1:
            raise UsageError(f"tokens[{self.tokens.argmin()}] must be at least 1, got {self.tokens.min()}")


def poisson(requests: int, *, rate: float, rng: np.random.Generator) -> Floats:
    """Draw the arrival times of a Poisson process, float64 (requests,).

    Args:
        requests: number of requests.
        rate: mean requests per second.
        rng: random numbers for the gaps, which are exponential.

    Raises:
        UsageError: no requests, or a rate that is not positive.
    """
    if requests < 1 or not 0 < rate < np.inf:
        raise UsageError(f"arrivals need at least 1 request and a positive rate, got {requests} and {rate}")
    return np.cumsum(rng.exponential(1 / rate, requests))


def draw_requests(
    trace: Trace, arrived_s: Floats, *, rng: np.random.Generator, prompt_tokens: int | Ints | None = None
) -> Workload:
    """Draw a request of the trace for each arrival; its whole text is written.

    Args:
        trace: the requests.
        arrived_s: float64 (n,).
        rng: random numbers for the draws, which may repeat.
        prompt_tokens: prompt length of all requests, or of each of the trace's requests, (R,).
    """
    request = rng.integers(0, trace.requests, len(arrived_s))
    prompts = None if prompt_tokens is None else np.broadcast_to(prompt_tokens, trace.requests)[request]
    return Workload(arrived_s, request, trace.lengths[request], prompts)


@dataclass(frozen=True, eq=False)
class Asked:
    """Requests of a log, without their texts.

    Attributes:
        path: the log, for messages.
        line: int64 (n,), line number of each request, from 1.
        prompt_tokens: int64 (n,).
        tokens: int64 (n,), tokens written.
        arrived_s: float64 (n,), or None if the log does not record it.
    """

    path: Path
    line: Ints
    prompt_tokens: Ints
    tokens: Ints
    arrived_s: Floats | None

    def on(self, trace: Trace, arrived_s: Floats, *, rng: np.random.Generator) -> Workload:
        """Return a workload of the log's requests in order, repeated if there are more arrivals, with texts of a trace.

        Args:
            trace: each text is the beginning of one of its requests, drawn among those that are long enough.
            arrived_s: float64 (n,).
            rng: random numbers for the draws.

        Raises:
            UsageError: a request of the log is longer than all texts of the trace; names file and line.
        """

        def source(index: int) -> str:
            return f"{self.path}: line {self.line[index % len(self.line)]}"

        number = np.arange(len(arrived_s)) % len(self.tokens)
        tokens, lengths = self.tokens[number], trace.lengths
        if tokens.max() > lengths.max():
            raise UsageError(
                f"{source(int(tokens.argmax()))}: `tokens` must be at most {lengths.max()}, the length of the trace's "
                f"longest text, found {tokens.max()}"
            )
        order = lengths.argsort(kind="stable")
        shorter = np.searchsorted(lengths[order], tokens)
        request = order[rng.integers(shorter, trace.requests)]
        return Workload(arrived_s, request, tokens, self.prompt_tokens[number], source)


def read_requests(path: Path) -> Asked:
    """Read requests from JSON lines with `prompt_tokens`, `tokens` and, in all lines or none, `arrived_s`.

    Raises:
        UsageError: names file, line and field.
    """
    try:
        lines = read_text(path).split("\n")
        numbered = {number: _row(number, line) for number, line in enumerate(lines, 1) if line.strip()}
        _check_arrivals({number: row[2] for number, row in numbered.items() if row[2] is not None})
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {why(error)}") from error
    except RecordError as error:
        raise UsageError(f"{path}: {error}") from error
    rows = list(numbered.values())
    if not rows:
        raise UsageError(f"{path}: holds no requests")
    prompts, tokens, arrived = zip(*rows, strict=True)
    timed = [time for time in arrived if time is not None]
    if timed and len(timed) < len(rows):
        raise UsageError(f"{path}: `arrived_s` must be in all lines or in none, found {len(timed)} of {len(rows)}")
    line, arrived_s = np.array(list(numbered)), np.array(timed) if timed else None
    return Asked(path, line, np.array(prompts), np.array(tokens), arrived_s)


def _check_arrivals(arrived_s: Mapping[int, float]) -> None:
    """Raise RecordError, with the line, unless times rise from 0."""
    before = 0.0
    for number, time in arrived_s.items():
        if time < before:
            raise RecordError(f"line {number}: `arrived_s` must not fall, nor be negative, found {time:g}")
        before = time


def _row(number: int, line: str) -> tuple[int, int, float | None]:
    """Return prompt tokens, tokens and arrival of a line."""
    where = f"line {number}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from error
    counts = [get(record, name, int, where) for name in ("prompt_tokens", "tokens")]
    for name, count in zip(("prompt_tokens", "tokens"), counts, strict=True):
        if not 1 <= count <= MOST:
            raise RecordError(f"{where}: `{name}` must be in 1..{MOST}, found {count}")
    return counts[0], counts[1], get(record, "arrived_s", float, where) if "arrived_s" in record else None
