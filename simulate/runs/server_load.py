"""The load of a server: when requests arrive, how many days are simulated, which latencies count as good; and how many
requests a server was seen to decode at once, as shares of time.
"""

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray

from simulate.runs.timeline import Floats, Ints, RequestTimes
from treeopt.errors import UsageError
from treeopt.settings import Settings, setting
from treeopt.statistics import Estimate, ratio
from treeopt.storage.json_records import RecordError, reading
from treeopt.storage.typed_records import Finite, Record, read_record
from treeopt.storage.user_files import read_text
from treeopt.traces.trace import Trace

Tokens = Annotated[int, Meta(ge=1, le=2**31)]  # of a request
MOST = 10**7  # arrivals on all days together
# Gauges of engines, and vLLM's log; a file may hold any number of scrapes, one after the other.
GAUGE = re.compile(
    r"(?m)^(?:\w*?(?:(?:vllm|lmdeploy|trtllm)[:_]num_requests_running|sglang[:_]num_running_reqs"
    r"|llamacpp[:_]requests_processing)\b\S*|.*generation throughput: .*\bRunning:)\s+(\S+)"
)
LOADS = 8  # numbers of requests that are simulated
MOST_RUNNING = 2**14


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order in which they arrive.

    Attributes:
        arrived_s: float64 (n,), non-decreasing.
        request: int64 (n,), index of the trace's request whose text is written.
        tokens: int64 (n,), tokens of that text that are written, from its beginning.
        prompt_tokens: int64 (n,), or None where they are not known.
        source: index of a request -> the file and line it was read from, for messages; empty without a file.
    """

    arrived_s: Floats
    request: Ints
    tokens: Ints
    prompt_tokens: Ints | None = None
    source: Callable[[int], str] = lambda index: ""


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
    with reading(path, UsageError):
        lines = read_text(path).split("\n")
        numbered = {number: _row(number, line) for number, line in enumerate(lines, 1) if line.strip()}
        arrivals = {n: row.arrived_s for n, row in numbered.items() if row.arrived_s is not UNSET}
        for (number, time), before in zip(arrivals.items(), [0.0, *arrivals.values()], strict=False):
            if time < before:
                raise RecordError(f"line {number}: `arrived_s` must not fall, nor be negative, found {time:g}")
    if not numbered:
        raise UsageError(f"{path}: holds no requests")
    rows = list(numbered.values())
    if 0 < len(arrivals) < len(rows):
        raise UsageError(f"{path}: `arrived_s` must be in all lines or in none, found {len(arrivals)} of {len(rows)}")
    prompts, tokens = np.array([row.prompt_tokens for row in rows]), np.array([row.tokens for row in rows])
    arrived_s = np.array(list(arrivals.values())) if arrivals else None
    return Asked(path, np.array(list(numbered)), prompts, tokens, arrived_s)


class _Line(Record, frozen=True):
    """A line of a log of requests."""

    prompt_tokens: Tokens
    tokens: Tokens
    arrived_s: Finite | UnsetType = UNSET


def _row(number: int, line: str) -> _Line:
    """Return the request of a line."""
    where = f"line {number}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f'{where}: is no JSON such as {{"prompt_tokens": 99, "tokens": 99}}: {error}') from error
    return read_record(record, _Line, where)


SERVER: Mapping[str, float] = MappingProxyType({"requests": 1000, "replications": 5, "warmup": 0.1, "switch_s": 0.0})


@dataclass(frozen=True, kw_only=True)
class Load(Settings):
    """The load of a simulated server: arrivals, replications, limits of a well-served request; None: not given."""

    arrivals: float | None = setting(None, least=1e-9, most=1e9, help="Simulate a server: requests per second.")
    capacity: float | None = setting(
        None,
        above=0,
        most=1,
        help="In place of --arrivals: find the highest rate at which this share of the requests keeps --ttft-s and "
        "--tpot-s.",
    )
    requests_file: Path | None = setting(
        None, help="Lengths of the server's requests: JSON lines with prompt_tokens, tokens [, arrived_s]."
    )
    requests: int | None = setting(
        None, least=2, help=f"Number of arrivals; default {SERVER['requests']}, or the file's."
    )
    replications: int | None = setting(
        None, least=2, help=f"Number of independent days; default {SERVER['replications']}."
    )
    warmup: float | None = setting(
        None, least=0, most=0.9, help=f"Share of each day that is left out; default {SERVER['warmup']}."
    )
    ttft_s: float | None = setting(None, above=0, help="Goodput: maximum seconds to the first token.")
    tpot_s: float | None = setting(None, above=0, help="Goodput: maximum seconds per token after the first.")
    switch_s: float | None = setting(
        None, least=0, most=1e9, help="Seconds that a change to another tree takes; default 0."
    )

    def check(self) -> None:
        """Raise UsageError for more arrivals in all than `MOST`."""
        requests = SERVER["requests"] if self.requests is None else self.requests
        days = SERVER["replications"] if self.replications is None else self.replications
        if requests * days > MOST:
            raise UsageError(f"--requests {requests} for {days} --replications are more than {MOST} arrivals in all")

    @property
    def given(self) -> bool:
        """The caller asks for a server.

        Raises:
            UsageError: settings of a server without arrivals, or both a rate and `capacity`.
        """
        if self.capacity is not None:
            if self.arrivals is not None:
                raise UsageError("--capacity finds the rate that --arrivals gives; use one of them")
            if self.ttft_s is None and self.tpot_s is None:
                raise UsageError("--capacity needs limits: give --ttft-s, --tpot-s or both")
            return True
        if self.arrivals is not None or self.requests_file is not None:
            return True
        for name, value in asdict(self).items():
            if value is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} is for a server: give --arrivals, --capacity or --requests-file")
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON values, defaults filled in; `requests` of a file stay None."""
        defaults = dict(SERVER)
        if self.requests_file is not None:
            del defaults["requests"]
        given = {name: value for name, value in asdict(self).items() if value is not None}
        file = {} if self.requests_file is None else {"requests_file": self.requests_file.name}
        return dict.fromkeys(asdict(self)) | defaults | given | file

    @property
    def slo(self) -> dict[str, float | None]:
        """The limits of a request's latencies as JSON values; None: no limit."""
        return {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s}

    def met(self, timeline: RequestTimes) -> NDArray[np.bool_]:
        """Return which requests are within the limits, bool (R,)."""
        within = np.ones(len(timeline.tokens), dtype=bool)
        if self.ttft_s is not None:
            within &= timeline.ttft_s <= self.ttft_s
        if self.tpot_s is not None:
            within &= ~(timeline.tpot_s > self.tpot_s)  # a request of one token has none
        return within

    @cached_property
    def asked(self) -> Asked | None:
        """The requests of the file, if there is one.

        Raises:
            UsageError: the file is broken, or neither it nor the caller says when requests arrive.
        """
        if self.requests_file is None:
            return None
        asked = read_requests(self.requests_file)
        if self.arrivals is None and self.capacity is None and asked.arrived_s is None:
            raise UsageError(f"{self.requests_file}: its requests have no `arrived_s`: give --arrivals")
        if self.arrivals is None and self.capacity is None and self.requests is not None:
            raise UsageError("--requests counts arrivals at a rate: give --arrivals")
        return asked

    def workload(
        self, trace: Trace, prompt_tokens: int | Ints | None, rng: np.random.Generator, *, rate: float | None
    ) -> Workload:
        """Return one day's requests: at `rate` per second (Poisson), or when the file says (None).

        Without a file requests of the trace are drawn, which may repeat, and their whole texts are written.

        Args:
            trace: the requests' texts.
            prompt_tokens: prompt length of all requests, or of each of the trace's, (R,); None: not known.
            rng: random numbers.
            rate: mean requests per second.
        """
        if rate is None:
            assert self.asked is not None
            assert self.asked.arrived_s is not None
            return self.asked.on(trace, self.asked.arrived_s, rng=rng)
        count = self.settings["requests"] or (0 if self.asked is None else len(self.asked.tokens))
        arrived_s = np.cumsum(rng.exponential(1 / rate, count))
        if self.asked is not None:
            return self.asked.on(trace, arrived_s, rng=rng)
        request = rng.integers(0, trace.requests, count)
        prompts = None if prompt_tokens is None else np.broadcast_to(prompt_tokens, trace.requests)[request]
        return Workload(arrived_s, request, trace.lengths[request], prompts)

    def description(self, trace: Trace) -> str:
        """Return what is simulated, in words."""
        settings = self.settings
        count = settings["requests"] or "The file's"
        limits = [f"{name} {value:g} s" for name, value in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s)) if value]
        days = (
            f"texts drawn from the trace's {trace.requests}; {settings['replications']} independent days, the first "
            f"{settings['warmup']:.0%} of each left out; 95 % intervals over days"
        )
        if self.capacity is not None:
            return (
                f"The highest rate of Poisson arrivals, to 1 %, at which {self.capacity:.4g} of the requests are "
                f"within {' and '.join(limits)} and the queue grows by no more than 1 % of the arrivals. {count} "
                f"requests per day, {days}, ratios paired by day; with the errors of the trace's "
                "tokens per step and of a step over a plain step, plain steps being taken as predicted."
            )
        when = f"at {self.arrivals:g} per second (Poisson)" if self.arrivals is not None else "when the file says"
        return f"{count} requests arrive {when}, {days}. Goodput: within {' and '.join(limits) or 'no limit'}."


