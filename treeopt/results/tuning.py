"""Tunings of an engine (`treeopt tune`): predicted beside measured speedups, the choice, and what is undecided."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from treeopt.plans import EstimateRecord, SpeedupRecord, TauRecord
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import BATCH, STEP, TAU, Block, Column, Line, Mark, Table, ranged
from treeopt.storage.typed_records import Count, Index, Positive, Record

SCHEMA = "treeopt.tuning/1"
COLUMNS = (
    BATCH,
    Column("draft", "tokens", key=True, meaning="Tokens drafted per step; 0: no speculation.", field="drafted"),
    TAU,
    STEP,
    Column("predicted", drop=1, meaning="Speedup by replay and step times.", field="predicted", digits=2),
    Column("measured", meaning="Speedup over plain decoding, measured in alternation.", field="speedup", digits=2),
    Column("rounds", drop=2, meaning="Rounds in which it was measured.", field="rounds"),
    Column("state", align="left", meaning="near: as fast as the choice; undecided: may be faster.", field="state"),
)


class TunedRecord(Record, frozen=True, kw_only=True):
    """One draft length at one batch size."""

    batch: Count
    drafted: Index
    tau: TauRecord
    step_s: Positive
    predicted: Annotated[EstimateRecord | None, Meta(description="speedup by replay of the longest draft's steps")]
    speedup: Annotated[SpeedupRecord | None, Meta(description="measured; null: it was not launched")]
    rounds: Index
    state: Literal["chosen", "slower", "near", "undecided"]


class TuningRecord(Record, frozen=True, tag_field="schema", tag=SCHEMA, kw_only=True):
    """The choice of a draft length by measuring."""

    meta: Annotated[dict[str, Any], Meta(description="provenance: models, engine, launches, seconds")]
    decided: Annotated[bool, Meta(description="whether the choice of every batch size is known")]
    near: Annotated[Positive, Meta(description="difference in speed that does not matter, as a share")]
    best: Annotated[Count | None, Meta(description="batch size that keeps `max_tpot_s`; null: none, or no limit")]
    max_tpot_s: Positive | None
    cells: tuple[TunedRecord, ...]


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the choice of each batch size, and the batch size that keeps a limit."""
    for cell in record["cells"]:
        if cell["state"] != "chosen":
            continue
        others = {
            state: ", ".join(str(c["drafted"]) for c in record["cells"] if (c["batch"], c["state"]) == place)
            for state in ("near", "undecided")
            for place in [(cell["batch"], state)]
        }
        said = f"draft {cell['drafted']} tokens" if cell["drafted"] else "do not speculate"
        speed = f", {ranged(cell['speedup']).text} times plain decoding" if cell["drafted"] and cell["speedup"] else ""
        near = f"; as fast within the error: {others['near']}" if others["near"] else ""
        open_ = f"; undecided against {others['undecided']}" if others["undecided"] else ""
        yield f"Batch {cell['batch']}: {said}{speed}{near}{open_}."
    if record["max_tpot_s"] is not None:
        kept = (
            "no batch size keeps it"
            if record["best"] is None
            else f"batch {record['best']} is the fastest that keeps it"
        )
        yield f"Limit of {1e3 * record['max_tpot_s']:g} ms per output token: {kept}."


def _tables(record: Mapping[str, Any], **_: Any) -> Iterator[Block]:
    marks: dict[str, Mark] = {"chosen": "chosen", "slower": "dim"}
    yield Table.of("draft lengths", COLUMNS, record["cells"], lambda cell: marks.get(cell["state"], ""))
    meta = record["meta"]
    yield Line("note", f"{meta['settings']} settings in {meta['took_s']:.0f} s, launches: {meta['launches']}.")
    wide = [
        c
        for c in record["cells"]
        if c["speedup"] and c["speedup"]["high"] - c["speedup"]["low"] > c["speedup"]["value"]
    ]
    if wide:
        places = ", ".join(f"{cell['drafted']} at batch {cell['batch']}" for cell in wide)
        yield Line("warning", f"Intervals wider than their value mean nothing: {places}. Measure longer (--budget).")


ENTRY = ResultKind(
    name="tuning",
    title="Tuning",
    question="Which draft length is the fastest?",
    place=15,
    command="tune",
    schema=SCHEMA,
    record="treeopt.results.tuning:TuningRecord",
    rows=lambda record: record["cells"],
    columns=COLUMNS,
    answers=_answers,
    tables=_tables,
    models=lambda record: record["meta"],
)
