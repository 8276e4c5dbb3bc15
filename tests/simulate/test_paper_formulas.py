import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulate.paper_formulas import expected_tau, walltime_speedup, weight_speedup
from treeopt.errors import UsageError
from treeopt.storage.user_files import shipped

shares = st.floats(0, 1)


def published(name):
    return json.loads(shipped(f"published/{name}.json").read_text("utf-8"))["rows"]


def exact_tau(alpha, gamma):
    return sum((Fraction(alpha) ** k for k in range(gamma + 1)), Fraction(0))


@pytest.mark.parametrize("row", published("leviathan_analytic"), ids=str)
def test_leviathans_predictions(row):
    speed = walltime_speedup(alpha=row["alpha"], gamma=row["gamma"], cost_ratio=row["c"])
    assert round(speed, 2) == row["speed"]


@given(alpha=shares, gamma=st.integers(0, 200))
@example(alpha=0.0, gamma=0)
@example(alpha=0.0, gamma=7)
@example(alpha=1.0, gamma=200)
@example(alpha=float(np.nextafter(1, 0)), gamma=200)
@example(alpha=5e-324, gamma=3)
def test_tau_is_the_sum_of_its_powers(alpha, gamma):
    # float64: a few roundings of 1.1e-16 each, and (gamma + 1) log(alpha) matters only while it is small
    assert expected_tau(alpha=alpha, gamma=gamma) == pytest.approx(float(exact_tau(alpha, gamma)), rel=1e-14)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (expected_tau, {"alpha": [[0.5, np.nan]], "gamma": 2}, r"alpha\[0, 1\] must be a number in \[0, 1\], got nan"),
        (expected_tau, {"alpha": [0.5, 0.6], "gamma": [1, 2, 3]}, r"broadcast, got alpha \(2,\), gamma \(3,\)"),
        (weight_speedup, {"tau": 2, "gamma": 3, "draft_weights": 1, "target_weights": 0}, r"target_weights .* above 0"),
    ],
)
def test_arguments_without_meaning_are_refused(function, arguments, message):
    with pytest.raises(UsageError, match=message):
        function(**arguments)
