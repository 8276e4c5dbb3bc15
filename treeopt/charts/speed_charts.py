"""Charts of speed: speedups of plans, devices and drafters, measured ones; throughput and latency; a server's load."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treeopt.charts.marks import (
    ACROSS,
    Axis,
    Row,
    Series,
    decimal_ticks,
    diagonal,
    estimated,
    line,
    points,
    rule,
    series_of,
    short,
    titled,
)
from treeopt.plans import Choice, Plan, PlanEntry

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
    x, series = replace(_batches(batches), field="place"), series_of(rows)
    middle = (len(series.names) - 1) / 2
    for row in rows:  # intervals of several devices stand beside each other
        row["place"] = row["batch"] * BESIDE ** (list(series.names).index(row["series"]) - middle)
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


BESIDE = 1.03  # factor between the places of two series at one batch size
RECOMMENDED = "recommended"
FRONTIER = "none is better in both"
COMPARED = "compared"
TPOT = Axis("tpot_ms", "time per token and sequence, ms", zero=True)
TOKENS = Axis("tokens_s", "tokens/s of the whole batch", zero=True)
KINDS = {"ttft_s": "first token", "tpot_s": "per token", "itl_s": "between tokens", "e2e_s": "whole request"}


def throughput_and_latency(plan: Plan) -> "alt.LayerChart":
    """Return tokens per second against time per token of all configurations of a plan.

    The recommended one is that of the batch size that the objective prefers, or of every batch size if it prefers none.
    """
    rows: list[Row] = [
        _choice(entry, choice, COMPARED)
        for entry in plan.entries
        for choice in entry.compared
        if not choice.plain and (choice.grown is None or choice.grown.policy is not None)  # a bound runs nowhere
    ]
    for entry in plan.entries:
        plain = [choice for choice in (entry.choice, *entry.compared) if choice.plain]
        rows += [_choice(entry, choice, "no speculation") for choice in plain]
    rows += [_choice(entry, entry.choice, "chosen at its batch size") for entry in plan.entries]
    best = [_choice(entry, entry.choice, RECOMMENDED) for entry in plan.entries if plan.best in (None, entry.batch)]
    return _operations(rows, best)


def scenario_latency(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return tokens per second against time per token, a series per device; `record` is a what-if."""
    rows: list[Row] = [
        _operation(short(cell["device"]), cell["name"], cell["batch"], 1e3 * cell["batch"] / cell["tokens_s"])
        for cell in reversed(record["cells"])
        if cell["fits"] is not False
    ]
    best = sorted(rows, key=lambda row: -row["tokens_s"])[:1]
    return _operations(rows, [row | {"series": RECOMMENDED} for row in best], accent=False)


def _choice(entry: PlanEntry, choice: Choice, series: str) -> Row:
    return _operation(series, choice.name, entry.batch, 1e3 * choice.step_s / choice.tau.value)


def _operation(series: str, name: str, batch: int, tpot_ms: float) -> Row:
    tokens_s = 1e3 * batch / tpot_ms
    return {"series": series, "tpot_ms": tpot_ms, "tokens_s": tokens_s, "configuration": name, "batch": str(batch)}


def _operations(rows: Sequence[Row], best: Sequence[Row], *, accent: bool = True) -> "alt.LayerChart":
    """Return operations, the last ones on top, the recommended ones above them, and the edge that none beats.

    The recommended ones have the accent colour, or the series keep theirs.
    """
    edge = [row | {"series": FRONTIER} for row in pareto(rows)]
    shown = list(dict.fromkeys(row["series"] for row in reversed(rows)))
    own = [name for name in shown if name != COMPARED]
    names = [RECOMMENDED, *own, FRONTIER, COMPARED] if accent else [*own, RECOMMENDED, FRONTIER, COMPARED]
    present = {RECOMMENDED, FRONTIER, *shown}
    series = Series(
        [name for name in names if name in present], grey=frozenset({COMPARED, FRONTIER}), dashes=frozenset({FRONTIER})
    )
    told = ", ".join(
        f"batch {row['batch']} ({row['configuration']}): {row['tokens_s']:,.0f} tokens/s at {row['tpot_ms']:.2f} ms"
        for row in best
    )
    return titled(
        [*line(edge, TPOT, TOKENS, series, dashed=True), *points([*rows, *best], TPOT, TOKENS, series)],
        "Throughput and latency",
        f"Predicted. Recommended: {told}.",
        words=f"Tokens per second against time per token. Recommended: {told}.",
    )


def pareto(rows: Sequence[Row]) -> list[Row]:
    """Return those that no other beats in tokens per second without taking longer per token, by rising time.

    >>> rows = [{"tpot_ms": 1, "tokens_s": 9}, {"tpot_ms": 2, "tokens_s": 8}, {"tpot_ms": 3, "tokens_s": 10}]
    >>> [row["tpot_ms"] for row in pareto(rows)]
    [1, 3]
    """
    edge = list[Row]()
    for row in sorted(rows, key=lambda row: (row["tpot_ms"], -row["tokens_s"])):
        if not edge or row["tokens_s"] > edge[-1]["tokens_s"]:
            edge.append(row)
    return edge


