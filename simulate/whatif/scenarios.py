"""Scenarios: the plan for each device, context and batch size, and the batch size up to which speculation pays.

Also the acceptance from which a chain pays, and the largest batches that fit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from simulate.device_memory import DeviceMemory
from simulate.paper_formulas import expected_tau
from simulate.roofline.roofline_model import Roofline
from treeopt.cost_model import CostModel, StepShape
from treeopt.errors import CostError
from treeopt.planning import search_pipeline
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import Choice, Plan, PlanEntry
from treeopt.statistics import Estimate
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """The plan for one device, context and batch size.

    Attributes:
        device: its name.
        context: tokens per sequence in the cache.
        batch: sequences.
        choice: the chosen configuration, with its prediction.
        plain_s: seconds of a plain step.
        break_even: minimum acceptance of each drafted token at which a chain pays; None if none pays even at 1.
        error: error of the choice's step over a plain step, part of the speedup's interval; 0 if nothing is drafted.
        fits: True if the choice fits the device's memory; None if its size is not known.
        plan: the plan of all batch sizes that the choice comes from.
        sharing: how several devices share the models; "" for one device.
        memory: memory that the models take at this context; None: not known.
    """

    device: str
    context: int
    batch: int
    choice: Choice
    plain_s: float
    break_even: float | None
    error: float = 0.0
    fits: bool | None = None
    plan: Plan | None = None
    sharing: str = ""
    memory: DeviceMemory | None = None

    @property
    def pays(self) -> bool:
        """True if speculation is predicted to be faster, unless it is known not to fit."""
        return self.fits is not False and not self.choice.plain

    @property
    def surely(self) -> bool:
        """True if it pays and the whole interval of the speedup is above 1."""
        return self.pays and self.choice.speedup.low > 1


@dataclass(frozen=True)
class Place:
    """A device and a context to search for.

    Attributes:
        model: target, drafter and device, or several devices.
        context: tokens per sequence in the cache.
        cost: seconds of steps on it.
        memory: memory that target and drafter take of each device.
    """

    model: Roofline
    context: int
    cost: CostModel
    memory: DeviceMemory

    @property
    def device(self) -> str:
        """The name of the device or devices."""
        return self.model.label


def explore(
    trace: Trace,
    places: Sequence[Place],
    search: SearchSettings,
    *,
    fit: bool = False,
    done: Callable[[int], None] = lambda _: None,
) -> tuple[Scenario, ...]:
    """Search for each place and all batch sizes, in that order; with `fit` also the largest batches that fit.

    Args:
        trace: what the drafter got right; assumed to hold on every device and at every context.
        places: devices and contexts.
        search: the settings of each search.
        done: called with 1 after each place.

    Raises:
        TreeoptError: as `search`.
    """
    scenarios = []
    for place in places:
        longest = place.cost.drafter.longest if isinstance(place.cost, Roofline) else None
        limits = [depth for depth in (search.max_depth, longest) if depth is not None]
        memory, depths = place.memory, range(1 + min([trace.depth, *limits]))
        largest = filter(None, map(memory.batch, depths if fit and isinstance(place.cost, Roofline) else ()))
        asked = search.changed(batch=tuple(sorted({*search.batch, *largest})), max_depth=min(limits, default=None))
        plan = search_pipeline.search(trace, place.cost, settings=asked, context=place.context)
        deepest = plan.meta["search"]["max_depth"]
        for nodes, sizes in _smaller(plan, memory).items():
            fewer = asked.changed(batch=sizes, max_nodes=nodes)
            entries = search_pipeline.search(trace, place.cost, settings=fewer, context=place.context).entries
            both = (*(entry for entry in plan.entries if entry.batch not in sizes), *entries)
            plan = replace(plan, entries=tuple(sorted(both, key=attrgetter("batch"))), switches=())
        plan = replace(plan, entries=tuple(_or_plain(entry, memory) for entry in plan.entries))
        plan = held(plan, memory, device=place.device, context=place.context)
        for entry in plan.entries:
            size = {"batch": entry.batch, "context": place.context}
            tree = entry.choice.tree
            scenario = Scenario(
                place.device,
                place.context,
                entry.batch,
                entry.choice,
                place.cost.plain_s(**size),
                break_even(place.cost, depth=deepest, **size),
                0.0 if tree is None else place.cost.error(StepShape.of(tree, **size)),
                _holds(memory, entry.batch, entry.choice),
                plan,
                place.model.sharing,
                memory,
            )
            scenarios.append(scenario)
        done(1)
    return tuple(scenarios)


def _smaller(plan: Plan, memory: DeviceMemory) -> dict[int, tuple[int, ...]]:
    """Return batch sizes whose tree does not fit, by the most nodes that do: each keeps a snapshot of states."""
    sizes: dict[int, tuple[int, ...]] = {}
    for entry in plan.entries:
        if _holds(memory, entry.batch, entry.choice) is False:
            fitting = (n for n in range(int(entry.choice.nodes), 0, -1) if (memory.batch(n) or 0) >= entry.batch)
            if nodes := next(fitting, 0):
                sizes[nodes] = (*sizes.get(nodes, ()), entry.batch)
    return sizes


def _or_plain(entry: PlanEntry, memory: DeviceMemory) -> PlanEntry:
    """Return the entry, without speculation where memory holds its sequences alone."""
    plain = next((choice for choice in entry.compared if choice.plain), entry.choice)
    if _holds(memory, entry.batch, entry.choice) is False and _holds(memory, entry.batch, plain):
        return replace(entry, choice=plain)
    return entry


def held(plan: Plan, memory: DeviceMemory | None, *, device: str, context: int) -> Plan:
    """Return the plan with the largest batch that a device's memory holds with its largest tree, where it is known."""
    most = None if memory is None else memory.batch(max(int(entry.choice.nodes) for entry in plan.entries))
    if memory is None or most is None:
        return plan
    holds = {"device": device, "context": context, "share": memory.share, "batch": most}
    return replace(plan, meta={**plan.meta, "holds": holds})


