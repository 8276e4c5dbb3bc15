"""The accuracy of a trained drafter by depth."""

from collections.abc import Iterator, Mapping
from typing import Any

from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Column, Table

COLUMNS = (
    Column("depth", key=True, field="depth"),
    Column("anchors", drop=1, meaning="Held-out positions that were judged.", field="anchors"),
    Column(
        "top 1 before", drop=2, meaning="Share of positions before training.", field="before", digits=3, default="-"
    ),
)


def _rows(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield for each depth the shares of positions whose true token is among the best candidates."""
    for depth, figures in enumerate(record["depths"], 1):
        anchors = figures["anchors"]
        hits = {"before": figures["hits_before"][0]}
        hits |= {f"top_{top}": count for top, count in zip(record["tops"], figures["hits"], strict=True)}
        shares = {name: count / anchors if anchors else None for name, count in hits.items()}
        yield {"depth": depth, "anchors": anchors, **shares}


def _tables(record: Mapping[str, Any], **_: Any) -> Iterator[Table]:
    true = "Share whose true token is among the first"
    tops = (
        Column(f"top {top}", meaning=f"{true} {top}.", field=f"top_{top}", digits=3, default="-")
        for top in record["tops"]
    )
    title = f"{record['recipe']}: true tokens among the best candidates, on held-out rows"
    yield Table.of(title, (*COLUMNS, *tops), _rows(record))


ENTRY = ResultKind(
    name="training",
    title="Trained drafter",
    command="train",
    rows=_rows,
    columns=COLUMNS,
    answers=lambda record: [f"Trained {record['recipe']} in {record['steps']:,} steps and {record['train_s']:.0f} s."],
    tables=_tables,
)
