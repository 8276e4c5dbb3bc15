"""The accuracy of a trained drafter, by depth, as a table."""

from collections.abc import Mapping
from typing import Any

from treeopt.results.blocks import Blocks, Cell, Column, Line, Row, Table, number


def training_blocks(record: Mapping[str, Any]) -> Blocks:
    """Return where the drafter is and a table by depth; `record` is what `treeopt train --json` prints."""
    tops = record["tops"]
    columns = (
        Column("depth", key=True),
        Column("anchors", drop=1, meaning="Held-out positions that were judged."),
        Column("top 1 before", drop=2, meaning="Share of positions before training."),
        *(Column(f"top {top}", meaning=f"Share whose true token is among the first {top}.") for top in tops),
    )
    rows = tuple(Row(_cells(number(depth), figures)) for depth, figures in enumerate(record["depths"], 1))
    title = f"{record['recipe']}: true tokens among the best candidates, on held-out rows"
    answer = f"Trained {record['recipe']} in {record['steps']:,} steps and {record['train_s']:.0f} s."
    return Line("answer", answer), Table(title, columns, rows)


def _cells(depth: Cell, figures: Mapping[str, Any]) -> tuple[Cell, ...]:
    anchors = figures["anchors"]
    hits = (figures["hits_before"][0], *figures["hits"])
    shares = (number(count / anchors, 3) if anchors else Cell("-") for count in hits)
    return (depth, number(anchors), *shares)
