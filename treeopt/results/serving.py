"""Simulated servers under one load: figures down, configurations side by side."""

from collections.abc import Iterator, Mapping
from typing import Any

from treeopt.errors import counted
from treeopt.planning.evaluator import PLAIN
from treeopt.results.run import LATENCIES, PERCENTS, on_device, side_by_side, simulated
from treeopt.results.tables_and_numbers import Block, Column, Line, ranged
from treeopt.results.words import paths_words

COLUMNS = (
    Column("configuration", align="left", key=True, field="name"),
    Column("tokens/s", field="figures.tokens_s", digits=1),
    Column("requests/s ended", field="figures.requests_s", digits=3),
    Column("goodput, requests/s", field="figures.goodput_s", digits=3),
    Column("within the limits,", "%", field="figures.within", digits=1),
    Column("requests decoding", field="figures.running", digits=2),
    Column("requests waiting", field="figures.waiting", digits=2),
    Column("busy,", "%", field="figures.busy", digits=1),
)
LATENCY_COLUMNS = tuple(
    Column(f"{label}, p{percent},", "ms", field=f"figures.{key}_p{percent}", digits=1)
    for key, label in (LATENCIES | {"e2e_s": "arrival to end"}).items()
    for percent in PERCENTS
)


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the throughput, goodput and waiting time of each configuration."""
    limits = " within the limits" if any(record["slo"].values()) else ""
    for configuration in record["configurations"]:
        figures, name = configuration["figures"], configuration["name"]
        parts = [f"{ranged(figures['tokens_s'], 1).text} tokens/s"]
        if any(text.startswith(f"requests pile up with {name} (") for text in record["warnings"]):
            parts.append("but requests pile up: waiting times grow with the length of a day")
        else:
            if figures.get("goodput_s") is not None:
                parts.append(f"{ranged(figures['goodput_s'], 2).text} requests/s{limits}")
            if figures.get("ttft_s_p95") is not None:
                parts.append(f"95 % of first tokens within {ranged(figures['ttft_s_p95'], 1, scale=1e3).text} ms")
        yield f"{counted(record['rows'], 'row')}{on_device(record)}, {name}: {', '.join(parts)}."


def _tables(record: Mapping[str, Any], **_: Any) -> Iterator[Block]:
    """Yield the figures, and the trees of configurations that change between several."""
    columns = (*COLUMNS, *_changes(record), *LATENCY_COLUMNS)
    yield side_by_side(f"server of {record['rows']} rows", columns, record["configurations"])
    for configuration in record["configurations"]:
        shapes = [PLAIN if not tree else paths_words(tree) for tree in configuration["trees"]]
        if len(shapes) > 1:
            changes = [
                f"{counted(up, 'request')} or more, back at {down}"
                for up, down in zip(configuration["up"], configuration["down"], strict=True)
            ]
            trees = "; ".join(f"{shape} from {change}" for shape, change in zip(shapes[1:], changes, strict=True))
            yield Line("note", f"Trees of the {configuration['name']}: {shapes[0]}; {trees}.")


def _changes(record: Mapping[str, Any]) -> list[Column]:
    """Return the figures of changes between trees, empty for configurations with one; none if none changes."""
    most = max(len(configuration["trees"]) for configuration in record["configurations"])
    if most < 2:
        return []

    def figure(name: str, unit: str, key: str, digits: int) -> Column:
        shown = Column(name, unit, field=f"figures.{key}", digits=digits)
        return Column(name, unit, show=lambda row: shown.cell(row if len(row["trees"]) > 1 else {}))

    shares = [figure(f"time of steps with tree {place + 1},", "%", f"tree_{place}", 1) for place in range(most)]
    return [figure("changes of tree per second", "", "switches", 3), *shares]


ENTRY = simulated(
    "serving",
    title="Server",
    question="How does a server cope?",
    place=9,
    columns=(*COLUMNS, *LATENCY_COLUMNS),
    answers=_answers,
    tables=_tables,
    charts={
        "load": "treeopt.charts.speed_charts:load_over_time",
        "latency": "treeopt.charts.speed_charts:latencies",
    },
)
