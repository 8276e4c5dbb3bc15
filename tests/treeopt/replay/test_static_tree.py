"""Replay against a walker written anew and closed forms, plain and fast; samples of dynamic trees."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import policy_replay
from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, traces, trees, with_lengths
from treeopt.charts.trace_charts import plan_charts
from treeopt.errors import TraceError
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Proof
from treeopt.policies import DynamicTree
from treeopt.policies.reranking import shortlists
from treeopt.replay import many_trees
from treeopt.replay.dynamic_tree import choose, first_tree
from treeopt.replay.many_trees import Replayer
from treeopt.replay.static_tree import accepted_lengths, deepest, replay_tree, visit
from treeopt.searchers import renewal_local_search
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.renewal_local_search import remaining_steps
from treeopt.statistics import Estimate
from treeopt.storage.user_files import shipped
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree


def slow_accepted(tree: Tree, trace: Trace, anchor: int) -> int:
    """Length of the longest node of the tree that the ranks at an anchor start with."""
    ranks = trace.rank[anchor].tolist()
    return max((len(path) for path in tree.paths if list(path) == ranks[: len(path)]), default=0)


def slow_walk(tree: Tree, trace: Trace) -> list[list[tuple[int, int, int]]]:
    """Of each request its steps: (anchor, accepted, tokens emitted), the last one cut where the text ends."""
    found, first = [], 0
    for number in sorted(set(trace.request.tolist())):
        length = trace.request.tolist().count(number)
        steps, here = [], 0
        while here < length:
            accepted = slow_accepted(tree, trace, first + here)
            steps.append((first + here, accepted, min(accepted + 1, length - here)))
            here += accepted + 1
        found.append(steps)
        first += length
    return found


@st.composite
def trees_on_traces(draw):
    """A trace and a tree that it can judge."""
    trace = draw(traces())
    return draw(trees(width=trace.width, depth=trace.depth)), trace


@given(trees_on_traces())
@settings(max_examples=examples(400))
def test_replay_equals_the_slow_walker(case):
    tree, trace = case
    requests = slow_walk(tree, trace)
    steps = [(anchor, accepted, r) for r, each in enumerate(requests) for anchor, accepted, _ in each]

    found = visit(tree, trace)
    triples = zip(found.anchors.tolist(), found.accepted.tolist(), found.request.tolist(), strict=True)
    assert list(triples) == steps

    counts = replay_tree(tree, trace)
    assert counts.steps.tolist() == [len(each) for each in requests]
    assert counts.committed.tolist() == [sum(tokens for *_, tokens in each) for each in requests]
    due = [sum(kept == accepted for _, kept, _ in steps) for accepted in range(tree.depth + 1)]
    assert counts.accepted_counts.tolist() == due
    assert accepted_lengths(tree, trace).tolist() == [slow_accepted(tree, trace, i) for i in range(trace.anchors)]
    assert counts.tau == pytest.approx(trace.anchors / len(steps), rel=1e-15)


@given(trees(width=6, depth=6, min_nodes=1), traces())
def test_trees_that_the_trace_cannot_judge_are_refused(tree, trace):
    if tree.depth > trace.depth:
        message = f"the tree has depth {tree.depth}, the trace records depth {trace.depth}"
    elif max(tree.ranks) >= trace.width:
        message = f"the tree uses rank {max(tree.ranks)}, the trace records ranks below {trace.width}"
    else:
        assert replay_tree(tree, trace).steps.min() >= 1
        return
    for judge in (replay_tree, visit, accepted_lengths):
        with pytest.raises(TraceError, match=message):
            judge(tree, trace)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 1023, 1024, 1025])
def test_lengths_around_powers_of_two(length):
    # The walk is found by doubling: one round too few shows here.
    trace = with_lengths(np.full((length + 3, 1), -1), [length, 3], width=1)
    assert visit(Tree.chain(1), trace).anchors.tolist() == list(range(length + 3))


def test_a_request_of_50_000_anchors():
    trace = drawn_trace([[0.6, 0.2]], [50_000], depth=3, rng=np.random.default_rng(20240607))
    tree = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0)])
    nodes, ranks = set(tree.paths), trace.rank.tolist()
    here, anchors = 0, []
    while here < trace.anchors:
        anchors.append(here)
        here += 1 + max((k for k in range(1, 4) if tuple(ranks[here][:k]) in nodes), default=0)
    assert visit(tree, trace).anchors.tolist() == anchors
    missing = with_lengths(np.full((50_000, 1), -1), [50_000], width=1)
    assert replay_tree(Tree.chain(1), missing).steps.tolist() == [50_000]


@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 2), (0.8, 4), (0.9, 6)])
def test_independent_acceptance_gives_leviathans_tau(alpha, gamma):
    # Ranks at a visited anchor are independent of the walk so far, so steps are independent and tau is
    # (1 - a^(g+1)) / (1 - a) (Leviathan et al. 2023, eq. 1). Tolerance five standard errors: false-alarm
    # probability 6e-7, with a fixed seed.
    trace = drawn_trace([[alpha]], [60_000], depth=gamma, rng=np.random.default_rng(1))
    steps = visit(Tree.chain(gamma), trace)
    error = steps.accepted.std() / math.sqrt(len(steps.accepted))
    assert replay_tree(Tree.chain(gamma), trace).tau == pytest.approx(
        (1 - alpha ** (gamma + 1)) / (1 - alpha), abs=5 * error
    )


@st.composite
def cases(draw):
    """A trace, a pool, and some trees: parts of the pool, or any."""
    trace = draw(traces(length=20))
    any_tree = trees(width=trace.width, depth=trace.depth)
    pool = draw(trees(width=trace.width, depth=trace.depth, paths=12))
    part = st.sets(st.sampled_from(pool.paths)).map(Tree.from_paths) if pool.nodes else any_tree
    return trace, pool, draw(st.lists(part | any_tree, min_size=1, max_size=4))


@pytest.fixture(params=[True, False], ids=["in step", "by doubling"])
def _both_ways(request):
    """Small traces would all be walked by doubling."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (many_trees, renewal_local_search):
            patch.setattr(module, "in_step", lambda *_: request.param)
        yield