def load_over_time(record: Mapping[str, Any]) -> "alt.LayerChart | None":
    """Return requests that decode and wait over the first day of `simulate --arrivals`; None in older records."""
    decoding, waiting = list[Row](), list[Row]()
    for run in record["configurations"]:
        day = run.get("first_day")  # missing in older records
        if not day or not day["times_s"]:
            continue
        for kind, rows, column in (("decoding", decoding, "running"), ("waiting", waiting, "waiting")):
            name = f"{short(run['name'])}: {kind}"
            moments = zip(day["times_s"], day[column], strict=True)
            rows += [{"series": name, "time": time, "requests": number} for time, number in moments]
    if not decoding:
        return None
    capacity, largest = record["rows"], max(row["requests"] for row in (*decoding, *waiting))
    solid, dashed = (series_of(rows).names for rows in (decoding, waiting))
    series = Series([*solid, *dashed], lines=frozenset(solid), dashes=frozenset(dashed))
    x = Axis("time", "time, s", zero=True)
    y = Axis("requests", "requests", limits=(0.0, 1.08 * max(largest, capacity)))
    moments = sum(row["series"] == solid[0] for row in decoding)
    return titled(
        [
            *rule(y=float(capacity)),
            *line(decoding, x, y, series, steps=True),
            *line(waiting, x, y, series, steps=True, dashed=True),
        ],
        "Load over the first day",
        f"The first of the simulated days, at {moments} moments. Dashed across: all {capacity} rows.",
        words=f"Requests decoding and waiting over {decoding[-1]['time']:.1f} s; at most {largest:g} at once.",
    )


def carried_rates(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return the rate that each configuration carries; `record` is what `treeopt simulate --capacity` writes."""
    rates = {short(run["name"], 24): run["requests_s"] for run in record["configurations"]}
    rows: list[Row] = [
        {"series": "highest rate", "name": name, **estimated("rate", rate, ACROSS)} for name, rate in rates.items()
    ]
    x, y = Axis("rate", "requests per second", zero=True), Axis("name", names=list(rates))
    return titled(
        points(rows, x, y, series_of(rows)),
        "Rate that the server carries",
        "Bars: 95 % intervals over simulated days.",
        words="; ".join(f"{name}: {rate['value']:.2f} requests per second" for name, rate in rates.items()),
        height=30 + 40 * len(rates),
    )


def speed_by_load(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return tokens per second of each configuration over no speculation, by load; `record` is a verdict."""
    rows: list[Row] = [
        {"series": arm["name"], "requests": load["requests"], **estimated("over", arm["over"])}
        for load in record["loads"]
        for arm in load["configurations"]
    ]
    sizes = [load["requests"] for load in record["loads"]]
    x = Axis("requests", "running requests", log=True, ticks=sizes, limits=(min(sizes) / 1.15, max(sizes) * 1.15))
    y, series = Axis("over", "tokens/s over no speculation"), series_of(rows)
    return titled(
        [*line(rows, x, y, series), *points(rows, x, y, series)],
        "Draft lengths by load",
        "Bars: 95 % intervals.",
        words="Verdict by running requests: "
        + "; ".join(f"{load['requests']}: {load['verdict']}" for load in record["loads"])
        + ".",
    )


def latencies(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return percentiles of latencies, configurations side by side; `record` is a run or a server's days."""
    places = {(kind, percent): f"{name}, p{percent}" for kind, name in KINDS.items() for percent in (50, 95, 99)}
    rows: list[Row] = [
        {"series": short(run["name"]), "latency": place, **estimated("ms", value, ACROSS, scale=1e3)}
        for run in record["configurations"]
        for (kind, percent), place in places.items()
        if (value := _percentile(run, kind, percent)) is not None and value["value"] > 0
    ]
    ends = [end for row in rows for end in (row["ms"], row["left"], row["right"]) if end > 0]
    ticks = decimal_ticks(min(ends), max(ends))
    limits = (min(*ends, ticks[0]) / 1.15, max(*ends, ticks[-1]) * 1.15)
    x = Axis("ms", "ms", log=True, ticks=ticks, limits=limits)
    return titled(
        points(rows, x, Axis("latency", names=list(places.values())), series_of(rows)),
        "Latencies",
        "Bars: 95 % intervals. p50, p95, p99: percentiles over requests or tokens.",
        words=f"Percentiles of latencies of {', '.join(run['name'] for run in record['configurations'])}.",
        height=40 + 24 * len(places),
    )


def _percentile(run: Mapping[str, Any], kind: str, percent: int) -> Mapping[str, float] | None:
    figures = run.get("figures")
    value: Mapping[str, float] | None = (
        run[kind][f"p{percent}"] if figures is None else figures.get(f"{kind}_p{percent}")
    )
    return value
