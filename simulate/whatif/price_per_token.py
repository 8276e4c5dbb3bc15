"""Devices that are rented by the hour: what tokens cost on them, and where they are the cheapest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulate.whatif.scenarios import Scenario
from treeopt.planning.evaluator import PLAIN
from treeopt.statistics.clustered_estimate import Estimate, in_logs

MILLION = 1e6
HOUR_S = 3600


@dataclass(frozen=True)
class Offer:
    """Decoding of one device at one context and batch size, every row always busy, prompts left out.

    Attributes:
        device: its name.
        context: tokens a sequence in the cache.
        batch: sequences.
        name: of the way to decode.
        tpot_s: seconds a token and sequence.
        million: price of a million tokens, in the currency of the device's. Its interval is the speedup's: the plain
            step is taken to be as predicted.
    """

    device: str
    context: int
    batch: int
    name: str
    tpot_s: float
    million: Estimate

    @classmethod
    def planned(cls, scenario: Scenario, *, price: float) -> "Offer":
        """What was chosen there, the device being rented at `price` an hour."""
        return cls._of(scenario, scenario.choice.name, scenario.choice.speedup, price)

    @classmethod
    def plain(cls, scenario: Scenario, *, price: float) -> "Offer":
        """Decoding without speculation there."""
        return cls._of(scenario, PLAIN, Estimate(1.0, 1.0, 1.0), price)

    @classmethod
    def _of(cls, scenario: Scenario, name: str, speedup: Estimate, price: float) -> "Offer":
        tpot_s = scenario.plain_s / speedup.value
        million = in_logs(price / HOUR_S * tpot_s / scenario.batch * MILLION, speedup.relative)
        return cls(scenario.device, scenario.context, scenario.batch, name, tpot_s, million)


@dataclass(frozen=True)
class Cheapest:
    """Where tokens of one context are the cheapest.

    Attributes:
        context: tokens a sequence in the cache.
        max_tpot_s: most seconds a token and sequence that an offer may take; None: any.
        planned: of what was chosen everywhere; None: all take longer, or nothing fits.
        plain: without speculation, likewise.
    """

    context: int
    max_tpot_s: float | None
    planned: Offer | None
    plain: Offer | None


def cheapest(
    found: Sequence[Scenario], prices: Mapping[str, float], *, max_tpot_s: float | None = None
) -> tuple[Cheapest, ...]:
    """For each context the offer whose tokens cost least, of all devices and batch sizes that are not known not to fit.

    Args:
        found: what was looked at.
        prices: of an hour, by device.
        max_tpot_s: most seconds a token and sequence.
    """

    def best(make: Callable[..., Offer], context: int) -> Offer | None:
        here = [each for each in found if each.context == context and each.fits is not False]
        offers = [make(each, price=prices[each.device]) for each in here]
        quick = [each for each in offers if max_tpot_s is None or each.tpot_s <= max_tpot_s]
        return min(quick, key=lambda each: each.million.value, default=None)

    contexts = dict.fromkeys(each.context for each in found)
    return tuple(Cheapest(c, max_tpot_s, best(Offer.planned, c), best(Offer.plain, c)) for c in contexts)
