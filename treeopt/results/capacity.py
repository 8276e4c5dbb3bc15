"""The highest rates of requests that a server carries, a row per configuration."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from treeopt.errors import counted
from treeopt.results.run import on_device, simulated, with_article
from treeopt.results.tables_and_numbers import Column, Table, ranged
from treeopt.results.words import unsure

COLUMNS = (
    Column("configuration", align="left", key=True, field="name"),
    Column(
        "requests/s carried",
        meaning="The highest rate at which enough requests keep the limits.",
        field="requests_s",
        digits=2,
    ),
    Column("ratio to the last", field="over", digits=2),
)


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rate that the first configuration carries, beside the last one's."""
    first, last = record["configurations"][0], record["configurations"][-1]
    server = f"{counted(record['rows'], 'row')}{on_device(record)}"
    answer = f"{server}: {with_article(first['name'])} carries {ranged(first['requests_s'], 2).text} requests/s"
    if first["requests_s"]["high"] == 0:
        answer = f"{server}: {with_article(first['name'])} keeps the limits at no rate"
    if first["over"] is not None:
        answer += f", {ranged(first['over']).text} times {last['name']}{unsure(first['over'])}"
    yield f"{answer}."


def _tables(record: Mapping[str, Any], **_: Any) -> Iterator[Table]:
    ratio = replace(COLUMNS[-1], name=f"ratio to {record['configurations'][-1]['name']}")
    yield Table.of(f"server of {record['rows']} rows", (*COLUMNS[:-1], ratio), record["configurations"])


ENTRY = simulated(
    "capacity",
    title="Capacity of a server",
    question="How much does a server carry?",
    place=10,
    columns=COLUMNS,
    answers=_answers,
    tables=_tables,
    charts={"rates": "treeopt.charts.speed_charts:carried_rates"},
)
