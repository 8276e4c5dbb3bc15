"""Predictions for other devices (`treeopt whatif`): one table for each device and context."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treeopt.engines import ENGINES
from treeopt.planning.evaluator import PLAIN
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import (
    BATCH,
    DEPTH,
    NODES,
    PLAIN_STEP,
    SPEEDUP,
    STEP,
    TAU,
    TOKENS_S,
    Cell,
    Column,
    Line,
    Table,
    number,
    ranged,
    word,
)
from treeopt.results.words import export_command, method_advice, near_limit, never_ran, other_model, shape_words
from treeopt.storage.provenance import look

Cells = Sequence[Mapping[str, Any]]
PRICE = Column(
    "price per million tokens",
    drop=1,
    meaning="In the currency of --price, of tokens decoded.",
    show=lambda cell: money(cell["million"]) if cell.get("million") else Cell(),
)
COLUMNS = (
    BATCH,
    Column("best", align="left", key=True, show=lambda cell: word(_kind(cell))),
    replace(NODES, drop=0, meaning="Drafted tokens in the tree or chain.", field="tree.nodes", default=0),
    replace(DEPTH, field="tree.depth", default=0),
    TAU,
    STEP,
    PLAIN_STEP,
    TOKENS_S,
    Column(
        "TPOT ms",
        drop=4,
        meaning="Time per output token of one sequence.",
        show=lambda cell: number(1e3 * cell["batch"] / cell["tokens_s"], 2),
    ),
    replace(SPEEDUP, meaning="Time per token of plain decoding over that of the best tree."),
    PRICE,
    Column(
        "break-even acceptance",
        drop=5,
        meaning="Acceptance of each token from which the best chain pays.",
        field="break_even_acceptance",
        digits=3,
        default="none",
    ),
)


FITS = (
    Column("device", align="left", key=True, field="device"),
    Column("context", field="context"),
    Column("weights", "GB", field="memory.weights", digits=1),
    Column("drafter", "GB", field="memory.drafter", digits=2),
    Column("sequence", "MB", meaning="Keys, values and states.", field="memory.sequence", digits=1),
    Column("in the drafter", "MB", drop=2, field="memory.drafted", digits=1),
    Column("snapshot", "MB", drop=1, meaning="States of a drafted token.", field="memory.snapshot", digits=1),
    Column("most", meaning="The largest batch without speculation.", field="plain.most", default=0),
    Column("tokens/s", field="plain.tokens_s", digits=0, default=0),
    Column("most speculating", field="speculating.most", default=0),
    Column("speculating tokens/s", field="speculating.tokens_s", digits=0, default=0),
    replace(SPEEDUP, name="ratio", meaning="Tokens per second, each at its own best batch.", field="ratio", default=""),
)


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is cheapest, and where speculation pays."""
    for best in record.get("cheapest", ()):  # missing in older records
        if any(cell["fits"] is not False for cell in record["cells"] if cell["context"] == best["context"]):
            yield _cheapest(best, record)
    for limit in record["limits"]:
        yield _pays(limit, record)
    yield from (_fit(fit) for fit in record.get("fits", ()))
    yield from other_model(look(record, "meta", "trace"))
    yield from never_ran(look(record, "meta", "settings", "engine"))


def _next(record: Mapping[str, Any], *, plans: Sequence[str] = (), written: bool = False, **_: Any) -> Iterator[Line]:
    """Yield the export of the first plan that speculates and fits; the same command writes it with `--plans`."""
    able = [(c["device"], c["context"]) for c in record["cells"] if c["fits"] is not False and c["tree"] is not None]
    places = dict.fromkeys((cell["device"], cell["context"]) for cell in record["cells"])
    fitting = [plan for plan, place in zip(plans, places, strict=False) if place in able]
    if not fitting:
        return
    engine, kind = (look(record, "meta", "settings", key) for key in ("engine", "kind"))
    engine = engine if engine in ENGINES.exporting() else None
    keep = "" if written else "write the plans with --plans plans, and "
    text = f"Next: {keep}hand one to {engine or 'an engine'}{method_advice(engine, kind=kind)}:"
    yield Line("next", text, export_command(fitting[0], engine, kind=kind))


