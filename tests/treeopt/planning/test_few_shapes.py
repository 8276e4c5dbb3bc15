"""Shapes kept against every way of keeping them; switch points against their definition."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.helpers.slow_params import examples
from treeopt.errors import UsageError
from treeopt.planning.few_shapes import NONE, UNITS, assign, switches

tables = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=st.floats(0, 8, allow_subnormal=False)
)


def mean_share(rates, plain, chosen):
    best = np.maximum(rates.max(axis=1), plain)
    own = [plain[i] if j == NONE else rates[i, j] for i, j in enumerate(chosen)]
    return float(np.mean(own / best))


@given(tables, st.integers(1, 5), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_no_other_shapes_are_better(rates, shapes, data):
    plain = np.array(data.draw(st.lists(st.floats(0.1, 8), min_size=len(rates), max_size=len(rates))))
    chosen = assign(rates, plain, shapes=shapes)
    assert len(set(chosen) - {NONE}) <= shapes
    best = 0.0
    for kept in combinations(range(rates.shape[1]), min(shapes, rates.shape[1])):
        options = np.column_stack([rates[:, list(kept)], plain])
        best = max(best, float(np.mean(options.max(axis=1) / np.maximum(rates.max(axis=1), plain))))
    assert mean_share(rates, plain, chosen) == pytest.approx(best, abs=2 / UNITS)
    for i, j in enumerate(chosen):
        assert j == NONE or rates[i, j] > plain[i]


def test_one_shape_serves_where_it_costs_least():
    rates = np.array([[2.0, 1.9, 1.0], [1.5, 1.6, 1.4], [0.5, 0.9, 1.2]])
    plain = np.ones(3)
    assert assign(rates, plain, shapes=3) == (0, 1, 2)
    assert assign(rates, plain, shapes=2) == (1, 1, 2)
    assert assign(rates, plain, shapes=1) == (1, 1, NONE)


def test_without_shapes_there_is_nothing_to_choose():
    with pytest.raises(UsageError, match="shapes must be at least 1, got 0"):
        assign(np.ones((1, 1)), np.ones(1), shapes=0)


@given(st.lists(st.lists(st.floats(0.5, 4), min_size=3, max_size=3), min_size=2, max_size=6), st.floats(0, 0.2))
def test_switch_points_leave_a_band_where_no_way_is_much_better(table, margin):
    rates = np.array(table)
    batches = [2**i for i in range(len(rates))]
    chosen = rates.argmax(axis=1).tolist()
    found = switches(batches, chosen, rates, margin=margin)
    assert [(each.small, each.large) for each in found] == [
        (batches[i], batches[i + 1]) for i in range(len(batches) - 1) if chosen[i] != chosen[i + 1]
    ]
    for each in found:
        small, large = batches.index(each.small), batches.index(each.large)
        gain = rates[:, chosen[large]] / rates[:, chosen[small]] - 1
        assert each.down <= each.small < each.large <= each.up
        for i in range(len(batches)):
            if small < i < batches.index(each.up):
                assert gain[i] <= margin
            if batches.index(each.down) < i <= small:
                assert gain[i] >= -margin


def test_nothing_to_switch():
    assert switches([1, 8], [3, 3], np.ones((2, 4)), margin=0.01) == ()
