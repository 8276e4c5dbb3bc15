"""Trees for their own walk: improved, grown like Hydra, and closed parts of a pool, against all trees and parts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.bench_regret import FAMILIES, instance, regrets
from tests.helpers.pools import all_trees
from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, trace_of, traces, trees
from tests.treeopt.searchers.test_best_first import prefixes
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import LATENCY, OBJECTIVES, THROUGHPUT, WORST_DOMAIN
from treeopt.replay.static_tree import accepted_lengths, replay_tree, visit
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.hydra_growth import grow
from treeopt.searchers.renewal_local_search import ClosedParts, Saved, improve, ready
from treeopt.statistics import ratio
from treeopt.traces.trace import Trace
from treeopt.tree import Path, Tree

small = traces(requests=(1, 3), length=7, depth=3, width=3)


def improved(trace, **words):
    """The counts of the improved tree."""
    return replay_tree(improve(trace, **words), trace)


def averaged(trace: Trace, nodes: int, depth: int) -> float:
    """Replayed tau of the best position-averaged tree."""
    return replay_tree(count_prefixes(trace, nodes=nodes, depth=depth).tree(nodes, depth), trace).tau


def two_regimes(seed: int) -> Trace:
    """60 requests of 100 tokens: first-rank acceptance 0.85 in half, else 0.35; the rest halves by rank."""
    regimes = [[best, *((1 - best) * 0.5**rank for rank in range(1, 6))] for best in (0.85, 0.35)]
    return drawn_trace(regimes, [100] * 60, depth=8, rng=np.random.default_rng(seed))


# --- re-weighting


def with_domains(trace: Trace) -> Trace:
    """Every other request of another domain."""
    return replace(trace, domain=np.arange(trace.requests, dtype=np.int16) % 2, domain_names=("code", "chat"))


@given(traces(length=25).map(with_domains), st.integers(0, 12), st.integers(0, 4), st.sampled_from([*OBJECTIVES]))
@settings(max_examples=examples(300))
def test_never_below_the_position_averaged_tree(trace, nodes, depth, name):
    objective = OBJECTIVES[name]
    found = improve(trace, nodes=nodes, depth=depth, objective=objective)
    average = count_prefixes(trace, nodes=nodes, depth=depth).tree(nodes, depth)
    tokens = objective.tokens(replay_tree(found, trace).steps, trace)
    assert tokens >= objective.tokens(replay_tree(average, trace).steps, trace) * (1 - 1e-12)
    assert found.nodes <= nodes
    assert found.depth <= min(depth, trace.depth)


@given(traces(length=25), st.integers(0, 12), st.integers(0, 4))
@settings(max_examples=examples(100))
def test_a_replayer_made_for_larger_trees_serves_smaller_ones(trace, nodes, depth):
    replayer = ready(trace, nodes=12, depth=4)
    found = improve(trace, nodes=nodes, depth=depth, replayer=replayer)
    assert replay_tree(found, trace).tau >= averaged(trace, nodes, depth)
    assert found.nodes <= nodes
    assert found.depth <= min(depth, trace.depth)
    for cap in range(1, 5):
        assert replayer.chosen(count_prefixes(trace, nodes=12, depth=cap).tree(nodes, cap)) is not None


def test_effort_bounds_the_work():
    trace = two_regimes(2)
    taus = [improved(trace, nodes=15, depth=8, effort=effort).tau for effort in (0.0, 1e-3, 1.0)]
    assert averaged(trace, 15, 8) <= taus[0] <= taus[1] <= taus[2]
    assert taus[0] < taus[2]


def test_the_worst_domain_gains_what_the_others_lose():
    trace = with_domains(two_regimes(4))
    common, fair = (improved(trace, nodes=15, depth=8, objective=each) for each in (THROUGHPUT, WORST_DOMAIN))
    assert WORST_DOMAIN.tokens(fair.steps, trace) > 1.02 * WORST_DOMAIN.tokens(common.steps, trace)
    assert common.tau > fair.tau


@given(small)
@settings(max_examples=examples(100))
def test_never_above_the_best_of_all_trees(trace):
    some = all_trees(list(prefixes(trace)), 5)  # nodes that no anchor follows never match
    best = max(replay_tree(Tree.from_paths(paths), trace).tau for paths in some)
    assert averaged(trace, 5, trace.depth) <= improved(trace, nodes=5, depth=trace.depth).tau <= best


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("nodes", [7, 31])
def test_strictly_better_where_requests_differ(seed, nodes):
    # tree_search.md §3.4 finds 3-5 % for a tree of this kind; seeds are fixed, so the margin is a fact.
    trace = two_regimes(seed)
    found = improved(trace, nodes=nodes, depth=8).tau
    assert found > 1.015 * averaged(trace, nodes, 8)


def test_regret_on_instances_like_those_of_the_benchmark():
    # The shipped figures are of 400 instances; here 12, with fixed seeds: 0.1 % in the mean is the target.
    found = [regrets(instance(family, seed), nodes=5) for family in FAMILIES for seed in range(3)]
    for each in found:
        for objective in each.values():
            assert 0 <= objective["improved"] <= objective["averaged"] + 1e-12
    for name in OBJECTIVES:
        improved, average = (np.mean([r[name][k] for r in found if name in r]) for k in ("improved", "averaged"))
        assert improved <= 0.001 < average


def test_the_walk_takes_the_harmonic_mean_of_the_regimes():
    # tau = 1 / Σ_g w_g / E_g with E_g = 1 + Σ_v P_g(v) (tree_search.md §4.2, 7): positions of a request are
    # independent here. Tolerance 2.5 half-widths of the 95 % interval, about five standard errors (6e-7).
    trace = two_regimes(5)
    tree = count_prefixes(trace, nodes=15, depth=8).tree(15, 8)
    expected = []
    for best in (0.85, 0.35):
        probabilities = [best, *((1 - best) * 0.5**rank for rank in range(1, 6))]
        expected.append(1 + sum(np.prod([probabilities[rank] for rank in path]) for path in tree.paths))
    harmonic = 2 / sum(1 / tokens for tokens in expected)
    counts = replay_tree(tree, trace)
    found = ratio(counts.committed, counts.steps)
    # Requests end: the last step may be cut, at most one step in those of a request.
    assert found.value == pytest.approx(harmonic, abs=2.5 * (found.high - found.value) + harmonic / 100)
    assert sum(expected) / 2 > 1.1 * harmonic  # what averaging over positions would promise


small = traces(requests=(1, 3), length=7, depth=3, width=3)


def children(paths: list[Path], *, width: int, depth: int) -> list[Path]:
    """Every node that may be added below the root or a node of the tree."""
    inner = [path for path in [(), *paths] if len(path) < depth]
    return [(*path, rank) for path in inner for rank in range(width) if (*path, rank) not in paths]


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


def test_growing_looks_at_so_many_requests_of_every_part_of_a_trace():
    # The second request would want (1,).
    trace = trace_of([[[0], [0], [0]], [[1]] * 50], width=2)
    assert grow(trace, nodes=1, depth=1, requests=1) == [Tree.chain(1)]
    assert grow(trace, nodes=1, depth=1, requests=2) == [Tree.from_paths([(1,)])]
    # Ordered by domain: three that want (0,), then nine that want (1,).
    trace = trace_of([*[[[0]] * 9] * 3, *[[[1]] * 9] * 9], width=2)
    assert grow(trace, nodes=1, depth=1, requests=3) == [Tree.from_paths([(1,)])]


def test_nothing_to_grow_or_improve():
    missed = trace_of([[[-1, -1], [-1, -2]]], width=1)
    assert grow(missed, nodes=5, depth=2) == []
    matched = trace_of([[[0], [0]]], width=1)
    assert grow(matched, nodes=0, depth=1) == []
    assert grow(matched, nodes=5, depth=0) == []
    assert grow(matched, nodes=5, depth=1) == [Tree.chain(1)]
    assert improve(missed, nodes=5, depth=2) == Tree.chain(0)


def all_parts(pool: Tree) -> np.ndarray:
    """Every closed part of a small pool, bool (n, C)."""
    parts = (np.arange(2**pool.nodes)[:, None] >> np.arange(pool.nodes)) % 2 == 1
    above = np.array(pool.parents, dtype=int)
    closed = ~parts | np.concatenate([parts, np.ones((len(parts), 1), bool)], axis=1)[:, above]
    return parts[closed.all(axis=1)]


@st.composite
def valued(draw):
    """A pool of at most 12 nodes and whole numbers for values, so that ties occur and sums are exact."""
    pool = draw(trees(width=3, depth=4, paths=5).filter(lambda tree: tree.nodes <= 12))
    value = st.integers(-5, 9).map(float)
    rows = draw(st.lists(st.lists(value, min_size=pool.nodes, max_size=pool.nodes), min_size=1, max_size=3))
    return pool, np.array(rows).reshape(len(rows), pool.nodes)


# --- closed parts


@given(valued(), st.integers(0, 13))
@settings(max_examples=examples(500))
def test_the_part_is_the_most_valuable_of_all(case, nodes):
    pool, values = case
    parts = all_parts(pool)
    parts = parts[parts.sum(axis=1) <= nodes]
    found = ClosedParts(pool).fill(values, nodes=nodes)
    for row, part in zip(values, found, strict=True):
        assert (parts == part).all(axis=1).any()
        assert part @ row == (parts @ row).max()


@given(traces(length=15), st.integers(0, 8))
def test_frequencies_give_the_most_frequent_prefixes(trace, nodes):
    frontier = count_prefixes(trace, nodes=20, depth=trace.depth)
    pool = frontier.tree(20, trace.depth)
    times = Replayer(trace, pool).times()
    ranks = trace.rank.tolist()
    assert times.tolist() == [sum(row[: len(path)] == list(path) for row in ranks) for path in pool.paths]
    part = ClosedParts(pool).fill(times[None].astype(float), nodes=nodes)[0]
    assert 1 + part @ times / trace.anchors == pytest.approx(frontier.tokens(trace.depth)[: nodes + 1][-1])


def test_values_that_bar_nodes():
    pool = Tree.from_paths([(0, 0), (1,)])
    found = ClosedParts(pool).fill(np.array([[-np.inf, 1.0, 9.0]]), nodes=3)
    assert found.tolist() == [[False, True, False]]


# --- what nodes save


def slow_saved(trace: Trace, pool: Tree, tree: Tree, price: np.ndarray) -> np.ndarray:
    """Σ over visited anchors whose text starts with the node, of price · (V(t + d) − V(t + d + 1)); and over all."""
    accepted, stops = accepted_lengths(tree, trace), trace.stops[trace.request_index]

    def left(anchor: int, stop: int) -> int:
        return 0 if anchor >= stop else 1 + left(anchor + int(accepted[anchor]) + 1, stop)

    visited = set(visit(tree, trace).anchors.tolist())
    found = np.zeros((2, pool.nodes))
    for node, path in enumerate(pool.paths):
        for t in range(trace.anchors):
            if tuple(trace.rank[t, : len(path)].tolist()) == path:
                saved = left(t + len(path), stops[t]) - left(t + len(path) + 1, stops[t])
                found[:, node] += price[trace.request_index[t]] * saved * np.array([t in visited, 1])
    return found


@given(traces(length=12), st.data())
@settings(max_examples=examples(150))
def test_saved_steps_are_those_of_the_definition(trace, data):
    pool = data.draw(trees(width=trace.width, depth=trace.depth, paths=8, min_nodes=1))
    tree = data.draw(st.sets(st.sampled_from(pool.paths)).map(Tree.from_paths))
    objective = data.draw(st.sampled_from([THROUGHPUT, LATENCY]))
    replayer = Replayer(trace, pool)
    prices = objective.prices(trace)
    saved = Saved(replayer, prices, replayer.replay(tree).steps)
    here, anywhere = saved.under(replayer.chosen(tree))
    due, due_anywhere = slow_saved(trace, pool, tree, prices[0])
    assert here.sum(axis=0) == pytest.approx(due, abs=1e-12)
    share = replayer.replay(tree).steps.sum() / trace.anchors
    assert anywhere.sum(axis=0) == pytest.approx(share * due_anywhere, abs=1e-12)


@given(traces(length=12, requests=(2, 6)), st.data())
def test_groups_have_the_steps_a_token_of_their_requests(trace, data):
    tree = data.draw(trees(width=trace.width, depth=trace.depth))
    replayer = Replayer(trace, tree)
    steps = replayer.replay(tree).steps
    saved = Saved(replayer, THROUGHPUT.prices(trace), steps)
    pace = steps / trace.lengths
    assert len(saved.row) == len(saved.steps_per_token) <= 4
    assert pace.min() - 1e-12 <= saved.steps_per_token.min() <= saved.steps_per_token.max() <= pace.max() + 1e-12
    assert (saved.row == 0).all()
