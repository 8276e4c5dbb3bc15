"""Scenarios: the plan for each device, context and batch size, and the batch size up to which speculation pays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulate.roofline.device_memory import sequence_bytes, weights_bytes
from simulate.roofline.roofline_model import Roofline
from simulate.whatif.break_even_acceptance import break_even
from treeopt.cost_model import CostModel, StepShape
from treeopt.planning import search_pipeline
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans.plan import Choice, Plan
from treeopt.traces.trace import Trace


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
        fits: True if weights, keys and values fit the device's memory; None if its size is not known.
        plan: the plan of all batch sizes that the choice comes from.
        exchange: source of the figures for the exchange between several devices; "" for one device.
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
    exchange: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the search that chose."""
        return () if self.plan is None else self.plan.warnings

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
        device: its name.
        context: tokens per sequence in the cache.
        cost: seconds of steps on it.
        memory_bytes: memory of the device; None where it is not known.
        weights_bytes: memory that target and drafter take.
        sequence_bytes: memory that keys and values of a sequence take.
        single: name of one device, if there are several; "": `device`.
        count: number of devices.
        exchange: source of the figures for the exchange between several devices; "" for one device.
    """

    device: str
    context: int
    cost: CostModel
    memory_bytes: float | None = None
    weights_bytes: float = 0.0
    sequence_bytes: float = 0.0
    single: str = ""
    count: int = 1
    exchange: str = ""

    @classmethod
    def of(cls, model: Roofline, *, context: int, heads: int, cost: CostModel | None = None) -> "Place":
        """Return the device, the models and the predicted step times of a roofline.

        Args:
            model: target, drafter and device.
            context: tokens per sequence in the cache.
            heads: heads of a drafter that has one for each depth.
            cost: other step times of that device, instead of the roofline's.
        """
        memory = (model.device.memory_bytes, weights_bytes(model, heads=heads), sequence_bytes(model, context=context))
        exchange = model.device.link.source if model.device.link and model.devices > 1 else ""
        devices = (model.device.name, model.devices, exchange)
        return cls(model.label, context, model if cost is None else cost, *memory, *devices)

    def fits(self, batch: int) -> bool | None:
        """Return whether `batch` sequences fit the device's memory; None if its size is not known.

        >>> Place("x", 512, ..., memory_bytes=10, weights_bytes=6, sequence_bytes=2).fits(2)
        True
        """
        if self.memory_bytes is None:
            return None
        return self.weights_bytes + batch * self.sequence_bytes <= self.memory_bytes


def explore(
    trace: Trace, places: Sequence[Place], search: SearchSettings, *, done: Callable[[int], None] = lambda _: None
) -> tuple[Scenario, ...]:
    """Search for each place and all batch sizes, in that order.

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
        plan = search_pipeline.search(trace, place.cost, settings=search, context=place.context)
        deepest = plan.meta["search"]["max_depth"]
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
                place.fits(entry.batch),
                plan,
                place.exchange,
            )
            scenarios.append(scenario)
        done(1)
    return tuple(scenarios)


def limits(scenarios: Sequence[Scenario]) -> Mapping[tuple[str, int], tuple[int | None, int | None]]:
    """Return by device and context the largest batch size at which speculation pays, and surely pays; None: at none.

    Only the batch sizes of the scenarios count, and only while it pays at every smaller one too.
    """
    largest: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    for device, context in dict.fromkeys((scenario.device, scenario.context) for scenario in scenarios):
        same = [scenario for scenario in scenarios if (scenario.device, scenario.context) == (device, context)]
        same.sort(key=lambda scenario: scenario.batch)
        largest[device, context] = (
            _last_that_holds([(scenario.batch, scenario.pays) for scenario in same]),
            _last_that_holds([(scenario.batch, scenario.surely) for scenario in same]),
        )
    return largest


def _last_that_holds(cells: Sequence[tuple[int, bool]]) -> int | None:
    """Return the last batch size before the first that fails; None if the first one fails."""
    last = None
    for batch, holds in cells:
        if not holds:
            break
        last = batch
    return last
