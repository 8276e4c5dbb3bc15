"""Dynamic trees in SGLang, OpenVINO and TensorRT-LLM: one tree, three ways of counting; TensorRT-LLM's schedule."""

import json
import re
import shlex
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.small_plans import BUSHY, EAGLE3, OPT_TREE, entry, exported, grown, plan_of, planned
from treeopt.engines import ENGINES
from treeopt.engines.dynamic_trees import Triple
from treeopt.errors import EngineError, UsageError
from treeopt.plans import Plan
from treeopt.policies import DynamicTree
from treeopt.statistics import Curve
from treeopt.tree import Tree

VERDICTS = json.loads((Path(__file__).parent / "verdicts/openvino.json").read_text())
NAMES = ("openvino", "sglang", "tensorrt-llm")
OPTIONS = {"sglang": {}, "openvino": {"method": "eagle3"}, "tensorrt-llm": {"method": "Eagle3"}}
POOL = Triple(5, 4, 40)  # within EAGLE-2's candidates, beyond TensorRT-LLM's

triples = st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda reach: st.builds(
        Triple,
        st.just(reach[0]),
        st.just(reach[1]),
        st.integers(1, reach[1] + (reach[0] - 1) * reach[1] ** 2),  # no policy verifies more than it drafts
    )
)


def read_back(name: str, text: str) -> Triple:
    """The dynamic tree that an engine would run, from its own words: engines.md, 2.1."""
    if name == "sglang":
        words = shlex.split(text)
        values = dict(zip(words[::2], words[1::2], strict=True))
        depth, width, tokens = (
            int(values[f"--speculative-{part}"]) for part in ("num-steps", "eagle-topk", "num-draft-tokens")
        )
        return Triple(depth, width, depth if width == 1 else tokens - 1)  # with topk 1 the last is overwritten
    if name == "openvino":
        config = json.loads(text)
        return Triple(config["tree_depth"], config["branching_factor"], config["num_assistant_tokens"])
    numbers = {key: int(value) for key, value in re.findall(r"  (\w+): (\d+)", text)}
    assert "  use_dynamic_tree: true" in text
    return Triple(numbers["max_draft_len"], numbers["dynamic_tree_max_topK"], numbers["max_total_draft_tokens"])


def runs(name: str, triple: Triple) -> bool:
    """True if an engine runs these settings, by the bounds of each and OpenVINO's verdicts."""
    depth, width, nodes = triple.depth, triple.width, triple.nodes
    candidates = width + (depth - 1) * width**2
    if name == "tensorrt-llm":
        return depth <= nodes <= width * depth
    if name == "openvino":
        return depth <= nodes <= candidates
    return nodes <= candidates and (width > 1 or nodes == depth)


@settings(deadline=None)
@given(st.sampled_from(NAMES), triples)
def test_a_policy_is_exported_exactly_or_refused_with_the_nearest(name: str, triple: Triple) -> None:
    plan = plan_of(grown(1, DynamicTree(nodes=triple.nodes, depth=triple.depth, beam=triple.width)))
    if runs(name, triple):
        result = exported(name, plan, **OPTIONS[name])
        assert read_back(name, result.text) == triple
        assert "planned for batch 1 only" in result.notes
        return
    with pytest.raises(EngineError, match=r"cannot run policy eagle2 \(batch 1\): .*nearest: .*\(`triple`\)") as caught:
        exported(name, plan, **OPTIONS[name])
    result = exported(name, plan, **OPTIONS[name], nearest="triple")
    closest = read_back(name, result.text)
    assert runs(name, closest)
    assert (closest.depth, closest.width) == (min(triple.depth, max(closest.depth, triple.nodes)), triple.width)
    assert ENGINES[name].trees.text(closest) in str(caught.value)
    assert "the plan's prediction no longer holds" in result.notes[0]