def _holds(memory: DeviceMemory, batch: int, choice: Choice) -> bool | None:
    """Return whether a batch fits the memory; None if its size is not known."""
    return None if (most := memory.batch(int(choice.nodes))) is None else batch <= most


@dataclass(frozen=True)
class Held:
    """A configuration at its best batch of those that fit.

    Attributes:
        most: the largest batch that fits with it.
        batch: the batch of most tokens per second, of those that were searched.
        tokens_s: tokens per second of that batch.
        nodes: drafted nodes; 0 without speculation.
        depth: levels.
    """

    most: int
    batch: int
    tokens_s: float
    nodes: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Fit:
    """Batch sizes that a device's memory holds at a context, with and without speculation.

    Attributes:
        device: its name.
        context: tokens per sequence in the cache.
        memory: bytes of one device.
        plain: without drafter and speculation; None: not one sequence fits.
        speculating: the speculation of most tokens per second; None: none fits.
        ratio: tokens per second of `speculating` over those of `plain`, each at its own best batch; its interval is
            the speedup's.
    """

    device: str
    context: int
    memory: DeviceMemory
    plain: Held | None
    speculating: Held | None
    ratio: Estimate | None


def fits(scenarios: Sequence[Scenario]) -> Iterator[Fit]:
    """Yield what fits each device of known memory, at each context."""
    places = dict.fromkeys((each.device, each.context, each.memory) for each in scenarios)
    for device, context, memory in places:
        if memory is None or (most := memory.batch()) is None:
            continue
        here = [each for each in scenarios if (each.device, each.context) == (device, context)]
        rates = {each.batch: each.batch / each.plain_s for each in here if each.batch <= most}
        batch = max(rates, key=lambda size: rates[size], default=None)
        plain = None if batch is None else Held(most, batch, rates[batch])
        tried = [
            (choice.tokens_s(each.batch), each, choice)
            for each in here
            for choice in (each.choice, *(() if each.plan is None else each.plan.entry(each.batch).compared))
            if choice.tree is not None and _holds(memory, each.batch, choice)
        ]
        speculating, ratio = None, None
        if tried and plain is not None:
            rate, best, choice = max(tried, key=lambda one: one[0])
            nodes = int(choice.nodes)
            speculating = Held(memory.batch(nodes) or 0, best.batch, rate, nodes, int(choice.depth))
            ratio = choice.speedup.times(rates[best.batch] / plain.tokens_s)
        yield Fit(device, context, memory, plain, speculating, ratio)


def limits(scenarios: Sequence[Scenario]) -> Mapping[tuple[str, int], tuple[int | None, int | None]]:
    """Return by device and context the largest batch size at which speculation pays, and surely pays; None: at none.

    Only the batch sizes of the scenarios count, and only while it pays at every smaller one too.
    """
    largest: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    for device, context in dict.fromkeys((scenario.device, scenario.context) for scenario in scenarios):
        same = [scenario for scenario in scenarios if (scenario.device, scenario.context) == (device, context)]
        same.sort(key=lambda scenario: scenario.batch)
        pays, surely = ([s.batch for s in takewhile(attrgetter(name), same)] for name in ("pays", "surely"))
        largest[device, context] = (max(pays, default=None), max(surely, default=None))
    return largest


def break_even(cost: CostModel, *, batch: int, depth: int, context: int | None = None) -> float | None:
    """Return the minimum acceptance of each drafted token, independent of the others, at which a chain pays.

    A chain of k, up to `depth`, pays if tau(alpha, k) = (1 - alpha**(k + 1)) / (1 - alpha) exceeds its step over a
    plain step. The step commits as many tokens; its time is interpolated linearly from a step that accepts none to one
    that accepts all. Found to 1e-9 by bisection, since tau grows with alpha. None: no chain pays even at 1.

    Raises:
        CostError: the cost model covers no chain.
    """
    plain_s = cost.plain_s(batch=batch, context=context)
    ratios: list[Floats] = []  # steps over a plain one if none and if all drafted tokens are accepted
    for k in range(1, depth + 1):
        shapes = [StepShape.of(Tree.chain(k), batch=batch, context=context, committed=c) for c in (1, k + 1)]
        try:
            ratios.append(cost.step_s(shapes) / plain_s)
        except CostError:
            if not ratios:
                raise
            break
    gamma, (none_s, all_s) = np.arange(1, len(ratios) + 1), np.array(ratios).T
    low, high = np.zeros(len(gamma)), np.where(none_s <= 1, 0.0, 1.0)
    for _ in range(30):
        middle = (low + high) / 2
        tau = np.asarray(expected_tau(alpha=middle, gamma=gamma))
        pays = tau >= none_s + (all_s - none_s) * (tau - 1) / gamma
        low, high = np.where(pays, low, middle), np.where(pays, middle, high)
    possible = gamma + 1 >= all_s
    return float(high[possible].min()) if possible.any() else None
