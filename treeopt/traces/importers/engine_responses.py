"""Acceptance that engines tell with each response: SGLang's `meta_info` or `sglext`, vLLM's and TensorRT-LLM's blocks.

Each is a histogram: entry j counts the steps that kept exactly j drafts, bonus excluded. vLLM may add the steps in
their order. Every response becomes a request of the trace, so intervals know how requests differ.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import TOLERATED, Chain, counted, histogram_of
from treeopt.traces.importers.source_file import objects
from treeopt.traces.trace_checks import MAX_DEPTH

# Keys of one meaning, by engine and age; the first that is there counts.
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram", "acceptance_histogram")
STEPS = ("spec_verify_ct", "num_spec_steps")
ACCEPTED = ("spec_num_correct_drafts", "num_accepted_draft_tokens", "total_accepted_draft_tokens")
DRAFTED = ("num_draft_tokens", "total_draft_tokens")  # SGLang's is not counted, but what was configured
LONGEST = "num_spec_tokens"
PER_STEP = ("per_step_accepted", "per_step_drafted")
MOST_STEPS = 10**6  # of one response
SHORT = (
    "a histogram of SGLang ends with the most drafts that a step kept: the chain is taken to be so long, and all its "
    "drafts of that length"
)


def read_responses(text: str, *, depth: int | None = None, uneven: bool = False) -> Chain:
    """The chain that these responses ran, each a request with its own steps.

    Args:
        text: JSON or lines of JSON; of a stream, the last chunk of a response counts.
        depth: drafts of the longest step, where the engine does not say.
        uneven: see `chains.counted`.

    Raises:
        TraceError: no statistics, or such as contradict each other; names the response.
    """
    found = _statistics(text)
    requests = [_lengths(held, f"response {number}") for number, held in enumerate(found)]
    known = [held[LONGEST] for held in found if held.get(LONGEST) is not None]
    longest = max(int(max(request)) for request in requests)
    chosen = max([longest, 1, *known]) if depth is None else depth
    if chosen > MAX_DEPTH:
        raise TraceError(f"a trace has at most {MAX_DEPTH} depths, asked for {chosen}")
    if longest > chosen:
        raise TraceError(f"a step kept {longest} drafts, asked for a depth of {chosen}")
    everything = np.concatenate([np.asarray(request) for request in requests])
    accepted = histogram_of(everything, chosen).tolist()
    tokens = [_number(held, DRAFTED) for held in found]
    total = None if None in tokens else sum(count for count in tokens if count is not None)
    steps = [held[PER_STEP[1]] for held in found if held.get(PER_STEP[1]) is not None]
    if (
        total is not None
        and total < len(everything) * chosen * (1 - TOLERATED)
        and not uneven
        and len(steps) == len(found)
    ):
        drafted = histogram_of(np.concatenate([np.asarray(part, dtype=np.int64) for part in steps]), chosen)
        return counted(accepted, steps=len(everything), drafted=drafted.tolist())
    chain = counted(accepted, steps=len(everything), draft_tokens=total, uneven=uneven)
    ordered = all(held.get(PER_STEP[0]) is not None for held in found)
    said = () if known or depth is not None else (SHORT,)
    return Chain(chain.survival, chain.steps, tuple(requests), ordered, (*chain.assumed, *said))


def _statistics(text: str) -> list[Mapping[str, Any]]:
    """The objects that hold a histogram with a step in it; the last of each `id`."""
    found: dict[Any, Mapping[str, Any]] = {}
    for number, held in enumerate(_holders(text)):
        name = held.get("id")
        found[name if isinstance(name, str) else number] = held
    counted_ones = [held for held in found.values() if any(_histogram(held, "a response"))]
    if not counted_ones:
        raise TraceError(f"no response has {', '.join(HISTOGRAM[:-1])} or {HISTOGRAM[-1]} with a step in it")
    return counted_ones


def _holders(text: str) -> Iterator[Mapping[str, Any]]:
    return (held for held in objects(text) if any(held.get(key) is not None for key in HISTOGRAM))


def _histogram(held: Mapping[str, Any], where: str) -> list[int]:
    key = next(key for key in HISTOGRAM if held.get(key) is not None)
    value = held[key]
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise TraceError(f"{where}: `{key}` must be a list of counts, found {value!r:.60}")
    if len(value) > MAX_DEPTH + 1 or sum(value) > MOST_STEPS:
        raise TraceError(f"{where}: `{key}` must have at most {MAX_DEPTH + 1} entries and {MOST_STEPS} steps")
    return value


def _lengths(held: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Drafts kept in each step, after every count has been held against the histogram."""
    histogram = _histogram(held, where)
    lengths = np.repeat(np.arange(len(histogram)), histogram)
    for keys, due in ((STEPS, len(lengths)), (ACCEPTED, int(lengths.sum()))):
        given = _number(held, keys, where)
        if given not in (None, due):
            raise TraceError(f"{where}: {' / '.join(k for k in keys if k in held)} is {given}, the histogram has {due}")
    known = held.get(LONGEST)
    if known is not None and (type(known) is not int or not lengths.max() <= known <= MAX_DEPTH):
        raise TraceError(f"{where}: `{LONGEST}` must be in {lengths.max()}..{MAX_DEPTH}, found {known!r:.40}")
    per_step, tried = (held.get(key) for key in PER_STEP)
    if per_step is None and tried is None:
        return tuple(lengths.tolist())
    for key, value in zip(PER_STEP, (per_step, tried), strict=True):
        if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
            raise TraceError(f"{where}: `{key}` must be a list of counts, found {value!r:.60}")
    assert per_step is not None
    if sorted(per_step) != lengths.tolist() or len(tried or ()) != len(per_step):
        raise TraceError(f"{where}: `{PER_STEP[0]}` and `{PER_STEP[1]}` do not fit the histogram")
    if any(kept > drafted for kept, drafted in zip(per_step, tried or (), strict=True)):
        raise TraceError(f"{where}: a step kept more than it drafted")
    return tuple(per_step)


def _number(held: Mapping[str, Any], keys: tuple[str, ...], where: str = "a response") -> int | None:
    for key in keys:
        value = held.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise TraceError(f"{where}: `{key}` must be a count, found {value!r:.40}")
        if value is not None:
            return value
    return None
