"""Simulated runs, servers and capacities as tables: figures down, configurations side by side."""

import shlex
from collections.abc import Mapping
from typing import Any

from treeopt.errors import counted
from treeopt.planning.evaluator import PLAIN
from treeopt.results.blocks import Block, Blocks, Cell, Column, Line, Row, Table, number, ranged, word
from treeopt.results.plan_answers import export_command
from treeopt.results.words import paths_words, with_shape

FIGURE = Column("figure", align="left", key=True)
DETAIL = ("Trace: ",)  # conditions that few need
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
)


def simulation_blocks(record: Mapping[str, Any], *, trace: str | None = None, plan: str | None = None) -> Blocks:
    """Return the blocks of what `treeopt simulate` writes: a run, a server or a capacity.

    Args:
        record: what was written.
        trace: the file of the trace, for the next command.
        plan: the file of the plan that was simulated; None if none was.
    """
    makers = {"treeopt.run/1": run_blocks, "treeopt.serving/1": serving_blocks, "treeopt.capacity/1": capacity_blocks}
    blocks = makers[record["schema"]](record)
    answers = sum(isinstance(block, Line) and block.kind == "answer" for block in blocks)
    return (*blocks[:answers], *_next(record, trace, plan), *blocks[answers:])


def _next(record: Mapping[str, Any], trace: str | None, plan: str | None) -> list[Line]:
    """Return the export of the plan, or the search for the best tree where none was simulated."""
    if plan is not None:
        return [Line("next", "Next: hand the plan to an engine:", export_command(plan))]
    if trace is None:
        return []
    batch = record["batch"] if "batch" in record else record["rows"]
    search = f"treeopt search --trace {shlex.quote(trace)} --batch {batch} --output plan.json"
    return [Line("next", "Next: find the fastest tree, and simulate it with --plan:", search)]


def run_blocks(record: Mapping[str, Any]) -> Blocks:
    """Return the first run's speed and gain, and runs side by side; `record` is what `treeopt simulate` writes."""
    first = record["ways"][0]
    name = with_shape(first["name"], record["tree"]["paths"]) if record["speedup"] is not None else first["name"]
    answer = f"Batch {record['batch']}: {_article(name)}, {_cell(first['tokens_s'], 1).text} tokens/s"
    lines = [Line("answer", f"{answer}.")]
    if record["speedup"] is not None:
        overall, mean = (ranged(record["speedup"][key]).text for key in ("throughput", "per_request"))
        lines = [Line("answer", f"{answer}, {overall} times plain decoding{_unsure(record['speedup']['throughput'])}.")]
        lines.append(Line("answer", f"A request is {mean} times as fast on average."))
    rows = [
        Row((word(label), *(_cell(run[key], digits) for run in record["ways"])))
        for label, key, digits in (("tokens/s", "tokens_s", 1), ("tau", "tau", 3), ("mean occupancy", "occupancy", 2))
    ]
    for key, label in LATENCIES.items():
        for percent in PERCENTS:
            values = (_cell(run[key][f"p{percent}"], 1, 1e3) for run in record["ways"])
            rows.append(Row((word(f"{label}, p{percent}, ms"), *values)))
    title = f"batch {record['batch']}, {record['mode']}"
    return (*lines, Table(title, _columns(record), tuple(rows)), *_conditions(record))


def serving_blocks(record: Mapping[str, Any]) -> Blocks:
    """Return what a server achieves, and its figures by configuration; `record` is what `treeopt simulate` writes."""
    rows = [_row(record, *figure) for figure in SERVED]
    rows += [_row(record, *figure, changing=True) for figure in _changes(record)]
    for key, label in (LATENCIES | {"e2e_s": "arrival to end"}).items():
        rows += [_row(record, f"{label}, p{percent}, ms", f"{key}_p{percent}", 1, 1e3) for percent in PERCENTS]
    table = Table(f"server of {record['rows']} rows", _columns(record), tuple(rows))
    answers: list[Block] = [Line("answer", _served(configuration)) for configuration in record["ways"]]
    return (*answers, table, *(Line("note", text) for text in _trees(record)), *_conditions(record))


