"""Merge several traces into one, and split one trace into two. Knows nothing of files."""

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
from treeopt.traces.candidates import concatenate
from treeopt.traces.trace import BY_ANCHOR, OPTIONAL, Trace

# Must agree in merged traces.
SAME = ("target", "drafter", "verification", "temperature", "top_k", "top_p", "tree", "confidence")
DISTINCTIVE = 64  # bytes of compressed ranks that two texts do not share by chance; loops and perfect drafts take fewer


def concatenate_traces(traces: Sequence[Trace], meta: Mapping[str, Any], names: Sequence[str] = ()) -> Trace:
    """Concatenate the requests of several traces, renumbered from 0; errors call the traces by `names`, or by number.

    Prompt lengths are dropped unless every trace has them.

    Raises:
        TraceError: a trace of another depth or width, or with other arrays than the first.
    """
    first, labels = traces[0], _labels(traces, names)
    for trace, label in zip(traces, labels, strict=True):
        for name in ("depth", "width"):
            if getattr(trace, name) != getattr(first, name):
                raise TraceError(f"{label} has {name} {getattr(trace, name)}, {labels[0]} {getattr(first, name)}")
        for name in OPTIONAL:
            if name != "prompt_tokens" and (getattr(trace, name) is None) != (getattr(first, name) is None):
                raise TraceError(f"{label} and {labels[0]} do not both hold `{name}`")
    before = np.cumsum([0, *(trace.requests for trace in traces)])
    domains = sorted({name for trace in traces for name in trace.domain_names})
    parts: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in ("position", "rank", *BY_ANCHOR)
        if getattr(first, name) is not None
    }
    if first.candidates is not None:
        parts["candidates"] = concatenate([t.candidates for t in traces if t.candidates is not None])
    if first.domain is not None:
        indices = [[domains.index(t.domain_names[i]) for i in t.domain] for t in traces if t.domain is not None]
        parts["domain"] = np.concatenate(indices).astype(np.int16)
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


def _labels(traces: Sequence[Trace], names: Sequence[str]) -> Sequence[str]:
    return names or [f"trace {number}" for number in range(len(traces))]


@dataclass(frozen=True)
class Repeat:
    """A run of requests whose ranks equal those of a run of requests of an earlier trace.

    Attributes:
        trace: number of the later trace.
        request: first request of the run there.
        earlier: number of the earlier trace.
        first: first request of the run there.
        requests: length of the run.
    """

    trace: int
    request: int
    earlier: int
    first: int
    requests: int = 1

    @property
    def next(self) -> "Repeat":
        """The repeat that would continue the run."""
        return Repeat(self.trace, self.request + self.requests, self.earlier, self.first + self.requests)


def repeats(traces: Sequence[Trace]) -> list[Repeat]:
    """Return the requests that seem to stand in two traces: equal ranks, long and varied enough to identify a text."""
    known: dict[bytes, tuple[int, int]] = {}
    runs: list[Repeat] = []
    for number, trace in enumerate(traces):
        spans = zip(trace.starts.tolist(), trace.stops.tolist(), strict=True)
        hashes = [hashlib.sha256(trace.rank[start:stop].tobytes()).digest() for start, stop in spans]
        for request, ranks in enumerate(hashes):
            if ranks not in known:
                continue
            repeat = Repeat(number, request, *known[ranks])
            if runs and repeat == runs[-1].next:
                runs[-1] = replace(runs[-1], requests=runs[-1].requests + 1)
            else:
                runs.append(repeat)
        for request, ranks in enumerate(hashes):
            known.setdefault(ranks, (number, request))
    return [run for run in runs if _distinctive(traces[run.trace], run)]


def _distinctive(trace: Trace, repeat: Repeat) -> bool:
    start, stop = trace.starts[repeat.request], trace.stops[repeat.request + repeat.requests - 1]
    return len(zlib.compress(trace.rank[start:stop].tobytes())) >= DISTINCTIVE


