"""Traces in parts: several as one, and one as two. Knows nothing of files."""

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from treeopt.errors import TraceError, UsageError
from treeopt.storage.provenance import assumed_in, look
from treeopt.traces.trace import BY_ANCHOR, OPTIONAL, Candidates, Trace

SAME = ("target", "drafter", "verification", "temperature", "top_k", "top_p", "tree")  # for traces to be one
TELLING = 64  # bytes of compressed ranks that two texts do not share by chance; loops and perfect drafts take fewer


def joined(traces: Sequence[Trace], meta: Mapping[str, Any], names: Sequence[str] = ()) -> Trace:
    """All requests of several traces, numbered anew from 0; errors call the traces by `names`, or by number.

    Lengths of prompts are known of all requests or of none.

    Raises:
        TraceError: one is of another depth or width, or holds other arrays than the first.
    """
    first, called = traces[0], _called(traces, names)
    for trace, here in zip(traces, called, strict=True):
        for name in ("depth", "width"):
            if getattr(trace, name) != getattr(first, name):
                raise TraceError(f"{here} has {name} {getattr(trace, name)}, {called[0]} {getattr(first, name)}")
        for name in OPTIONAL:
            if name != "prompt_tokens" and (getattr(trace, name) is None) != (getattr(first, name) is None):
                raise TraceError(f"{here} and {called[0]} do not both hold `{name}`")
    before = np.cumsum([0, *(trace.requests for trace in traces)])
    domains = sorted({name for trace in traces for name in trace.domain_names})
    parts: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in ("position", "rank", *BY_ANCHOR)
        if getattr(first, name) is not None
    }
    if first.candidates is not None:
        parts["candidates"] = _joined_candidates([t.candidates for t in traces if t.candidates is not None])
    if first.domain is not None:
        labels = [[domains.index(t.domain_names[label]) for label in t.domain] for t in traces if t.domain is not None]
        parts["domain"] = np.concatenate(labels).astype(np.int16)
    prompts = [trace.prompt_tokens for trace in traces if trace.prompt_tokens is not None]
    if len(prompts) == len(traces):
        parts["prompt_tokens"] = np.concatenate(prompts)
    return Trace(
        request=np.concatenate(
            [trace.request_index + np.int32(start) for trace, start in zip(traces, before, strict=False)]
        ),
        width=first.width,
        meta=meta,
        domain_names=tuple(domains),
        **parts,
    )


def _called(traces: Sequence[Trace], names: Sequence[str]) -> Sequence[str]:
    return names or [f"trace {number}" for number in range(len(traces))]


def _joined_candidates(parts: Sequence[Candidates]) -> Candidates:
    sizes = np.concatenate([np.diff(part.offset) for part in parts])
    return Candidates(
        np.append(0, sizes.cumsum()),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("parent", "rank", "logprob", "hit")),
    )


@dataclass(frozen=True)
class Repeat:
    """Requests in a row that have the ranks of requests in a row of an earlier trace; the first of each, and how many.

    Attributes:
        trace: number of the later trace.
        request: its first.
        earlier: number of the earlier trace.
        first: its first.
        requests: how many.
    """

    trace: int
    request: int
    earlier: int
    first: int
    requests: int = 1


def repeats(traces: Sequence[Trace]) -> list[Repeat]:
    """Requests that seem to stand in two traces: their ranks are the same, and say enough to tell texts apart."""
    known: dict[bytes, tuple[int, int]] = {}
    found: list[Repeat] = []
    for number, trace in enumerate(traces):
        spans = zip(trace.starts.tolist(), trace.stops.tolist(), strict=True)
        own = [hashlib.sha256(trace.rank[start:stop].tobytes()).digest() for start, stop in spans]
        for request, ranks in enumerate(own):
            if ranks not in known:
                continue
            here = Repeat(number, request, *known[ranks])
            if found and here == _after(found[-1]):
                found[-1] = replace(found[-1], requests=found[-1].requests + 1)
            else:
                found.append(here)
        for request, ranks in enumerate(own):
            known.setdefault(ranks, (number, request))
    return [each for each in found if _telling(traces[each.trace], each)]


def _after(last: Repeat) -> Repeat:
    return Repeat(last.trace, last.request + last.requests, last.earlier, last.first + last.requests)


def _telling(trace: Trace, repeat: Repeat) -> bool:
    start, stop = trace.starts[repeat.request], trace.stops[repeat.request + repeat.requests - 1]
    return len(zlib.compress(trace.rank[start:stop].tobytes())) >= TELLING