def _tables(record: Mapping[str, Any], **_: Any) -> Iterator[Table]:
    """Yield a table for each device and context."""
    priced = record["cells"][0].get("million") is not None
    columns = [column for column in COLUMNS if priced or column is not PRICE]
    if record.get("fits"):
        yield Table.of("memory", FITS, record["fits"])
    for device, context in dict.fromkeys((cell["device"], cell["context"]) for cell in record["cells"]):
        title, cells = f"{device}, {context} tokens of context", _of(record, device, context)
        yield Table.of(title, columns, cells, lambda cell: "dim" if cell["tree"] is None else "")


def _of(record: Mapping[str, Any], device: str, context: int) -> Cells:
    return [cell for cell in record["cells"] if (cell["device"], cell["context"]) == (device, context)]


def _kind(cell: Mapping[str, Any]) -> str:
    """Return what is best in one word or two, and that it does not fit."""
    if cell["tree"] is None:
        return str(cell["name"])
    kind = "chain" if cell["tree"]["nodes"] == cell["tree"]["depth"] else "tree"
    return f"does not fit ({kind})" if cell["fits"] is False else kind


def _pays(limit: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return up to which batch size speculation pays at one device and context, and the highest speedup."""
    cells = _of(record, limit["device"], limit["context"])
    place, batches = f"{limit['device']}, context {limit['context']}", [cell["batch"] for cell in cells]
    if all(cell["fits"] is False for cell in cells):
        return f"{place}: no batch size fits: take more devices (--hardware 2xNAME), lower --weight-bytes or --context."
    pays, surely = limit["pays_up_to"], limit["surely_up_to"]
    if pays is None:
        said = "speculation pays at no batch size"
    elif surely is None:
        said = f"speculation is within the error of plain decoding {_up_to(pays, batches)}"
    else:
        said = f"speculation pays {_up_to(surely, batches)}"
        beyond = "above that" if pays == max(batches) else f"from there up to batch {pays}"
        said += "" if pays <= surely else f", and is within the error of plain decoding {beyond}"
    best = max(
        (cell for cell in cells if cell["tree"] and cell["fits"] is not False),
        key=lambda cell: cell["speedup"]["value"],
        default=None,
    )
    most = ""
    if best is not None:
        shape = shape_words(best["tree"]["nodes"], best["tree"]["depth"])
        where = f". Most at batch {best['batch']}" if len(batches) > 1 else ""
        most = f"{where}: a {shape}, {ranged(best['speedup']).text} times plain decoding"
    return f"{place}: {said}{most}."


def _fit(fit: Mapping[str, Any]) -> str:
    """Return the largest batches with and without speculation, and the throughput at each one's own best."""
    plain, best, place = fit["plain"], fit["speculating"], f"{fit['device']}, context {fit['context']}"
    if plain is None:
        return f"{place}: memory holds no sequence."
    if best is None:
        return f"{place}: memory holds {plain['most']} sequences, none of these batch sizes with speculation."
    lost = 1 - best["most"] / plain["most"]
    return (
        f"{place}: a {shape_words(best['nodes'], best['depth'])} costs {f'{lost:.0%}' if lost else 'none'} of the "
        f"batch that memory holds ({plain['most']}, with it {best['most']}). At full load, each at its best batch: "
        f"{ranged(fit['ratio']).text} times the tokens per second of plain decoding."
    )


def _up_to(size: int, batches: Sequence[int]) -> str:
    if len(batches) == 1:
        return f"at batch {size}"
    return "at every batch size" if size == max(batches) else f"up to batch {size}"


def _cheapest(best: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return the device and batch size with the cheapest tokens, as planned and without speculation."""
    limit = best["max_tpot_s"]
    below = "" if limit is None else f", at most {limit * 1e3:g} ms per token"
    planned, plain = (_offer(best[key], record, limit) for key in ("planned", "plain"))
    high, low = (look(best, key, "million", end) for key, end in (("planned", "high"), ("plain", "low")))
    unsure = low is not None and high is not None and best["planned"] != best["plain"] and high >= low
    error = ", within the error of the price" if unsure else ";"
    said = "tokens are cheapest" if record["cells"][0].get("million") else "most tokens per second"
    if best["planned"] is None and best["plain"] is None and limit is not None:
        cells = [cell for cell in record["cells"] if cell["context"] == best["context"] and cell["fits"] is not False]
        fastest = min(cells, key=lambda cell: cell["batch"] / cell["tokens_s"])
        tpot_ms = 1e3 * fastest["batch"] / fastest["tokens_s"]
        least = f"the least is {tpot_ms:.2f} ms, on {fastest['device']} at batch {fastest['batch']}"
        return f"Context {best['context']}: nothing takes at most {limit * 1e3:g} ms per token: {least}."
    rival = _rival(best, record)
    if best["planned"] == best["plain"]:
        return f"Context {best['context']}{below}: {said} without speculation on {plain}.{rival}"
    return f"Context {best['context']}{below}: {said} on {planned}{error} without speculation on {plain}.{rival}"


def _rival(best: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return the other device whose price is within the error of the cheapest one's; empty without one."""
    planned, limit = best["planned"], best["max_tpot_s"] or math.inf
    if planned is None or planned["million"] is None:
        return ""
    others = [
        cell
        for cell in record["cells"]
        if cell["context"] == best["context"]
        and cell["device"] != planned["device"]
        and cell["fits"] is not False
        and cell["batch"] / cell["tokens_s"] <= limit
    ]
    other = min(others, key=lambda cell: cell["million"]["value"], default=None)
    if other is None or other["million"]["low"] > planned["million"]["high"]:
        return ""
    return f" {other['device']} is within the error of that: {money(other['million']).text} at batch {other['batch']}."


def _offer(offer: Mapping[str, Any] | None, record: Mapping[str, Any], limit: float | None) -> str:
    if offer is None:
        return "none of these"
    cells = _of(record, offer["device"], offer["context"])
    chosen = [cell for cell in cells if cell["batch"] == offer["batch"] and offer["name"] != PLAIN]
    trees = [cell["tree"] for cell in chosen if cell["tree"] is not None]
    shape = "".join(f", a {shape_words(tree['nodes'], tree['depth'])}" for tree in trees)
    rate = f"{offer['batch'] / offer['tpot_s']:,.0f} tokens/s"
    million = offer["million"]
    price = rate if million is None else f"{money(million).text} per million tokens"
    price += f", {offer['tpot_s'] * 1e3:.2f} ms per token"
    price += "".join(near_limit(offer["tpot_s"], cell["speedup"], limit) for cell in chosen)
    return f"{offer['device']}, batch {offer['batch']}{shape}: {price}"


def money(price: Mapping[str, float]) -> Cell:
    """Return a price, to three digits, with its interval if it has one; all with the decimals of the price.

    >>> money({"value": 0.0809, "low": 0.063, "high": 0.1041}).text, money({"value": 1200.4, "low": 3, "high": 3}).text
    ('0.0809 [0.0630, 0.1041]', '1,200')
    """
    value, low, high = price["value"], price["low"], price["high"]
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    texts = [f"{amount:,.{digits}f}" for amount in (value, low, high)]
    text = texts[0] if low == high else f"{texts[0]} [{texts[1]}, {texts[2]}]"
    return Cell(text, value, low, high)


ENTRY = ResultKind(
    name="whatif",
    title="Devices that were not measured",
    question="How fast would other devices be?",
    place=7,
    command="whatif",
    schema="treeopt.whatif/1",
    record="simulate.whatif.whatif_record:WhatIfRecord",
    rows=lambda record: record["cells"],
    columns=COLUMNS,
    answers=_answers,
    next_lines=_next,
    tables=_tables,
    details=("Memory: ", "Among trees", "A million tokens"),
    charts={
        "speedup": "treeopt.charts.speed_charts:scenario_speedups",
        "latency": "treeopt.charts.speed_charts:scenario_latency",
        "roofline": "treeopt.api.device_charts:device_chart",
    },
)
