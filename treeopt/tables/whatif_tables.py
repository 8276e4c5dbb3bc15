"""Predictions for other devices (`treeopt whatif`) as tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.planning.evaluator import PLAIN
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.tables.terminal_text import interval, terminal


def show_scenarios(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a table for each device, the batch size from which speculation stops paying, and the conditions.

    Args:
        record: what `treeopt whatif` writes.
        console: where to print; default standard output.
    """
    console = console or terminal()
    for device in dict.fromkeys(cell["device"] for cell in record["cells"]):
        table = Table(title=device, title_justify="left", title_style="bold")
        names = ("context", "batch", "best", "nodes", "depth", "tau", "step ms", "plain ms", "tokens/s", "speedup")
        for name in (*names, "break-even\nacceptance", *(["per million\ntokens"] if record.get("cheapest") else [])):
            table.add_column(name, justify="left" if name == "best" else "right")
        for cell in record["cells"]:
            if cell["device"] == device:
                table.add_row(*_row(cell), style="dim" if cell["tree"] is None else None)
        console.print(table)
        for limit in record["limits"]:
            if limit["device"] == device:
                console.print(_break_even(limit, record), soft_wrap=True)
        console.print()
    for best in record.get("cheapest", ()):  # missing in older records
        console.print(_cheapest(best), soft_wrap=True)
    console.print(Text("\n".join(record["conditions"])), style="dim", soft_wrap=True)


def _row(cell: Mapping[str, Any]) -> tuple[str | Text, ...]:
    plain, tree = cell["tree"] is None, cell["tree"] or {"nodes": 0, "depth": 0}
    needed = "none" if cell["break_even_acceptance"] is None else f"{cell['break_even_acceptance']:.3f}"
    return (
        str(cell["context"]),
        str(cell["batch"]),
        Text(cell["name"]),
        str(tree["nodes"]),
        str(tree["depth"]),
        "1" if plain else interval(Estimate(**cell["tau"])),
        f"{cell['step_s'] * 1e3:.2f}",
        f"{cell['plain_s'] * 1e3:.2f}",
        f"{cell['tokens_s']:.0f}",
        "1" if plain else interval(Estimate(**cell["speedup"])),
        needed,
        *([_money(Estimate(**cell["million"]))] if cell.get("million") else []),
    )


def _break_even(limit: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return up to which batch size speculation pays at one device and context."""
    cells = [c for c in record["cells"] if (c["device"], c["context"]) == (limit["device"], limit["context"])]
    largest = max(cell["batch"] for cell in cells)
    if all(cell["fits"] is False for cell in cells):
        return f"Context {limit['context']}: no batch size fits."
    pays, surely = (
        "at no batch size" if size is None else "at every batch size" if size == largest else f"up to batch {size}"
        for size in (limit["pays_up_to"], limit["surely_up_to"])
    )
    return f"Context {limit['context']}: speculation pays {pays}; with the whole interval above 1 {surely}."


def _cheapest(best: Mapping[str, Any]) -> str:
    """Return the device and batch size with the cheapest tokens, as planned and without speculation."""
    limit = best["max_tpot_s"]
    below = "" if limit is None else f", at most {limit * 1e3:g} ms per token"
    planned, plain = (_offer(best[key]) for key in ("planned", "plain"))
    return f"Context {best['context']}{below}: tokens are cheapest on {planned}; without speculation on {plain}."


def _offer(offer: Mapping[str, Any] | None) -> str:
    if offer is None:
        return "none of these"
    price = _money(Estimate(**offer["million"]))
    name = f", {offer['name']}" if offer["name"] != PLAIN else ""
    place = f"{offer['device']}, batch {offer['batch']}{name}"
    return f"{place}: {price} per million, {offer['tpot_s'] * 1e3:.2f} ms per token"


def _money(price: Estimate) -> str:
    """Return a price, to three digits, with its interval if it has one."""
    value, low, high = (
        f"{amount:,.0f}" if amount >= 1000 else f"{amount:.3g}" for amount in (price.value, price.low, price.high)
    )
    return value if price.low == price.high else f"{value} [{low}, {high}]"
