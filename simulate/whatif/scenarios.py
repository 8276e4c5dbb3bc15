"""What if: the plan for each device, context and batch size, and where speculation stops paying."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulate.closed_forms.leviathan import expected_tau
from simulate.roofline.device_memory import sequence_bytes, weights_bytes
from simulate.roofline.roofline_model import Roofline
from treeopt.cost_model import CostModel, StepShape
from treeopt.errors import CostError
from treeopt.planning.search_pipeline import search
from treeopt.plans.plan import Choice, Plan
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


@dataclass(frozen=True)
class Scenario:
    """The plan for one device, context and batch size.

    Attributes:
        device: its name.
        context: tokens a sequence in the cache.
        batch: sequences.
        choice: what to use, with its prediction.
        plain_s: seconds of a plain step.
        break_even: least acceptance of each drafted token at which a chain pays; None if none pays even at 1.
        error: of the choice's step over a plain step, part of the speedup's interval; 0 where nothing is drafted.
        fits: whether weights, keys and values fit the device's memory; None where that is not known.
        plan: of all batch sizes that the choice is from.
        exchange: how several devices that share every layer exchange is known from; "": there is one.
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
        """Of the search that chose."""
        return () if self.plan is None else self.plan.warnings

    @property
    def pays(self) -> bool:
        """Whether speculation is predicted to be faster, and is not known not to fit."""
        return self.fits is not False and not self.choice.plain

    @property
    def surely(self) -> bool:
        """Whether the whole interval of the speedup is above 1."""
        return self.pays and self.choice.speedup.low > 1


@dataclass(frozen=True)
class Setting:
    """A device and a context to look at.

    Attributes:
        device: its name.
        context: tokens a sequence in the cache.
        cost: seconds of steps there.
        memory_bytes: of the device, None where it is not known.
        weights_bytes: of it that target and drafter take.
        sequence_bytes: of it that keys and values of a sequence take.
        single: name of one device, where there are several; "": `device`.
        count: of devices.
        exchange: how what several exchange is known from; "": there is one.
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
    def of(cls, model: Roofline, *, context: int, heads: int, cost: CostModel | None = None) -> "Setting":
        """The device, the models and the predicted step times of a roofline.

        Args:
            model: of target, drafter and device.
            context: tokens a sequence in the cache.
            heads: of a drafter that has one for each depth.
            cost: other step times of that device.
        """
        held = (model.device.memory_bytes, weights_bytes(model, heads=heads), sequence_bytes(model, context=context))
        exchange = model.device.link.source if model.device.link and model.devices > 1 else ""
        named = (model.device.name, model.devices, exchange)
        return cls(model.label, context, model if cost is None else cost, *held, *named)

    def fits(self, batch: int) -> bool | None:
        """Whether so many sequences fit the device's memory; None where its size is not known.

        >>> Setting("x", 512, ..., memory_bytes=10, weights_bytes=6, sequence_bytes=2).fits(2)
        True
        """
        if self.memory_bytes is None:
            return None
        return self.weights_bytes + batch * self.sequence_bytes <= self.memory_bytes


def explore(
    trace: Trace,
    settings: Sequence[Setting],
    *,
    batch: Sequence[int],
    done: Callable[[int], None] = lambda _: None,
    **how: Any,
) -> tuple[Scenario, ...]:
    """A search for each setting and all batch sizes, in that order.

    Args:
        trace: what the drafter got right; taken to hold on every device and at every context.
        settings: devices and contexts.
        batch: batch sizes.
        done: called with 1 after each setting.
        how: further arguments of `treeopt.search`.

    Raises:
        TreeoptError: what `search` raises.
    """
    found = []
    for setting in settings:
        plan = search(trace, setting.cost, batch=tuple(batch), context=setting.context, **how)
        deepest = plan.meta["search"]["max_depth"]
        for entry in plan.entries:
            at = {"batch": entry.batch, "context": setting.context}
            needed = break_even(setting.cost, depth=deepest, **at)
            plain_s = setting.cost.plain_s(**at)
            tree = entry.choice.tree
            error = 0.0 if tree is None else setting.cost.error(StepShape.of(tree, **at))
            where = setting.device, setting.context, entry.batch
            fits = setting.fits(entry.batch)
            found.append(Scenario(*where, entry.choice, plain_s, needed, error, fits, plan, setting.exchange))
        done(1)
    return tuple(found)


def break_even(cost: CostModel, *, batch: int, depth: int, context: int | None = None) -> float | None:
    """The least acceptance of every drafted token, independent of the others, at which a chain of up to `depth` pays.

    A chain of k pays where tau(alpha, k) = (1 - alpha**(k + 1)) / (1 - alpha) exceeds its step over a plain step. The
    step commits as many tokens, and is taken to grow linearly from one that keeps none to one that keeps all. Found to
    1e-9 by bisection, tau growing with alpha. None: not even at 1.

    Raises:
        CostError: no chain is covered by the cost model.
    """
    lengths: list[int] = []
    ratios: list[NDArray[np.float64]] = []
    plain_s = cost.plain_s(batch=batch, context=context)
    for k in range(1, depth + 1):
        none, every = (StepShape.of(Tree.chain(k), batch=batch, context=context, committed=kept) for kept in (1, k + 1))
        try:
            step_s = cost.step_s([none, every])
        except CostError:
            if not lengths:
                raise
            break
        lengths.append(k)
        ratios.append(step_s / plain_s)
    gamma = np.array(lengths)
    least, most = np.array(ratios).T  # over a plain step, of a step that keeps none and one that keeps all

    low, high = np.zeros(len(gamma)), np.where(least <= 1, 0.0, 1.0)
    for _ in range(30):
        middle = (low + high) / 2
        tau = np.asarray(expected_tau(alpha=middle, gamma=gamma))
        pays = tau >= least + (most - least) * (tau - 1) / gamma
        low, high = np.where(pays, low, middle), np.where(pays, middle, high)
    possible = gamma + 1 >= most
    return float(high[possible].min()) if possible.any() else None


def limits(found: Sequence[Scenario]) -> Mapping[tuple[str, int], tuple[int | None, int | None]]:
    """By device and context the largest batch size at which speculation pays, and surely pays; None: at none.

    Of the batch sizes looked at, and counted while it pays at every smaller one too.
    """
    reached: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    for device, context in dict.fromkeys((each.device, each.context) for each in found):
        cells = sorted(
            (each for each in found if (each.device, each.context) == (device, context)), key=lambda each: each.batch
        )
        reached[device, context] = (
            _last([(each.batch, each.pays) for each in cells]),
            _last([(each.batch, each.surely) for each in cells]),
        )
    return reached


def _last(cells: Sequence[tuple[int, bool]]) -> int | None:
    """The last batch size before the first that fails."""
    last = None
    for batch, holds in cells:
        if not holds:
            break
        last = batch
    return last
