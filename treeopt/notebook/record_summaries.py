"""Validations and other records of results as summaries for notebooks."""

from collections.abc import Mapping
from typing import Any

from treeopt.errors import counted
from treeopt.notebook.html_summary import Summary
from treeopt.results.words import describe_measurement, interval
from treeopt.statistics.clustered_estimate import Estimate

# Schema -> title, and the columns of `Record.frame` that are shown, by their heads; a factor turns seconds into ms.
Columns = Mapping[str, tuple[str, float]]
RECORDS: dict[str, tuple[str, Columns]] = {
    "treeopt.run/1": (
        "Run of all requests",
        {
            "configuration": ("name", 1),
            "tau": ("tau", 1),
            "tokens/s": ("tokens_s", 1),
            "TTFT p50 ms": ("ttft_s_p50", 1e3),
            "TPOT p50 ms": ("tpot_s_p50", 1e3),
        },
    ),
    "treeopt.serving/1": (
        "Server",
        {
            "configuration": ("name", 1),
            "tokens/s": ("tokens_s", 1),
            "requests/s": ("requests_s", 1),
            "TTFT p95 ms": ("ttft_s_p95", 1e3),
            "TPOT p95 ms": ("tpot_s_p95", 1e3),
        },
    ),
    "treeopt.capacity/1": (
        "Capacity of a server",
        {"configuration": ("name", 1), "requests/s": ("requests_s", 1), "over the others": ("over", 1)},
    ),
    "treeopt.whatif/1": (
        "Devices that were not measured",
        {
            "device": ("device", 1),
            "context": ("context", 1),
            "batch": ("batch", 1),
            "configuration": ("name", 1),
            "nodes": ("tree_nodes", 1),
            "tau": ("tau", 1),
            "tokens/s": ("tokens_s", 1),
            "speedup": ("speedup", 1),
        },
    ),
    "treeopt.comparison/1": (
        "Drafters side by side",
        {
            "contest": ("contest", 1),
            "drafter": ("drafter", 1),
            "nodes": ("nodes", 1),
            "tau": ("tau", 1),
            "over the first": ("over", 1),
        },
    ),
}


def validation_summary(record: Mapping[str, Any]) -> Summary:
    """Return predicted beside measured speedups, their errors, and the conditions of the run."""
    covered = record["coverage"]["covered"]["cells"]
    rows = [
        [
            str(cell["batch"]),
            cell["name"],
            *(interval(Estimate(**cell[side]["speedup"])) for side in ("predicted", "measured")),
            f"{cell['error']:+.1%}",
            "yes" if cell["covered"] else "no",
        ]
        for cell in record["cells"]
    ]
    errors = f"mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}"
    facts = {
        "error of the predicted speedup": errors,
        "intervals that hold": f"{covered} of {record['coverage']['cells']}",
        "measured": describe_measurement(record["meta"]),
    }
    head = ["batch", "configuration", "predicted speedup", "measured speedup", "error", "in the interval"]
    return Summary(f"Validation: {counted(len(rows), 'cell')}", facts, head, rows)


def record_summary(record: Any) -> Summary:
    """Return the main figures of a record that `simulate`, `whatif` or `compare` made."""
    schema = record.get("schema")
    if schema not in RECORDS:
        return Summary(f"Record {schema or 'without a schema'}", {"fields": ", ".join(map(str, record))})
    title, columns = RECORDS[schema]
    frame = record.frame()
    shown = {head: column for head, column in columns.items() if column[0] in frame}
    rows = [[_cell(row, *column) for column in shown.values()] for row in frame.to_dict("records")]
    warnings = [f"Warning: {warning}." for warning in record.get("warnings", ())]
    return Summary(title, {}, list(shown), rows, [*warnings, *record.get("conditions", ())])


def _cell(row: Mapping[str, Any], name: str, factor: float) -> str:
    """Return a value with its interval, if it has one; empty where it is missing."""
    value = row[name]
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    ends = [row.get(f"{name}_{end}") for end in ("low", "high")]
    if ends[0] is not None and ends[0] == ends[0]:
        return interval(Estimate(*(factor * part for part in (value, *ends))))
    return f"{factor * value:.4g}"
