"""Fast replay against the plain one, which test_static_tree.py holds against a slow walker."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, traces, trees
from treeopt.replay import many_trees
from treeopt.replay.many_trees import Replayer
from treeopt.replay.static_tree import accepted_lengths, replay_tree, visit
from treeopt.searchers import renewal_local_search
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.renewal_local_search import remaining_steps
from treeopt.tree import Tree


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


@given(cases())
def test_a_tree_is_in_the_pool_when_all_its_nodes_are(case):
    trace, pool, several = case
    fast = Replayer(trace, pool)
    for tree in several:
        assert (fast.chosen(tree) is not None) == (set(tree.paths) <= set(pool.paths))


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
