"""Constants of devices and engines: names, overheads, and how far speedups from them are off on an H200."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from executor.drafters.medusa import medusa_shape
from simulate.model_sizes.hf_config import shape_fields
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import load_profile
from simulate.roofline.data_sheets import Hardware, find_hardware, load_hardware
from simulate.roofline.host_overhead import NO_ROW_ERROR, Overheads
from simulate.roofline.roofline_model import SLOW_ROWS, Roofline
from tests.simulate.roofline.test_roofline_model import L3, roofline
from treeopt.cost_model import StepShape
from treeopt.engines import ENGINES
from treeopt.errors import CostError, UsageError
from treeopt.storage.user_files import shipped
from treeopt.tree import Tree

# TFLOP/s, GB/s, MiB of L2, multiprocessors, GB of memory (of 2**30 B) of the data sheets
SHEETS = {
    "A6000": (154.8, 768, 6, 84, 48),
    "A100-40": (312, 1555, 40, 108, 40),
    "A100-80 SXM": (312, 2039, 40, 108, 80),
    "H100 SXM": (989, 3350, 50, 132, 80),
    "H200": (989, 4800, 50, 132, 141),
    "H800 SXM": (989, 3350, 50, 132, 80),
    "H20": (148, 4000, 60, 78, 96),
    "L40S": (362, 864, 96, 142, 48),
    "RTX 4090": (165, 1008, 72, 128, 24),
    "B200": (2250, 8000, 126, 148, 180),
    "MI300X": (1307, 5300, 32, 304, 192),
    "B300": (2250, 8000, None, None, 270),
    "GB200": (2500, 8000, 126, None, 186),
    "GB300": (2500, 8000, None, None, 279),
    "MI355X": (2500, 8000, 32, 256, 288),
    "RTX 5090": (209.5, 1792, 96, 170, 32),
    "RTX 5060 Ti": (47.4, 448, 32, 36, 16),
    "RTX PRO 6000": (503.8, 1792, 128, 188, 96),
    "DGX Spark": (125, 273, None, 48, 128),
    "L4": (121, 300, None, 58, 24),
    "A10G": (70, 600, 6, 80, 24),
}
APPLE = {  # GB/s and cores of chips without suffix, of Pro, Max and Ultra
    "M1": ((68.25, 8), (200, 16), (400, 32), (800, 64)),
    "M2": ((100, 10), (200, 19), (400, 38), (800, 76)),
    "M3": ((100, 10), (150, 18), (400, 40), (819, 80)),
    "M4": ((120, 10), (273, 20), (546, 40)),
    "M5": ((153, 10), (307, 20), (614, 40), (1200, 80)),
}


def test_shipped_devices_are_those_of_the_data_sheets_in_si_units():
    devices = load_hardware()
    assert [name for name, device in devices.items() if device.generation != "Apple"] == list(SHEETS)
    for name, (tera_flops, giga_bytes, l2, multiprocessors, memory) in SHEETS.items():
        device = devices[name]
        assert device.name == name
        assert device.flops == pytest.approx(tera_flops * 1e12, rel=1e-12)
        assert device.bandwidth == giga_bytes * 1e9
        assert device.l2_bytes == (None if l2 is None else l2 * 2**20)
        assert device.multiprocessors == multiprocessors
        assert device.memory_bytes == memory * 2**30


def test_apple_chips_state_bandwidth_and_say_that_their_matrix_rate_is_not_published():
    devices = {name: device for name, device in load_hardware().items() if device.generation == "Apple"}
    kinds = ("", " Pro", " Max", " Ultra")
    due = {chip + kind: sheet for chip, sheets in APPLE.items() for kind, sheet in zip(kinds, sheets, strict=False)}
    assert {name: (device.bandwidth / 1e9, device.multiprocessors) for name, device in devices.items()} == due
    assert all(device.note.startswith("[U] flops is") for device in devices.values())


@pytest.mark.parametrize(
    ("names", "due"),
    [
        (" Rtx 4090 |4090|rtx4090", "RTX 4090"),
        ("a100-80", "A100-80 SXM"),
        ("rtx-pro-6000|pro 6000|NVIDIA RTX PRO 6000", "RTX PRO 6000"),
        ("dgx-spark|spark", "DGX Spark"),
        ("m4|Apple M4", "M4"),
        ("m4max|M4-Max|apple m4 max", "M4 Max"),
        ("l4|nvidia l4", "L4"),
    ],
)
def test_the_beginning_or_the_end_of_a_name_in_any_case_will_do(names, due):
    assert {find_hardware(name).name for name in names.split("|")} == {due}


def test_other_names_list_the_devices_that_could_be_meant():
    with pytest.raises(CostError, match=r"one of A6000, .*, H200, .*, M5 Ultra; got 'h300'"):
        find_hardware("h300")
    with pytest.raises(CostError, match="one of A100-40, A100-80 SXM; got 'a100'"):
        find_hardware("a100")
    with pytest.raises(CostError, match="one of RTX 4090, RTX 5090, RTX 5060 Ti, RTX PRO 6000; got 'rtx'"):
        find_hardware("rtx")


def test_the_shipped_file_has_known_fields_and_different_names():
    devices = json.loads(shipped("hardware.json").read_text("utf-8"))["devices"]
    assert {name for device in devices for name in device} <= {field.name for field in fields(Hardware)}
    assert len({device["name"].casefold() for device in devices}) == len(devices)


@pytest.mark.parametrize(
    ("asked", "due"),
    [
        ({"engine": "vllm", "kind": "eagle3"}, "vllm from 0.11: "),
        ({"engine": "vllm", "kind": "eagle3", "version": "0.11.2"}, "vllm from 0.11: "),
        (
            {"engine": "vllm", "kind": "eagle3", "version": "0.10.2.post1"},
            "vllm before 0.11: vllm-project/vllm#20780, ",
        ),
        ({"engine": "vllm", "kind": "eagle", "version": "v0.9"}, "vllm before 0.11: vllm-project/vllm#20780 and "),
        ({"engine": "sglang", "kind": "eagle", "version": "0.4.4", "devices": 8}, "sglang before 0.5: .*#4716"),
        ({"engine": "openvino", "kind": "eagle3"}, "no figures are known for openvino with eagle3"),
    ],
)
def test_the_first_row_that_holds_counts(asked, due):
    found = Overheads.of(**asked)
    assert re.match(due, found.source)
    assert (found.error == NO_ROW_ERROR) == ("no figures" in due)


def test_dynamic_trees_and_several_devices_have_rows_of_their_own():
    steps = [
        Overheads.of("sglang", kind="eagle3", trees=trees, devices=devices).step_s
        for trees in ("static", "dynamic")
        for devices in (1, 4)
    ]
    assert len(set(steps)) == 4
    assert steps[0] < min(steps[1:])


def test_every_row_is_of_a_known_engine_and_has_a_source():
    rows = json.loads(shipped("engine_overheads.json").read_text("utf-8"))["rows"]
    assert {row["engine"] for row in rows} <= set(ENGINES)
    for row in rows:
        assert row["source"].strip()
        assert Overheads(**row["seconds"])
        assert set(row.get("kinds", ())) <= set(row["studies"])


def test_a_kind_that_no_study_had_has_a_larger_error():
    errors = [Overheads.of("sglang", kind=kind, devices=1).error for kind in ("eagle3", "dflash", "mtp")]
    assert errors[0] < errors[1] < errors[2]


def test_a_version_is_numbers():
    with pytest.raises(UsageError, match=r"a version must be numbers such as 0.10.2, got 'main'"):
        Overheads.of("vllm", kind="eagle", version="main")


def test_what_each_number_adds():
    bare = roofline(L3, overheads=Overheads.none())

    def added(**numbers):
        cost = replace(bare, overheads=replace(Overheads.none(), **numbers))
        return cost.plain_s(batch=2) - bare.plain_s(batch=2), float(cost.verify(4, batch=2).total_s) - verified

    verified, work = float(bare.verify(4, batch=2).total_s), float(bare.plain(batch=1).work_s)
    assert added(plain_s=1e-3) == pytest.approx((1e-3, 0))
    assert added(step_s=1e-3) == pytest.approx((0, 1e-3))
    assert added(row_share=0.25) == pytest.approx((0.25 * work, 0.25 * 7 * work))  # two rows, eight rows
    products = 129 * find_hardware("h100").fitted.gemm_overhead_s
    assert added(launches=0.5) == pytest.approx((-products / 2, -products / 2))
    slow = replace(bare, overheads=replace(Overheads.none(), row_share=0.25))
    more = [float((slow.verify(n, batch=1) + bare.verify(n, batch=1)).total_s) for n in (SLOW_ROWS, 16)]
    assert more[1] - more[0] < 0.05 * more[0]  # beyond, other kernels multiply them
    two = replace(bare, devices=2)
    exchanged = replace(two, overheads=replace(Overheads.none(), exchange_s=1e-5))
    assert exchanged.plain_s(batch=1) - two.plain_s(batch=1) == pytest.approx(65e-5)
    heads = roofline(L3, medusa_shape(L3), overheads=replace(Overheads.none(), head_s=1e-3, level_s=2e-3))
    none = replace(heads, overheads=Overheads.none())
    assert heads.chain(3, batch=1).total_s[-1] - none.chain(3, batch=1).total_s[-1] == pytest.approx(4e-3)


GPU = Path(__file__).resolve().parents[3] / "data" / "gpu"


@pytest.fixture(scope="module")
def errors() -> list[tuple[int, float, float]]:
    """Rows of each step, relative error of its predicted speedup, and the stated one."""
    shape = Shape.from_config(shape_fields("8b"))
    loop = Overheads.of("treeopt", kind="medusa")
    sheet = Roofline(shape, medusa_shape(shape, shared_head=True), find_hardware("H200"), overheads=loop)
    pieces = json.loads((GPU / "h200.json").read_text("utf-8"))["replayed_8b"]["pieces"]
    found = []
    for context in (400, 3984, 16272):
        for times in load_profile(GPU / f"h200-8b-{context}.profile.json").batches:
            plain_s = sheet.plain_s(batch=times.batch, context=round(times.context))
            cells = pieces.get(f"context {context}, batch {times.batch}", {"cells": []})["cells"]
            for cell in cells:
                tree, tau = Tree.from_paths(map(tuple, cell["tree"]["paths"])), cell["measured"]["tau"]["value"]
                step = StepShape.of(tree, batch=times.batch, context=round(times.context), committed=tau)
                speedup = tau * plain_s / float(sheet.step_s([step])[0])
                error = speedup / cell["measured"]["speedup"]["value"] - 1
                found.append((times.batch * step.tokens, error, sheet.error(step)))
    assert len(found) == 48
    return found


@pytest.mark.parametrize(("least", "most", "cells"), [(1, 64, 28), (65, 512, 15), (513, 4096, 5)])
def test_the_mean_error_is_small_in_each_range_of_rows(errors, least, most, cells):
    """The loop's overheads are fitted to an H100's steps, the products' rates to its kernels."""
    found = np.abs([error for rows, error, _ in errors if least <= rows <= most])
    assert len(found) == cells
    assert found.mean() < 0.06
    page = (GPU.parents[1] / "docs/results/gpu.md").read_text("utf-8")
    assert f"| {cells} | {100 * found.mean():.1f} % | {100 * found.max():.0f} % |" in page


def test_the_stated_error_holds_in_95_percent(errors):
    inside = [abs(error) <= stated for _, error, stated in errors]
    assert sum(inside) / len(inside) >= 0.95
    assert f"Of the 48 intervals {sum(inside)} hold" in (GPU.parents[1] / "docs/results/gpu.md").read_text("utf-8")