def _served(configuration: Mapping[str, Any]) -> str:
    """Return the throughput, goodput and waiting time of a configuration in one sentence."""
    figures = configuration["figures"]
    parts = [f"{_cell(figures['tokens_s'], 1).text} tokens/s"]
    if figures.get("goodput_s") is not None:
        parts.append(f"{_cell(figures['goodput_s'], 2).text} requests/s within the limits")
    if figures.get("ttft_s_p95") is not None:
        parts.append(f"95 % of first tokens within {_cell(figures['ttft_s_p95'], 1, 1e3).text} ms")
    name = configuration["name"]
    return f"{name[0].upper()}{name[1:]}: {', '.join(parts)}."


def _row(record: Mapping[str, Any], label: str, key: str, digits: int, unit: float, *, changing: bool = False) -> Row:
    """Return a figure of all configurations; `changing`: of those that change between trees alone."""
    values = (
        None if changing and len(configuration["trees"]) < 2 else configuration["figures"].get(key)
        for configuration in record["ways"]
    )
    return Row((word(label), *(_cell(value, digits, unit) for value in values)))


def _changes(record: Mapping[str, Any]) -> list[tuple[str, str, int, float]]:
    """Return the figures of changes between trees; none if no configuration changes."""
    most = max(len(configuration["trees"]) for configuration in record["ways"])
    if most < 2:
        return []
    shares = [(f"time of steps with tree {place + 1}, %", f"way_{place}", 1, 100.0) for place in range(most)]
    return [("changes of tree per second", "switches", 3, 1.0), *shares]


def _trees(record: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each configuration that changes between trees."""
    lines = []
    for configuration in record["ways"]:
        shapes = [PLAIN if not tree else paths_words(tree) for tree in configuration["trees"]]
        if len(shapes) > 1:
            changes = [
                f"{counted(up, 'request')} or more, back at {down}"
                for up, down in zip(configuration["up"], configuration["down"], strict=True)
            ]
            trees = "; ".join(f"{shape} from {change}" for shape, change in zip(shapes[1:], changes, strict=True))
            lines.append(f"Trees of the {configuration['name']}: {shapes[0]}; {trees}.")
    return lines


def _article(name: str) -> str:
    if name == PLAIN:
        return name
    return f"{'a' if name.startswith(('chain of', 'tree of')) else 'the'} {name}"


def capacity_blocks(record: Mapping[str, Any]) -> Blocks:
    """Return the rates that a server carries, a row per configuration; `record` is what `treeopt simulate` writes."""
    first, last = record["ways"][0], record["ways"][-1]
    answer = f"{_article(first['name'])} carries {_cell(first['requests_s'], 2).text} requests/s"
    if first["over"] is not None:
        answer += f", {ranged(first['over']).text} times {last['name']}{_unsure(first['over'])}"
    columns = (
        Column("configuration", align="left", key=True),
        Column("requests/s carried", meaning="The highest rate at which enough requests keep the limits."),
        Column(f"ratio to {last['name']}"),
    )
    rows = tuple(Row((word(c["name"]), _cell(c["requests_s"], 2), ranged(c["over"]))) for c in record["ways"])
    return (
        Line("answer", f"{answer[0].upper()}{answer[1:]}."),
        Table(f"server of {record['rows']} rows", columns, rows),
        *_conditions(record),
    )


def _columns(record: Mapping[str, Any]) -> tuple[Column, ...]:
    return (FIGURE, *(Column(configuration["name"]) for configuration in record["ways"]))


def _conditions(record: Mapping[str, Any]) -> list[Line]:
    """Return warnings and conditions."""
    warnings = [Line("warning", f"{warning}.") for warning in record["warnings"]]
    return warnings + [Line("condition", text, detail=text.startswith(DETAIL)) for text in record["conditions"]]


def _unsure(over: Mapping[str, float]) -> str:
    return ", a difference within the noise" if over["low"] <= 1 <= over["high"] else ""


def _cell(value: Any, digits: int, unit: float = 1.0) -> Cell:
    if isinstance(value, Mapping):
        return ranged(value, digits, scale=unit)
    return number(None if value is None else value * unit, digits)
