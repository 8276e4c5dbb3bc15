"""Traces of several drafters: whether they are of the same prompts, and what else keeps them from being alike."""

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Literal

import numpy as np

from treeopt.cost_model import far
from treeopt.errors import UsageError
from treeopt.storage.provenance import look, rule_in, same_model
from treeopt.traces.trace import Trace

Pairing = Literal["texts", "prompts", "told"]
HASHES: dict[Pairing, str] = {"texts": "text_sha256", "prompts": "prompts_sha256"}

# What all must share, of traces and of step times, and whether two provenances do.
Same = Callable[[Any, Any], bool]
TEXTS: dict[str, Same] = {
    "targets": lambda one, other: same_model(look(one, "target"), look(other, "target")),
    "number types": lambda one, other: look(one, "target", "dtype") == look(other, "target", "dtype"),
    "rules": lambda one, other: rule_in(one) == rule_in(other),
    "numbers of new tokens": lambda one, other: look(one, "new_tokens") == look(other, "new_tokens"),
}
MACHINES: dict[str, Same] = {
    "devices": lambda one, other: device_of(one) == device_of(other),
    "processors": lambda one, other: look(one, "provenance", "processor") == look(other, "provenance", "processor"),
    "kinds, of CUDA graphs and not": lambda one, other: bool(look(one, "graphs")) == bool(look(other, "graphs")),
    "targets": lambda one, other: look(one, "predicted", "target") == look(other, "predicted", "target"),
    "contexts": lambda one, other: not _far(look(one, "priced_at"), look(other, "priced_at")),
}


def device_of(meta: Any) -> Any:
    """Where steps would run."""
    return look(meta, "transfer", "to") or look(meta, "device")


def _far(context: Any, other: Any) -> bool:
    return None not in (context, other) and far(context, other)


def _origin(meta: Any, key: str) -> Any:
    """The hash of the list that the requests are from, and which part of it; of merged traces of each, in order."""
    parts = look(meta, "merged")
    if isinstance(parts, list) and all(isinstance(part, Mapping) for part in parts):
        return [(_origin({**meta, "merged": None, **part}, key), part.get("requests")) for part in parts]
    return look(meta, key), json.dumps(look(meta, "split"), sort_keys=True)


def _told(origin: Any) -> bool:
    """Whether all of the hashes are there."""
    return all(_told(part) for part, _ in origin) if isinstance(origin, list) else origin[0] is not None


def paired_by(traces: Mapping[str, Trace], *, same_prompts: bool = False) -> Pairing | None:
    """Why request i of every trace may be paired: by what the traces say, or because the caller says so.

    Raises:
        UsageError: the caller says so, and numbers of requests, or texts that one target must have written, differ.
    """
    names, (first, *others) = list(traces), traces.values()
    alike = all(np.array_equal(trace.request[trace.starts], first.request[first.starts]) for trace in others)
    for by, key in HASHES.items():
        origins = [_origin(trace.meta, key) for trace in traces.values()]
        if alike and _told(origins[0]) and all(origin == origins[0] for origin in origins):
            return by
    if not same_prompts:
        return None
    prompts = [look(trace.meta, HASHES["prompts"]) for trace in traces.values()]
    if prompts[0] is not None and all(one == prompts[0] for one in prompts):
        raise UsageError("not the same prompts: the traces are of one list, of other parts of it or in another order")
    for name, trace in zip(names[1:], others, strict=True):
        if trace.requests != first.requests:
            raise UsageError(
                f"not the same prompts: {name} has {trace.requests} requests, {names[0]} {first.requests}; "
                "take as many of each"
            )
        one = all(look(each.meta, "verification") == "greedy" for each in (first, trace)) and same_model(
            look(first.meta, "target"), look(trace.meta, "target")
        )
        apart = np.flatnonzero(trace.lengths != first.lengths)
        if one and len(apart) and look(first.meta, "new_tokens") == look(trace.meta, "new_tokens"):
            request = int(apart[0])
            raise UsageError(
                f"not the same prompts: to request {request} the target wrote {trace.lengths[request]} tokens in "
                f"{name}, {first.lengths[request]} in {names[0]}, greedily"
            )
    return "told"


def unlike(texts: Mapping[str, Any], times: Mapping[str, Any], pairing: Pairing | None) -> list[str]:
    """What keeps a comparison from being of drafters alone, in sentences.

    Args:
        texts: provenance of each drafter's trace.
        times: provenance of each drafter's step times, where there are any.
        pairing: of the traces.
    """
    said = []
    if pairing is None:
        said.append(
            "the traces do not say that they are of the same prompts: differences may be the prompts', none is paired"
        )
    if pairing == "told":
        said.append("that the prompts are the same was said, the traces do not prove it")
    for of, metas, facts in (("traces", texts, TEXTS), ("step times", times, MACHINES)):
        pairs = list(combinations(metas.values(), 2))
        apart = [what for what, same in facts.items() if not all(same(*pair) for pair in pairs)]
        if apart:
            said.append(
                f"the {of} are of different {' and '.join(apart)}: what differs may be theirs, not the drafters'"
            )
    return said
