import json
from dataclasses import fields

import pytest

from simulate.roofline.data_sheets import Hardware, find_hardware, load_hardware
from treeopt.errors import CostError
from treeopt.storage.user_files import shipped

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
