"""The check that traces of several drafters cover the same prompts, and warnings of what else differs between them."""

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Literal

import numpy as np

from treeopt.cost_model import far
from treeopt.errors import UsageError, counted
from treeopt.storage.provenance import look, rule_in, same_model
from treeopt.traces.trace import Trace

Pairing = Literal["texts", "prompts", "caller"]
HASHES: dict[Pairing, str] = {"texts": "text_sha256", "prompts": "prompts_sha256"}

# Facts that all traces, and all step times, must share; each with a test of two provenances.
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
    "use of CUDA graphs": lambda one, other: bool(look(one, "graphs")) == bool(look(other, "graphs")),
    "targets": lambda one, other: look(one, "predicted", "target") == look(other, "predicted", "target"),
    "contexts": lambda one, other: not _far(look(one, "priced_at"), look(other, "priced_at")),
}


def device_of(meta: Any) -> Any:
    """Return the device that steps are priced for."""
    return look(meta, "transfer", "to") or look(meta, "device")


def _far(context: Any, other: Any) -> bool:
    return None not in (context, other) and far(context, other)


def _origin(meta: Any, key: str) -> Any:
    """Return the hash of the list that the requests come from, and the part of it; for merged traces, of each trace."""
    parts = look(meta, "merged")
    if isinstance(parts, list) and all(isinstance(part, Mapping) for part in parts):
        return [(_origin({**meta, "merged": None, **part}, key), part.get("requests")) for part in parts]
    return look(meta, key), json.dumps(look(meta, "split"), sort_keys=True)


def _complete(origin: Any) -> bool:
    """Return True if no hash is missing."""
    return all(_complete(part) for part, _ in origin) if isinstance(origin, list) else origin[0] is not None


def paired_by(traces: Mapping[str, Trace], *, same_prompts: bool = False) -> Pairing | None:
    """Return why request i of every trace may be paired: by hashes in the traces, or by the caller's `same_prompts`.

    Raises:
        UsageError: `same_prompts`, but the numbers of requests, or texts that one target must have written, differ.
    """
    names, (first, *others) = list(traces), traces.values()
    alike = all(np.array_equal(trace.request[trace.starts], first.request[first.starts]) for trace in others)
    for by, key in HASHES.items():
        origins = [_origin(trace.meta, key) for trace in traces.values()]
        if alike and _complete(origins[0]) and all(origin == origins[0] for origin in origins):
            return by
    if not same_prompts:
        return None
    prompts = [look(trace.meta, HASHES["prompts"]) for trace in traces.values()]
    if prompts[0] is not None and all(one == prompts[0] for one in prompts):
        raise UsageError("not the same prompts: the traces use one list, but other parts of it or in another order")
    for name, trace in zip(names[1:], others, strict=True):
        if trace.requests != first.requests:
            raise UsageError(
                f"not the same prompts: {name} has {counted(trace.requests, 'request')}, {names[0]} {first.requests}; "
                "record the same number for each"
            )
        same_texts = all(look(meta, "verification") == "greedy" for meta in (first.meta, trace.meta)) and same_model(
            look(first.meta, "target"), look(trace.meta, "target")
        )
        apart = np.flatnonzero(trace.lengths != first.lengths)
        if same_texts and len(apart) and look(first.meta, "new_tokens") == look(trace.meta, "new_tokens"):
            request = int(apart[0])
            raise UsageError(
                f"not the same prompts: to request {request} the target wrote {trace.lengths[request]} tokens in "
                f"{name}, {first.lengths[request]} in {names[0]}, although both decode greedily"
            )
    return "caller"


def unlike(texts: Mapping[str, Any], times: Mapping[str, Any], pairing: Pairing | None) -> list[str]:
    """Return a warning for each difference, other than the drafter, that a comparison may show.

    Args:
        texts: provenance of each drafter's trace.
        times: provenance of each drafter's step times, where there are any.
        pairing: how the traces are paired.
    """
    warnings = []
    if pairing is None:
        warnings.append(
            "the traces do not prove that their prompts are the same, so requests are not paired, and differences may "
            "come from the prompts; give --same-prompts if they are"
        )
    if pairing == "caller":
        warnings.append("--same-prompts was taken at its word: the traces do not prove that their prompts are the same")
    for records, metas, facts in (("traces", texts, TEXTS), ("step times", times, MACHINES)):
        pairs = list(combinations(metas.values(), 2))
        different = [fact for fact, same in facts.items() if not all(same(*pair) for pair in pairs)]
        if different:
            warnings.append(
                f"the {records} have different {' and '.join(different)}, which may explain a lead of one drafter"
            )
    return warnings
