"""What `treeopt whatif` found, as JSON values and sentences."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from treeopt.engines import ENGINE_RULES
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.whatif.scenarios import Scenario

RENTED = (
    "A million tokens: the price of an hour over the tokens of an hour in which every row is busy; prompts, idle time "
    "and what an engine does besides are not in it. Intervals are the speedup's, plain steps being taken as predicted."
)


def cell(scenario: "Scenario", prices: Mapping[str, float] | None) -> dict[str, Any]:
    """A device, context and batch size as JSON values; `prices` of an hour by device, or None."""
    from simulate.whatif.price_per_token import Offer

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


def conditions(
    trace: Trace, found: "tuple[Scenario, ...]", profile: "Profile | None", kind: str, engine: str | None
) -> list[str]:
    """What the figures hold for, in sentences."""
    from treeopt.report.terminal_text import models_told, rule_told

    several = dict.fromkeys((each.device, each.exchange) for each in found if each.exchange)
    errors: dict[str, set[str]] = {}
    for each in found:
        if each.pays:
            errors.setdefault(each.device, set()).add(f"{each.error:.0%}")
    stated = ", ".join(f"{name} {' or '.join(sorted(all_of))}" for name, all_of in errors.items()) or "none speculates"
    times = (
        "Step times are predicted from sizes and data sheets, nothing was measured"
        if profile is None
        else f"Step times are carried over from {look(profile.meta, 'device')}, where they were measured"
    )
    known = "Memory: weights, keys and values alone, of all that the data sheet promises; engines need more besides."
    unfit = " What does not fit is priced as if it did, and not counted as paying."
    fits = {each.fits for each in found}
    unknown = list(dict.fromkeys(each.device for each in found if each.fits is None))
    return [
        f"{times}; error of step over plain step, part of the intervals: {stated}.",
        f"The drafter is priced as {kind}.",
        *(f"{device} share every layer of target and drafter; their exchange: {source}." for device, source in several),
        *([known + unfit * (False in fits)] if fits != {None} else []),
        *(f"{device}: its memory is not known, whether a batch fits was not looked at." for device in unknown),
        *([] if engine is None else [f"Only trees that {ENGINE_RULES[engine].engine} runs."]),
        "Of trees within 1 % of the fastest the smallest is taken, none at all included.",
        "Break-even acceptance: of each drafted token, independently, at which the best chain pays at all.",
        f"Trace: {models_told(trace.meta)}; {rule_told(trace.meta)}; "
        "taken to hold on every device and at every context.",
    ]