def test_one_tree_in_three_conventions() -> None:
    plan = plan_of(grown(1, DynamicTree(nodes=15, depth=5, beam=4)))
    flags = "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
    assert exported("sglang", plan).text == flags
    assert json.loads(exported("openvino", plan, method="eagle3").text) == {
        "tree_depth": 5,
        "branching_factor": 4,
        "num_assistant_tokens": 15,
    }
    assert exported("tensorrt-llm", plan, method="Eagle3", model="a/b").text.splitlines() == [
        "speculative_config:",
        '  decoding_type: "Eagle3"',
        '  speculative_model: "a/b"',
        "  use_dynamic_tree: true",
        "  max_draft_len: 5",
        "  dynamic_tree_max_topK: 4",
        "  max_total_draft_tokens: 15",
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (OPT_TREE, "it offers only"),
        (DynamicTree(nodes=15, depth=5, beam=4, width=3), "width 3 unlike beam 4"),
        (DynamicTree(nodes=15, depth=5, beam=4, min_probability=0.1), "its min_probability"),
        (DynamicTree(nodes=4, depth=2, beam=2, calibration=((Curve((0.5,), (0.5,)),) * 2,) * 2), "its calibration"),
    ],
)
def test_settings_beyond_three_are_refused(name: str, policy: DynamicTree, reason: str) -> None:
    with pytest.raises(EngineError, match=rf"cannot run policy .*{reason}.*nearest: .*`chain`"):
        exported(name, plan_of(grown(1, policy)), **OPTIONS[name])
    if isinstance(policy, DynamicTree):
        result = exported(name, plan_of(grown(1, policy)), **OPTIONS[name], nearest="triple")
        assert runs(name, read_back(name, result.text))
        assert reason in result.notes[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_static_tree_is_replaced_only_when_asked(name: str) -> None:
    plan = plan_of(entry(4, BUSHY))
    with pytest.raises(
        EngineError, match=r"path \[.*nearest: chain of 3 .*a dynamic tree \(`triple`\), not predicted: "
    ):
        exported(name, plan, **OPTIONS[name])
    result = exported(name, plan, **OPTIONS[name], nearest="triple")
    assert read_back(name, result.text) == Triple(5, 4, 15)
    assert "the plan's prediction no longer holds" in result.notes[0]
    result = exported(name, plan_of(entry(4, Tree.from_paths([(1,)]))), **OPTIONS[name], nearest="triple")
    assert read_back(name, result.text).depth == 1  # no chain of the drafter's first choices either
    mixed = plan_of(entry(1, BUSHY), entry(4, Tree.chain(2)))
    with pytest.raises(EngineError, match=r"by batch size.*nearest: one batch size of 1, 4, or `chain`"):
        exported(name, mixed, **OPTIONS[name], nearest="triple")


def test_tensorrt_llm_verifies_fewer_nodes_than_eagle_drafts() -> None:
    plan = plan_of(grown(1, DynamicTree(nodes=POOL.nodes, depth=POOL.depth, beam=POOL.width)))
    assert read_back("openvino", exported("openvino", plan, method="eagle3").text) == POOL
    with pytest.raises(
        EngineError, match=r"40 nodes, but depth 5 and width 4 offer at most 20 \(validate_eagle_config"
    ):
        exported("tensorrt-llm", plan, method="Eagle3")
    wide = Tree.from_paths([(rank,) for rank in range(3)] + [(rank, child) for rank in range(3) for child in range(2)])
    assert (wide.depth, wide.nodes) == (2, 9)
    with pytest.raises(EngineError, match=r"9 nodes, but depth 2 and width 3 offer at most 6 .*nearest: a plan of"):
        exported("tensorrt-llm", plan_of(entry(1, wide)), method="Eagle3", nearest="triple")


@pytest.mark.parametrize(("engine", "method"), [("openvino", "draft-model"), ("tensorrt-llm", "Draft_Target")])
def test_only_eagle_3_drafts_trees(engine: str, method: str) -> None:
    plan = plan_of(grown(1, DynamicTree(nodes=15, depth=5, beam=4)))
    with pytest.raises(EngineError, match=rf"trees only with method [Ee]agle3, not {method}; nearest: `chain`"):
        exported(engine, plan, method=method)
    with pytest.raises(EngineError, match=r"^((?!`triple`).)*$"):
        exported(engine, plan_of(entry(1, BUSHY)), method=method)


# OpenVINO


def test_openvino_accepted_whatever_the_rules_allow() -> None:
    """And what it refused, the rules refuse; the pool of candidates it does not check."""
    assert VERDICTS["engine"].startswith("openvino-genai 2026.4.1")
    trees = [case for case in VERDICTS["cases"] if set(case["settings"]) == set(ENGINES["openvino"].trees.names)]
    assert len(trees) > 100
    unchecked = 0
    for case in trees:
        settings_of = case["settings"]
        triple = Triple(*(settings_of[name] for name in ENGINES["openvino"].trees.names))
        if triple.width == 0:
            continue
        allowed = ENGINES["openvino"].trees.refusal(triple) is None
        assert case["accepted"] or not allowed
        if case["accepted"] and not allowed:
            assert triple.nodes > triple.width + (triple.depth - 1) * triple.width**2
            unchecked += 1
        if case["accepted"]:
            assert case["tree"]
    assert unchecked > 10


def test_openvino_accepted_chains_and_prompt_lookup() -> None:
    """And a negative length: its validator proves little, the rules are ours."""
    verdicts = {json.dumps(case["settings"]): case for case in VERDICTS["cases"]}
    for length, method in ((1, "draft-model"), (3, "draft-model"), (8, "draft-model"), (5, "prompt-lookup")):
        case = verdicts[exported("openvino", plan_of(entry(1, Tree.chain(length))), method=method).text]
        assert (case["accepted"], case["tree"], case["prompt_lookup"]) == (True, False, method == "prompt-lookup")
    assert verdicts[json.dumps({"num_assistant_tokens": -1})]["accepted"]


def test_openvino_has_one_length_per_call_and_warns_of_the_layers_that_it_reads() -> None:
    with pytest.raises(EngineError, match=r"OpenVINO .*one length .*nearest: one batch size of 1, 8, 32"):
        exported("openvino", method="eagle3")
    for method in ENGINES["openvino"].methods:
        notes = "\n".join(exported("openvino", method=method, batch=8).notes)
        assert ("other layers of the target" in notes) == (method == "eagle3")


def test_openvino_runs_a_dynamic_tree_for_one_request_alone() -> None:
    policy = DynamicTree(nodes=15, depth=5, beam=4)
    with pytest.raises(
        EngineError, match=r"batch 4\): .* with 1 request in flight; nearest: a plan of batch 1, or `chain`"
    ):
        exported("openvino", plan_of(grown(4, policy)), method="eagle3")
    assert exported("sglang", plan_of(grown(4, policy))).text


# Fields of Eagle3DecodingConfig and of NGramDecodingConfig; others are forbidden.
TREE_FIELDS = {"max_total_draft_tokens", "use_dynamic_tree", "dynamic_tree_max_topK"}
FIELDS = {"decoding_type", "speculative_model", "max_draft_len", "draft_len_schedule", "max_matching_ngram_size"}
EAGLE = {"method": "Eagle3", "model": EAGLE3["model"]}

falling_plans = st.dictionaries(st.integers(1, 40), st.integers(0, 7), min_size=1, max_size=5).map(
    lambda steps: plan_of(
        *(
            entry(batch, Tree.chain(length) if length else None)
            for batch, length in zip(sorted(steps), sorted(steps.values(), reverse=True), strict=True)
        )
    )
)


def read(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    assert set(loaded) == {"speculative_config"}
    config = loaded["speculative_config"]
    assert set(config) <= FIELDS | TREE_FIELDS
    assert type(config["max_draft_len"]) is int
    assert config["max_draft_len"] > 0
    return config


def length_at(config: dict[str, Any], batch: int, *, bounds: str) -> int:
    """The length of a batch: `validate_draft_len_schedule_and_sort` and `get_draft_len_for_batch_size`."""
    longest = config["max_draft_len"]
    schedule = config.get("draft_len_schedule")
    if schedule is None:
        return longest
    keys = sorted(schedule)
    assert all(type(key) is int and key >= 1 and 0 <= schedule[key] <= longest for key in keys)
    assert schedule[keys[0]] == longest
    if bounds == "lower":
        assert 1 in schedule
        return schedule[keys[bisect_right(keys, batch) - 1]]
    at = bisect_left(keys, batch)
    return schedule[keys[at]] if at < len(keys) else 0


@settings(deadline=None)
@given(falling_plans, st.sampled_from(["lower", "upper"]))
def test_each_release_reads_the_planned_lengths(plan: Plan, bounds: Any) -> None:
    if not any(each.choice.tree for each in plan.entries):
        with pytest.raises(EngineError, match="not to speculate"):
            exported("tensorrt-llm", plan, **EAGLE, schedule_bounds=bounds)
        return
    result = exported("tensorrt-llm", plan, **EAGLE, schedule_bounds=bounds)
    config = read(result.text)
    largest = max(each.batch for each in plan.entries)
    beyond = 20 if bounds == "lower" else 0  # newer releases draft nothing beyond the last key, which the notes say
    for batch in range(1, largest + beyond + 1):
        assert length_at(config, batch, bounds=bounds) == planned(plan, batch)
    if bounds == "upper" and "draft_len_schedule" in config:
        last = max(config["draft_len_schedule"])
        assert any(f"above batch {last} TensorRT-LLM drafts nothing" in note for note in result.notes)


def test_the_same_schedule_would_mean_another_in_the_other_release() -> None:
    lower = read(exported("tensorrt-llm", **EAGLE, schedule_bounds="lower").text)
    upper = read(exported("tensorrt-llm", **EAGLE, schedule_bounds="upper").text)
    assert lower["draft_len_schedule"] == {1: 5, 8: 3, 32: 1, 64: 0}
    assert upper["draft_len_schedule"] == {7: 5, 31: 3, 63: 1}
    assert length_at(lower, 4, bounds="lower") == 5
    assert length_at(lower, 4, bounds="upper") == 3  # so that nobody may guess
    with pytest.raises(AssertionError):
        length_at(upper, 4, bounds="lower")


def test_several_lengths_need_the_meaning_of_the_keys() -> None:
    with pytest.raises(UsageError, match=r"several lengths.*--schedule-bounds lower .*upper"):
        exported("tensorrt-llm", **EAGLE)
    one = exported("tensorrt-llm", **EAGLE, batch=8)
    assert read(one.text) == {"decoding_type": "Eagle3", "speculative_model": "someone/eagle3", "max_draft_len": 3}
    alike = plan_of(entry(1, Tree.chain(2)), entry(8, Tree.chain(2)))
    assert read(exported("tensorrt-llm", alike, **EAGLE).text)["max_draft_len"] == 2


@pytest.mark.parametrize("bounds", ["lower", "upper"])
def test_a_schedule_begins_with_its_longest_length(bounds: Any) -> None:
    rising = plan_of(entry(1, Tree.chain(2)), entry(8, Tree.chain(4)))
    with pytest.raises(
        EngineError, match=r"longest length.*2 from batch 1, 4 from batch 8; nearest: one batch size of 1"
    ):
        exported("tensorrt-llm", rising, **EAGLE, schedule_bounds=bounds)
    late = plan_of(entry(1, None), entry(8, Tree.chain(4)))
    with pytest.raises(EngineError, match="0 from batch 1"):
        exported("tensorrt-llm", late, **EAGLE, schedule_bounds=bounds)


def test_methods_and_names() -> None:
    lookup = read(exported("tensorrt-llm", method="NGram", batch=1).text)
    assert lookup == {"decoding_type": "NGram", "max_draft_len": 5, "max_matching_ngram_size": 3}
    assert "speculative_model" not in read(exported("tensorrt-llm", method="MTP", batch=1).text)
    assert read(exported("tensorrt-llm", method="Draft_Target", batch=1).text)["speculative_model"] == "DRAFTER"
    by_kind = plan_of(entry(1, Tree.chain(2)), drafter={"kind": "language-model"})
    assert read(exported("tensorrt-llm", by_kind).text)["decoding_type"] == "Draft_Target"
    with pytest.raises(UsageError, match="takes no model"):
        exported("tensorrt-llm", method="NGram", model="m", batch=1)
    with pytest.raises(EngineError, match="cannot change the length of NGram by batch size"):
        exported("tensorrt-llm", method="NGram", schedule_bounds="upper")
    for model in ("org/model-1", 'a "quoted": name', "null", "1e3", "- x", "#c"):
        result = exported("tensorrt-llm", method="Eagle3", model=model, batch=1)
        assert read(result.text)["speculative_model"] == model
