"""Validations on the terminal: predicted beside measured, closed forms beside both, and how well they agree."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.report.plan_tables import interval, measured_told, terminal
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.provenance import look, rule_in

WIDTH = 220
FORMS = {"leviathan": "Leviathan\nThm 3.8", "coral": "CORAL\nEq. 6"}
PACE = 0.1  # by which plain steps may differ from the profile before that is remarked on


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
    whole = record.get("end_to_end") is not None  # records of before have none
    ends = ("end to end\npredicted", "\nmeasured") if whole else ("end to\nend",)
    for name in ("error", "in the\ninterval", *FORMS.values(), *ends):
        table.add_column(name, justify="right")
    for cell in record["cells"]:
        due = cell["end_to_end_predicted"] if whole else None
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
            *(["" if due is None else interval(Estimate(**due))] if whole else []),
            f"{cell['end_to_end']:.2f}",
        )
    return table


def _errors(record: Mapping[str, Any]) -> list[str]:
    lines = [f"Error of the predicted speedup: mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}."]
    told = [(FORMS[name].replace("\n", " "), each) for name, each in record["closed_forms"].items() if each]
    if told:
        words = (f"{name}: mean {e['mean_error']:.1%}, largest {e['max_error']:.1%}" for name, e in told)
        lines.append(f"Errors of the closed forms: {'; '.join(words)}.")
    if whole := record.get("end_to_end"):  # records of before have none
        lines.append(
            f"Error of whole runs, prefill and draining included: mean {whole['mean_error']:.1%}, largest "
            f"{whole['max_error']:.1%}; {whole['covered']} of {whole['cells']} intervals hold what was measured."
        )
    return lines


def _coverage(record: Mapping[str, Any]) -> list[str]:
    coverage = record["coverage"]
    kept = coverage["covered"]
    return [
        f"Predicted {coverage['nominal']:.0%} intervals hold what was measured in {kept['cells']} of "
        f"{coverage['cells']} cells, {kept['value']:.0%} [{kept['low']:.0%}, {kept['high']:.0%}]."
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
    steps = record.get("plain")  # records of before have none
    if not steps:
        return []
    words = (f"{p['predicted_s'] * 1e3:.2f} | {p['measured_s'] * 1e3:.2f} at batch {p['batch']}" for p in steps)
    line = f"Plain steps, ms predicted | measured: {', '.join(words)}."
    if any(abs(p["measured_s"] / p["predicted_s"] - 1) > PACE for p in steps):
        line += " The machine is not as it was when profiled, and trees need not slow down as plain steps do."
    return [line]


def _skipped(record: Mapping[str, Any]) -> list[str]:
    reasons = look(record["meta"], "skipped") or {}
    return [
        f"Batch {batch}: {name} not measured: {reason}."
        for batch, skipped in reasons.items()
        for name, reason in skipped.items()
    ]


def _conditions(meta: Mapping[str, Any]) -> str:
    replayed = look(meta, "acceptance") == "replay"
    prompts = "prompts, which keep what as many requests of a trace keep" if replayed else "prompts besides the trace's"
    sha256 = look(meta, "predictions", "sha256")
    rule = f" by {rule_in(meta)}" if look(meta, "temperature") else ""
    fixed = f" Predictions fixed before: sha256 {sha256:.16}." if sha256 else ""
    return (
        f"{meta['prompts']} {prompts}, {meta['new_tokens']} new tokens each{rule}, in "
        f"{meta['blocks']} blocks of shuffled order; {measured_told(meta)}. Medians of steps with all rows busy, "
        "means where each step draws its tree anew; end to end counts prefill and draining too. 95 % intervals, "
        "predicted ones of a run of so many requests, those of coverage as if cells were independent."
        f"{fixed}"
    )
