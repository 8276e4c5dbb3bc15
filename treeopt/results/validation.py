"""Validations: whether predictions held, predicted beside measured, closed forms beside both."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from treeopt.errors import counted
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import (
    BATCH,
    NODES,
    SPEEDUP,
    STEP,
    TAU,
    Block,
    Column,
    Line,
    Table,
    conditions,
    number,
    ranged,
)
from treeopt.results.words import describe_measurement, export_command, with_shape
from treeopt.storage.provenance import look, rule_in

WHOLE = "Speedup of whole runs, prefill and draining included."
CLOSED_FORM = "Speedup by a closed form of the literature."
FORMS = {"leviathan": "Leviathan Thm 3.8", "coral": "CORAL Eq. 6"}
DRIFT = 0.1  # share by which plain steps may differ from the profile without a warning
SIDES = ("predicted", "measured")


def _pair(column: Column) -> tuple[Column, ...]:
    """Return a column of predictions and one of measurements."""
    return tuple(replace(column, name=f"{side} {column.name}", field=f"{side}.{column.field}") for side in SIDES)


MEANING = "Time per token of plain decoding over that of the tree."
COLUMNS = (
    BATCH,
    Column("tree", align="left", key=True, field="name"),
    replace(
        NODES,
        drop=8,
        meaning="Drafted tokens in the tree; the mean for dynamic trees.",
        show=lambda cell: number(len(cell["tree"]["paths"])) if cell["tree"] else number(cell["grown"]["nodes"], 1),
    ),
    *_pair(replace(TAU, exact=False)),
    *_pair(replace(STEP, meaning="Median time of a step with all rows busy.")),
    *_pair(replace(SPEEDUP, meaning=MEANING, exact=False)),
    Column("error", "%", drop=1, meaning="Error of the predicted speedup.", field="error", digits=1, sign=True),
    Column("in the interval", "", "left", 2, meaning="The interval contains the measured speedup.", field="covered"),
    *(
        Column(name, drop=10, meaning=CLOSED_FORM, field=f"closed_forms.{form}", digits=2)
        for form, name in FORMS.items()
    ),
    Column("predicted end to end", drop=9, meaning=WHOLE, field="end_to_end_predicted", digits=2),
    Column("measured end to end", drop=9, meaning=WHOLE, field="end_to_end", digits=2),
)


def answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether the best trees were found, the errors, and how many intervals hold."""
    yield from _best(record)
    errors: dict[int, list[float]] = {}
    for cell in record["cells"]:
        errors.setdefault(cell["batch"], []).append(cell["error"])
    mean = math.fsum(cell["error"] for cell in record["cells"]) / len(record["cells"])
    fast = [f"{sum(e > 0 for e in of)} of {len(of)} at batch {batch}" for batch, of in errors.items()]
    yield (
        f"Error of the predicted speedup: mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}; "
        f"with signs {mean:+.1%}, too fast in {', '.join(fast)}."
    )
    coverage = record["coverage"]
    covered = coverage["covered"]
    yield (
        f"Predicted {coverage['nominal']:.0%} intervals contain the measured value in {covered['cells']} of "
        f"{counted(coverage['cells'], 'cell')}, {covered['value']:.0%} [{covered['low']:.0%}, {covered['high']:.0%}]."
    )


def tables(record: Mapping[str, Any], **_: Any) -> Iterator[Block]:
    """Yield predicted beside measured, and what belongs to it."""
    whole, plain = record.get("end_to_end"), record.get("plain") or ()  # missing in older records
    columns = COLUMNS if whole else (*COLUMNS[:-2], COLUMNS[-1])
    yield Table.of("predicted and measured", columns, record["cells"])
    if whole:
        error = f"mean {whole['mean_error']:.1%}, largest {whole['max_error']:.1%}"
        held = f"{whole['covered']} of {whole['cells']} intervals contain the measured value"
        yield Line("note", f"Error of whole runs, prefill and draining included: {error}; {held}.")
    errors = [
        f"{FORMS[name]}: mean {form['mean_error']:.1%}, largest {form['max_error']:.1%}"
        for name, form in record["closed_forms"].items()
        if form
    ]
    if errors:
        yield Line("note", f"Errors of the closed forms: {'; '.join(errors)}.", detail=True)
    pairs = [f"{p['predicted_s'] * 1e3:.2f} | {p['measured_s'] * 1e3:.2f} at batch {p['batch']}" for p in plain]
    if pairs:
        yield Line("note", f"Plain steps, ms predicted | measured: {', '.join(pairs)}.", detail=True)
    if any(abs(p["measured_s"] / p["predicted_s"] - 1) > DRIFT for p in plain):
        text = "The machine's speed has changed since it was profiled, for trees perhaps by another factor."
        yield Line("warning", text)
    if wide := [cell for cell in record["cells"] if any(_means_nothing(cell[side]["speedup"]) for side in SIDES)]:
        places = ", ".join(f"{_named(cell['name'], cell)} at batch {cell['batch']}" for cell in wide)
        yield Line("warning", f"Intervals that reach 0 or are wider than their value mean nothing: {places}.")
    for batch, reasons in (look(record["meta"], "skipped") or {}).items():
        for name, reason in reasons.items():
            yield Line("note", f"Batch {batch}: {name} not measured: {reason}.")


