import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulate.closed_forms.coral_speedup import latency_ratio, latency_speedup, weight_speedup
from simulate.closed_forms.leviathan_speedup import best_gamma, expected_tau, operations_factor, walltime_speedup
from treeopt.errors import UsageError
from treeopt.storage.atomic_files import shipped

shares = st.floats(0, 1)


def published(name):
    return json.loads(shipped(f"published/{name}.json").read_text("utf-8"))["rows"]


def exact_tau(alpha, gamma):
    return sum((Fraction(alpha) ** k for k in range(gamma + 1)), Fraction(0))


def exact_speedup(alpha, gamma, cost_ratio):
    return exact_tau(alpha, gamma) / (gamma * Fraction(cost_ratio) + 1)


@pytest.mark.parametrize("row", published("leviathan_analytic"), ids=str)
def test_leviathans_predictions(row):
    speed = walltime_speedup(alpha=row["alpha"], gamma=row["gamma"], cost_ratio=row["c"])
    operations = operations_factor(alpha=row["alpha"], gamma=row["gamma"], operations_ratio=row["c"])
    assert round(speed, 2) == row["speed"]
    assert round(operations, 2) == row["operations"]


@pytest.mark.parametrize("row", published("coral_table1"), ids=lambda row: row["model"])
def test_corals_ratios(row):
    by_weight = latency_ratio(draft_weights=row["W_d_M"], target_weights=row["W_t_M"])
    by_latency = row["L_d_ms"] / row["L_t_ms"]
    assert round(100 * by_weight, 1) == row["W_ratio_pct"]
    assert round(100 * by_latency, 1) == row["L_ratio_pct"]
    # the paper's own check of Eq. 5: measured latencies leave it by 4.6 % (Llama3-8B) at most
    assert by_weight == pytest.approx(by_latency, rel=0.046)


@given(alpha=shares, gamma=st.integers(0, 200))
@example(alpha=0.0, gamma=0)
@example(alpha=0.0, gamma=7)
@example(alpha=1.0, gamma=200)
@example(alpha=float(np.nextafter(1, 0)), gamma=200)
@example(alpha=5e-324, gamma=3)
def test_tau_is_the_sum_of_its_powers(alpha, gamma):
    # float64: a few roundings of 1.1e-16 each, and (gamma + 1) log(alpha) matters only while it is small
    assert expected_tau(alpha=alpha, gamma=gamma) == pytest.approx(float(exact_tau(alpha, gamma)), rel=1e-14)


def test_tau_is_the_mean_of_a_simulated_chain():
    accepted = np.random.default_rng(1).random((200_000, 5)) < 0.7
    committed = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
    error = committed.std() / np.sqrt(len(committed))
    # 5 standard errors: a false alarm once in 1.7 million seeds
    assert abs(committed.mean() - expected_tau(alpha=0.7, gamma=5)) < 5 * error


@given(alpha=shares, cost_ratio=st.floats(0, 2), max_gamma=st.integers(0, 40))
@example(alpha=1.0, cost_ratio=1.0, max_gamma=5)
@example(alpha=1e-200, cost_ratio=0.0, max_gamma=9)
@example(alpha=0.3, cost_ratio=0.3, max_gamma=9)
def test_best_gamma_is_that_of_brute_force(alpha, cost_ratio, max_gamma):
    speedups = [exact_speedup(alpha, gamma, cost_ratio) for gamma in range(max_gamma + 1)]
    found = best_gamma(alpha=alpha, cost_ratio=cost_ratio, max_gamma=max_gamma)
    assert isinstance(found, int)
    assert 0 <= found <= max_gamma
    # float64 cannot tell speedups apart that agree to 14 digits
    assert speedups[found] >= max(speedups) * (1 - Fraction(1, 10**14))
    close = [gamma for gamma, speedup in enumerate(speedups) if speedup >= max(speedups) * (1 - Fraction(1, 10**14))]
    if len(close) == 1:
        assert found == close[0]


@given(alpha=shares, cost_ratio=shares)
@example(alpha=float(np.nextafter(0.3, 1)), cost_ratio=0.3)
def test_speculation_pays_exactly_where_alpha_exceeds_the_cost_ratio(alpha, cost_ratio):
    assert (best_gamma(alpha=alpha, cost_ratio=cost_ratio, max_gamma=20) > 0) == (alpha > cost_ratio)


def test_best_gamma_reaches_a_huge_bound_without_trying_each():
    found = best_gamma(alpha=[1.0, 0.5, 0.9], cost_ratio=[0.5, 0.0, 0.1], max_gamma=2**40)
    assert found.tolist() == [2**40, 2**40, 10]


