"""Most frequent prefixes against all trees there are, positional tables against a heap and Sequoia."""

import heapq
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.helpers.pools import all_trees
from tests.helpers.positional_trees import from_table
from tests.helpers.slow_params import examples
from tests.helpers.strategies import trace_of, traces, with_lengths
from treeopt.errors import UsageError
from treeopt.searchers.best_first import Frontier, count_prefixes
from treeopt.traces.trace import Trace
from treeopt.tree import Path, Tree


def prefixes(trace: Trace, weights: list[Fraction] | None = None) -> dict[Path, Fraction]:
    """Share of the (weighted) anchors whose ranks start with each path: exact, by counting one at a time."""
    weights = weights or [Fraction(1)] * trace.anchors
    found: dict[Path, Fraction] = {}
    for row, weight in zip(trace.rank.tolist(), weights, strict=True):
        for k in range(1, trace.depth + 1):
            if row[k - 1] < 0:
                break
            path = tuple(row[:k])
            found[path] = found.get(path, Fraction(0)) + weight
    return {path: value / sum(weights) for path, value in found.items() if value > 0}


def best_by_size(values: dict[Path, Fraction], *, nodes: int, cap: int) -> list[Fraction]:
    """Largest sum of values of any tree of at most 0, 1, ..., `nodes` nodes no deeper than `cap`."""
    best = [Fraction(0)] * (nodes + 1)
    for held in all_trees([path for path in values if len(path) <= cap], nodes):
        best[len(held)] = max(best[len(held)], sum((values[path] for path in held), Fraction(0)))
    return [max(best[: size + 1]) for size in range(nodes + 1)]


def ordered(values: dict[Path, Fraction], cap: int) -> list[Path]:
    """Paths by (−value, depth, path)."""
    return sorted((p for p in values if len(p) <= cap), key=lambda path: (-values[path], len(path), path))


def held(frontier: Frontier, cap: int) -> list[Path]:
    return [frontier.paths[i] for i in frontier.order(cap)]


weighted_traces = traces(length=12).flatmap(
    lambda trace: st.tuples(
        st.just(trace),
        # Sixteenths: float sums are exact, so order and ties must be, too.
        st.lists(st.integers(0, 48), min_size=trace.anchors, max_size=trace.anchors).filter(any),
    )
)


# --- exhaustive search


def test_the_oracle_counts_all_trees():
    # Trees of n nodes below a root, each node with up to 2 children: Catalan numbers 1, 2, 5, 14, 42 of n + 1
    # nodes with the root, 1 + 2 + 5 + 14 of at most 3.
    paths = [path for depth in range(1, 5) for path in product(range(2), repeat=depth)]
    found = list(all_trees(paths, 3))
    assert len(found) == len(set(found)) == 1 + 2 + 5 + 14


@given(traces(requests=(1, 3), length=7, depth=3, width=3))
@settings(max_examples=examples(200))
def test_no_tree_of_up_to_seven_nodes_is_better(trace):
    values = prefixes(trace)
    frontier = count_prefixes(trace, nodes=7, depth=trace.depth)
    for cap in range(1, trace.depth + 1):
        best = best_by_size(values, nodes=7, cap=cap)
        tokens = frontier.tokens(cap)
        for size in range(8):
            assert tokens[min(size, len(tokens) - 1)] == pytest.approx(float(1 + best[size]), rel=1e-12)
            tree = frontier.tree(size, cap)
            assert tree.nodes <= size
            assert tree.depth <= cap
            assert sum(values[path] for path in tree.paths) == best[size]


@given(weighted_traces)
@settings(max_examples=examples(150))
def test_no_tree_is_better_for_weighted_anchors(case):
    trace, weights = case
    values = prefixes(trace, [Fraction(w, 16) for w in weights])
    frontier = count_prefixes(trace, nodes=5, depth=trace.depth, weights=np.array(weights) / 16)
    for cap in range(1, trace.depth + 1):
        best = best_by_size(values, nodes=5, cap=cap)
        for size in range(6):
            tree = frontier.tree(size, cap)
            assert tree.nodes <= size
            assert sum(values[path] for path in tree.paths) == best[size]


# --- the whole order


@given(traces(length=30, width=5), st.integers(0, 40), st.integers(0, 5))
@settings(max_examples=examples(300))
def test_nodes_come_by_value_depth_and_path(trace, nodes, depth):
    values = prefixes(trace)
    frontier = count_prefixes(trace, nodes=nodes, depth=depth)
    for cap in range(min(depth, trace.depth) + 1):
        due = ordered(values, cap)[:nodes]
        assert held(frontier, cap) == due
        np.testing.assert_allclose(frontier.value[frontier.order(cap)], [float(values[p]) for p in due], rtol=1e-15)
    assert frontier.depth.max(initial=0) <= depth
    assert frontier.limit == nodes


@given(weighted_traces, st.integers(1, 20))
def test_weights_count_anchors_that_often(case, nodes):
    trace, weights = case
    values = prefixes(trace, [Fraction(w) for w in weights])
    frontier = count_prefixes(trace, nodes=nodes, depth=trace.depth, weights=np.array(weights, dtype=float))
    for cap in range(1, trace.depth + 1):
        assert held(frontier, cap) == ordered(values, cap)[:nodes]


