"""Trees for their own walk: never worse than averages, bounded by all small trees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.bench_regret import FAMILIES, instance, regrets
from tests.helpers.pools import all_trees
from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, trace_of, traces
from tests.treeopt.searchers.test_best_first import prefixes
from treeopt.replay.objective import OBJECTIVES, THROUGHPUT, WORST_DOMAIN
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.renewal_local_search import improve, ready
from treeopt.statistics import ratio
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

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


def test_nothing_to_improve():
    missed = trace_of([[[-1, -1], [-1, -2]]], width=1)
    assert improve(missed, nodes=5, depth=2) == Tree.chain(0)
