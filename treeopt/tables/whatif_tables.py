"""Predictions for other devices (`treeopt whatif`) as tables: one for each device and context."""

from collections.abc import Mapping, Sequence
from typing import Any

from treeopt.engines import ENGINES
from treeopt.planning.evaluator import PLAIN
from treeopt.storage.provenance import look
from treeopt.tables.blocks import ONE, Block, Blocks, Cell, Column, Line, Row, Table, number, ranged, word
from treeopt.tables.plan_answers import export_command

Cells = Sequence[Mapping[str, Any]]
DETAIL = ("Memory: ", "Among trees", "Break-even", "A million tokens")  # conditions that few need
COLUMNS = (
    Column("batch", key=True),
    Column("best", align="left", key=True),
    Column("nodes", drop=4, meaning="Drafted tokens in the tree."),
    Column("depth", drop=8, meaning="Drafted tokens on the longest path."),
    Column("tau", drop=3, meaning="Tokens committed per step and sequence, bonus counted."),
    Column("step", "ms", drop=6, meaning="Time of one step: draft, verify, accept."),
    Column("plain", "ms", drop=7, meaning="Time of one step of plain decoding."),
    Column("tokens/s", drop=2, meaning="Tokens per second of the whole batch."),
    Column("speedup", meaning="Time per token of plain decoding over that of the best tree."),
    Column("break-even acceptance", drop=5, meaning="Acceptance of each token from which the best chain pays."),
)
PRICE = Column("per million tokens", drop=1, meaning="Price of a million tokens, in the currency of --price.")


def scenario_blocks(record: Mapping[str, Any], *, plans: Sequence[str] = ()) -> Blocks:
    """Return where speculation pays, what is cheapest, the next command, a table for each device, and the conditions.

    Args:
        record: what `treeopt whatif` writes.
        plans: files of the plans, if they were written.
    """
    blocks: list[Block] = [Line("answer", _pays(limit, record)) for limit in record["limits"]]
    blocks += [Line("answer", _cheapest(best)) for best in record.get("cheapest", ())]  # missing in older records
    blocks.append(_next(record, plans))
    blocks += _tables(record)
    blocks += [Line("warning", f"{warning}.") for warning in record["warnings"]]
    return (*blocks, *(Line("condition", text, detail=text.startswith(DETAIL)) for text in record["conditions"]))


def _next(record: Mapping[str, Any], plans: Sequence[str]) -> Line:
    if not plans:
        return Line("next", "Next: write the plans with --plans FOLDER, and hand one to an engine with treeopt export.")
    engine, kind = (look(record, "meta", "settings", key) for key in ("engine", "kind"))
    export = export_command(plans[0], engine if engine in ENGINES else None, kind=kind)
    return Line("next", "Next: hand a plan to an engine:", export)


def _tables(record: Mapping[str, Any]) -> list[Table]:
    columns = (*COLUMNS, PRICE) if record.get("cheapest") else COLUMNS
    tables = []
    for device, context in dict.fromkeys((cell["device"], cell["context"]) for cell in record["cells"]):
        rows = tuple(
            Row(_cells(cell)[: len(columns)], "dim" if cell["tree"] is None else "")
            for cell in _of(record, device, context)
        )
        tables.append(Table(f"{device}, {context} tokens of context", columns, rows))
    return tables


def _of(record: Mapping[str, Any], device: str, context: int) -> Cells:
    return [cell for cell in record["cells"] if (cell["device"], cell["context"]) == (device, context)]


def _cells(cell: Mapping[str, Any]) -> tuple[Cell, ...]:
    plain, tree = cell["tree"] is None, cell["tree"] or {"nodes": 0, "depth": 0}
    needed = cell["break_even_acceptance"]
    return (
        number(cell["batch"]),
        word(cell["name"]),
        number(tree["nodes"]),
        number(tree["depth"]),
        ONE if plain else ranged(cell["tau"]),
        number(cell["step_s"] * 1e3, 2),
        number(cell["plain_s"] * 1e3, 2),
        number(cell["tokens_s"]),
        ONE if plain else ranged(cell["speedup"]),
        Cell("none") if needed is None else number(needed, 3),
        money(cell["million"]) if cell.get("million") else Cell(),
    )


def _pays(limit: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return up to which batch size speculation pays at one device and context, and the highest speedup."""
    cells = _of(record, limit["device"], limit["context"])
    place, largest = f"{limit['device']}, context {limit['context']}", max(cell["batch"] for cell in cells)
    if all(cell["fits"] is False for cell in cells):
        return f"{place}: no batch size fits."
    pays, surely = (
        "at no batch size" if size is None else "at every batch size" if size == largest else f"up to batch {size}"
        for size in (limit["pays_up_to"], limit["surely_up_to"])
    )
    best = max(
        (cell for cell in cells if cell["tree"] is not None), key=lambda cell: cell["speedup"]["value"], default=None
    )
    most = ""
    if best is not None:
        name = f"{best['name']} of {best['tree']['nodes']} nodes"
        most = f" Most at batch {best['batch']}: {name}, {ranged(best['speedup']).text} times plain decoding."
    return f"{place}: speculation pays {pays}; with the whole interval above 1 {surely}.{most}"


def _cheapest(best: Mapping[str, Any]) -> str:
    """Return the device and batch size with the cheapest tokens, as planned and without speculation."""
    limit = best["max_tpot_s"]
    below = "" if limit is None else f", at most {limit * 1e3:g} ms per token"
    planned, plain = (_offer(best[key]) for key in ("planned", "plain"))
    return f"Context {best['context']}{below}: tokens are cheapest on {planned}; without speculation on {plain}."


def _offer(offer: Mapping[str, Any] | None) -> str:
    if offer is None:
        return "none of these"
    name = f", {offer['name']}" if offer["name"] != PLAIN else ""
    place = f"{offer['device']}, batch {offer['batch']}{name}"
    return f"{place}: {money(offer['million']).text} per million, {offer['tpot_s'] * 1e3:.2f} ms per token"


def money(price: Mapping[str, float]) -> Cell:
    """Return a price, to three digits, with its interval if it has one."""
    value, low, high = price["value"], price["low"], price["high"]
    texts = [f"{amount:,.0f}" if amount >= 1000 else f"{amount:.3g}" for amount in (value, low, high)]
    text = texts[0] if low == high else f"{texts[0]} [{texts[1]}, {texts[2]}]"
    return Cell(text, value, low, high)
