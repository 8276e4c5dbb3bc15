"""The parts of the page that show an answer, made of marimo's own; what comes from files or controls is escaped."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import altair as alt
from marimo import Html, accordion, as_html, callout, plain_text, vstack

from simulate.whatif.scenarios import Scenario
from simulate.whatif.token_prices import Offer, cheapest
from treeopt.charts.marks import DARK, LIGHT, Figure, themed_spec
from treeopt.charts.speed_charts import speedups, throughput_and_latency
from treeopt.charts.trace_charts import accepted_shares, tau_by_nodes, tree_picture
from treeopt.engines.export import Export
from treeopt.errors import TraceError, TreeoptError
from treeopt.explore.answers import Answer, Device
from treeopt.notebook import escape, table_html
from treeopt.planning.evaluator import PLAIN
from treeopt.plans import PlanEntry
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.results.kinds import RESULTS
from treeopt.results.plan import describe_choice
from treeopt.results.tables_and_numbers import Blocks, Column, Line, Row, Table, number, word
from treeopt.results.whatif import money

STEP_TIMES = "Step times:"  # beginning of the condition that says where they come from
STYLE = f"<style>.figures{{{LIGHT.properties()}}}.dark .figures{{{DARK.properties()}}}</style>"


def header() -> Html:
    """Return the head of the page, with the colours of charts."""
    return vstack([Html(f"<h1>treeopt explore</h1>{STYLE}"), words(["The answer is what `treeopt search` says."])])


def words(lines: Iterable[str], *, role: str = "") -> Html:
    """Return sentences, one below the other, their commands as code; `role` of the part is for screen readers."""
    told = (re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(line)) for line in lines)
    return Html(f'<div class="words" role="{role or "note"}">{"".join(f"<p>{line}</p>" for line in told)}</div>')


def failure(error: TreeoptError) -> Html:
    """Return an error in one line."""
    return callout(words([" ".join(str(error).split())], role="alert"), kind="danger")


def searching(*, policies: bool) -> Html:
    """Return what stands there while a search runs; the style hides the last answer meanwhile."""
    long = " Dynamic trees are replayed one by one, which takes up to a minute or two." if policies else ""
    return Html(f'<p class="searching" role="status">Searching …{long}</p>')


def headline(answer: Answer, batch: int) -> Html:
    """Return the answer: the sentence of one batch size in front, then its check, then the other sizes."""
    place = [entry.batch for entry in answer.plan.entries].index(batch)
    lines = list(RESULTS["plan"].answers(answer.plan))
    first = Html(f'<h2 class="headline">{escape(lines.pop(place))}</h2>')
    check = [answer.checks[batch]] if batch in answer.checks else []
    return callout(vstack([first, words([*check, *lines], role="status")]))


def configurations(answer: Answer, batch: int) -> Html:
    """Return the table of a batch size's configurations with its notes; the first row is the choice."""
    blocks = [
        block for block in RESULTS["plan"].blocks(answer.plan) if isinstance(block, Table) or block.kind == "note"
    ]
    start = [block.title if isinstance(block, Table) else "" for block in blocks].index(f"batch {batch}")
    after = (place for place in range(start + 1, len(blocks)) if isinstance(blocks[place], Table))
    table, *notes = blocks[start : next(after, len(blocks))]
    assert isinstance(table, Table)
    return shown([replace(table, title=f"Configurations at batch {batch}"), *notes])


def shown(blocks: Iterable[Table | Line]) -> Html:
    """Return tables and sentences."""
    return vstack([Html(table_html(b)) if isinstance(b, Table) else words([b.text]) for b in blocks])


def figures(charts: Iterable[alt.LayerChart]) -> Html:
    """Return charts beside one another, each under its title and over its conditions."""
    return Html(f'<div class="figures">{"".join(map(_figure, charts))}</div>')


def _figure(chart: alt.LayerChart) -> str:
    figure = Figure.of(chart)
    drawn = alt.Chart.from_dict(themed_spec(figure.spec))
    drawn.usermeta = {"embedOptions": {"renderer": "svg", "actions": False}}  # colours of the page need SVG
    return (
        f"<figure><h3>{escape(figure.title)}</h3>{as_html(drawn).text}"
        f"<figcaption>{words(figure.conditions).text}</figcaption></figure>"
    )