def merged(traces: Sequence[Trace], names: Sequence[str] = ()) -> Trace:
    """Traces of the same models and rule, as one; errors call them by `names`, or by number.

    In `meta`, `merged` has what they differ in, in order, and `assumed` whatever any of them assumed. Requests in a
    row that stand in two traces are refused; of single ones, as of a prompt that was given twice, `assumed` tells.

    Raises:
        TraceError: they are of other models or rules, of the same texts, or do not fit; see `joined`.
    """
    called = _called(traces, names)
    for number, trace in enumerate(traces):
        for earlier, key in product(range(number), SAME):
            found, due = (each.meta.get(key) for each in (trace, traces[earlier]))
            if not _agree(found, due):
                raise TraceError(f"{called[number]} has {key} {json.dumps(found)}, {called[earlier]} {json.dumps(due)}")
        texts = trace.meta.get("text_sha256")
        if texts is not None and any(other.meta.get("text_sha256") == texts for other in traces[:number]):
            raise TraceError(f"{called[number]} holds texts that stand in the list before it")
    again = repeats(traces)
    for each in again:
        if each.requests > 1:
            raise TraceError(
                f"{each.requests} requests of {called[each.trace]} from {each.request} on have the ranks of those of "
                f"{called[each.earlier]} from {each.first} on: a text must not stand in two traces"
            )
    metas, untold = _with_settings([dict(trace.meta) for trace in traces])
    same = {key: value for key, value in metas[0].items() if all(meta.get(key, ...) == value for meta in metas)}
    if len(traces) == 1:
        return joined(traces, same, names)
    assumed = dict.fromkeys(sentence for meta in metas for sentence in assumed_in(meta))
    if again:
        assumed[f"requests of merged traces with the same ranks are of different texts ({len(again)} such)"] = None
    for part in untold:
        assumed[f"the settings of the {part} are the same in all merged traces; some do not tell them"] = None
    same |= {"assumed": list(assumed)} if assumed else {}
    same |= _added_up(traces)
    rest = [{key: value for key, value in meta.items() if key not in same} for meta in metas]
    counts = [{"requests": trace.requests} for trace in traces]
    return joined(traces, same | {"merged": [each | own for each, own in zip(counts, rest, strict=True)]}, names)


def _added_up(traces: Sequence[Trace]) -> dict[str, Any]:
    """What is told of traces by numbers that can be put together: shares of repeated text, by anchors; repetitions."""
    found: dict[str, Any] = {}
    weights = [trace.anchors for trace in traces]
    for part in ("written", "prompts"):
        shares = [look(trace.meta, "repeated_4grams", part) for trace in traces]
        if all(isinstance(share, float) for share in shares):
            mean = round(float(np.average(shares, weights=weights)), 4)
            found.setdefault("repeated_4grams", {})[part] = mean
    whole = [None if "split" in trace.meta else trace.meta.get("prompts_sha256") for trace in traces]
    again = sum(trace.requests for n, trace in enumerate(traces) if whole[n] is not None and whole[n] in whole[:n])
    told = [trace.meta.get("repeated_prompts") for trace in traces]
    again += sum(count for count in told if type(count) is int)
    return found | ({"repeated_prompts": again} if again else {})


def _agree(one: Any, other: Any) -> bool:
    """Whether two values of `meta` are the same; of models whose settings one does not tell, all else."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and ("settings" in one) != ("settings" in other):
        one, other = ({key: value for key, value in each.items() if key != "settings"} for each in (one, other))
    return bool(one == other)


def _with_settings(metas: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The same, models that agree told alike, and which of them some do not tell the settings of."""
    untold = []
    for part in ("target", "drafter"):
        told = [meta[part] for meta in metas if isinstance(meta.get(part), Mapping) and "settings" in meta[part]]
        if told and len(told) < len(metas):
            untold.append(part)
            metas = [meta | {part: told[0]} for meta in metas]
    return metas, untold


def halves(trace: Trace, *, share: float, seed: int) -> tuple[Trace, Trace]:
    """The two parts of `Trace.split`, with what they are in `meta`.

    `text_sha256` of a part is derived from the whole's: the parts may be merged, but neither with itself.

    Raises:
        UsageError: a share that is not between 0 and 1.
        TraceError: see `Trace.split`.
    """
    if not 0 < share < 1:
        raise UsageError(f"share must lie between 0 and 1, got {share}: each part has requests")
    parts = trace.split(share=share, rng=np.random.default_rng(seed))
    whole = trace.meta.get("text_sha256")
    found = []
    for name, part in zip(("first", "rest"), parts, strict=True):
        own = {"share": share, "seed": seed, "part": name, "requests": trace.requests}
        meta = {**trace.meta, "split": own | ({"before": trace.meta["split"]} if "split" in trace.meta else {})}
        if whole is not None:
            meta["text_sha256"] = hashlib.sha256(json.dumps([whole, own]).encode()).hexdigest()[:16]
        found.append(replace(part, meta=meta))
    return found[0], found[1]
