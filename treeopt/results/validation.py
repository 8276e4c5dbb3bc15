"""Validations as tables: whether predictions held, predicted beside measured, closed forms beside both."""

from collections.abc import Mapping
from typing import Any

from treeopt.errors import counted
from treeopt.results.blocks import Block, Blocks, Cell, Column, Line, Row, Table, conditions, number, ranged, word
from treeopt.results.plan_answers import export_command
from treeopt.results.words import describe_measurement, with_shape
from treeopt.storage.provenance import look, rule_in

FORMS = {"leviathan": "Leviathan Thm 3.8", "coral": "CORAL Eq. 6"}
DRIFT = 0.1  # share by which plain steps may differ from the profile without a warning


SIDES = ("predicted", "measured")


def validation_blocks(record: Mapping[str, Any], *, plan: str | None = None) -> Blocks:
    """Return whether predictions held, the next command, predicted beside measured, and the conditions.

    Args:
        record: what `treeopt validate` writes.
        plan: the file of the plan that was checked; None if it is in no file.
    """
    blocks: list[Block] = [Line("answer", text) for text in (*_best(record), *_errors(record), _coverage(record))]
    blocks += [_next(record, plan), _table(record)]
    blocks += [Line("note", text) for text in _whole(record)]
    blocks += [Line("note", text, detail=True) for text in (*_forms(record), *_plain(record))]
    if _drifted(record):
        text = "The machine's speed has changed since it was profiled, for trees perhaps by another factor."
        blocks.append(Line("warning", text))
    blocks += [Line("note", text) for text in _skipped(record)]
    return (*blocks, *_conditions(record["meta"]))


def _columns(*, whole: bool) -> tuple[Column, ...]:
    """Return the columns; `whole`: whole runs were predicted, too."""

    def pair(name: str, drop: int, unit: str = "", meaning: str = "") -> tuple[Column, ...]:
        return tuple(Column(f"{side} {name}", unit, drop=drop, meaning=meaning) for side in SIDES)

    ends = pair("end to end", 7, meaning="Speedup of whole runs, prefill and draining included.")
    return (
        Column("batch", key=True),
        Column("tree", align="left", key=True),
        Column("nodes", drop=6, meaning="Drafted tokens in the tree; the mean for dynamic trees."),
        *pair("tau", 3, meaning="Tokens committed per step and sequence, bonus counted."),
        *pair("step", 4, "ms", "Median time of a step with all rows busy."),
        *pair("speedup", 0, meaning="Time per token of plain decoding over that of the tree."),
        Column("error", "%", drop=1, meaning="Error of the predicted speedup."),
        Column("in the interval", align="left", drop=2, meaning="The interval contains the measured speedup."),
        *(Column(form, drop=8, meaning="Speedup by a closed form of the literature.") for form in FORMS.values()),
        *(ends if whole else ends[1:]),
    )


def _table(record: Mapping[str, Any]) -> Table:
    whole = record.get("end_to_end") is not None  # missing in older records
    rows = tuple(Row(_cells(cell, whole=whole)) for cell in record["cells"])
    return Table("predicted and measured", _columns(whole=whole), rows)


def _cells(cell: Mapping[str, Any], *, whole: bool) -> tuple[Cell, ...]:
    return (
        number(cell["batch"]),
        word(cell["name"]),
        number(len(cell["tree"]["paths"])) if cell["tree"] else number(cell["grown"]["nodes"], 1),
        *(ranged(cell[side]["tau"]) for side in SIDES),
        *(number(cell[side]["step_s"] * 1e3, 2) for side in SIDES),
        *(ranged(cell[side]["speedup"]) for side in SIDES),
        number(cell["error"] * 100, 1, sign=True),
        word("yes" if cell["covered"] else "no"),
        *(number(cell["closed_forms"][form], 2) for form in FORMS),
        *([ranged(cell["end_to_end_predicted"])] if whole else []),
        number(cell["end_to_end"], 2),
    )


def _best(record: Mapping[str, Any]) -> list[str]:
    """Return for each batch size whether the tree that was predicted to be the fastest was, and its speedups."""
    cells = {(cell["batch"], cell["name"]): cell for cell in record["cells"]}
    lines = []
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
        lines.append(f"{line}.")
    return lines


def _named(name: str, cell: Mapping[str, Any] | None) -> str:
    """Return the name of a configuration, with the shape of a static tree."""
    return with_shape(name, cell["tree"]["paths"]) if cell is not None and cell["tree"] else name


def _errors(record: Mapping[str, Any]) -> list[str]:
    return [f"Error of the predicted speedup: mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}."]


def _coverage(record: Mapping[str, Any]) -> str:
    coverage = record["coverage"]
    covered = coverage["covered"]
    return (
        f"Predicted {coverage['nominal']:.0%} intervals contain the measured value in {covered['cells']} of "
        f"{counted(coverage['cells'], 'cell')}, {covered['value']:.0%} [{covered['low']:.0%}, {covered['high']:.0%}]."
    )


def _next(record: Mapping[str, Any], plan: str | None) -> Line:
    """Return what follows: the export of a plan that holds, or another profile.

    A plan does not hold where another tree is better than predicted, or where intervals miss more than chance explains.
    """
    coverage = record["coverage"]
    if all(best["within"] for best in record["best"]) and coverage["covered"]["high"] >= coverage["nominal"]:
        if plan is None:
            return Line(
                "next", "Next: write the plan with treeopt search --output, and hand it on with treeopt export."
            )
        return Line("next", "Next: hand the plan to an engine:", export_command(plan))
    return Line("next", "Next: measure step times again (treeopt profile), and search with them.")


def _forms(record: Mapping[str, Any]) -> list[str]:
    forms = [(FORMS[name], errors) for name, errors in record["closed_forms"].items() if errors]
    parts = (f"{name}: mean {e['mean_error']:.1%}, largest {e['max_error']:.1%}" for name, e in forms)
    return [f"Errors of the closed forms: {'; '.join(parts)}."] if forms else []


def _whole(record: Mapping[str, Any]) -> list[str]:
    whole = record.get("end_to_end")  # missing in older records
    if not whole:
        return []
    return [
        f"Error of whole runs, prefill and draining included: mean {whole['mean_error']:.1%}, largest "
        f"{whole['max_error']:.1%}; {whole['covered']} of {whole['cells']} intervals contain the measured value."
    ]


def _plain(record: Mapping[str, Any]) -> list[str]:
    steps = record.get("plain") or ()  # missing in older records
    pairs = [f"{p['predicted_s'] * 1e3:.2f} | {p['measured_s'] * 1e3:.2f} at batch {p['batch']}" for p in steps]
    return [f"Plain steps, ms predicted | measured: {', '.join(pairs)}."] if pairs else []


def _drifted(record: Mapping[str, Any]) -> bool:
    """Return whether plain steps differ from the profile."""
    return any(abs(p["measured_s"] / p["predicted_s"] - 1) > DRIFT for p in record.get("plain") or ())


def _skipped(record: Mapping[str, Any]) -> list[str]:
    reasons = look(record["meta"], "skipped") or {}
    return [
        f"Batch {batch}: {name} not measured: {reason}."
        for batch, skipped in reasons.items()
        for name, reason in skipped.items()
    ]


def _conditions(meta: Mapping[str, Any]) -> list[Line]:
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
