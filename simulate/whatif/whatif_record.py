"""The result of `treeopt whatif` as JSON values: a cell for each device, context and batch size, limits, conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from msgspec import Meta

from simulate.device_memory import SHARE
from simulate.profiles.profile import Profile
from simulate.roofline.host_overhead import PLAIN_ERRORS
from simulate.whatif.scenarios import Fit, Scenario, fits, limits
from simulate.whatif.token_prices import RENTED, Cheapest, Offer, cheapest
from simulate.whatif.whatif_settings import WhatIfSettings
from treeopt.engines import ENGINES
from treeopt.plans import EstimateRecord, SpeedupRecord, TauRecord, TreeRecord
from treeopt.results.words import describe_models, describe_rule
from treeopt.storage.provenance import look
from treeopt.storage.typed_records import Count, Index, NotNegative, Positive, Record
from treeopt.traces.trace import Trace

SCHEMA = "treeopt.whatif/1"


class SizedTreeRecord(TreeRecord, frozen=True):
    """A static tree with its size."""

    nodes: Index
    depth: Index


class ScenarioRecord(Record, frozen=True, kw_only=True):
    """The choice for one device, context and batch size."""

    device: str
    context: Annotated[Index, Meta(description="tokens per sequence in the cache")]
    batch: Count
    name: str
    fits: Annotated[bool | None, Meta(description="whether the batch fits the device's memory; null: not known")]
    tree: SizedTreeRecord | None
    tau: TauRecord
    step_s: Annotated[Positive, Meta(description="seconds per step")]
    plain_s: Annotated[Positive, Meta(description="seconds per step of plain decoding")]
    tokens_s: Annotated[Positive, Meta(description="tokens per second of the whole batch")]
    speedup: SpeedupRecord
    relative_error: Annotated[NotNegative, Meta(description="error of step over plain step, part of the intervals")]
    break_even_acceptance: Annotated[NotNegative | None, Meta(description="from which the best chain pays")]
    million: Annotated[EstimateRecord | None, Meta(description="price of a million tokens")] = None


class LimitRecord(Record, frozen=True):
    """The largest batch sizes at which speculation pays on one device and context; null: it pays at none."""

    device: str
    context: Index
    pays_up_to: Count | None
    surely_up_to: Annotated[Count | None, Meta(description="with the whole interval above 1")]


class WhatIfRecord(Record, frozen=True, tag_field="schema", tag=SCHEMA, kw_only=True):
    """Predictions for devices, contexts and batch sizes."""

    cells: Annotated[tuple[ScenarioRecord, ...], Meta(min_length=1)]
    limits: tuple[LimitRecord, ...]
    cheapest: Annotated[tuple[Cheapest, ...], Meta(description="with --price: cheapest offers by context")] = ()
    fits: Annotated[tuple[Fit, ...], Meta(description="with --fit: largest batches and their throughput")] = ()
    conditions: tuple[str, ...]
    warnings: tuple[str, ...]
    meta: Annotated[dict[str, Any], Meta(description="settings, step times and provenance")]

    def __post_init__(self) -> None:
        """Check that limits are those of cells."""
        places = {(cell.device, cell.context) for cell in self.cells}
        for limit in self.limits:
            if (limit.device, limit.context) not in places:
                raise ValueError(f"`limits` name {limit.device} at context {limit.context}, which has no cell")


def record_of_scenarios(
    trace: Trace,
    scenarios: Sequence[Scenario],
    settings: WhatIfSettings,
    *,
    prices: Mapping[str, float] | None,
    warnings: Sequence[str] = (),
    meta: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the result of `explore` as JSON values.

    Args:
        trace: the trace that was searched.
        scenarios: what `explore` returned.
        settings: the question.
        prices: per hour, by device; None: tokens have no price.
        warnings: sentences without a full stop.
        meta: settings and provenance.
    """
    conditions = whatif_conditions(trace, scenarios, settings) + _host_time(meta)
    limits_s = settings.max_tpot_s or (None,)
    offers = [offer for limit in limits_s if prices or limit for offer in cheapest(scenarios, prices, max_tpot_s=limit)]
    return {
        "schema": SCHEMA,
        "cells": [_cell(scenario, prices) for scenario in scenarios],
        "limits": [
            {"device": name, "context": tokens, "pays_up_to": pays, "surely_up_to": surely}
            for (name, tokens), (pays, surely) in limits(scenarios).items()
        ],
        "cheapest": [asdict(best) for best in offers],
        "fits": [asdict(fit) for fit in fits(scenarios)] if settings.fit else [],
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
        "million": prices and asdict(Offer.of(scenario, price=prices[scenario.device]))["million"],
    }


