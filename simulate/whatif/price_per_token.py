"""Price of a million tokens on devices that are rented by the hour, and the cheapest offer for each context."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulate.whatif.scenarios import Scenario
from treeopt.planning.evaluator import PLAIN
from treeopt.statistics.clustered_estimate import Estimate, in_logs

MILLION = 1e6
HOUR_S = 3600


@dataclass(frozen=True)
class Offer:
    """The price of decoding on one device at one context and batch size, all rows busy, prompts left out.

    Attributes:
        device: its name.
        context: tokens per sequence in the cache.
        batch: sequences.
        name: name of the configuration.
        tpot_s: seconds per token and sequence.
        million: price of a million tokens, in the currency of the device's price. Its interval is the speedup's; the
            plain step counts as exactly predicted.
    """

    device: str
    context: int
    batch: int
    name: str
    tpot_s: float
    million: Estimate

    @classmethod
    def planned(cls, scenario: Scenario, *, price: float) -> "Offer":
        """Return the price of the chosen configuration, the device being rented at `price` per hour."""
        return cls._of(scenario, scenario.choice.name, scenario.choice.speedup, price)

    @classmethod
    def plain(cls, scenario: Scenario, *, price: float) -> "Offer":
        """Return the price of decoding without speculation, the device being rented at `price` per hour."""
        return cls._of(scenario, PLAIN, Estimate(1.0, 1.0, 1.0), price)

    @classmethod
    def _of(cls, scenario: Scenario, name: str, speedup: Estimate, price: float) -> "Offer":
        tpot_s = scenario.plain_s / speedup.value
        million = in_logs(price / HOUR_S * tpot_s / scenario.batch * MILLION, speedup.relative)
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

    context: int
    max_tpot_s: float | None
    planned: Offer | None
    plain: Offer | None


def cheapest(
    scenarios: Sequence[Scenario], prices: Mapping[str, float], *, max_tpot_s: float | None = None
) -> tuple[Cheapest, ...]:
    """Return for each context the cheapest offer over all devices and batch sizes, except those known not to fit.

    Args:
        scenarios: scenarios to choose from.
        prices: price per hour, by device.
        max_tpot_s: maximum seconds per token and sequence.
    """

    def best(make: Callable[..., Offer], context: int) -> Offer | None:
        """Return the cheapest offer of one kind at one context."""
        fitting = [scenario for scenario in scenarios if scenario.context == context and scenario.fits is not False]
        offers = [make(scenario, price=prices[scenario.device]) for scenario in fitting]
        quick = [offer for offer in offers if max_tpot_s is None or offer.tpot_s <= max_tpot_s]
        return min(quick, key=lambda offer: offer.million.value, default=None)

    contexts = dict.fromkeys(scenario.context for scenario in scenarios)
    return tuple(Cheapest(c, max_tpot_s, best(Offer.planned, c), best(Offer.plain, c)) for c in contexts)
