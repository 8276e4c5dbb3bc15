"""Dynamic trees in SGLang, OpenVINO and TensorRT-LLM: one tree, three ways of counting; OpenVINO's own verdicts."""

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.small_plans import BUSHY, OPT_TREE, entry, exported, grown, plan_of
from treeopt.engines import ENGINES
from treeopt.engines.dynamic_trees import Triple
from treeopt.errors import EngineError
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
