"""Warnings for files that do not belong together: other models, another rule, another device.

Every function returns sentences without a full stop; an empty list means that nothing is known to differ.
"""

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Literal

import numpy as np

from treeopt.cost_model import far
from treeopt.errors import UsageError, counted
from treeopt.plans import Plan
from treeopt.storage.provenance import drafter_name, look, rule_in, same_model, target_name
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
    "contexts": lambda *both: None in (at := [look(one, "priced_at") for one in both]) or not far(*at),
}
PARTS = ("target", "drafter")
# How tokens are chosen, with the value that a file means when it does not record one.
CHOOSING = {"verification": None, "temperature": None, "top_k": 0, "top_p": 1.0}


def device_of(meta: Any) -> Any:
    """Return the device that steps are priced for."""
    return look(meta, "transfer", "to") or look(meta, "device")


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


def model_warnings(pair: str, one: Any, other: Any) -> list[str]:
    """Warn if the provenance of two files, which `pair` names, is of different models.

    Predicted step times belong to a kind of drafter and to no weights; an engine's step times do not record models.

    >>> target = {"name": "llama", "weights": "1", "dtype": "fp32"}
    >>> one, other = ({"target": target, "drafter": {"kind": "ngram", "weights": key}} for key in "ab")
    >>> model_warnings("trace and profile", one, other)
    ['trace and profile name different drafters or number types: llama (fp32) with ngram, llama (fp32) with ngram']
    """
    if look(other, "imported", "format") in ("times", "arms"):
        return []
    if look(other, "predicted") is not None:
        kinds = [look(meta, "drafter", "kind") for meta in (one, other)]
        if None in kinds or kinds[0] == kinds[1]:
            return []
        return [f"{pair} name different kinds of drafter, {kinds[0]} and {kinds[1]}: predictions mix two drafters"]
    parts = []
    for part in differing_models(one, other):
        # An engine hashes no weights: it may have loaded the same where names do not differ.
        hashless = any(
            look(meta, "engine") is not None and look(meta, part, "weights") is None for meta in (one, other)
        )
        if not hashless or len({look(meta, part, "name") for meta in (one, other)} - {None}) > 1:
            parts.append(part)
    if not parts:
        return []
    if look(one, "target") is None and look(one, "drafter") is None:
        return [f"{pair}: the first names no models, the second is of {_models(other)}: do they belong together"]
    named = " and ".join(f"{part}s" for part in parts)
    return [f"{pair} name different {named} or number types: {_models(one)}, {_models(other)}"]


def plan_model_warnings(
    plan: Plan, models: Mapping[str, Any], *, source: Literal["trace", "cost"] = "trace", graphs: bool = False
) -> list[str]:
    """Warn if a plan was made for models other than those that will run.

    Args:
        plan: the plan.
        models: identity of target and drafter, as `executor.models.identity` returns it.
        source: the part of the plan that must fit: its trace, or its step times where acceptance is imposed.
        graphs: steps will be replayed from CUDA graphs, which changes their times.
    """
    warnings = []
    if look(plan.meta, "cost", "graphs") not in (None, graphs):
        warnings.append(f"the plan's step times were measured {'without' if graphs else 'with'} CUDA graphs")
    made = look(plan.meta, source)
    recorded = {"trace": "trace was recorded", "cost": "step times were measured"}[source]
    for part in differing_models(made, models):
        if look(made, part, "weights") is not None and part in models:
            warnings.append(f"the plan's {recorded} with another {part} or number type")
    return warnings


def plan_rule_warnings(plan: Plan, meta: Any) -> list[str]:
    """Warn if a plan's trace was verified by another rule than the run or trace of this provenance."""
    planned = look(plan.meta, "trace")
    if not look(planned, "verification"):
        return []
    settings = zip(CHOOSING, choosing(planned), choosing(meta), strict=True)
    return [
        f"the plan's trace was recorded with {name} {before}, this run uses {now}"
        for name, before, now in settings
        if None not in (before, now) and before != now
    ]


def plan_device_warnings(plan: Plan, meta: Any) -> list[str]:
    """Warn if a plan's steps were priced for another device than that of a profile's provenance."""
    planned, profiled = device_of(look(plan.meta, "cost")), device_of(meta)
    if None in (planned, profiled) or planned == profiled:
        return []
    return [f"the plan's step times are for {planned}, the profile's for {profiled}"]


def differing_models(one: Any, other: Any) -> list[str]:
    """Return which of `target` and `drafter` differ: by weights, and by settings where both files record them."""
    return [part for part in PARTS if not same_model(look(one, part), look(other, part))]


def names_weights(meta: Any) -> bool:
    """Return whether provenance records the weights of target and drafter."""
    return all(look(meta, part, "weights") is not None for part in PARTS)


def choosing(meta: Any) -> tuple[Any, ...]:
    """Return how tokens are chosen: the values of `CHOOSING`, in its order."""
    recorded = {name: look(meta, name) for name in CHOOSING}
    return tuple(CHOOSING[name] if value is None else value for name, value in recorded.items())


def _models(meta: Any) -> str:
    name, drafter = drafter_name(meta), look(meta, "drafter", "kind") or "?"
    drafter = drafter if name is None else f"{name} ({drafter})"
    return f"{target_name(meta) or '?'} ({look(meta, 'target', 'dtype') or '?'}) with {drafter}"
