"""The table of engines' overheads: which row holds, and what it changes in a step."""

import json
import re
from dataclasses import replace

import pytest

from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.host_overhead import NO_ROW_ERROR, Overheads
from simulate.roofline.roofline_model import SLOW_ROWS
from tests.simulate.roofline.test_roofline_model import L3, medusa_shape, roofline
from treeopt.engines import ENGINES
from treeopt.errors import UsageError
from treeopt.storage.user_files import shipped


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
