"""Isotonic curves equal the max-min formula, and do not fall."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from treeopt.errors import UsageError
from treeopt.statistics import isotonic


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5), st.integers(1, 3)), min_size=1, max_size=15))
def test_the_curve_equals_the_max_min_formula(points):
    """At each place the largest, over the places before it, of the least mean from there to a place behind it."""
    x, y, weights = np.array(points, dtype=np.float64).T
    curve = isotonic(x, y, weights)
    places = np.unique(x)

    def mean(low, high):
        some = (x >= low) & (x <= high)
        return np.average(y[some], weights=weights[some])

    due = [
        max(min(mean(low, high) for high in places if high >= place) for low in places if low <= place)
        for place in places
    ]
    assert curve.at(places) == pytest.approx(due)
    assert (np.diff(curve.at(np.linspace(-1, 10, 200))) >= 0).all()


def test_a_curve_through_nothing():
    with pytest.raises(UsageError, match="at least one point"):
        isotonic(np.empty(0), np.empty(0))
