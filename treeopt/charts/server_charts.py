"""Charts of servers: the load over the first simulated day, and the rates that configurations carry."""

from collections.abc import Mapping
from typing import Any

from treeopt.charts.chart import Axis, Chart, Layer, decimal_ticks, floats, short
from treeopt.charts.speedup_charts import across
from treeopt.statistics.clustered_estimate import Estimate


def load_over_time(record: Mapping[str, Any]) -> Chart | None:
    """Return requests that decode and that wait over the first day; None for a record of an earlier version.

    Args:
        record: what `treeopt simulate --arrivals` writes.
    """
    layers: list[Layer] = []
    for way in record["ways"]:
        day = way.get("first_day")  # missing in older records
        if not day or not day["times_s"]:
            continue
        times = floats(day["times_s"])
        layers.append(Layer("steps", times, floats(day["running"]), f"{short(way['name'])}: decoding"))
        layers.append(Layer("steps", times, floats(day["waiting"]), f"{short(way['name'])}: waiting", dashed=True))
    if not layers:
        return None
    largest = max(max(layer.y) for layer in layers)
    return Chart(
        "Load over the first day",
        Axis("time, s", zero=True),
        Axis("requests", zero=True, limits=(0.0, 1.08 * max(largest, record["rows"]))),
        (Layer("rule", y=(float(record["rows"]),)), *layers),
        (f"The first of the simulated days, at {len(layers[0])} moments. Dashed across: all {record['rows']} rows.",),
        f"Requests decoding and waiting over {layers[0].x[-1]:.1f} s; at most {largest:g} at once.",
    )


def carried_rates(record: Mapping[str, Any]) -> Chart:
    """Return the rate that each configuration carries; `record` is what `treeopt simulate --capacity` writes."""
    names = tuple(short(way["name"], 24) for way in record["ways"])
    values = [Estimate(**way["requests_s"]) for way in record["ways"]]
    return Chart(
        "Rate that the server carries",
        Axis("requests per second", zero=True),
        Axis("", names=names, reverse=True),
        (across("highest rate", enumerate(values)),),
        ("Bars: 95 % intervals over simulated days.",),
        "; ".join(f"{name}: {value.value:.2f} requests per second" for name, value in zip(names, values, strict=True)),
        height=80 + 40 * len(names),
    )


def latencies(record: Mapping[str, Any]) -> Chart:
    """Return percentiles of latencies, configurations side by side; `record` is a run or a server's days."""
    rows = [(kind, percent) for kind in ("ttft_s", "tpot_s", "itl_s", "e2e_s") for percent in (50, 95, 99)]
    layers = []
    for way in record["ways"]:
        found = [(place, _percentile(way, *row)) for place, row in enumerate(rows)]
        values = [
            (place, Estimate(*(1e3 * part for part in known))) for place, known in found if known and known[0] > 0
        ]
        if values:
            layers.append(across(short(way["name"]), values))
    names = {"ttft_s": "first token", "tpot_s": "per token", "itl_s": "between tokens", "e2e_s": "whole request"}
    ends = [end for layer in layers for column in (layer.x, layer.left, layer.right) for end in column if end > 0]
    ticks = decimal_ticks(min(ends), max(ends))
    return Chart(
        "Latencies",
        Axis("ms", "log", ticks, limits=(min(*ends, ticks[0]) / 1.15, max(*ends, ticks[-1]) * 1.15)),
        Axis("", names=tuple(f"{names[kind]}, p{percent}" for kind, percent in rows), reverse=True),
        tuple(layers),
        ("Bars: 95 % intervals. p50, p95, p99: percentiles over requests or tokens.",),
        f"Percentiles of latencies of {', '.join(way['name'] for way in record['ways'])}.",
        height=90 + 24 * len(rows),
    )


def _percentile(way: Mapping[str, Any], kind: str, percent: int) -> tuple[float, float, float] | None:
    figures = way.get("figures")
    value = way[kind][f"p{percent}"] if figures is None else figures.get(f"{kind}_p{percent}")
    return None if value is None else (value["value"], value["low"], value["high"])