@given(alpha=shares, gamma=st.integers(0, 50), ratio=st.floats(0, 10))
def test_operations_are_those_of_verifying_and_drafting_shared_by_tau(alpha, gamma, ratio):
    exact = (gamma * Fraction(ratio) + gamma + 1) / exact_tau(alpha, gamma)
    found = operations_factor(alpha=alpha, gamma=gamma, operations_ratio=ratio)
    assert found == pytest.approx(float(exact), rel=1e-13)


@given(
    tau=st.floats(1, 20),
    gamma=st.integers(0, 20),
    draft_s=st.floats(1e-6, 1),
    plain_s=st.floats(1e-6, 1),
    slower=st.floats(1, 3),
)
def test_slower_verification_never_raises_corals_speedup(tau, gamma, draft_s, plain_s, slower):
    def speedup(verify_s):
        return latency_speedup(tau=tau, gamma=gamma, draft_s=draft_s, plain_s=plain_s, verify_s=verify_s)

    assert speedup(plain_s * slower) <= speedup(plain_s)
    # Eq. 6 is Eq. 1 where verifying costs a plain step and latencies go by weights
    by_weight = weight_speedup(tau=tau, gamma=gamma, draft_weights=draft_s, target_weights=plain_s)
    assert speedup(plain_s) == pytest.approx(by_weight, rel=1e-14)


def test_corals_speedup_is_leviathans_at_a_chains_tau():
    for alpha, gamma, cost_ratio in [(0.8, 4, 0.05), (0.6, 2, 0.3), (1.0, 3, 0.1), (0.5, 0, 0.5)]:
        tau = expected_tau(alpha=alpha, gamma=gamma)
        found = latency_speedup(tau=tau, gamma=gamma, draft_s=cost_ratio, plain_s=1.0, verify_s=1.0)
        assert found == pytest.approx(walltime_speedup(alpha=alpha, gamma=gamma, cost_ratio=cost_ratio), rel=1e-14)


def test_arrays_broadcast_and_equal_their_scalars():
    alpha, gamma = np.array([[0.0], [0.5], [1.0]]), np.arange(4)
    grid = walltime_speedup(alpha=alpha, gamma=gamma, cost_ratio=0.1)
    assert grid.shape == (3, 4)
    assert grid.dtype == np.float64
    for i, j in np.ndindex(grid.shape):
        assert grid[i, j] == walltime_speedup(alpha=alpha[i, 0], gamma=gamma[j], cost_ratio=0.1)
    best = best_gamma(alpha=alpha, cost_ratio=[0.1, 0.6], max_gamma=9)
    assert best.dtype == np.int64
    assert best.tolist() == [[0, 0], [best_gamma(alpha=0.5, cost_ratio=0.1, max_gamma=9), 0], [9, 9]]


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (expected_tau, {"alpha": 1.1, "gamma": 2}, r"alpha must be a number in \[0, 1\], got 1.1"),
        (expected_tau, {"alpha": -0.1, "gamma": 2}, r"alpha must be .* got -0.1"),
        (expected_tau, {"alpha": [[0.5, np.nan]], "gamma": 2}, r"alpha\[0, 1\] must be .* got nan"),
        (expected_tau, {"alpha": "high", "gamma": 2}, r"alpha must be .* got 'high'"),
        (expected_tau, {"alpha": 0.5, "gamma": -1}, r"gamma must be a whole number.* got -1"),
        (expected_tau, {"alpha": 0.5, "gamma": 2.5}, r"gamma must be a whole number.* got 2.5"),
        (expected_tau, {"alpha": 0.5, "gamma": np.inf}, r"gamma must be a whole number.* got inf"),
        (
            expected_tau,
            {"alpha": [0.5, 0.6], "gamma": [1, 2, 3]},
            r"broadcast, got alpha \(2,\), gamma \(3,\)",
        ),
        (
            walltime_speedup,
            {"alpha": 0.5, "gamma": 2, "cost_ratio": -1e-9},
            r"cost_ratio must be .* 0 or more",
        ),
        (
            operations_factor,
            {"alpha": 0.5, "gamma": 2, "operations_ratio": np.inf},
            r"operations_ratio .* got inf",
        ),
        (best_gamma, {"alpha": 0.5, "cost_ratio": 0.1, "max_gamma": -1}, r"max_gamma must be .* got -1"),
        (
            latency_ratio,
            {"draft_weights": 0, "target_weights": 1},
            r"draft_weights must be .* above 0, got 0",
        ),
        (
            latency_speedup,
            {"tau": 2, "gamma": 3, "draft_s": 0.1, "plain_s": 1.0, "verify_s": 0.0},
            r"verify_s must be a finite number above 0, got 0",
        ),
        (
            weight_speedup,
            {"tau": 0.9, "gamma": 3, "draft_weights": 1, "target_weights": 10},
            r"tau must be .* 1 or more .* got 0.9",
        ),
    ],
)
def test_arguments_without_meaning_are_refused(function, arguments, message):
    with pytest.raises(UsageError, match=message):
        function(**arguments)
