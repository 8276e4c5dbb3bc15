"""Simulated runs of all requests: figures down, configurations side by side. Servers have the same parts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treeopt.planning.evaluator import PLAIN
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Column, Line, Row, Table, ranged, word
from treeopt.results.words import device_words, export_command, unsure, with_shape
from treeopt.storage.provenance import look

FIGURE = Column("figure", align="left", key=True)
PERCENTS = (50, 95, 99)
LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "inter-token latency",
    "e2e_s": "admission to end",
}
COLUMNS = (
    Column("configuration", align="left", key=True, field="name"),
    Column("tokens/s", field="tokens_s", digits=1),
    Column("tau", field="tau", digits=3),
    Column("mean occupancy", field="occupancy", digits=2),
    *(
        Column(f"{label}, p{percent},", "ms", field=f"{key}.p{percent}", digits=1)
        for key, label in LATENCIES.items()
        for percent in PERCENTS
    ),
)


def side_by_side(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table whose rows are the columns but the first, which names each row: one column a row."""
    names = tuple(Column(columns[0].cell(row).text) for row in rows)
    figures = (Row((word(column.heading), *map(column.cell, rows))) for column in columns[1:])
    return Table(title, (FIGURE, *names), tuple(figures))


def next_lines(
    record: Mapping[str, Any], *, trace: str | None = None, plan: str | None = None, **_: Any
) -> Iterator[Line]:
    """Yield the export of a plan's file, or the search for the best tree; `trace` is an option that names it."""
    gain = look(record, "speedup", "throughput", "high")
    if plan is not None and (gain is None or gain >= 1):
        yield Line("next", "Next: hand the plan to an engine:", export_command(plan))
    elif trace is not None:
        batch = record["batch"] if "batch" in record else record["rows"]
        search = f"treeopt search {trace} --batch {batch} --output plan.json"
        yield Line("next", "Next: find the fastest tree, and simulate it with --plan:", search)


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first run's speed, and its gain over plain decoding."""
    first, gain = record["configurations"][0], record["speedup"]
    name = first["name"] if gain is None else with_shape(first["name"], record["tree"]["paths"])
    place, rate = f"Batch {record['batch']}{on_device(record)}", ranged(first["tokens_s"], 1).text
    answer = f"{place}: {with_article(name)}, {rate} tokens/s"
    if gain is None:
        yield f"{answer}."
        return
    yield f"{answer}, {ranged(gain['throughput']).text} times plain decoding{unsure(gain['throughput'])}."
    yield f"A request is {ranged(gain['per_request']).text} times as fast on average."


def on_device(record: Mapping[str, Any]) -> str:
    """Return the device that steps are priced for, with a preposition; empty where the profile does not name it."""
    device = look(record, "meta", "cost", "transfer", "to") or look(record, "meta", "cost", "device")
    return "" if device is None else f" on {device_words({'device': device})}"


def with_article(name: str) -> str:
    """Return the name of a configuration as the subject of a sentence."""
    if name == PLAIN:
        return name
    return f"{'a' if name.startswith(('chain of', 'tree of')) else 'the'} {name}"


def simulated(name: str, **own: Any) -> ResultKind:
    """Return a kind of result of `treeopt simulate`, a row for each configuration; `own` is what only this kind has."""
    return ResultKind(
        name=name,
        command="simulate",
        schema=f"treeopt.{name}/2",
        record=f"simulate.runs.run_records:{name.capitalize()}Record",
        rows=lambda record: record["configurations"],
        next_lines=next_lines,
        details=("Trace: ",),  # conditions that few need
        **own,
    )


ENTRY = simulated(
    "run",
    title="Run of all requests",
    question="How long do the requests take?",
    place=8,
    columns=COLUMNS,
    answers=_answers,
    tables=lambda record, **_: [
        side_by_side(f"batch {record['batch']}, {record['mode']}", COLUMNS, record["configurations"])
    ],
    charts={"latency": "treeopt.charts.speed_charts:latencies"},
)
