"""Charts of speedups: by batch size, of a plan or of devices; drafters side by side; predicted and measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treeopt.charts.marks import (
    ACROSS,
    Axis,
    Row,
    Series,
    diagonal,
    estimated,
    line,
    points,
    rule,
    series_of,
    short,
    titled,
)
from treeopt.plans.plan import Plan

if TYPE_CHECKING:
    import altair as alt

SHOWN = 6  # configurations with a colour of their own
INTERVALS = "Bars: 95 % intervals."
OTHERS = "others"
SPEEDUP = Axis("speedup", "speedup over plain decoding")


def speedups(plan: Plan) -> "alt.LayerChart":
    """Return predicted speedup by batch size, of the chosen configurations and of those compared with them."""
    names, rows = speedup_rows(plan)
    batches = [entry.batch for entry in plan.entries]
    x, series = _batches(batches), Series(names, frozenset({OTHERS}))
    stop = None if all(entry.choice.plain for entry in plan.entries) else first_plain(plan)
    ends = [] if stop is None else rule(x=float(stop))
    below = ", and where speculation stops paying" if ends else ""
    return titled(
        [*rule(y=1.0), *ends, *line(rows, x, SPEEDUP, series), *points(rows, x, SPEEDUP, series)],
        "Predicted speedup by batch size",
        f"{INTERVALS} Dashed: plain decoding{below}.",
        stops_paying(plan),
        words=f"Speedup over plain decoding at batch {', '.join(map(str, batches))}. {stops_paying(plan)}",
    )


def speedup_rows(plan: Plan) -> tuple[list[str], list[Row]]:
    """Return the series of a plan's speedups in the order of the legend, and their rows, the first series last.

    The chosen configurations come first, then the fastest; those without a colour of their own are together.
    """
    found: dict[str, list[Row]] = {}
    for entry in plan.entries:
        for choice in (entry.choice, *entry.compared):
            if not choice.plain:
                row = {
                    "batch": entry.batch,
                    **estimated("speedup", choice.speedup),
                    "configuration": choice.name,
                    "nodes": f"{choice.nodes:.3g}",
                    "tau": f"{choice.tau.value:.3f}",
                }
                found.setdefault(choice.name, []).append(row)
    chosen = {entry.choice.name for entry in plan.entries}
    ranked = sorted(found, key=lambda name: (name not in chosen, -max(row["speedup"] for row in found[name])))
    series = {name: short(name) if place < SHOWN else OTHERS for place, name in enumerate(ranked)}
    rows = [row | {"series": series[name]} for name in reversed(ranked) for row in found[name]]
    return list(dict.fromkeys(series.values())), rows


def stops_paying(plan: Plan) -> str:
    """Return at which planned batch sizes speculation pays, where it may not, and from where on it does not."""
    drafting = [entry for entry in plan.entries if not entry.choice.plain]
    pays = [entry.batch for entry in drafting if entry.choice.speedup.low > 1]
    unsure = [entry.batch for entry in drafting if entry.choice.speedup.low <= 1]
    if not drafting:
        return "Speculation pays at none of these batch sizes."
    parts = []
    if len(pays) == len(plan.entries):
        parts.append("Speculation pays at all of these batch sizes")
    elif pays:
        parts.append(f"Speculation pays at batch {', '.join(map(str, pays))}")
    if unsure:
        place = f"at batch {', '.join(map(str, unsure))}"
        parts.append(f"{place} the interval contains 1" if pays else f"It is open whether speculation pays {place}")
    first = first_plain(plan)
    end = "" if first is None else f", and not from batch {first} on"
    return f"{'; '.join(parts)}{end}."


def first_plain(plan: Plan) -> int | None:
    """Return the planned batch size from which on speculation does not pay; None if it pays at the largest."""
    first = None
    for entry in sorted(plan.entries, key=lambda entry: -entry.batch):
        if not entry.choice.plain:
            break
        first = entry.batch
    return first


def scenario_speedups(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return the best speedup by batch size, a line per device and context; `record` is a what-if."""
    several = len({cell["context"] for cell in record["cells"]}) > 1
    fitting = [cell for cell in record["cells"] if cell["fits"] is not False]
    rows: list[Row] = [
        {
            "series": short(
                f"{cell['device']}, {cell['context']} tokens of context" if several else cell["device"], 60
            ),
            "batch": cell["batch"],
            **estimated("speedup", cell["speedup"]),
            "best": cell["name"],
            "step, ms": f"{cell['step_s'] * 1e3:.4g}",
        }
        for cell in fitting
    ]
    batches = sorted({cell["batch"] for cell in record["cells"]})
    x, series = _batches(batches), series_of(rows)
    devices = ", ".join(dict.fromkeys(cell["device"] for cell in fitting))
    return titled(
        [*rule(y=1.0), *line(rows, x, SPEEDUP, series), *points(rows, x, SPEEDUP, series)],
        "Predicted speedup by batch size and device",
        f"{INTERVALS} Dashed: plain decoding. Points: the best configuration there.",
        "Batch sizes that do not fit are left out.",
        words=f"Speedup at batch {', '.join(map(str, batches))} on {devices}.",
    )


