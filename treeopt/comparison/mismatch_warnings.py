"""Warnings for files that do not belong together: other models, another rule, another device.

Every function returns sentences without a full stop; an empty list means that nothing is known to differ.
"""

from collections.abc import Mapping
from typing import Any, Literal

from treeopt.comparison.same_prompts import device_of
from treeopt.plans.plan import Plan
from treeopt.storage.model_names import drafter_name, target_name
from treeopt.storage.provenance import look, same_model

PARTS = ("target", "drafter")
# How tokens are chosen, with the value that a file means when it does not record one.
CHOOSING = {"verification": None, "temperature": None, "top_k": 0, "top_p": 1.0}


def model_warnings(pair: str, one: Any, other: Any) -> list[str]:
    """Warn if the provenance of two files names different models.

    Predicted step times belong to a kind of drafter and to no weights; an engine's step times do not record models.

    Args:
        pair: names the files, such as "trace and plan".
        one: provenance of the first file.
        other: provenance of the second file.

    >>> target = {"name": "llama", "weights": "1", "dtype": "fp32"}
    >>> one, other = ({"target": target, "drafter": {"kind": "ngram", "weights": key}} for key in "ab")
    >>> model_warnings("trace and profile", one, other)
    ['trace and profile name different drafters or number types: llama (fp32) with ngram, llama (fp32) with ngram']
    """
    if look(other, "imported", "format") == "times":
        return []
    if look(other, "predicted") is not None:
        kinds = [look(meta, "drafter", "kind") for meta in (one, other)]
        if None in kinds or kinds[0] == kinds[1]:
            return []
        return [f"{pair} name different kinds of drafter, {kinds[0]} and {kinds[1]}: predictions mix two drafters"]
    parts = differing_models(one, other)
    if not parts:
        return []
    named = " and ".join(f"{part}s" for part in parts)
    return [f"{pair} name different {named} or number types: {_models(one)}, {_models(other)}"]


def plan_model_warnings(
    plan: Plan, models: Mapping[str, Any], *, source: Literal["trace", "cost"] = "trace", graphs: bool = False
) -> list[str]:
    """Warn if a plan was made for models other than those that will run.

    Args:
        plan: the plan.
        models: identity of target and drafter, as `executor.models.fingerprint.identity` returns it.
        source: the part of the plan that must fit: its trace, or its step times where acceptance is imposed.
        graphs: steps will be replayed from CUDA graphs, which changes their times.
    """
    warnings = []
    if look(plan.meta, "cost", "graphs") not in (None, graphs):
        warnings.append(f"the plan's step times were measured {'without' if graphs else 'with'} --graphs")
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
