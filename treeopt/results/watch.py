"""The comparison of running servers with their plan: each ratio and its verdict, then the servers."""

from collections.abc import Iterator, Mapping
from typing import Any

from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Block, Cell, Column, Line, Table, number


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what changed."""
    changes = [test for test in record["tests"] if test["verdict"] in ("fell", "rose")]
    for test in changes:
        yield f"Changed: {test['name']} {test['verdict']} by {abs(test['ratio'] - 1):.1%}."
    if not changes:
        verdicts = {test["verdict"] for test in record["tests"]}
        yield "As planned." if verdicts == {"as planned"} else "Too few steps to say whether all is as planned."


def _tables(record: Mapping[str, Any], **_: Any) -> Iterator[Block]:
    if record["tests"]:
        wrong = ("fell", "rose")
        yield Table.of("", COLUMNS, record["tests"], lambda test: "wrong" if test["verdict"] in wrong else "")
    yield Table.of("servers", SERVERS, record["servers"])
    for entry in record.get("now", ()):
        choice = f"{entry['nodes']:g} drafted tokens, speedup {entry['speedup']:.2f}" if entry["nodes"] else "plain"
        yield Line("note", f"With the acceptance of now, batch {entry['batch']}: {choice}.")


def _figure(name: str) -> Column:
    """Return a column of shares and tokens as they are, and of step times in milliseconds."""

    def cell(test: Mapping[str, Any]) -> Cell:
        timed, value = test["name"].startswith("step time"), test[name]
        shown = number(value if value is None or not timed else 1e3 * value, 2 if timed else 3)
        return Cell(f"{shown.text} ms", shown.value) if timed and shown.text else shown

    return Column(name, show=cell)


COLUMNS = (
    Column("figure", align="left", key=True, field="name"),
    _figure("planned"),
    _figure("observed"),
    Column("ratio", field="ratio", digits=3),
    Column("verdict", align="left", field="verdict"),
    Column("blocks", drop=1, meaning="Blocks of scrapes that the verdict rests on.", field="blocks"),
)
SERVERS = (
    Column("server", align="left", key=True, field="url"),
    Column("tau", field="tau", digits=2),
    Column("running", field="running", digits=1),
    Column("state", align="left", field="state"),
)
ENTRY = ResultKind(
    name="watch",
    title="Watch of running servers",
    command="watch",
    rows=lambda record: record["tests"],
    columns=COLUMNS,
    answers=_answers,
    tables=_tables,
)