both_ways = pytest.mark.usefixtures("_both_ways")
quick = settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])


@both_ways
@given(cases())
@quick
def test_counts_are_those_of_the_plain_replay(case):
    trace, pool, several = case
    fast = Replayer(trace, pool)
    for tree in several:
        found, due = fast.replay(tree), replay_tree(tree, trace)
        assert found.steps.tolist() == due.steps.tolist()
        assert found.committed.tolist() == due.committed.tolist()
        assert found.accepted_counts.tolist() == due.accepted_counts.tolist()
        assert (fast.chosen(tree) is not None) == (set(tree.paths) <= set(pool.paths))


@both_ways
@given(cases())
@quick
def test_trees_that_walk_together_do_not_disturb_one_another(case):
    trace, pool, several = case
    fast = Replayer(trace, pool)
    inside = [Tree.chain(0), *(tree for tree in several if fast.chosen(tree) is not None)]
    chosen = np.array([fast.chosen(tree) for tree in inside])
    with pytest.MonkeyPatch.context() as patch:
        for lanes in (1, 2**16):
            patch.setattr(many_trees, "LANES", lanes)
            found = fast.steps(chosen)
            assert found.tolist() == [replay_tree(tree, trace).steps.tolist() for tree in inside]
    for tree, row in zip(inside, chosen, strict=True):
        assert fast.tree(row) == tree
        assert fast.accepted(row).tolist() == accepted_lengths(tree, trace).tolist()
        assert fast.visit(row).anchors.tolist() == visit(tree, trace).anchors.tolist()


@both_ways
@given(cases())
@quick
def test_remaining_steps_are_those_of_a_walk_from_there(case):
    trace, _, (tree, *_) = case
    accepted = accepted_lengths(tree, trace)
    found = remaining_steps(accepted, trace).tolist()
    stops = trace.stops[trace.request_index].tolist()
    for anchor in range(trace.anchors):
        steps, here = 0, anchor
        while here < stops[anchor]:
            steps, here = steps + 1, here + int(accepted[here]) + 1
        assert found[anchor] == steps
    assert [found[start] for start in trace.starts] == replay_tree(tree, trace).steps.tolist()


@pytest.mark.parametrize("lengths", [[20_000], [4000, 1, 3000, 17], [30] * 700, [1, 2, 3] * 50])
def test_both_ways_agree_on_long_and_on_many_requests(lengths):
    trace = drawn_trace([[0.6, 0.2], [0.3, 0.1]], lengths, depth=4, rng=np.random.default_rng(len(lengths)))
    frontier = count_prefixes(trace, nodes=60, depth=4)
    fast = Replayer(trace, frontier.tree(60, 4))
    found = {}
    for together in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            for module in (many_trees, renewal_local_search):
                patch.setattr(module, "in_step", lambda *_: together)  # noqa: B023
            counts = [fast.replay(frontier.tree(size, 4)) for size in (0, 1, 7, 30)]
            left = remaining_steps(fast.accepted(fast.chosen(frontier.tree(7, 4))), trace)
            found[together] = [*(c.steps.tolist() for c in counts), *(c.accepted_counts.tolist() for c in counts), left]
    *one, left = found[True]
    *other, also = found[False]
    assert one == other
    assert left.tolist() == also.tolist()
    assert one[0] == lengths


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
    assert [0, *tree.depths][node + 1] == policy_replay.accepted_lengths(policy, first)[anchor]


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
