"""Server capacity: closed forms of the rate, the command's own days run again, and errors."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.profiles.profile import BatchTimes, Profile, load_profile, save_profile
from simulate.runs.run_costs import by_parabolas, price_steps
from simulate.runs.server import Decoding, serve_day
from simulate.runs.server_capacity import LEAST, MOST, NEAR, PILING, highest_rate, keeps_up
from simulate.runs.server_load import Load
from simulate.runs.tree_switching import Switching
from tests.helpers.command_line import done, refused
from tests.helpers.command_line import run as command
from tests.helpers.strategies import drawn_trace
from tests.simulate.runs.test_server import Constant
from tests.treeopt.cli.test_simulate import files, words  # noqa: F401 - a fixture
from treeopt.errors import UsageError
from treeopt.tree import Tree

DAYS = ["--requests", "60", "--replications", "2"]


@given(st.floats(2 * LEAST, MOST / 2))
def test_the_highest_rate_is_found(highest):
    looked: list[float] = []

    def holds(rate):
        looked.append(rate)
        return rate <= highest

    assert highest / (1 + NEAR) <= highest_rate(holds) <= highest
    assert len(looked) < 50


@given(st.floats(2 * LEAST, MOST / 2), st.floats(0, MOST))
def test_where_the_search_begins_changes_nothing(highest, near):
    assert highest_rate(lambda rate: rate <= highest, near) == highest_rate(lambda rate: rate <= highest)
    assert highest_rate(lambda rate: False, near) == 0


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


def test_the_interval_carries_the_error_of_steps(files, tmp_path):  # noqa: F811
    """Its ends are the rates with steps as slow and as fast as the error allows; plain decoding has no such error."""
    asked = ["--tree", "2", "--batch", "4", *DAYS, "--capacity", "0.9", "--tpot-s", "0.03", "--ttft-s", "0.5", "--json"]
    profile, found = load_profile(files / "p.json"), {}
    for error in (0.0, 0.4):
        save_profile(replace(profile, relative_error=error), tmp_path / "p.json")
        shown = done(*words(files, *asked, "--profile", tmp_path / "p.json")).stdout
        found[error] = json.loads(shown)["configurations"]
    (sure, plain), (unsure, other) = found[0.0], found[0.4]
    assert plain == other
    for key in ("requests_s", "over"):
        assert unsure[key]["value"] == sure[key]["value"]
        assert unsure[key]["low"] < 0.8 * sure[key]["value"]
        assert unsure[key]["high"] > max(1.2 * sure[key]["value"], sure[key]["high"])


def test_days_share_their_prices():
    """Each number of requests is priced once, at whatever rate and day."""
    trace, priced = drawn_trace([[0.6]], [20, 30] * 10, depth=1, rng=np.random.default_rng(0)), []

    class Counted(Constant):
        def price(self, batch, tokens, context):
            priced.append((batch, tokens))
            return super().price(batch, tokens, context)

    decoding = Decoding(trace, Switching((Tree.chain(1), None), (3,), (1,)), Counted(), rows=4)
    for rate in (1.0, 10.0, 100.0):
        work = Load(requests=50).workload(trace, None, np.random.default_rng(1), rate=rate)
        served = serve_day(decoding, work, rows=4)
        assert served.requests.done_s == pytest.approx(served.timeline.done_s, rel=1e-12)
    assert len(priced) == len(set(priced)) > 4


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


def test_prices_by_context_are_those_of_the_profile():
    """Three contexts, a batch size between two: parabolas between the tables, to rounding."""
    tables = [
        BatchTimes(
            b, 0.01 * b**0.3 + c * b / 1e6, ((1, 1e-3 + c / 1e6),), ((2, 0.011 + c * b / 1e6), (8, 0.02 * b)), (), c
        )
        for b in (1, 4)
        for c in (16.0, 100.5, 400.0)
    ]
    profile, contexts = Profile(tuple(tables), (10, 500), 0.02), np.arange(10, 501)
    for tree in (None, Tree.chain(1)):
        price = price_steps(tree, profile, committed=1.5)
        for batch in (1, 3, 4):
            due = [price(batch, context) for context in contexts.tolist()]
            assert by_parabolas(price, profile)(batch, contexts) == pytest.approx(due, rel=1e-9)
