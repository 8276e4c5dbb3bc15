"""Validations as tables on the terminal: predicted beside measured, closed forms beside both, and their errors."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.provenance import look, rule_in
from treeopt.tables.terminal_text import describe_measurement, interval, terminal

WIDTH = 220
FORMS = {"leviathan": "Leviathan\nThm 3.8", "coral": "CORAL\nEq. 6"}
DRIFT = 0.1  # share by which plain steps may differ from the profile without a warning


def show_validation(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print predicted beside measured; `record` is what `treeopt validate` writes."""
    console = console or terminal(WIDTH)
    console.print(_table(record))
    for line in (*_errors(record), *_coverage(record), *_best(record), *_plain(record), *_skipped(record)):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_conditions(record["meta"]), style="dim", markup=False, soft_wrap=True)


def _table(record: Mapping[str, Any]) -> Table:
    table = Table(title="predicted | measured", title_justify="left", title_style="bold")
    for name in ("batch", "tree", "nodes"):
        table.add_column(name, justify="left" if name == "tree" else "right")
    for name in ("tau", "step ms", "speedup"):
        table.add_column(f"{name}\npredicted", justify="right")
        table.add_column("\nmeasured", justify="right")
    whole = record.get("end_to_end") is not None  # missing in older records
    ends = ("end to end\npredicted", "\nmeasured") if whole else ("end to\nend",)
    for name in ("error", "in the\ninterval", *FORMS.values(), *ends):
        table.add_column(name, justify="right")
    for cell in record["cells"]:
        end_to_end = cell["end_to_end_predicted"] if whole else None
        p, m = cell["predicted"], cell["measured"]
        table.add_row(
            str(cell["batch"]),
            Text(cell["name"]),
            str(len(cell["tree"]["paths"])) if cell["tree"] else f"{cell['grown']['nodes']:.1f}",
            *(interval(Estimate(**side["tau"])) for side in (p, m)),
            *(f"{side['step_s'] * 1e3:.2f}" for side in (p, m)),
            *(interval(Estimate(**side["speedup"])) for side in (p, m)),
            f"{cell['error']:+.1%}",
            "yes" if cell["covered"] else "no",
            *("" if cell["closed_forms"][form] is None else f"{cell['closed_forms'][form]:.2f}" for form in FORMS),
            *(["" if end_to_end is None else interval(Estimate(**end_to_end))] if whole else []),
            f"{cell['end_to_end']:.2f}",
        )
    return table


def _errors(record: Mapping[str, Any]) -> list[str]:
    lines = [f"Error of the predicted speedup: mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}."]
    forms = [(FORMS[name].replace("\n", " "), errors) for name, errors in record["closed_forms"].items() if errors]
    if forms:
        parts = (f"{name}: mean {e['mean_error']:.1%}, largest {e['max_error']:.1%}" for name, e in forms)
        lines.append(f"Errors of the closed forms: {'; '.join(parts)}.")
    if whole := record.get("end_to_end"):  # missing in older records
        lines.append(
            f"Error of whole runs, prefill and draining included: mean {whole['mean_error']:.1%}, largest "
            f"{whole['max_error']:.1%}; {whole['covered']} of {whole['cells']} intervals contain the measured value."
        )
    return lines


def _coverage(record: Mapping[str, Any]) -> list[str]:
    coverage = record["coverage"]
    covered = coverage["covered"]
    return [
        f"Predicted {coverage['nominal']:.0%} intervals contain the measured value in {covered['cells']} of "
        f"{coverage['cells']} cells, {covered['value']:.0%} [{covered['low']:.0%}, {covered['high']:.0%}]."
    ]


def _best(record: Mapping[str, Any]) -> list[str]:
    lines = []
    for best in record["best"]:
        verdict = "within" if best["within"] else "NOT within"
        lines.append(
            f"Batch {best['batch']}: {best['predicted']} was predicted to be the fastest, {best['measured']} was; "
            f"{best['behind']:.1%} apart, {verdict} {best['near']:.0%}."
        )
    return lines


def _plain(record: Mapping[str, Any]) -> list[str]:
    steps = record.get("plain")  # missing in older records
    if not steps:
        return []
    pairs = (f"{p['predicted_s'] * 1e3:.2f} | {p['measured_s'] * 1e3:.2f} at batch {p['batch']}" for p in steps)
    lines = [f"Plain steps, ms predicted | measured: {', '.join(pairs)}."]
    if any(abs(p["measured_s"] / p["predicted_s"] - 1) > DRIFT for p in steps):
        lines.append("The machine's speed has changed since it was profiled, for trees perhaps by another factor.")
    return lines


def _skipped(record: Mapping[str, Any]) -> list[str]:
    reasons = look(record["meta"], "skipped") or {}
    return [
        f"Batch {batch}: {name} not measured: {reason}."
        for batch, skipped in reasons.items()
        for name, reason in skipped.items()
    ]


def _conditions(meta: Mapping[str, Any]) -> str:
    replayed = look(meta, "acceptance") == "replay"
    prompts = "prompts with the acceptance of a trace's requests" if replayed else "prompts that are not in the trace"
    sha256 = look(meta, "predictions", "sha256")
    rule = f" by {rule_in(meta)}" if look(meta, "temperature") else ""
    fixed = f"\nPredictions fixed beforehand: sha256 {sha256:.16}." if sha256 else ""
    return (
        f"{meta['prompts']} {prompts}, {meta['new_tokens']} new tokens each{rule}, in "
        f"{meta['blocks']} blocks of shuffled order; {describe_measurement(meta)}.\n"
        "Steps: medians with all rows busy, means for dynamic trees; end to end includes prefill and draining.\n"
        "Intervals: 95 %; predicted ones are for a run of the same number of requests, that of coverage takes cells as "
        f"independent.{fixed}"
    )
