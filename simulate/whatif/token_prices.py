"""Prices of a million tokens on devices rented by the hour: of each configuration, and the cheapest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulate.roofline.data_sheets import find_hardware
from simulate.whatif.device_cost_models import count_and_name
from simulate.whatif.scenarios import Place, Scenario
from treeopt.errors import CostError, UsageError
from treeopt.planning.evaluator import PLAIN
from treeopt.statistics import Estimate, in_logs
from treeopt.storage.typed_records import Count, Index, Positive

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
