"""The price of tokens for an answer, as `treeopt whatif --price` computes it: the cheapest batch size and a table."""

from dataclasses import asdict

from simulate.whatif.scenarios import Offer, Scenario, cheapest
from treeopt.explore.answers import Answer
from treeopt.explore.questions import Device
from treeopt.planning.evaluator import PLAIN
from treeopt.plans.plan import PlanEntry
from treeopt.results.blocks import Blocks, Column, Line, Row, Table, number, word
from treeopt.results.plan import describe_choice
from treeopt.results.whatif import money

COLUMNS = (
    Column("batch", key=True),
    Column("configuration", align="left"),
    Column("a million tokens", meaning="Price of a million tokens with the chosen configuration."),
    Column("without speculation", meaning="Price of a million tokens with plain decoding."),
    Column("per token", "ms", meaning="Time per token and sequence with the chosen configuration."),
)
BUSY = (
    "Prices: the price per hour over the tokens per hour when every row is busy; prompts and idle time are not "
    "included. Intervals are the speedup's."
)


def priced(answer: Answer, price: float) -> Blocks:
    """Return the cheapest batch size, a row for each batch size, and the conditions; nothing without a price.

    Args:
        answer: the answer.
        price: of one device per hour.
    """
    if not price:
        return ()
    steps = answer.question.steps
    together = price * (steps.count if isinstance(steps, Device) else 1)
    scenarios = [_scenario(answer, entry) for entry in answer.plan.entries]
    rows = tuple(_row(scenario, together) for scenario in scenarios)
    (best,) = cheapest(scenarios, {scenarios[0].device: together}, max_tpot_s=answer.question.max_tpot_s)
    sentence = f"A million tokens cost least {_offer(best.planned)}; without speculation {_offer(best.plain)}."
    return Line("answer", sentence), Table("Price of a million tokens", COLUMNS, rows), Line("note", BUSY)


def _scenario(answer: Answer, entry: PlanEntry) -> Scenario:
    """Return a batch size of a plan as a scenario, which prices are computed from."""
    steps = answer.question.steps
    name, context = (steps.hardware, steps.context) if isinstance(steps, Device) else ("device", 0)
    plain = next(choice for choice in (entry.choice, *entry.compared) if choice.plain)
    fits = False if entry.batch in answer.too_large else None
    return Scenario(name, context, entry.batch, entry.choice, plain.step_s, None, fits=fits, plan=answer.plan)


def _row(scenario: Scenario, price: float) -> Row:
    planned, plain = Offer.planned(scenario, price=price), Offer.plain(scenario, price=price)
    return Row(
        (
            number(scenario.batch),
            word("does not fit" if scenario.fits is False else describe_choice(scenario.choice)),
            money(asdict(planned.million)),
            money(asdict(plain.million)),
            number(1e3 * planned.tpot_s, 2),
        )
    )


def _offer(offer: Offer | None) -> str:
    if offer is None:
        return "at no batch size within the limits"
    name = "" if offer.name == PLAIN else f" with the {offer.name}"
    return f"at batch {offer.batch}{name}: {money(asdict(offer.million)).text}"
