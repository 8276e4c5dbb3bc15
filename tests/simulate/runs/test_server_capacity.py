"""Server capacity: closed forms of the rate, the command's own days run again, and errors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.runs.server_record import LEAST, MOST, NEAR, PILING, highest_rate, keeps_up
from tests.helpers.command_line import done, refused
from tests.helpers.command_line import run as command
from tests.treeopt.cli.test_simulate import files, words  # noqa: F401 - a fixture
from treeopt.errors import UsageError

DAYS = ["--requests", "60", "--replications", "2"]


@given(st.floats(2 * LEAST, MOST / 2))
def test_the_highest_rate_is_found(highest):
    looked: list[float] = []

    def holds(rate):
        looked.append(rate)
        return rate <= highest

    assert highest / (1 + NEAR) <= highest_rate(holds) <= highest
    assert len(looked) < 50


def test_what_never_or_always_holds_is_said():
    assert highest_rate(lambda rate: False) == 0
    with pytest.raises(UsageError, match="the limits are met even at 524288 requests per second"):
        highest_rate(lambda rate: True)


def test_a_day_keeps_up_with_its_share_and_its_queue():
    assert keeps_up({"within": 0.95, "piled": PILING}, share=0.95)
    assert not keeps_up({"within": 0.9499, "piled": 0.0}, share=0.95)
    assert not keeps_up({"within": 1.0, "piled": 1.01 * PILING}, share=0.95)


def test_the_rate_is_the_highest_that_keeps_the_limits(files, tmp_path):  # noqa: F811
    """Fewer rows carry less; below the rate found the limits are kept, at twice it they are not."""
    out = tmp_path / "c.json"
    asked = ["--tree", "2", "--batch", "4", *DAYS, "--capacity", "0.9", "--tpot-s", "0.03", "--ttft-s", "0.5"]
    shown = done(*words(files, *asked, "--json", "--output", out))
    record = json.loads(shown.stdout)
    assert record == json.loads(out.read_text("utf-8"))
    assert record["schema"] == "treeopt.capacity/2"
    assert (record["rows"], record["share"]) == (4, 0.9)
    assert record["slo"] == {"ttft_s": 0.5, "tpot_s": 0.03}
    tree, plain = record["configurations"]
    assert (tree["name"], tree["trees"]) == ("chain of 2", [[[0], [0, 0]]])
    assert (plain["name"], plain["trees"], plain["over"]) == ("no speculation", [None], None)
    ratio = tree["requests_s"]["value"] / plain["requests_s"]["value"]
    assert tree["over"]["value"] == pytest.approx(ratio)
    assert 0 < tree["over"]["low"] <= ratio <= tree["over"]["high"]
    served = ["--tree", "2", "--batch", "4", "--requests", "150", "--tpot-s", "0.03", "--ttft-s", "0.5", "--json"]
    within = [
        json.loads(done(*words(files, *served, "--arrivals", str(share * tree["requests_s"]["value"]))).stdout)
        for share in (0.8, 2)
    ]
    kept = [each["configurations"][0]["figures"]["within"]["value"] for each in within]
    assert kept[0] > 0.9 > kept[1]
    less = json.loads(done(*words(files, *asked, "--batch", "1", "--json")).stdout)
    assert less["configurations"][0]["requests_s"]["value"] < tree["requests_s"]["value"]


def test_a_plan_changes_its_trees_while_the_rate_is_looked_for(files):  # noqa: F811
    asked = ["--plan", files / "plan.json", *DAYS, "--capacity", "0.9", "--tpot-s", "0.03", "--json"]
    plan, plain = json.loads(done(*words(files, *asked)).stdout)["configurations"]
    assert plan["name"] == "plan"
    assert len(plan["trees"]) == len(plan["up"]) + 1 == 2
    assert plan["requests_s"]["value"] > plain["requests_s"]["value"]


def test_what_cannot_be_is_refused(files):  # noqa: F811
    server = words(files, "--batch", "2")
    limited = [*server, "--tpot-s", "0.1"]
    refused(command(*limited, "--capacity", "0.9", "--arrivals", "3"), "--capacity finds the rate that", code=2)
    refused(command(*server, "--capacity", "0.9"), "--capacity needs limits: give --ttft-s, --tpot-s or both", code=2)
    refused(command(*limited, "--capacity", "1.1"), "--capacity", code=2)
    refused(command(*server, "--tpot-s", "0.1"), "give --arrivals, --capacity or --requests-file", code=2)
