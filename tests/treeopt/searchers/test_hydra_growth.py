"""Growing like Hydra: nested trees, each by the child that most raises the replayed tau."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.helpers.strategies import trace_of, traces
from tests.treeopt.searchers.test_renewal_local_search import averaged, two_regimes
from treeopt.replay.static_tree import replay_tree, visit
from treeopt.searchers.hydra_growth import grow
from treeopt.tree import Path, Tree

small = traces(requests=(1, 3), length=7, depth=3, width=3)


def children(paths: list[Path], *, width: int, depth: int) -> list[Path]:
    """Every node that may be added below the root or a node of the tree."""
    return [
        (*path, rank)
        for path in [(), *paths]
        if len(path) < depth
        for rank in range(width)
        if (*path, rank) not in paths
    ]


@given(small, st.integers(0, 6))
@settings(max_examples=examples(200))
def test_grow_takes_the_child_that_most_raises_tau(trace, nodes):
    trees = grow(trace, nodes=nodes, depth=trace.depth, tried=10**6)
    assert len(trees) <= nodes
    paths: list[Path] = []
    tau = 1.0
    for size, tree in enumerate(trees, 1):
        assert tree.nodes == size
        assert set(paths) < set(tree.paths)
        found = replay_tree(tree, trace).tau
        every = [
            replay_tree(Tree.from_paths([*paths, child]), trace).tau
            for child in children(paths, width=trace.width, depth=trace.depth)
        ]
        # Where no child raises tau, trying all takes one that no visited anchor uses: grow passes over those.
        if max(every) > tau:
            assert found == max(every)
        paths, tau = list(tree.paths), found


@given(small)
@settings(max_examples=examples(100))
def test_grow_tries_exactly_the_children_that_its_walk_would_have_used(trace):
    trees = grow(trace, nodes=5, depth=trace.depth, tried=10**6)
    paths: list[Path] = []
    for tree in [*trees, None]:
        steps = visit(Tree.from_paths(paths), trace)
        used = set()
        for anchor, accepted in zip(steps.anchors.tolist(), steps.accepted.tolist(), strict=True):
            path = tuple(trace.rank[anchor, : accepted + 1].tolist())
            if len(path) == accepted + 1 <= trace.depth and min(path) >= 0:
                used.add(path)
        if tree is None:
            assert len(paths) == 5 or not used
            return
        (added,) = set(tree.paths) - set(paths)
        assert added in used
        assert replay_tree(tree, trace).tau == max(
            replay_tree(Tree.from_paths([*paths, path]), trace).tau for path in used
        )
        paths = list(tree.paths)


def test_growing_on_real_lengths_raises_tau_every_time():
    trees = grow(two_regimes(1), nodes=20, depth=8)
    assert [tree.nodes for tree in trees] == list(range(1, 21))
    assert all(set(a.paths) < set(b.paths) for a, b in pairwise(trees))
    taus = [1.0, *(replay_tree(tree, two_regimes(1)).tau for tree in trees)]
    assert all(a < b for a, b in pairwise(taus))
    assert taus[-1] > 0.98 * averaged(two_regimes(1), 20, 8)


def test_few_children_tried_still_nest():
    trees = grow(two_regimes(2), nodes=6, depth=3, tried=1)
    assert [tree.nodes for tree in trees] == [1, 2, 3, 4, 5, 6]
    assert all(set(a.paths) < set(b.paths) for a, b in pairwise(trees))


def test_growing_looks_at_so_many_requests_only():
    # The second request would want (1,).
    trace = trace_of([[[0], [0], [0]], [[1]] * 50], width=2)
    assert grow(trace, nodes=1, depth=1, requests=1) == [Tree.chain(1)]
    assert grow(trace, nodes=1, depth=1, requests=2) == [Tree.from_paths([(1,)])]


def test_growing_looks_at_every_part_of_a_trace():
    # Ordered by domain: three that want (0,), then nine that want (1,).
    trace = trace_of([*[[[0]] * 9] * 3, *[[[1]] * 9] * 9], width=2)
    assert grow(trace, nodes=1, depth=1, requests=3) == [Tree.from_paths([(1,)])]


def test_nothing_to_grow():
    missed = trace_of([[[-1, -1], [-1, -2]]], width=1)
    assert grow(missed, nodes=5, depth=2) == []
    matched = trace_of([[[0], [0]]], width=1)
    assert grow(matched, nodes=0, depth=1) == []
    assert grow(matched, nodes=5, depth=0) == []
    assert grow(matched, nodes=5, depth=1) == [Tree.chain(1)]
