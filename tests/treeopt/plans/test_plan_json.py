"""Plans in files: what is written is read back, and what is wrong is named."""

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.helpers.small_plans import entry
from tests.helpers.small_plans import plan_of as small_plan
from treeopt.errors import PlanError, UsageError
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Price, Proof, Switch, from_json, load_plan, save_plan, to_json
from treeopt.policies import DynamicTree
from treeopt.statistics import Estimate
from treeopt.tree import Tree


def plan_of(entries: int = 2) -> Plan:
    """A plan with every kind of entry: a tree, no speculation, a gain, a reason."""
    tree = Tree.from_paths([(0, 0), (0, 1), (2,)])
    fast = Choice("chosen tree", tree, Estimate(2.5, 2.25, 2.75), 0.025, Estimate(2.0, 1.8, 2.2))
    chain = Choice("best chain", Tree.chain(2), Estimate(2.0, 1.9, 2.1), 0.025, Estimate(1.6, 1.5, 1.7))
    chain = replace(chain, behind=Estimate(0.25, 0.125, 0.375))
    plain = Choice("no speculation", None, Estimate(1, 1, 1), 0.02, Estimate(1, 1, 1))
    grown = Grown("eagle2", {"beam": 4}, nodes=7.5, depth=3.0, policy=DynamicTree(nodes=8, depth=3, beam=4))
    dynamic = Choice("eagle2", None, Estimate(2.25, 2.0, 2.5), 0.025, Estimate(1.8, 1.6, 2.0), grown)
    bound = replace(dynamic, name="bound on any policy", grown=replace(grown, policy=None))
    proof = Proof("replayed tokens a second", optimal=False, statement="best found")
    price = Price("contiguous ranks", "engine.py", Estimate(0.01, -0.01, 0.03))
    skipped = {"Medusa's tree": "too deep"}
    first = PlanEntry(1, fast, Estimate(0.5, 0.25, 0.75), (plain, chain, dynamic, bound), skipped, proof, (price,))
    second = PlanEntry(64, plain, None, (chain,), {}, replace(proof, optimal=True))
    meta = {"seed": 1, "trace": {"target": "γ"}}
    if entries == 1:
        return Plan((first,), meta)
    return Plan((first, second), meta, (Switch(small=1, large=64, up=64, down=1),), 64, ("few requests",))


