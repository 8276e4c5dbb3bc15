"""What charts of profiles and devices need from `simulate`, which they do not import."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.charts.chart import Chart
from treeopt.charts.roofline_chart import Roof, roofline
from treeopt.charts.step_time_chart import StepTimes, step_times
from treeopt.errors import CostError, TreeoptError

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.profiles.step_tables import BatchTimes

SHOWN = 6  # batch sizes and contexts in one chart
LINE = 60  # points of the model's line


def profile_chart(profile: "Profile") -> Chart:
    """Return the step times of a profile: measured, the model's line, and points predicted without having seen them."""
    places = np.unique(np.linspace(0, len(profile.batches) - 1, min(SHOWN, len(profile.batches))).round().astype(int))
    shown = [profile.batches[place] for place in places.tolist()]
    hidden = len(profile.batches) - len(shown)
    conditions = ["Hollow: predicted by the model from the other sizes of its batch size."]
    if hidden:
        conditions.append(f"{hidden} further batch sizes or contexts are left out.")
    return step_times([_row(profile, times) for times in shown], conditions=conditions)


def _row(profile: "Profile", times: "BatchTimes") -> StepTimes:
    first, last = times.rest[0][0], times.rest[-1][0]
    sizes = np.unique(np.geomspace(first, last, LINE).round().astype(int)).tolist()
    context = f", {times.context:.0f} tokens" if profile.apart else ""
    line = _predicted(profile, times, sizes)
    left_out = []
    for place in range(1, len(times.rest) - 1):
        others = replace(times, rest=times.rest[:place] + times.rest[place + 1 :])
        left_out += _predicted(profile, others, [times.rest[place][0]])
    return StepTimes(f"batch {times.batch}{context}", times.rest, line, left_out, times.plain_s)


def _predicted(profile: "Profile", times: "BatchTimes", sizes: list[int]) -> list[tuple[float, float]]:
    """Return what the model says at sizes, from the table of one batch size and context."""
    alone = replace(profile, batches=(times,), captured=())
    try:
        seconds = alone.parts(batch=times.batch, tokens=max(sizes), depth=1, width=1).verify_s
    except CostError:
        return []
    return [(float(size), float(seconds[size])) for size in sizes if np.isfinite(seconds[size])]


def device_chart(record: Mapping[str, Any]) -> Chart | None:
    """Return the rooflines of a what-if's devices with the verify forwards of its cells; None if it names no sizes."""
    from simulate.model_sizes.model_shape import Shape
    from simulate.roofline.data_sheets import load_hardware

    known, roofs = load_hardware(), []
    for cost in record["meta"].get("costs", ()):  # missing in older records
        name = cost.get("device")
        if name not in known or "target" not in cost:
            continue
        try:
            shape = Shape(**{**cost["target"], "experts": None})
        except (TreeoptError, TypeError):
            continue
        weight_bytes = cost["settings"]["weight_bytes"]
        cells = [cell for cell in record["cells"] if cell["device"] == name and cell["fits"] is not False]
        forwards = []
        for cell in cells:
            tokens = 1 + (cell["tree"]["nodes"] if cell["tree"] else 0)
            flops = float(cell["batch"] * shape.flops(tokens))
            label = f"batch {cell['batch']}, {tokens} tokens a sequence"
            forwards.append((label, flops / (weight_bytes * shape.step_parameters), flops / cell["step_s"]))
        roofs.append(Roof(name, known[name].flops, known[name].bandwidth, forwards))
    if not roofs:
        return None
    return roofline(roofs, conditions=["FLOP of the target's forward over the seconds of the whole step."])
