"""The result of `treeopt whatif` as JSON values: a cell for each device, context and batch size, limits, conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from simulate.profiles.profile import Profile
from simulate.whatif.price_per_token import Offer, cheapest
from simulate.whatif.scenarios import Scenario, limits
from treeopt.engines import ENGINE_RULES
from treeopt.results.words import describe_models, describe_rule
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace

SCHEMA = "treeopt.whatif/1"
RENTED = (
    "A million tokens: the price per hour over the tokens per hour when every row is busy; prompts, idle time and an "
    "engine's other work are not included. Intervals are the speedup's, plain steps being taken as predicted."
)


def record_of_scenarios(
    trace: Trace,
    scenarios: Sequence[Scenario],
    *,
    profile: Profile | None,
    kind: str,
    engine: str | None,
    prices: Mapping[str, float] | None,
    max_tpot_s: Sequence[float | None] = (None,),
    warnings: Sequence[str] = (),
    meta: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the result of `explore` as JSON values.

    Args:
        trace: the trace that was searched.
        scenarios: what `explore` returned.
        profile: step times that were carried over; None: they are predicted.
        kind: of the drafter that is priced.
        engine: whose trees were searched.
        prices: per hour, by device; None: tokens have no price.
        max_tpot_s: limits of the seconds per output token at which the cheapest configuration is named; None: any.
        warnings: sentences without a full stop.
        meta: settings and provenance.
    """
    conditions = whatif_conditions(trace, scenarios, profile=profile, kind=kind, engine=engine)
    offers = (
        []
        if prices is None
        else [best for limit in max_tpot_s for best in cheapest(scenarios, prices, max_tpot_s=limit)]
    )
    return {
        "schema": SCHEMA,
        "cells": [_cell(scenario, prices) for scenario in scenarios],
        "limits": [
            {"device": name, "context": tokens, "pays_up_to": pays, "surely_up_to": surely}
            for (name, tokens), (pays, surely) in limits(scenarios).items()
        ],
        "cheapest": [asdict(best) for best in offers],
        "conditions": conditions if prices is None else [*conditions, RENTED],
        "warnings": list(warnings),
        "meta": dict(meta),
    }


def _cell(scenario: Scenario, prices: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the choice for a device, context and batch size as JSON values."""
    choice = scenario.choice
    tree = choice.tree
    return {
        "device": scenario.device,
        "context": scenario.context,
        "batch": scenario.batch,
        "name": f"does not fit ({choice.name})" if scenario.fits is False else choice.name,
        "fits": scenario.fits,
        "tree": None
        if tree is None
        else {"id": tree.id, "nodes": tree.nodes, "depth": tree.depth, "paths": [list(path) for path in tree.paths]},
        "tau": asdict(choice.tau),
        "step_s": choice.step_s,
        "plain_s": scenario.plain_s,
        "tokens_s": choice.tokens_s(scenario.batch),
        "speedup": asdict(choice.speedup),
        "relative_error": scenario.error,
        "break_even_acceptance": scenario.break_even,
        "million": prices and asdict(Offer.planned(scenario, price=prices[scenario.device]).million),
    }


def whatif_conditions(
    trace: Trace, scenarios: Sequence[Scenario], *, profile: Profile | None, kind: str, engine: str | None
) -> list[str]:
    """Return what the figures hold for, one sentence each."""
    exchanges = dict.fromkeys((scenario.device, scenario.exchange) for scenario in scenarios if scenario.exchange)
    errors: dict[str, set[str]] = {}
    for scenario in scenarios:
        if scenario.pays:
            errors.setdefault(scenario.device, set()).add(f"{scenario.error:.0%}")
    stated = ", ".join(f"{name} {' or '.join(sorted(shares))}" for name, shares in errors.items()) or "none speculates"
    times = (
        "Step times are predicted from sizes and data sheets; nothing was measured"
        if profile is None
        else f"Step times are carried over from {look(profile.meta, 'device')}, where they were measured"
    )
    fits = {scenario.fits for scenario in scenarios}
    memory = "Memory: weights, keys and values only, against all that the data sheet promises; engines need more."
    unfit = " What does not fit is priced as if it did, and does not count as paying."
    unknown = list(dict.fromkeys(scenario.device for scenario in scenarios if scenario.fits is None))
    return [
        f"{times}; error of step over plain step, part of the intervals: {stated}.",
        f"The drafter is priced as {kind}.",
        *(f"{device} share every layer of target and drafter; their exchange: {text}." for device, text in exchanges),
        *([memory + unfit * (False in fits)] if fits != {None} else []),
        *(f"{device}: its memory is not known, so it was not checked whether a batch fits." for device in unknown),
        *([] if engine is None else [f"Only trees that {ENGINE_RULES[engine].engine} runs."]),
        "Among trees within 1 % of the fastest the smallest is taken; no speculation counts as the smallest.",
        "Break-even acceptance: the acceptance of each drafted token, independent of the others, from which the best "
        "chain pays.",
        f"Trace: {describe_models(trace.meta)}; {describe_rule(trace.meta)}; "
        "assumed to hold on every device and at every context.",
    ]
