"""Which trees engines can run: published ones, those that are ruined, and what a search for an engine chooses."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import treeopt
from executor.drafters.prompt_lookup.engine_rules import engine_rule
from simulate.profiles.profile import BatchTimes, Profile
from simulate.profiles.step_tables import Growing
from treeopt.cli import main
from treeopt.constraints import broken
from treeopt.engines import ENGINES, GONE, engine_rules
from treeopt.errors import UsageError
from treeopt.planning.held_out_split import hold_out
from treeopt.policies import DynamicTree
from treeopt.searchers.choose_policy import best_policy
from treeopt.searchers.step_prices import Prices
from treeopt.storage.user_files import shipped
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import published_trees

BRANCHING = ("medusa", "sequoia", "treeopt")  # the others run static trees that are chains alone


def test_medusa_can_run_what_it_published() -> None:
    published = {name: tree for name, tree in published_trees().items() if name.startswith("medusa/")}
    assert published
    assert {broken(tree, ENGINES["medusa"].rules) for tree in published.values()} == {None}


@pytest.mark.parametrize(
    ("engine", "paths", "runs"),
    [
        # Cases that were run against the engines' own code: engines.md, 2.3 and 8.2.
        ("medusa", [(0,), (10,), (0, 0)], False),
        ("vllm", [(0,), (1,)], False),
        ("sequoia", [(0,), (2,)], False),
        ("sequoia", [(0,), (1,), (1, 0)], True),
        ("treeopt", [(7, 3), (9,)], True),
    ],
)
def test_engines_run_these_and_not_those(engine: str, paths: list[tuple[int, ...]], runs: bool) -> None:
    assert (broken(Tree.from_paths(paths), ENGINES[engine].rules) is None) == runs


@pytest.mark.parametrize("name", ENGINES.limiting())
def test_every_engine_runs_a_chain(name: str) -> None:
    assert broken(Tree.chain(3), ENGINES[name].rules) is None
    assert (broken(Tree.full(2, 2), ENGINES[name].rules) is None) == (name in BRANCHING)


def test_rules_name_their_engines() -> None:
    assert set(ENGINES.exporting()) <= set(ENGINES.limiting())
    assert len({engine.title for engine in ENGINES.values()}) == len(ENGINES)
    assert all(rule.source and rule.name for name in ENGINES.limiting() for rule in ENGINES[name].rules)


@pytest.mark.parametrize("name", GONE)
def test_an_engine_that_is_gone_says_what_to_use(name: str) -> None:
    trace = Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 1)
    with pytest.raises(UsageError, match=rf"^engine {name} is no longer known: use \S.*$") as caught:
        engine_rules(name, trace)
    use = re.split(r"[ ,]", str(caught.value).partition("use ")[2])[0]
    assert use in ENGINES
    refused = CliRunner().invoke(main, ["search", "--trace", "t.npz", "--batch", "1", "--for", name])
    assert refused.exit_code == 2
    assert str(caught.value) in refused.output


def test_llama_cpp_drops_drafts_that_are_shorter_than_the_match():
    meta = {"drafter": {"kind": "prompt-lookup:llama.cpp", "least": 2}}
    trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 0], [0, -2]]), 1, meta=meta)
    shortest = [rule for rule in engine_rules("llama.cpp", trace) if rule.limits.min_depth]
    assert [rule.limits.min_depth for rule in shortest] == [2]
    assert broken(Tree.chain(1), shortest) is not None
    assert broken(Tree.chain(2), shortest) is None
    assert not [rule for rule in engine_rules("vllm", trace) if rule.limits.min_depth]
    assert engine_rule("prompt-lookup:llama.cpp:2-5").least == 2
    assert engine_rule("prompt-lookup:vllm:2-5").least == 1


TRACE = load_trace(shipped("traces/eagle-candidates-t0.npz")).select(np.arange(80))
# Verifying 63 nodes takes 10 % more than a plain step, so that trees pay.
CHEAP = Profile(
    (
        BatchTimes(
            1,
            0.010,
            ((1, 0.001), (6, 0.004)),
            ((2, 0.010), (64, 0.011)),
            widths=((1, 0.0), (10, 0.0005)),
            growth={"dynamic-tree": Growing(0.0, 0.0, 0.0, 0.0, 10, 0.0)},
            widths_told=True,
        ),
    ),
    context=(8, 200),
    relative_error=0.02,
)
TREES = ("openvino", "sglang", "tensorrt-llm")


def searched(engine, *policies, profile=CHEAP, batch=1, max_nodes=24, **settings):
    words = {"policies": policies, **settings} if policies else settings
    return treeopt.search(TRACE, profile, batch=batch, max_nodes=max_nodes, engine=engine, solver_work=0, **words)


@pytest.fixture(scope="module")
def plans():
    return {engine: searched(engine, "all") for engine in TREES}


@pytest.mark.parametrize("engine", TREES)
def test_a_dynamic_tree_is_chosen_where_it_pays(plans, engine):
    choice = plans[engine].entries[0].choice
    policy = choice.grown.policy
    assert isinstance(policy, DynamicTree)
    assert policy.children == policy.beam
    assert ENGINES[engine].cannot_run(policy, 1) is None
    chain = next(other for other in plans[engine].entries[0].compared if other.name == "best chain")
    assert chain.behind.low > 0


def test_the_choice_is_exported_as_it_was_priced(plans):
    policy = plans["openvino"].entries[0].choice.grown.policy
    written = json.loads(ENGINES["openvino"].export(plans["openvino"], method="eagle3").text)
    sizes = {"num_assistant_tokens": policy.nodes, "tree_depth": policy.depth, "branching_factor": policy.beam}
    assert written == sizes
    policy = plans["sglang"].entries[0].choice.grown.policy
    words = ENGINES["sglang"].export(plans["sglang"], method="EAGLE", model="m").text.split()
    assert words[words.index("--speculative-num-draft-tokens") + 1] == str(policy.nodes + 1)


def test_an_engine_without_dynamic_trees_chooses_a_chain():
    entry = searched("vllm", "eagle2").entries[0]
    assert entry.choice.tree.depth == entry.choice.tree.nodes
    assert any(other.grown for other in entry.compared)


def test_kinds_that_an_engine_does_not_run_are_refused():
    with pytest.raises(UsageError, match="--for sglang runs dynamic trees of eagle2 alone, not opt-tree"):
        searched("sglang", "opt-tree")


def test_given_dynamic_trees_are_judged_and_those_that_cannot_be_run_are_named():
    given = (DynamicTree(10, 3, 4, 4), DynamicTree(10, 3, 4, width=2), DynamicTree(20, 4, 5, 5))
    plan = searched("sglang", max_nodes=8, dynamic=given)
    (entry,) = plan.entries
    rows = {other.name: other for other in entry.compared}
    assert rows["nodes=10,depth=3,beam=4,width=4"].grown.policy == given[0]
    assert rows["nodes=20,depth=4,beam=5,width=5"].tau.value > rows["nodes=10,depth=3,beam=4,width=4"].tau.value
    assert "width 2 unlike beam 4" in entry.skipped["nodes=10,depth=3,beam=4,width=2"]
    (warning,) = [line for line in plan.warnings if "was not judged" in line]
    assert warning.startswith("nodes=10,depth=3,beam=4,width=2 was not judged at batch 1: its width 2 unlike beam 4")
    assert entry.choice.grown is None
    best = searched("sglang", "eagle2", max_nodes=8).entries[0].choice
    same = searched("sglang", max_nodes=8, dynamic=(best.grown.policy,))
    again = next(other for other in same.entries[0].compared if other.grown)
    assert (again.tau, again.step_s, again.speedup) == (best.tau, best.step_s, best.speedup)


def test_openvino_gets_no_dynamic_tree_for_several_requests():
    table = CHEAP.batches[0]
    both = replace(CHEAP, batches=(table, replace(table, batch=4)))
    plan = searched("openvino", "eagle2", profile=both, batch=(1, 4))
    one, four = plan.entries
    assert one.choice.grown is not None
    assert four.choice.grown is None
    assert "with 1 request in flight" in four.skipped["eagle2"]
    assert any(line.startswith("eagle2 was not judged at batch 4") for line in plan.warnings)


def test_every_beam_of_the_recording_is_tried():
    """The trace holds 8 nodes per level and 5 children of each: engines continue as many as they draft."""
    fit, held = hold_out(TRACE, held_out=0.5, seed=0)
    cannot_run = ENGINES["openvino"].cannot_run
    found = best_policy(fit, held, Prices(CHEAP, 1), kind="eagle2", max_nodes=12, max_depth=3, cannot_run=cannot_run)
    assert {policy.beam for policy, _ in found.tried} == {1, 2, 3, 4, 5}
    assert all(policy.children == policy.beam for policy, _ in found.tried)