def _means_nothing(speedup: Mapping[str, float]) -> bool:
    return speedup["low"] <= 0 or speedup["high"] - speedup["low"] > speedup["value"]


def _best(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each batch size whether the tree that was predicted to be the fastest was, and its speedups."""
    cells = {(cell["batch"], cell["name"]): cell for cell in record["cells"]}
    for best in record["best"]:
        found = cells.get((best["batch"], best["predicted"]))
        line = f"Batch {best['batch']}: {_named(best['predicted'], found)} was predicted to be the fastest"
        if best["predicted"] == best["measured"]:
            line += ", and was"
        else:
            verdict = "within" if best["within"] else "NOT within"
            other = cells.get((best["batch"], best["measured"]))
            line += f", {_named(best['measured'], other)} was; {best['behind']:.1%} apart, {verdict} {best['near']:.0%}"
        if found is not None:
            predicted, measured = (ranged(found[side]["speedup"]).text for side in SIDES)
            line += f"; {predicted} times plain decoding predicted, {measured} measured"
        yield f"{line}."


def _named(name: str, cell: Mapping[str, Any] | None) -> str:
    """Return the name of a configuration, with the shape of a static tree."""
    return with_shape(name, cell["tree"]["paths"]) if cell is not None and cell["tree"] else name


def next_lines(
    record: Mapping[str, Any], *, plan: str | None = None, profile: str = "", search: str = "", **_: Any
) -> Iterator[Line]:
    """Yield what follows: the export of a plan that holds, or another profile.

    A plan does not hold where another tree is better than predicted, or where intervals miss more than chance explains.

    Args:
        record: the validation.
        plan: the file of the plan that was checked; None if it is in no file.
        profile: the command that measures step times of these models again.
        search: the command that writes the plan of the trace.
    """
    coverage = record["coverage"]
    if not all(best["within"] for best in record["best"]) or coverage["covered"]["high"] < coverage["nominal"]:
        yield Line("next", f"Next: measure step times again, and search with them{':' if profile else '.'}", profile)
    elif plan is None:
        yield Line(
            "next",
            f"Next: write the plan to a file, and hand it on with treeopt export{':' if search else '.'}",
            search,
        )
    else:
        yield Line("next", "Next: hand the plan to an engine:", export_command(plan))


def _remarks(record: Mapping[str, Any], **_: Any) -> list[Line]:
    """Return how the figures were measured and predicted."""
    meta = record["meta"]
    replayed = look(meta, "acceptance") == "replay"
    prompts = "prompts with the acceptance of a trace's requests" if replayed else "prompts that are not in the trace"
    sha256 = look(meta, "predictions", "sha256")
    rule = f" by {rule_in(meta)}" if look(meta, "temperature") else ""
    visible = [
        f"{meta['prompts']} {prompts}, {meta['new_tokens']} new tokens each{rule}, in "
        f"{meta['blocks']} blocks of shuffled order; {describe_measurement(meta)}.",
        "Intervals: 95 %; predicted ones are for a run of the same number of requests.",
    ]
    detail = [
        "The interval of the share of cells takes cells as independent.",
        "Steps: medians with all rows busy, means for dynamic trees; end to end includes prefill and draining.",
        *([f"Predictions fixed beforehand: sha256 {sha256:.16}."] if sha256 else []),
    ]
    return conditions(visible, detail)


ENTRY = ResultKind(
    name="validation",
    title="Predicted and measured",
    models=lambda record: record["meta"],
    question="Does the prediction hold?",
    place=2,
    command="validate",
    schema="treeopt.validation/2",
    record="simulate.validation.predicted_vs_measured:ValidationRecord",
    value="treeopt.results.kinds:Validation",
    rows=lambda record: record["cells"],
    columns=COLUMNS,
    answers=answers,
    next_lines=next_lines,
    tables=tables,
    remarks=_remarks,
    charts={"agreement": "treeopt.charts.speed_charts:agreement"},
)
