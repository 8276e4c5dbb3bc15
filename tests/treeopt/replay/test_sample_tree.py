"""The sample of a dynamic tree is the tree that the replay counts."""

import numpy as np
import pytest

from tests.helpers.policy_replay import accepted_lengths
from treeopt.charts.trace_charts import plan_charts
from treeopt.errors import TraceError
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Proof
from treeopt.policies import DynamicTree
from treeopt.policies.reranking import shortlists
from treeopt.replay.dynamic_tree import choose, first_tree
from treeopt.replay.static_tree import deepest
from treeopt.statistics import Estimate
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace

TRACE = shipped("traces/eagle-candidates-t0.npz")


POLICIES = (DynamicTree(nodes=8, depth=3, beam=4), DynamicTree(nodes=12, depth=4, beam=3))


@pytest.mark.parametrize("policy", POLICIES, ids=["8 nodes", "12 nodes"])
def test_the_sample_accepts_what_the_replay_accepts(policy):
    trace = load_trace(TRACE)
    tree, anchor = first_tree(policy, trace)
    first = trace.select(np.array([0]))
    lists = shortlists(first, policy.drafting, nodes=policy.nodes, calibration=policy.calibration)
    assert tree.nodes == choose(policy, lists).nodes[anchor]
    node = deepest(tree, first)[anchor]
    assert [0, *tree.depths][node + 1] == accepted_lengths(policy, first)[anchor]


def test_a_trace_without_candidates_has_no_sample():
    with pytest.raises(TraceError):
        first_tree(DynamicTree(nodes=4, depth=2), load_trace(shipped("traces/medusa-t0.npz")))


def test_the_page_draws_a_sample_of_a_dynamic_choice():
    trace = load_trace(TRACE)
    grown = Grown("eagle2", {"nodes": 8}, 8.0, 3.0, POLICIES[0])
    one = Estimate(1.0, 1.0, 1.0)
    choice = Choice("eagle2", None, Estimate(2.0, 1.9, 2.1), 0.01, Estimate(1.5, 1.4, 1.6), grown)
    plain = Choice("no speculation", None, one, 0.01, one)
    meta = {"trace": dict(trace.meta), "cost": {}, "search": {"objective": "throughput"}}
    plan = Plan((PlanEntry(1, choice, None, (plain,), {}, Proof("tokens", False, "Searched: one")),), meta, best=1)
    charts = list(plan_charts(plan, trace=trace))
    spec = charts[-1].to_dict()
    assert spec["title"]["text"] == "Dynamic tree, batch 1, a sample"
    (nodes,) = (layer for layer in spec["layer"] if layer["mark"]["type"] == "circle")
    assert len(spec["datasets"][nodes["data"]["name"]]) == 8
    assert len(list(plan_charts(plan))) == len(charts) - 1
