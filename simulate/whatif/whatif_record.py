"""The result of `treeopt whatif`: a cell for each device, context and batch size, limits, conditions, and prices.

A price is that of a million tokens on a device rented by the hour: of each configuration, and the cheapest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta

from simulate.model_sizes.device_memory import SHARE
from simulate.profiles.profile import Profile
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.host_overhead import PLAIN_ERRORS
from simulate.whatif.device_cost_models import count_and_name
from simulate.whatif.scenarios import Fit, Place, Scenario, fits, limits
from simulate.whatif.whatif_settings import WhatIfSettings
from treeopt.engines import ENGINES
from treeopt.errors import CostError, UsageError
from treeopt.planning.evaluator import PLAIN
from treeopt.plans import EstimateRecord, SpeedupRecord, TauRecord, TreeRecord
from treeopt.results.words import describe_models, describe_rule
from treeopt.statistics import Estimate, in_logs
from treeopt.storage.provenance import look
from treeopt.storage.typed_records import Count, Index, NotNegative, Positive, Record
from treeopt.traces.trace import Trace

SCHEMA = "treeopt.whatif/1"
PRICES = (1e-6, 1e9)  # per hour
MILLION = 1e6
HOUR_S = 3600
RENTED = (
    "A million tokens: the price per hour over the tokens per hour when every row is busy; prompts, idle time and an "
    "engine's other work are not included. Intervals are the speedup's, plain steps being taken as predicted."
)


@dataclass(frozen=True)
class Offer:
    """The price of decoding on one device at one context and batch size, all rows busy, prompts left out.

    Attributes:
        device: its name.
        context: tokens per sequence in the cache.
        batch: sequences.
        name: name of the configuration.
        tpot_s: seconds per token and sequence.
        million: price of a million tokens, in the currency of the device's price; None without prices. Its interval is
            the speedup's; the plain step counts as exactly predicted.
    """

    device: str
    context: Index
    batch: Count
    name: str
    tpot_s: Positive
    million: Estimate | None

    @classmethod
    def of(cls, scenario: Scenario, *, price: float | None, plain: bool = False) -> "Offer":
        """Return the price of the choice or of plain decoding, the device being rented at `price` per hour."""
        choice = scenario.choice
        name, speedup = (PLAIN, Estimate(1.0, 1.0, 1.0)) if plain else (choice.name, choice.speedup)
        tpot_s = scenario.plain_s / speedup.value
        value = (price or 0.0) / HOUR_S * tpot_s / scenario.batch * MILLION
        million = None if price is None else in_logs(value, speedup.relative)
        if price is not None and speedup.low > 0:  # the interval of the speedup, turned over
            million = Estimate(value, value * speedup.value / speedup.high, value * speedup.value / speedup.low)
        return cls(scenario.device, scenario.context, scenario.batch, name, tpot_s, million)


@dataclass(frozen=True)
class Cheapest:
    """The cheapest offers for one context.

    Attributes:
        context: tokens per sequence in the cache.
        max_tpot_s: maximum seconds per token and sequence of an offer; None: any.
        planned: the cheapest of the chosen configurations; None: all take longer, or nothing fits.
        plain: the cheapest without speculation; None: all take longer, or nothing fits.
    """

    context: Index
    max_tpot_s: Positive | None
    planned: Offer | None
    plain: Offer | None


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


def prices_of_devices(prices: Mapping[str, float], places: Sequence[Place]) -> dict[str, float]:
    """Return the price per hour of every device or group of devices that the settings name.

    Args:
        prices: of a single device, by names as `hardware` takes them.
        places: the devices, all of which must be priced.

    Raises:
        UsageError: names the price that is wrong or missing.
    """
    singles = {place.model.device.name for place in places}
    priced: dict[str, float] = {}
    for word, price in prices.items():
        if not PRICES[0] <= price <= PRICES[1]:
            raise UsageError(f"--price must be from {PRICES[0]:g} to {PRICES[1]:g} per hour, got {word}={price:g}")
        count, _, name = count_and_name(word)
        if count > 1:
            raise UsageError(f"--price takes the price of one device: name {name}, not {word}")
        name = next((single for single in singles if single.casefold() == name.casefold()), name)
        if name not in singles:
            try:
                name = find_hardware(name).name
            except CostError as error:
                raise UsageError(f"--price: {error}") from error
        if name not in singles:
            raise UsageError(f"--price: {name} is not among the devices of --hardware")
        if name in priced:
            raise UsageError(f"--price names {name} twice")
        priced[name] = price
    missing = sorted(singles - priced.keys())
    if missing:
        raise UsageError(f"--price is missing for {', '.join(missing)}")
    return {place.device: place.model.devices * priced[place.model.device.name] for place in places}


def cheapest(
    scenarios: Sequence[Scenario], prices: Mapping[str, float] | None, *, max_tpot_s: float | None = None
) -> tuple[Cheapest, ...]:
    """Return for each context the cheapest offer over all devices and batch sizes, except those known not to fit.

    Without prices, that of most tokens per second.

    Args:
        scenarios: scenarios to choose from.
        prices: price per hour, by device.
        max_tpot_s: maximum seconds per token and sequence.
    """

    def best(context: int, *, plain: bool) -> Offer | None:
        """Return the cheapest offer of one kind at one context."""
        fitting = [scenario for scenario in scenarios if scenario.context == context and scenario.fits is not False]
        offers = [Offer.of(s, price=prices[s.device] if prices else None, plain=plain) for s in fitting]
        quick = [offer for offer in offers if max_tpot_s is None or offer.tpot_s <= max_tpot_s]
        return min(quick, key=lambda o: o.tpot_s / o.batch * (prices[o.device] if prices else 1), default=None)

    contexts = dict.fromkeys(scenario.context for scenario in scenarios)
    return tuple(Cheapest(c, max_tpot_s, best(c, plain=False), best(c, plain=True)) for c in contexts)


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