def _host_time(meta: Mapping[str, Any]) -> list[str]:
    """Return the overheads of the costs in `meta`, a sentence for each that differs."""
    sentences = []
    for cost in meta.get("costs", ()):
        if (host := cost.get("overheads")) is not None:
            plain, step, level = (f"{1e3 * host[name]:.3g}" for name in ("plain_s", "step_s", "level_s"))
            sentences.append(
                f"Host time in ms: {plain} per plain step, {step} per speculative one, {level} per level; error "
                f"{host['error']:.0%} ({host['source']})."
            )
            if not str(host["source"]).startswith("shifted to"):  # --observed
                kind = "mixtures of experts" if look(cost, "target", "experts") else "dense models"
                low, high, count = PLAIN_ERRORS[kind]
                sentences.append(
                    f"Tokens/s, TPOT and prices move with the plain step: {count} published ones of {kind} were "
                    f"predicted {low:+.0%} to {high:+.0%} off."
                )
    return list(dict.fromkeys(sentences))


def whatif_conditions(trace: Trace, scenarios: Sequence[Scenario], settings: WhatIfSettings) -> list[str]:
    """Return what the figures hold for, one sentence each."""
    shared = dict.fromkeys(f"{scenario.device} {scenario.sharing}." for scenario in scenarios if scenario.sharing)
    errors: dict[str, list[float]] = {}
    for scenario in scenarios:
        if scenario.pays:
            errors.setdefault(scenario.device, []).append(scenario.error)
    ends = {name: dict.fromkeys(f"{share:.0%}" for share in (min(each), max(each))) for name, each in errors.items()}
    stated = ", ".join(f"{name} {' to '.join(shares)}" for name, shares in ends.items()) or "none speculates"
    times = "Step times are predicted from sizes and data sheets; nothing was measured"
    if isinstance(settings.profile, Profile):
        times = f"Step times are carried over from {look(settings.profile.meta, 'device')}, where they were measured"
    known = {scenario.fits for scenario in scenarios}
    share = f"{SHARE:.0%} of the data sheet's" if settings.memory is None else f"{settings.memory:g} GB"
    memory = f"Memory: weights, keys, values and states, against {share}; activations and padding are not counted."
    unfit = " What does not fit is priced as if it did, and does not count as paying."
    unknown = list(dict.fromkeys(scenario.device for scenario in scenarios if scenario.fits is None))
    return [
        f"{times}; error of step over plain step, part of the intervals: {stated}.",
        f"The drafter is priced as {settings.kind}.",
        *shared,
        *([memory + unfit * (False in known)] if known != {None} else []),
        *(f"{device}: its memory is not known, so it was not checked whether a batch fits." for device in unknown),
        *([f"Only trees that {ENGINES[settings.limiting].title} runs."] if settings.limiting else []),
        "Among trees within 1 % of the fastest the smallest is taken; no speculation counts as the smallest.",
        "Break-even acceptance: the acceptance of each drafted token, independent of the others, from which the best "
        "chain pays.",
        f"Trace: {describe_models(trace.meta)}; {describe_rule(trace.meta)}; "
        "assumed to hold on every device and at every context.",
    ]