def merge_traces(traces: Sequence[Trace], names: Sequence[str] = ()) -> Trace:
    """Merge traces of the same models and rule into one; errors call them by `names`, or by number.

    In `meta`, `merged` lists the values that differ, in order, and `assumed` everything that any trace assumed. A run
    of requests that stands in two traces raises an error; a single one, such as a prompt given twice, is recorded in
    `assumed`.

    Raises:
        TraceError: other models or rules, the same texts, or traces that do not fit together (`concatenate_traces`).
    """
    labels = _labels(traces, names)
    for number, trace in enumerate(traces):
        for earlier, key in product(range(number), SAME):
            value, first = (t.meta.get(key) for t in (trace, traces[earlier]))
            if not _agree(value, first):
                raise TraceError(
                    f"{labels[number]} has {key} {json.dumps(value)}, {labels[earlier]} {json.dumps(first)}"
                )
        texts = trace.meta.get("text_sha256")
        if texts is not None and any(other.meta.get("text_sha256") == texts for other in traces[:number]):
            raise TraceError(f"{labels[number]} holds texts that stand in the list before it")
    repeated = repeats(traces)
    for run in repeated:
        if run.requests > 1:
            raise TraceError(
                f"{run.requests} requests of {labels[run.trace]} from {run.request} on have the ranks of those of "
                f"{labels[run.earlier]} from {run.first} on: a text must not stand in two traces"
            )
    metas, incomplete = _with_settings([dict(trace.meta) for trace in traces])
    same = {key: value for key, value in metas[0].items() if all(meta.get(key, ...) == value for meta in metas)}
    if len(traces) == 1:
        return concatenate_traces(traces, same, names)
    assumed = dict.fromkeys(sentence for meta in metas for sentence in assumed_in(meta))
    if repeated:
        assumed[f"requests of merged traces with the same ranks have different texts ({len(repeated)} such)"] = None
    for model in incomplete:
        assumed[f"the settings of the {model} are the same in all merged traces; some do not record them"] = None
    same |= {"assumed": list(assumed)} if assumed else {}
    same |= _repetition(traces)
    different = [{key: value for key, value in meta.items() if key not in same} for meta in metas]
    counts = [{"requests": trace.requests} for trace in traces]
    parts = [count | meta for count, meta in zip(counts, different, strict=True)]
    return concatenate_traces(traces, same | {"merged": parts}, names)


def _repetition(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return `meta` keys that can be summed up: the anchor-weighted share of repeated text, and repeated prompts."""
    meta: dict[str, Any] = {}
    weights = [trace.anchors for trace in traces]
    for part in ("written", "prompts"):
        shares = [look(trace.meta, "repeated_4grams", part) for trace in traces]
        if all(isinstance(share, float) for share in shares):
            mean = round(float(np.average(shares, weights=weights)), 4)
            meta.setdefault("repeated_4grams", {})[part] = mean
    prompts = [None if "split" in trace.meta else trace.meta.get("prompts_sha256") for trace in traces]
    repeated = sum(t.requests for n, t in enumerate(traces) if prompts[n] is not None and prompts[n] in prompts[:n])
    recorded = [trace.meta.get("repeated_prompts") for trace in traces]
    repeated += sum(count for count in recorded if type(count) is int)
    return meta | ({"repeated_prompts": repeated} if repeated else {})


def _agree(one: Any, other: Any) -> bool:
    """Return True if two values of `meta` are equal, apart from model settings that only one of them records."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and ("settings" in one) != ("settings" in other):
        one, other = ({key: value for key, value in model.items() if key != "settings"} for model in (one, other))
    return bool(one == other)


def _with_settings(metas: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Complete model settings that some of the metas lack; also return the names of those models."""
    incomplete = []
    for model in ("target", "drafter"):
        complete = [meta[model] for meta in metas if isinstance(meta.get(model), Mapping) and "settings" in meta[model]]
        if complete and len(complete) < len(metas):
            incomplete.append(model)
            metas = [meta | {model: complete[0]} for meta in metas]
    return metas, incomplete


def halves(trace: Trace, *, share: float, seed: int) -> tuple[Trace, Trace]:
    """Split a trace as `Trace.split` does, and record in `meta` which part each one is.

    `text_sha256` of a part is derived from the whole's: the parts may be merged, but neither with itself.

    Raises:
        UsageError: a share that is not between 0 and 1.
        TraceError: see `Trace.split`.
    """
    if not 0 < share < 1:
        raise UsageError(f"share must lie between 0 and 1, got {share}: each part needs requests")
    parts = trace.split(share=share, rng=np.random.default_rng(seed))
    whole = trace.meta.get("text_sha256")
    labelled = []
    for name, part in zip(("first", "rest"), parts, strict=True):
        split = {"share": share, "seed": seed, "part": name, "requests": trace.requests}
        meta = {**trace.meta, "split": split | ({"before": trace.meta["split"]} if "split" in trace.meta else {})}
        if whole is not None:
            meta["text_sha256"] = hashlib.sha256(json.dumps([whole, split]).encode()).hexdigest()[:16]
        labelled.append(replace(part, meta=meta))
    return labelled[0], labelled[1]