def charts_of(answer: Answer, batch: int) -> Iterator[alt.LayerChart]:
    """Yield the charts of an answer; the tree is that of a batch size.

    Without a tree, none is drawn; tau by nodes is left out where the trace's rule accepts several siblings.
    """
    plan, tree = answer.plan, answer.plan.entry(batch).choice.tree
    replayed = with_drawn_ranks(answer.trace, 0)
    yield speedups(plan)
    with suppress(TraceError):
        yield tau_by_nodes(replayed, named={"chosen tree": tree} if tree else {})
    yield throughput_and_latency(plan)
    if tree:
        yield tree_picture(tree, accepted=accepted_shares(tree, replayed))


def export_parts(export: Export | TreeoptError | None, engine: str | None) -> Html:
    """Return what an engine gets and how it is started, why it gets nothing, or what to do to get it."""
    if export is None:
        none = f"There is no exporter for {engine}: download the plan."
        return words([none if engine else "Choose an engine to get its configuration."])
    if isinstance(export, TreeoptError):
        return failure(export)
    launch = [words(["To start the engine:"]), plain_text(export.launch)] if export.launch else []
    return vstack([plain_text(export.text), *launch, words(map(_sentence, export.notes))])


def footnotes(answer: Answer) -> Html:
    """Return warnings and conditions; details are folded."""
    memory = [f"Batch {batch} does not fit the memory of the device." for batch in answer.too_large]
    warned = list(dict.fromkeys((*memory, *map(_sentence, answer.warnings))))
    blocks = RESULTS["plan"].blocks(answer.plan)
    lines = [block for block in blocks if isinstance(block, Line) and block.kind == "condition"]
    if isinstance(answer.question.steps, Device):
        steps = answer.question.steps
        sizes = f"its data sheet and the sizes of {steps.target}, {steps.context} tokens in the cache"
        priced = f"{STEP_TIMES} predicted for {steps.hardware} from {sizes}; nothing was measured."
        lines = [Line("condition", priced), *(line for line in lines if not line.text.startswith(STEP_TIMES))]
    conditions = [*map(_sentence, answer.notes), *(line.text for line in lines if not line.detail)]
    details = {"How this was found": words(line.text for line in lines if line.detail)}
    warnings = [callout(words(warned), kind="warn", title="Warnings")] if warned else []
    return vstack([*warnings, Html("<h3>Conditions</h3>"), words(conditions), accordion(details)])


def panel(*groups: tuple[bool, Mapping[str, Any]]) -> Html:
    """Return groups of controls with whether each is shown; hidden ones stay, so that they keep their values."""
    parts = (
        f'<div style="display: {"block" if shown else "none"}">{vstack(list(elements.values()), gap=1)}</div>'
        for shown, elements in groups
    )
    return Html(f'<div class="panel">{"".join(parts)}</div>')


def _sentence(line: str) -> str:
    """Return a message of the library as a sentence.

    >>> _sentence("record more domains")
    'Record more domains.'
    """
    return f"{line[:1].upper()}{line[1:].removesuffix('.')}."


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
    """Return the cheapest batch size, a row for each, and conditions, at a device's price per hour; 0: nothing."""
    if not price:
        return ()
    steps = answer.question.steps
    together = price * (steps.count if isinstance(steps, Device) else 1)
    scenarios = [_scenario(answer, entry) for entry in answer.plan.entries]
    rows = tuple(_row(scenario, together) for scenario in scenarios)
    (best,) = cheapest(scenarios, {scenarios[0].device: together}, max_tpot_s=answer.question.search.max_tpot_s)
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
    planned, plain = (Offer.of(scenario, price=price, plain=plain) for plain in (False, True))
    return Row(
        (
            number(scenario.batch),
            word("does not fit" if scenario.fits is False else describe_choice(scenario.choice)),
            money(asdict(planned)["million"]),
            money(asdict(plain)["million"]),
            number(1e3 * planned.tpot_s, 2),
        )
    )


def _offer(offer: Offer | None) -> str:
    if offer is None:
        return "at no batch size within the limits"
    name = "" if offer.name == PLAIN else f" with the {offer.name}"
    price = money(asdict(offer)["million"]).text
    return f"at batch {offer.batch}{name}: {price}"
