"""Charts of profiles and devices, from values of `simulate`, which the charts' room does not import."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.charts.marks import Axis, Row, Series, decimal_ticks, line, points, series_of, titled
from treeopt.errors import CostError, TreeoptError

if TYPE_CHECKING:
    import altair as alt

    from simulate.profiles.profile import Profile
    from simulate.profiles.step_tables import BatchTimes
    from simulate.roofline.data_sheets import Hardware

SHOWN = 6  # batch sizes and contexts in one chart
LINE = 60  # points of the model's line
LEFT_OUT = "predicted without the point"
TERA = 1e12


def profile_chart(profile: "Profile") -> "alt.LayerChart":
    """Return step times by verified tokens: measured, the model's line, and points that the model had not seen."""
    places = np.unique(np.linspace(0, len(profile.batches) - 1, min(SHOWN, len(profile.batches))).round().astype(int))
    measured, model, left_out = list[Row](), list[Row](), list[Row]()
    for times in (profile.batches[place] for place in places.tolist()):
        name = f"batch {times.batch}" + (f", {times.context:.0f} tokens" if profile.apart else "")
        plain = {"plain step, ms": f"{times.plain_s * 1e3:.4g}"}
        measured += [{"series": name, "tokens": n, "ms": 1e3 * seconds, **plain} for n, seconds in times.rest]
        sizes = np.unique(np.geomspace(times.rest[0][0], times.rest[-1][0], LINE).round().astype(int)).tolist()
        model += [{"series": name, **row} for row in _predicted(profile, times, sizes)]
        for place in range(1, len(times.rest) - 1):
            others = replace(times, rest=times.rest[:place] + times.rest[place + 1 :])
            left_out += [{"series": LEFT_OUT, **row} for row in _predicted(profile, others, [times.rest[place][0]])]
    tokens, heights = ([row[key] for row in (*measured, *left_out, *model)] for key in ("tokens", "ms"))
    x = Axis("tokens", "verified tokens per sequence", log=True, ticks=decimal_ticks(min(tokens), max(tokens)))
    y = Axis("ms", "step except drafting, ms", log=True, ticks=decimal_ticks(min(heights), max(heights)))
    names, hidden = series_of(measured).names, len(profile.batches) - len(places)
    series = Series([*names, *([LEFT_OUT] if left_out else [])], grey=frozenset({LEFT_OUT}))
    return titled(
        [*line(model, x, y, series), *points(left_out, x, y, series, hollow=True), *points(measured, x, y, series)],
        "Step time by verified tokens",
        "Points: measured. Lines: the model between them.",
        "Hollow: predicted by the model from the other sizes of its batch size.",
        *([f"{hidden} further batch sizes or contexts are left out."] if hidden else []),
        words=f"Step times at {', '.join(names)}, for {min(tokens):g} to {max(tokens):g} tokens.",
        height=360,
    )


def _predicted(profile: "Profile", times: "BatchTimes", sizes: list[int]) -> list[Row]:
    """Return what the model says at sizes, from the table of one batch size and context."""
    alone = replace(profile, batches=(times,), captured=())
    try:
        seconds = alone.parts(batch=times.batch, tokens=max(sizes), depth=1, width=1).verify_s
    except CostError:
        return []
    return [{"tokens": size, "ms": 1e3 * float(seconds[size])} for size in sizes if np.isfinite(seconds[size])]


def device_chart(record: Mapping[str, Any]) -> "alt.LayerChart | None":
    """Return attainable FLOP/s by FLOP per byte of a what-if's devices, with the forwards of its cells.

    None if the record names no sizes.
    """
    from simulate.roofline.data_sheets import load_hardware

    known, forwards, devices = load_hardware(), list[Row](), list["Hardware"]()
    for cost in record["meta"].get("costs", ()):  # missing in older records
        if cost.get("device") not in known or "target" not in cost:
            continue
        try:
            forwards += _forwards(cost, record["cells"])
        except (TreeoptError, TypeError):
            continue
        devices.append(known[cost["device"]])
    if not devices:
        return None
    ridges = [device.flops / device.bandwidth for device in devices]
    across = [row["intensity"] for row in forwards] or [1.0]
    ticks = decimal_ticks(min(across), max(*across, *(4 * ridge for ridge in ridges)))
    roofs: list[Row] = [
        {"series": d.name, "intensity": x, "tflops": min(d.flops, d.bandwidth * x) / TERA}
        for d, ridge in zip(devices, ridges, strict=True)
        for x in (ticks[0], ridge, ticks[-1])
    ]
    heights = [row["tflops"] for row in (*roofs, *forwards)]
    x = Axis("intensity", "FLOP per byte of weights", log=True, ticks=ticks)
    y = Axis("tflops", "TFLOP/s", log=True, ticks=decimal_ticks(min(heights), max(heights)))
    series = series_of(roofs)
    return titled(
        [*line(roofs, x, y, series), *points(forwards, x, y, series)],
        "Roofline",
        "Lines: what memory and arithmetic allow. Points: forwards of the steps above.",
        "FLOP of the target's forward over the seconds of the whole step.",
        words="; ".join(f"{d.name}: {d.flops / TERA:.0f} TFLOP/s, {d.bandwidth / 1e9:.0f} GB/s" for d in devices),
    )


def _forwards(cost: Mapping[str, Any], cells: list[Mapping[str, Any]]) -> list[Row]:
    """Return the verify forward of each cell of a device."""
    rows, read = [], cost["forward"]["bytes"]
    for cell in (cell for cell in cells if cell["device"] == cost["device"] and cell["fits"] is not False):
        tokens = 1 + (cell["tree"]["nodes"] if cell["tree"] else 0)
        flops = float(cell["batch"] * tokens * cost["forward"]["flops"])
        rows.append(
            {
                "series": cost["device"],
                "intensity": flops / read,
                "tflops": flops / cell["step_s"] / TERA,
                "forward": f"batch {cell['batch']}, {tokens} tokens a sequence",
            }
        )
    return rows
