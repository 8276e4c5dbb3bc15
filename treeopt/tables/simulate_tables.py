"""Simulated runs, servers and capacities as tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.statistics.clustered_estimate import Estimate
from treeopt.tables.terminal_text import interval, terminal

PERCENTS = (50, 95, 99)
LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "inter-token latency",
    "e2e_s": "admission to end",
}
SERVED = (
    ("tokens/s", "tokens_s", 1, 1.0),
    ("requests/s ended", "requests_s", 3, 1.0),
    ("goodput, requests/s", "goodput_s", 3, 1.0),
    ("within the limits, %", "within", 1, 100.0),
    ("requests decoding", "running", 2, 1.0),
    ("requests waiting", "waiting", 2, 1.0),
    ("busy, %", "busy", 1, 100.0),
    ("changes of tree per second", "switches", 3, 1.0),
)


def show_runs(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print runs side by side and the gain of the first; `record` is what `treeopt simulate` writes."""
    console = console or terminal()
    table = Table(title=f"batch {record['batch']}, {record['mode']}", title_justify="left", title_style="bold")
    table.add_column("")
    for configuration in record["ways"]:
        table.add_column(Text(configuration["name"]), justify="right")
    for label, key, digits in (("tokens/s", "tokens_s", 1), ("tau", "tau", 3), ("mean occupancy", "occupancy", 2)):
        table.add_row(label, *(_value(configuration[key], digits) for configuration in record["ways"]))
    for key, label in LATENCIES.items():
        for percent in PERCENTS:
            values = (configuration[key][f"p{percent}"] for configuration in record["ways"])
            table.add_row(f"{label}, p{percent}, ms", *("" if v is None else _value(v, 1, 1e3) for v in values))
    console.print(table)
    for label, key in (("tokens/s over plain decoding's", "throughput"), ("mean over requests", "per_request")):
        if record["speedup"] is not None:
            console.print(f"Speedup, {label}: {interval(Estimate(**record['speedup'][key]))}", markup=False)
    console.print(Text("\n".join(record["conditions"])), style="dim", soft_wrap=True)


def show_serving(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a server's figures, configurations side by side; `record` is what `treeopt simulate` writes."""
    console = console or terminal()
    table = Table(title=f"server of {record['rows']} rows", title_justify="left", title_style="bold")
    table.add_column("")
    for configuration in record["ways"]:
        table.add_column(Text(configuration["name"]), justify="right")
    figures = [configuration["figures"] for configuration in record["ways"]]

    def row(label: str, key: str, digits: int, unit: float = 1.0) -> None:
        values = [figure.get(key) for figure in figures]
        table.add_row(label, *("" if value is None else _value(value, digits, unit) for value in values))

    for label, key, digits, unit in SERVED:
        row(label, key, digits, unit)
    for number in range(max(len(configuration["trees"]) for configuration in record["ways"])):
        row(f"time of steps with tree {number + 1}, %", f"way_{number}", 1, 100)
    for key, label in (LATENCIES | {"e2e_s": "arrival to end"}).items():
        for percent in PERCENTS:
            row(f"{label}, p{percent}, ms", f"{key}_p{percent}", 1, 1e3)
    console.print(table)
    for configuration in record["ways"]:
        nodes = [0 if tree is None else len(tree) for tree in configuration["trees"]]
        if len(nodes) > 1:
            changes = [
                f"{up} requests or more, back at {down}"
                for up, down in zip(configuration["up"], configuration["down"], strict=True)
            ]
            trees = "; ".join(f"{n} nodes from {change}" for n, change in zip(nodes[1:], changes, strict=True))
            console.print(
                f"Trees of the {configuration['name']}: {nodes[0]} nodes; {trees}.", markup=False, soft_wrap=True
            )
    console.print(Text("\n".join(record["conditions"])), style="dim", soft_wrap=True)


def show_capacity(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the rates that a server carries, one line per configuration; `record` is what `treeopt simulate` writes."""
    console = console or terminal()
    table = Table(title=f"server of {record['rows']} rows", title_justify="left", title_style="bold")
    names = ("configuration", "requests/s carried", f"ratio to {record['ways'][-1]['name']}")
    for name in names:
        table.add_column(name, justify="left" if name == names[0] else "right")
    for configuration in record["ways"]:
        over = "" if configuration["over"] is None else interval(Estimate(**configuration["over"]))
        table.add_row(Text(configuration["name"]), _value(configuration["requests_s"], 2), over)
    console.print(table)
    console.print(Text("\n".join(record["conditions"])), style="dim", soft_wrap=True)


def _value(value: Any, digits: int, unit: float = 1.0) -> str:
    if isinstance(value, Mapping):
        return interval(Estimate(*(unit * value[end] for end in ("value", "low", "high"))), digits)
    return f"{value * unit:.{digits}f}"
