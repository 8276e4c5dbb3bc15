"""Acceptance checks: how many texts and steps of engines are those of the replay."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Column, Table, word
from treeopt.storage.typed_records import Count, Index, Record

Checks = Sequence[Mapping[str, Any]]


class CheckRecord(Record, frozen=True, kw_only=True):
    """An engine's texts and steps beside those of the replay."""

    engine: str
    method: str
    draft: str
    concurrency: Count
    texts_equal: Index
    requests: Index
    anchors_equal: Index
    anchors_shared: Index


FILE = tuple[CheckRecord, ...]
COLUMNS = (
    Column("engine", align="left", key=True, field="engine"),
    Column("method", align="left", field="method"),
    Column("draft", align="left", show=lambda check: word(str(check["draft"]).split(" (")[0].split(" {")[0])),
    Column("requests at once", field="concurrency"),
    Column("texts equal", field="texts_equal"),
    Column("of", meaning="Requests.", field="requests"),
    Column("steps equal", meaning="Positions at which the engine accepted what the replay did.", field="anchors_equal"),
    Column("of", meaning="Positions at which both stepped.", field="anchors_shared"),
)


def _answers(checks: Checks) -> Iterator[str]:
    names = ("texts_equal", "requests", "anchors_equal", "anchors_shared")
    texts, requests, equal, shared = (sum(check[name] for check in checks) for name in names)
    yield f"{texts:,} of {requests:,} texts and {equal:,} of {shared:,} steps are those of the replay."


ENTRY = ResultKind(
    name="acceptance",
    title="Engines against replay",
    question="Do engines accept what replay says?",
    place=11,
    command="make engines",
    record="treeopt.results.engine_checks:FILE",
    value="builtins:list",
    rows=lambda checks: checks,
    columns=COLUMNS,
    answers=_answers,
    tables=lambda checks, **_: [Table.of("engines against replay", COLUMNS, checks)],
)