@given(traces(length=30), st.integers(0, 2**32 - 1), st.sampled_from([1e-300, 1e-8, 1.0, 1e8]))
def test_real_weights_keep_every_prefix(trace, seed, spread):
    # 0.1 + 0.2 + 0.3 > 0.3 + 0.2 + 0.1 in floats: a child must not overtake its parent by rounding.
    rng = np.random.default_rng(seed)
    weights = rng.random(trace.anchors) * rng.choice([1.0, spread], trace.anchors)
    frontier = count_prefixes(trace, nodes=20, depth=trace.depth, weights=weights)
    parent = frontier.parent
    assert (parent < np.arange(len(parent))).all()
    inner = parent >= 0
    assert (frontier.value[parent[inner]] >= frontier.value[inner]).all()
    assert (frontier.depth[parent[inner]] == frontier.depth[inner] - 1).all()
    for size in range(len(held(frontier, trace.depth)) + 1):
        assert frontier.tree(size, trace.depth).nodes == size


# --- limits


def test_nothing_to_find():
    missed = trace_of([[[-1, -1], [-1, -2]]], width=1)
    for frontier in (
        count_prefixes(missed, nodes=5, depth=2),
        count_prefixes(trace_of([[[0]]], width=1), nodes=0, depth=1),
        count_prefixes(trace_of([[[0]]], width=1), nodes=5, depth=0),
        from_table(np.zeros((2, 2)), nodes=5),
        from_table(np.ones((2, 2)), nodes=0),
    ):
        assert frontier.tree(5, 2) == Tree.chain(0)
        assert frontier.tokens(2).tolist() == [1.0]
        assert frontier.paths == ()


# --- positional tables


def heap_order(table: list[list[float]], nodes: int, cap: int) -> list[tuple[float, Path]]:
    """The most probable paths, popped one by one from a heap of all children of what was popped."""
    found: list[tuple[float, Path]] = []
    heap: list[tuple[float, int, Path]] = [(-1.0, 0, ())]
    while heap and len(found) <= nodes:
        value, depth, path = heapq.heappop(heap)
        found.append((-value, path))
        if depth < cap:
            for rank, probability in enumerate(table[depth]):
                if value * probability != 0:
                    heapq.heappush(heap, (value * probability, depth + 1, (*path, rank)))
    return found[1:]


# A few round values, so that ties abound; zeros; no order among the ranks.
tables = st.tuples(st.integers(1, 4), st.integers(1, 5)).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0]))
) | st.tuples(st.integers(1, 4), st.integers(1, 5)).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.floats(0, 1))
)


@given(tables, st.integers(0, 30))
def test_tables_against_a_heap(table, nodes):
    frontier = from_table(table, nodes=nodes)
    for cap in range(1, len(table) + 1):
        due = heap_order(table.tolist(), nodes, cap)
        order = frontier.order(cap)
        assert [frontier.paths[i] for i in order] == [path for _, path in due]
        assert frontier.value[order].tolist() == [value for value, _ in due]


def sequoia_geo() -> np.ndarray:
    """The vector `geo` of tree_search.md §3.1: geometric, 32 entries, 0.1 % jitter, sorted."""
    jitter = 1 + 0.001 * np.random.default_rng(20240607).standard_normal(32)
    return -np.sort(-np.array([0.6, 0.15] + [0.07 * 0.62**i for i in range(30)]) * jitter)


@pytest.mark.parametrize(("size", "tokens"), [(64, 3.93353), (128, 4.34389), (256, 4.73211), (512, 5.11152)])
def test_sequoias_dynamic_programme_reaches_the_same_value(size, tokens):
    # Sequoia's unmodified source on this vector, root counted, 16 levels below it: tree_search.md §3.2.
    frontier = from_table(np.tile(sequoia_geo(), (16, 1)), nodes=511)
    assert round(float(frontier.tokens(16)[size - 1]), 5) == tokens
    assert frontier.tree(size - 1, 16).nodes == size - 1


@given(
    st.integers(1, 3).flatmap(
        lambda depth: st.lists(st.lists(st.integers(-1, 2), min_size=3, max_size=4), min_size=depth, max_size=depth)
    )
)
def test_independent_depths_make_the_product_of_the_marginals(faces):
    # Every combination of the faces once: ranks at different depths are independent, exactly.
    rows = list(product(*faces))
    depth, width = len(faces), 3
    tail = [rows[0]] * (depth - 1)  # the last positions lack their deep ranks: they get no weight
    trace = with_lengths(np.array(rows + tail), [len(rows) + depth - 1], width=width)
    weights = np.array([1.0] * len(rows) + [0.0] * (depth - 1))
    table = np.array([[face.count(rank) / len(face) for rank in range(width)] for face in faces])

    counted = count_prefixes(trace, nodes=39, depth=depth, weights=weights)
    product_of = from_table(table, nodes=39)
    values = dict(zip(product_of.paths, product_of.value.tolist(), strict=True))
    assert set(counted.paths) == set(values)
    for path, value in zip(counted.paths, counted.value.tolist(), strict=True):
        assert value == pytest.approx(values[path], rel=1e-12)
    for cap in range(1, depth + 1):
        np.testing.assert_allclose(counted.tokens(cap), product_of.tokens(cap), rtol=1e-12)


@pytest.mark.parametrize("entry", [-0.1, 1.1, np.nan, np.inf])
def test_tables_of_anything_but_probabilities_are_refused(entry):
    with pytest.raises(UsageError, match="probabilities"):
        from_table(np.array([[0.5, entry]]), nodes=1)