def read_running(path: Path) -> dict[int, float]:
    """Return running requests -> share of the time that the server is busy, at most `LOADS` of them.

    The file is a table `requests,share` (CSV), vLLM's log, or scrapes of `/metrics` with a gauge of running requests;
    tokens per step count prompts, too, and are not read. Neighbours are joined, at their mean.

    Raises:
        UsageError: names the file and what it must hold.
    """
    with reading(path, UsageError):
        text = read_text(path)
    shares = defaultdict[float, float](float)
    try:
        if text.lstrip().lower().startswith("requests"):
            for row in csv.DictReader(text.split("\n"), skipinitialspace=True):
                shares[float(row["requests"])] += float(row["share"])
        for value in GAUGE.findall(text):
            shares[float(value)] += 1
        if wrong := [(n, share) for n, share in shares.items() if not (n >= 0 and share >= 0)]:
            raise ValueError(f"{wrong[0][0]:g} requests, {wrong[0][1]:g} of the time")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is no distribution of running requests such as 8,0.25: {error!s:.80}") from error
    busy = sorted((n, share) for n, share in shares.items() if n >= 1 and share > 0)
    if not busy or busy[-1][0] > MOST_RUNNING or not np.isfinite(sum(share for _, share in busy)):
        raise UsageError(
            f"{path}: must hold running requests from 1 to {MOST_RUNNING}: a CSV `requests,share`, vLLM's log, or "
            "/metrics with vllm:num_requests_running, sglang:num_running_reqs or llamacpp:requests_processing, scraped "
            "while requests run"
        )
    sizes, weights = np.array(busy).T
    group = np.minimum((weights.cumsum() - weights / 2) / weights.sum() * LOADS, LOADS - 1).astype(int)
    group = group if len(busy) > LOADS else np.arange(len(busy))
    joined = defaultdict[int, float](float)
    for place in np.unique(group):
        part = group == place
        joined[round(float(np.average(sizes[part], weights=weights[part])))] += float(
            weights[part].sum() / weights.sum()
        )
    return dict(sorted(joined.items()))


def replicate(
    simulation: Callable[[np.random.Generator], Mapping[str, float]], *, replications: int, seed: int = 0
) -> dict[str, Estimate]:
    """Return the mean figures of independent runs with 95 % intervals (Student's t over the runs).

    Args:
        simulation: one run, given its random numbers.
        replications: number of runs, at least 1; a single run has no interval.
        seed: seed of all runs.
    """
    seeds = np.random.SeedSequence(seed).spawn(replications)
    runs = [simulation(np.random.default_rng(seed_of_run)) for seed_of_run in seeds]
    names, ones = dict.fromkeys(name for run in runs for name in run), np.ones(replications)
    estimates = {}
    for name in names:
        mean = ratio(np.array([run.get(name, 0.0) for run in runs]), ones)
        least = -math.inf if name == "piled" else 0.0  # a queue may also become shorter
        most = 1.0 if name in ("within", "busy") or name.startswith("tree_") else math.inf
        estimates[name] = Estimate(mean.value, max(least, mean.low), min(most, mean.high))
    return estimates
