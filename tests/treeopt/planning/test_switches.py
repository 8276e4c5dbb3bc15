"""Switch points between configurations, against their definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treeopt.planning.search_pipeline import switches


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
