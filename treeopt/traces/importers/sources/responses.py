"""Read acceptance statistics in engines' responses: SGLang's `meta_info` or `sglext`, vLLM's and TensorRT-LLM's blocks.

Each is a histogram: entry j counts the steps that accepted exactly j drafts, bonus excluded. vLLM may add the steps in
their order. Every response becomes a request of the trace, so intervals include the differences between requests.
AIPerf keeps the same blocks in its records (profile_export.jsonl), with a sparse histogram; SGLang prints them in
its log.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import (
    TOLERATED,
    Chain,
    chain_from_counts,
    survival_counts,
    with_undrafted,
)
from treeopt.traces.importers.source_file import is_json, parsed
from treeopt.traces.importers.trace_source import Content, Output, TraceSource
from treeopt.traces.trace import MAX_DEPTH

# Keys of the same meaning, by engine and age; the first that is present counts.
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram", "acceptance_histogram")
STEPS = ("spec_verify_ct", "num_spec_steps")
ACCEPTED = ("spec_num_correct_drafts", "num_accepted_draft_tokens", "total_accepted_draft_tokens")
DRAFTED = ("num_draft_tokens", "total_draft_tokens")  # SGLang's number is not counted: it is the configured one
LONGEST = "num_spec_tokens"
PER_STEP = ("per_step_accepted", "per_step_drafted")
WRITTEN = "completion_tokens"  # of the `usage` of a response with one choice
MAX_RESPONSE_STEPS = 10**6
LONGEST_COUNT = 20  # characters of a printed count, spaces among them
SHORT = (
    "a histogram of SGLang ends with the most drafts that a step accepted: this is taken to be the length of the chain "
    "and of all its drafts"
)
_LOGGED = re.compile(rf"""(["']?)\b({"|".join(HISTOGRAM[:2])})\1\s*[:=]\s*\[([\d,\s]{{0,2000}})\]""")
_INNER = re.compile(r"\{[^{}]*\}")
NEAR = 4000  # characters around a printed histogram that are searched for its `id`
_ID = re.compile(r"""(["'])id\1\s*:\s*["']([^"']+)["']""")

_Place = tuple[str | int, ...]  # `id` of a response, and where in it
_Placed = tuple[_Place | None, Mapping[str, Any]]


def holds_responses(content: Content) -> bool:
    """Return True if a histogram is in JSON, in lines of SGLang's log, or in a printed response."""
    if content.values is None:
        return _LOGGED.search(content.text) is not None and bool(_logged(content.text))
    return bool(content.with_key(*HISTOGRAM))


def read_responses(content: Content, *, depth: int | None = None, uneven: bool = False) -> Chain:
    """Return the chain that these responses ran, each a request with its own steps.

    Args:
        content: JSON or lines of JSON, where the last chunk of a response counts; or SGLang's log.
        depth: drafts of the longest step, if the engine does not record it.
        uneven: see `chain_counts.chain_from_counts`.

    Raises:
        TraceError: no statistics, or statistics that contradict each other; names the response.
    """
    stats = _statistics(content)
    requests = [_lengths(record, f"response {number}") for number, record in enumerate(stats)]
    per_step = [list(record[PER_STEP[1]]) for record in stats if record.get(PER_STEP[1]) is not None]
    known = [record[LONGEST] for record in stats if record.get(LONGEST) is not None]
    longest = max(int(max(request)) for request in requests)
    chosen = max([longest, 1, *known]) if depth is None else depth
    if chosen > MAX_DEPTH:
        raise TraceError(f"a trace has at most {MAX_DEPTH} depths, got a depth of {chosen}")
    if longest > chosen:
        raise TraceError(f"a step accepted {longest} drafts, more than the depth of {chosen}")
    lengths = np.concatenate([np.asarray(request) for request in requests])
    accepted = survival_counts(lengths, chosen).tolist()
    tokens = [_number(record, DRAFTED) for record in stats]
    total = None if None in tokens else sum(count for count in tokens if count is not None)
    complete = len(per_step) == len(stats)
    if not complete and total == chosen * len(lengths):  # each draft was a full one
        per_step = [[chosen] * len(request) for request in requests]
    idle = [_undrafted(record, request) for record, request in zip(stats, requests, strict=True)]
    if len(per_step) < len(stats) or sum(idle) <= TOLERATED * len(lengths):
        idle = [0] * len(idle)
    if complete and not uneven and total is not None and total < len(lengths) * chosen * (1 - TOLERATED):
        drafted = survival_counts(np.concatenate([np.asarray(part, dtype=np.int64) for part in per_step]), chosen)
        return with_undrafted(chain_from_counts(accepted, steps=len(lengths), drafted=drafted.tolist()), sum(idle))
    assumed = () if known or depth is not None else (SHORT,)
    chain = chain_from_counts(accepted, steps=len(lengths), draft_tokens=total, uneven=uneven, assumed=assumed)
    requests = [request + (0,) * count for request, count in zip(requests, idle, strict=True)]
    tried = [(*part, *[0] * count) for part, count in zip(per_step, idle, strict=True)] if complete or any(idle) else []
    chain = replace(with_undrafted(chain, sum(idle)), requests=tuple(requests), drafted=tuple(tried))
    return replace(chain, ordered=complete and not any(idle))


def _undrafted(record: Mapping[str, Any], accepted: Sequence[int]) -> int:
    """Return the steps of a response that drafted nothing, which vLLM leaves out: a token each, after prefill's."""
    written = record.get(WRITTEN)
    return max(0, written - 1 - len(accepted) - sum(accepted)) if type(written) is int else 0


def _statistics(content: Content) -> list[Mapping[str, Any]]:
    """Return the objects whose histogram has a step; of the chunks of a stream the last.

    A record of the same place in a response of the same `id` is a later chunk if no entry is smaller than before, and
    another response otherwise: names may come again in another run.
    """
    stats, histograms = list[Mapping[str, Any]](), list[list[int]]()
    latest: dict[_Place, int] = {}
    for place, record in _logged(content.text) if content.values is None else _responses(content.values):
        histogram = _histogram(record, "a response")
        at = len(stats) if place is None else latest.get(place, len(stats))
        if at == len(stats) or any(now < then for now, then in zip_longest(histogram, histograms[at], fillvalue=0)):
            at = len(stats)
            stats.append(record)
            histograms.append(histogram)
        stats[at], histograms[at] = record, histogram
        if place is not None:
            latest[place] = at
    counted = [record for record, histogram in zip(stats, histograms, strict=True) if any(histogram)]
    if not counted:
        raise TraceError(f"no response has {', '.join(HISTOGRAM[:-1])} or {HISTOGRAM[-1]} with a step in it")
    return counted


def _responses(values: Sequence[Any]) -> Iterator[_Placed]:
    """Yield the objects with a histogram, also in strings of raw responses, and their places.

    An object within a response of one choice also has the tokens that were written, if the response counts them.
    """
    stack: list[tuple[Any, _Place | None, Mapping[str, Any]]] = [(value, None, {}) for value in values[::-1]]
    while stack:
        value, place, more = stack.pop()
        inner: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            place = (value["id"],) if isinstance(value.get("id"), str) else place
            inner, usage, choices = list(value.items()), value.get("usage"), value.get("choices")
            if isinstance(usage, dict) and isinstance(choices, list):
                more = {WRITTEN: usage.get(WRITTEN)} if len(choices) == 1 else {}
            if any(value.get(key) for key in HISTOGRAM):
                yield place, {**more, **value}
        elif isinstance(value, list):
            indices = [part.get("index") if isinstance(part, dict) else None for part in value]  # of choices
            inner = [(i if type(i) is int else n, part) for n, (i, part) in enumerate(zip(indices, value, strict=True))]
        elif isinstance(value, str) and "_histogram" in value:
            with suppress(TraceError):
                yield from _responses(parsed(value))
        stack.extend((part, None if place is None else (*place, key), more) for key, part in reversed(inner))


def _logged(text: str) -> list[_Placed]:
    """Return the histograms in the lines of a log, a record for each: lines of JSON, and others that print them.

    SGLang gives one under its new and its old name: both on a line are one record.

    Raises:
        TraceError: a line that begins as JSON does is damaged.
    """
    records: list[_Placed] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not any(name in line for name in HISTOGRAM):
            continue
        if is_json(line):
            try:
                records += _responses(parsed(line))
            except TraceError as error:
                raise TraceError(f"line {number}: {error}") from error
            continue
        end, record = 0, dict[str, Any]()
        for match in _LOGGED.finditer(line):
            if match[2] in record or not record:
                record = {}
                before, after = line[max(end, match.start() - NEAR) : match.start()], line[match.end() :][:NEAR]
                records.append((_printed_place(before, after), record))
            parts = [part for part in match[3].split(",") if part.strip()]  # what is no count is for the check
            record[match[2]] = [int(p) if p.strip().isdecimal() and len(p) <= LONGEST_COUNT else p for p in parts]
            end = match.end()
    return records


def _printed_place(before: str, after: str) -> _Place | None:
    """Return the place by the `id` that is printed in the same braces as a histogram."""
    for _ in range(2):  # levels of braces within them
        before, after = _INNER.sub("", before), _INNER.sub("", after)
    name = _ID.search(f"{before.rpartition('{')[2]},{after.partition('}')[0]}")
    return (name[2],) if name else None


def _histogram(record: Mapping[str, Any], where: str) -> list[int]:
    """Return a histogram as counts of 0, 1, ...; sparse ones have the numbers of drafts as keys."""
    key = next(key for key in HISTOGRAM if record.get(key) is not None)
    value = record[key]
    if isinstance(value, dict):
        if not all(isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 4 for name in value):
            raise TraceError(f"{where}: `{key}` must have numbers of drafts as keys, found {list(value)!r:.60}")
        sparse = {int(name): count for name, count in value.items()}
        value = [sparse.get(number, 0) for number in range(max(sparse, default=0) + 1)]
    _check_counts(value, key, where)
    if len(value) > MAX_DEPTH + 1 or sum(value) > MAX_RESPONSE_STEPS:
        raise TraceError(f"{where}: `{key}` must have at most {MAX_DEPTH + 1} entries and {MAX_RESPONSE_STEPS} steps")
    return list(value)


def _check_counts(value: Any, key: str, where: str) -> None:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise TraceError(f"{where}: `{key}` must be a list of counts, found {value!r:.60}")


def _lengths(record: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Return the drafts accepted in each step, after checking every count against the histogram."""
    histogram = _histogram(record, where)
    lengths = np.repeat(np.arange(len(histogram)), histogram)
    for keys, expected in ((STEPS, len(lengths)), (ACCEPTED, int(lengths.sum()))):
        number = _number(record, keys, where)
        if number not in (None, expected):
            key = " / ".join(k for k in keys if k in record)
            raise TraceError(f"{where}: {key} is {number}, the histogram has {expected}")
    longest = record.get(LONGEST)
    if longest is not None and (type(longest) is not int or not lengths.max() <= longest <= MAX_DEPTH):
        raise TraceError(f"{where}: `{LONGEST}` must be in {lengths.max()}..{MAX_DEPTH}, found {longest!r:.40}")
    if all(record.get(key) is None for key in PER_STEP):
        return tuple(lengths.tolist())
    for key in PER_STEP:
        _check_counts(record.get(key), key, where)
    accepted, drafted = (record[key] for key in PER_STEP)
    if sorted(accepted) != lengths.tolist() or len(drafted) != len(accepted):
        raise TraceError(f"{where}: `{PER_STEP[0]}` and `{PER_STEP[1]}` do not fit the histogram")
    if any(number > tried for number, tried in zip(accepted, drafted, strict=True)):
        raise TraceError(f"{where}: a step accepted more than it drafted")
    return tuple(accepted)


def _number(record: Mapping[str, Any], keys: tuple[str, ...], where: str = "a response") -> int | None:
    """Return the count under the first of the keys that is present, or None."""
    for key in keys:
        value = record.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise TraceError(f"{where}: `{key}` must be a count, found {value!r:.40}")
        if value is not None:
            return value
    return None


ENTRY = TraceSource(
    name="responses",
    title="histograms of responses",
    settings={
        "depth": "length of the chain, for responses that do not state it",
        "uneven": "count what short drafts left out as rejected",
    },
    holds=holds_responses,
    chain=read_responses,
    outputs=(
        Output(
            "vLLM",
            "steps of each request",
            "the responses of a server started with `--per-request-spec-decode-metrics detailed`",
            first=0,
        ),
        Output(
            "SGLang",
            "a histogram for each request",
            "`meta_info` of `/generate`; `return_spec_tokens_details: true` in OpenAI-style requests; the log with "
            "`--log-requests`",
        ),
        Output(
            "TensorRT-LLM", "a histogram for each request", "responses with `per_request_spec_decode_stats`", first=1
        ),
        Output("AIPerf", "a histogram for each request", "`profile_export.jsonl` of `--export-level records`", first=1),
    ),
)