def test_plans_survive_a_file(tmp_path):
    save_plan(plan_of(), tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan_of()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    (tmp_path / "plan.json").write_text((tmp_path / "plan.json").read_text("utf-8"), "utf-8-sig")
    assert load_plan(tmp_path / "plan.json") == plan_of()


def test_plans_of_the_version_before_are_read():
    assert from_json(to_json(plan_of()).replace("treeopt.plan/3", "treeopt.plan/2")) == plan_of()


def test_the_record_of_a_plan():
    # What other programs read.
    record = json.loads(to_json(plan_of()))
    assert record["schema"] == "treeopt.plan/3"
    assert record["meta"] == {"seed": 1, "trace": {"target": "γ"}}
    assert record["entries"][0]["choice"] == {
        "name": "chosen tree",
        "tree": {"id": Tree.from_paths([(0, 0), (0, 1), (2,)]).id, "paths": [[0], [2], [0, 0], [0, 1]]},
        "grown": None,
        "tau": {"value": 2.5, "low": 2.25, "high": 2.75},
        "step_s": 0.025,
        "speedup": {"value": 2.0, "low": 1.8, "high": 2.2},
        "behind": None,
    }
    assert record["entries"][0]["compared"][1]["behind"] == {"value": 0.25, "low": 0.125, "high": 0.375}
    assert record["entries"][0]["compared"][2]["grown"] == {
        "kind": "eagle2",
        "settings": {"beam": 4},
        "nodes": 7.5,
        "depth": 3.0,
        "policy": {
            "kind": "dynamic-tree",
            "nodes": 8,
            "depth": 3,
            "beam": 4,
            "width": None,
            "min_probability": 0.0,
            "calibration": None,
        },
    }
    assert record["entries"][0]["prices"] == [
        {"rule": "contiguous ranks", "source": "engine.py", "share": {"value": 0.01, "low": -0.01, "high": 0.03}}
    ]
    assert record["switches"] == [{"small": 1, "large": 64, "up": 64, "down": 1}]
    assert (record["best"], record["warnings"]) == (64, ["few requests"])
    assert record["entries"][0]["gain_over_chain"] == {"value": 0.5, "low": 0.25, "high": 0.75}
    assert record["entries"][1]["gain_over_chain"] is None
    assert record["entries"][1]["choice"]["tree"] is None


def test_a_plan_as_a_frame():
    frame = plan_of().frame()
    assert frame["batch"].tolist() == [1, 1, 1, 1, 1, 64, 64]
    both = ["no speculation", "best chain"]
    assert frame["name"].tolist() == ["chosen tree", *both, "eagle2", "bound on any policy", *both]
    assert frame["chosen"].tolist() == [True, False, False, False, False, True, False]
    assert frame["nodes"].tolist() == [4, 0, 2, 7.5, 7.5, 0, 2]
    assert frame["depth"].tolist() == [2, 0, 2, 3, 3, 0, 2]
    assert frame["tau"].tolist() == [2.5, 1, 2, 2.25, 2.25, 1, 2]
    assert frame["tokens_s"].tolist() == pytest.approx([100, 50, 80, 90, 90, 3200, 5120])
    choice = plan_of().entries[0].choice
    assert frame["tree"].tolist()[0] == choice.tree.id
    assert frame["tree"].isna().tolist()[:3] == [False, True, False]
    assert frame["speedup_low"].tolist()[0] == choice.speedup.low
    assert frame["behind_high"].tolist()[0] == 0.0


def test_what_graphs_are_captured_for():
    assert plan_of().captures == ((1, 5), (64, 1))
    drawn = (Grown("eagle2", {}, nodes=2.4, depth=2.0, policy=policy) for policy in (DynamicTree(7, 2), None))
    entries = [replace(entry(1, None), choice=replace(plan_of().entries[0].choice, tree=None, grown=g)) for g in drawn]
    assert [Plan((each,)).captures for each in entries] == [((1, 8),), ((1, 4),)]
    assert plan_of().entries[0].tpot_s == pytest.approx(0.01)


def refused(path, text: str | bytes) -> str:
    """The message with which a file is refused, after its path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def at(record: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        record = record[key]
    return record


def places(record: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


RECORD = json.loads(to_json(plan_of()))
FREE = ("meta", "skipped", "settings", "width", "min_probability", "calibration", "beam")  # of any content


def test_missing_keys_are_named(tmp_path):
    """Each key of the format in turn."""
    for place in places(RECORD):
        if isinstance(place[-1], int) or set(place[:-1]) & set(FREE) or place[-1] in FREE[3:]:
            continue
        record = deepcopy(RECORD)
        del at(record, place[:-1])[place[-1]]
        message = refused(tmp_path / "plan.json", json.dumps(record))
        assert str(place[-1]) in message
        if place[0] == "entries" and len(place) > 2:
            assert message.startswith(f"entries[{place[1]}]")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (("schema",), "treeopt.plan/1", "schema must be 'treeopt.plan/3' or 'treeopt.plan/2', found 'treeopt.plan/1'"),
        (("entries", 0, "batch"), 0, "entries[0].batch: Expected `int` >= 1, found 0"),
        (("entries", 0, "choice", "tree", "id"), "0123456789ab", "entries[0].choice.tree: `id` 0123456789ab does not"),
        (("entries", 0, "compared", 2, "grown", "policy", "wings"), 2, "unknown field `wings`"),
        (("entries", 0, "compared", 2, "tree"), {"id": Tree.chain(1).id, "paths": [[0]]}, "exclude one another"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_values_are_named(tmp_path, key, value, message):
    record = deepcopy(RECORD)
    at(record, key[:-1])[key[-1]] = value
    assert message in refused(tmp_path / "plan.json", json.dumps(record))


def test_every_truncated_plan_is_refused(tmp_path):
    text = to_json(plan_of())
    for size in range(0, len(text), 23):
        assert refused(tmp_path / "plan.json", text[:size])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["value", "paths", "id"]), inner, max_size=2)
    ),
    max_leaves=3,
)


@given(st.sampled_from(list(places(RECORD))), values)
@settings(max_examples=examples(300))
def test_any_value_anywhere_loads_or_is_a_plan_error(place, value):
    record = deepcopy(RECORD)
    at(record, place[:-1])[place[-1]] = value
    try:
        plan = from_json(json.dumps(record))
    except PlanError:
        return
    # What was let in must be a plan that can be used and written.
    assert len(plan.frame()) == sum(1 + len(entry.compared) for entry in plan.entries)
    assert from_json(to_json(plan)).entries == plan.entries


def test_a_batch_size_that_a_plan_lacks_is_refused_in_words_of_python():
    plan = small_plan(entry(1, Tree.chain(5)), entry(8, Tree.chain(3)))
    with pytest.raises(
        PlanError, match="the plan is for batch 1, 8, not 3: choose one of these batch sizes"
    ) as missing:
        plan.entry(3)
    with pytest.raises(UsageError, match="the plan is for batch 1, 8: choose one of these batch sizes") as several:
        plan.entry(None)
    assert not any("--" in str(error.value) for error in (missing, several))