def contests(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return the ratio of each drafter's tau or speedup to the first one's, by contest; `record` is a comparison."""
    names = [c["name"] if c["batch"] is None else f"batch {c['batch']}" for c in record["contests"]]
    rows: list[Row] = [
        {
            "series": short(standing["drafter"]),
            "contest": name,
            **estimated("ratio", standing["over"], ACROSS),
        }
        for name, contest in zip(names, record["contests"], strict=True)
        for standing in contest["standings"]
        if standing["over"] is not None
    ]
    x, y = Axis("ratio", f"ratio to {short(record['first'], 24)}"), Axis("contest", names=names)
    return titled(
        [*rule(x=1.0), *points(rows, x, y, series_of(rows))],
        "Drafters side by side",
        f"{INTERVALS} Trees of one size: ratio of tau.",
        "A batch size: ratio of speedups, each drafter with its best tree.",
        words=f"Ratios to {record['first']} for {', '.join(names)}.",
        height=40 + 34 * len(names),
    )


def agreement(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return measured against predicted speedups, a colour per batch size; `record` is a validation."""
    rows: list[Row] = [
        {
            "series": f"batch {cell['batch']}",
            **estimated("predicted", cell["predicted"]["speedup"], ACROSS),
            **estimated("measured", cell["measured"]["speedup"]),
            "tree": cell["name"],
            "error": f"{cell['error']:+.1%}",
        }
        for cell in record["cells"]
    ]
    ends = [row[side] for row in rows for side in ("predicted", "measured", *ACROSS, "low", "high")] or [0.0, 1.0]
    margin = 0.04 * (max(ends) - min(ends))
    limits = (max(0.0, min(ends) - margin), max(ends) + margin)
    x, y = (Axis(side, f"{side} speedup", limits=limits) for side in ("predicted", "measured"))
    covered = record["coverage"]["covered"]["cells"]
    return titled(
        [*diagonal(limits, x, y), *points(rows, x, y, series_of(rows))],
        "Predicted and measured speedup",
        "Bars: 95 % intervals. Dashed: equal values. One point per tree and batch size.",
        f"Error: mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}. "
        f"{covered} of {record['coverage']['cells']} predicted intervals contain the measured value.",
        words=f"{len(rows)} predicted speedups beside measured ones; mean error {record['mean_error']:.1%}.",
        height=420,
    )


def _batches(batches: Sequence[int]) -> Axis:
    """Return the axis of batch sizes, with a tick at each of them."""
    first, last = min(batches), max(batches)
    return Axis("batch", "batch", log=True, ticks=sorted(set(batches)), limits=(first / 1.15, last * 1.15))
