"""Charts of speedups: against batch size, of a plan or of devices that were not measured; drafters side by side."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treeopt.charts.chart import Axis, Chart, Layer, estimates, floats, short
from treeopt.plans.plan import Choice, Plan
from treeopt.statistics.clustered_estimate import Estimate

SHOWN = 6  # configurations with a colour of their own
INTERVALS = "Bars: 95 % intervals."
OTHERS = "others"
SPEEDUP = "speedup over plain decoding"


def speedups(plan: Plan) -> Chart:
    """Return predicted speedup against batch size, of the chosen configurations and of those compared with them."""
    rows: dict[str, list[tuple[int, Choice]]] = {}
    for entry in plan.entries:
        for choice in (entry.choice, *entry.compared):
            if not choice.plain:
                rows.setdefault(choice.name, []).append((entry.batch, choice))
    batches = [entry.batch for entry in plan.entries]
    chosen = {choice.name for choice in (entry.choice for entry in plan.entries)}
    ranked = sorted(rows, key=lambda name: (name not in chosen, -max(c.speedup.value for _, c in rows[name])))
    layers = [
        layer
        for place, name in enumerate(ranked)
        for layer in _series(short(name) if place < SHOWN else OTHERS, rows[name], muted=place >= SHOWN)
    ]
    stop = None if all(entry.choice.plain for entry in plan.entries) else first_plain(plan)
    ends = () if stop is None else (Layer("rule", x=(float(stop),)),)
    return Chart(
        "Predicted speedup by batch size",
        batch_axis(batches),
        Axis(SPEEDUP),
        (Layer("rule", y=(1.0,)), *ends, *reversed(layers)),
        (
            f"{INTERVALS} Dashed: plain decoding{', and where speculation stops paying' if ends else ''}.",
            stops_paying(plan),
        ),
        f"Speedup over plain decoding at batch {', '.join(map(str, batches))}. {stops_paying(plan)}",
        order=tuple(short(name) for name in ranked[:SHOWN]),
    )


def _series(name: str, rows: Sequence[tuple[int, Choice]], *, muted: bool) -> list[Layer]:
    """Return the points of a configuration and the line through them; points come first, which lie on top."""
    details = (
        ("configuration", tuple(choice.name for _, choice in rows)),
        ("nodes", tuple(f"{choice.nodes:.3g}" for _, choice in rows)),
        ("tau", tuple(f"{choice.tau.value:.3f}" for _, choice in rows)),
    )
    x = floats([batch for batch, _ in rows])
    points = Layer("intervals", x=x, series=name, details=details, muted=muted)
    values = [choice.speedup for _, choice in rows]
    return [estimates(points, values), Layer("line", x, floats([v.value for v in values]), name, muted=muted)]


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


def scenario_speedups(record: Mapping[str, Any]) -> Chart:
    """Return the best speedup against batch size, a line per device and context; `record` is a what-if."""
    fitting = [cell for cell in record["cells"] if cell["fits"] is not False]
    layers = []
    several = len({cell["context"] for cell in record["cells"]}) > 1
    for device, context in dict.fromkeys((cell["device"], cell["context"]) for cell in fitting):
        line = [cell for cell in fitting if (cell["device"], cell["context"]) == (device, context)]
        name = short(f"{device}, {context} tokens of context" if several else device, 60)
        x = floats([cell["batch"] for cell in line])
        values = [Estimate(**cell["speedup"]) for cell in line]
        details = (
            ("best", tuple(str(cell["name"]) for cell in line)),
            ("step, ms", tuple(f"{cell['step_s'] * 1e3:.4g}" for cell in line)),
        )
        layers.append(Layer("line", x, floats([v.value for v in values]), name))
        layers.append(estimates(Layer("intervals", x=x, series=name, details=details), values))
    batches = sorted({cell["batch"] for cell in record["cells"]})
    return Chart(
        "Predicted speedup by batch size and device",
        batch_axis(batches),
        Axis(SPEEDUP),
        (Layer("rule", y=(1.0,)), *layers),
        (
            f"{INTERVALS} Dashed: plain decoding. Points: the best configuration there.",
            "Batch sizes that do not fit are left out.",
        ),
        f"Speedup at batch {', '.join(map(str, batches))} on {', '.join(dict.fromkeys(c['device'] for c in fitting))}.",
    )


def contests(record: Mapping[str, Any]) -> Chart:
    """Return the ratio of each drafter's tau or speedup to the first one's, by contest; `record` is a comparison."""
    names = [_contest(contest) for contest in record["contests"]]
    layers = []
    for drafter in dict.fromkeys(s["drafter"] for contest in record["contests"] for s in contest["standings"]):
        over = [
            (place, Estimate(**standing["over"]))
            for place, contest in enumerate(record["contests"])
            for standing in contest["standings"]
            if standing["drafter"] == drafter and standing["over"] is not None
        ]
        if over:
            layers.append(across(short(drafter), over))
    return Chart(
        "Drafters side by side",
        Axis(f"ratio to {short(record['first'], 24)}"),
        Axis("", names=tuple(names), reverse=True),
        (Layer("rule", x=(1.0,)), *layers),
        (
            f"{INTERVALS} Trees of one size: ratio of tau.",
            "A batch size: ratio of speedups, each drafter with its best tree.",
        ),
        f"Ratios to {record['first']} for {', '.join(names)}.",
        height=80 + 34 * len(names),
    )


def _contest(contest: Mapping[str, Any]) -> str:
    return str(contest["name"]) if contest["batch"] is None else f"batch {contest['batch']}"


def across(series: str, values: Iterable[tuple[float, Estimate]]) -> Layer:
    """Return intervals that lie across, at the places of a named axis."""
    places, found = zip(*values, strict=True)
    turned = estimates(Layer("intervals", x=floats(places)), found)
    return Layer("intervals", turned.y, floats(places), series, left=turned.low, right=turned.high)


def batch_axis(batches: Sequence[int]) -> Axis:
    """Return the axis of batch sizes, with a tick at each of them."""
    first, last = min(batches), max(batches)
    return Axis("batch", "log", floats(sorted(set(batches))), limits=(first / 1.15, last * 1.15))
