"""A search for an engine with dynamic trees: it chooses one that the engine runs, and the export writes it."""

import json
from dataclasses import replace

import numpy as np
import pytest

import treeopt
from simulate.profiles.profile import BatchTimes, Profile
from simulate.profiles.step_tables import Growing
from treeopt.engines import ENGINES
from treeopt.errors import UsageError
from treeopt.planning.held_out_split import hold_out
from treeopt.policies import DynamicTree
from treeopt.searchers.choose_policy import best_policy
from treeopt.searchers.step_prices import Prices
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace

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
