"""Ratios, their clustered intervals and paired differences: by hand, simulation and bootstrap; isotonic curves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.benchmarks.bench_coverage import PROCESSES, coverage, worst_domain_bias
from tests.helpers.slow_params import examples
from treeopt.errors import TraceError, UsageError
from treeopt.statistics import Estimate, evidence, group_factor, isotonic, paired_difference, quantile, ratio

counts = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=1, max_size=20)
numbers = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])


def clustered(rng: np.random.Generator, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """Committed tokens and steps of requests, each with its own acceptance; E committed / E steps is 3."""
    steps = rng.integers(20, 60, clusters)
    mean = rng.uniform(2, 4, clusters)
    return rng.poisson(steps * mean), steps


# --- values and widths


@given(counts)
def test_value_is_the_ratio_of_sums(pairs):
    top, bottom = columns(pairs)
    found = ratio(top, bottom)
    assert found.value == pytest.approx(sum(a for a, _ in pairs) / sum(b for _, b in pairs), rel=1e-15)
    assert found.low <= found.value <= found.high


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.integers(1, 50))
def test_clusters_of_one_size_give_students_interval(tops, size):
    tops, sizes = np.array(tops), np.full(len(tops), size)
    half = stats.t.ppf(0.975, len(tops) - 1) * stats.sem(tops) / size
    found = ratio(tops, sizes)
    assert found.high - found.value == pytest.approx(half, rel=4e-6, abs=1e-12)
    assert found.value - found.low == pytest.approx(half, rel=4e-6, abs=1e-12)


def test_an_interval_by_hand():
    # r = 6/4; influences (2 - 3)/4, (4 - 3)/4; variance 2/1 * 2 * (1/4)^2 = 1/4; t(1; 97.5 %) = 12.7062.
    found = ratio(np.array([2, 4]), np.array([2, 2]))
    assert (found.value, found.high - found.value) == pytest.approx((1.5, 12.7062 / 2), rel=1e-5)
    # Without the first 5/3, without the second 1: jackknife (1/6)^2 / 2 + (1/2)^2 / 2 = 5/36; G - 1 = 0.6 counts as 1.
    found = ratio(np.array([1, 5]), np.array([1, 3]))
    assert (found.value, found.high - found.value) == pytest.approx((1.5, 12.7062 * math.sqrt(5) / 6), rel=1e-5)


def test_a_large_cluster_counts_for_fewer():
    """The jackknife written out, with Student's t of the effective number of clusters less one."""
    top, bottom = np.array([30, 5, 9, 4, 7, 6]), np.array([10, 2, 3, 2, 2, 3])
    without = np.array([np.delete(top, i).sum() / np.delete(bottom, i).sum() for i in range(6)])
    found = ratio(top, bottom)
    variance = 5 / 6 * np.square(without - found.value).sum()
    effective = bottom.sum() ** 2 / np.square(bottom).sum()
    assert effective < 5
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, effective - 1) * math.sqrt(variance), rel=1e-9)


@pytest.mark.parametrize("clusters", [60, 500])
def test_many_clusters_have_the_linearised_interval(clusters):
    """What it was: Student's t with R - 1 degrees of freedom, unchanged to the last digit."""
    steps = np.tile([20, 21, 22, 19], clusters // 4 + 5)
    tokens = np.random.default_rng(1).poisson(3 * steps)
    found, influence = ratio(tokens, steps), (tokens - tokens.sum() / steps.sum() * steps) / steps.sum()
    count = len(steps)
    variance = count / (count - 1) * float(np.square(influence).sum())
    half = quantile(count) * math.sqrt(variance)
    assert (found.low, found.high) == (found.value - half, found.value + half)


def test_nothing_is_known_where_one_cluster_holds_all():
    assert ratio(np.array([3, 1, 0]), np.array([2, 0, 0])).high == math.inf


# --- evidence and groups


def test_evidence_counts_the_clusters_that_make_up_the_variance():
    assert evidence(np.full(40, 64), np.full(40, 22)) == 0
    one = np.append(np.full(99, 20), 100)
    assert evidence(one, np.full(100, 10)) == pytest.approx(1.02, abs=0.01)
    # Of R normal values, (sum v)^2 / sum v^2 with v = x^2 is R / 3, to a few percent at 3000.
    normal = np.random.default_rng(0).normal(3, 1, 3000)
    assert evidence(normal, np.ones(3000)) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("groups", [5, 12, 40])
def test_groups_that_differ_widen_an_interval(groups):
    """m requests of a group correlate by rho: 1 + (m - 1) rho times the variance (Kish 1965, section 5.4)."""
    rng = np.random.default_rng(groups)
    label = np.repeat(np.arange(groups), 20)
    between, within = 0.5 * stats.norm.ppf((np.arange(groups) + 0.5) / groups), rng.normal(0, 0.5, 20 * groups)
    steps = np.full(20 * groups, 50)
    tokens = steps * (3 + between[label] + within)
    rho = between.var() / (between.var() + within.var())
    t = stats.t.ppf(0.975, groups - 1) / stats.t.ppf(0.975, 20 * groups - 1)
    assert group_factor(tokens, steps, label) == pytest.approx(math.sqrt(1 + 19 * rho) * t, rel=0.1)
    assert group_factor(steps * (3 + within), steps, label) is None
    assert group_factor(tokens, steps, np.arange(20 * groups)) is None
    assert group_factor(tokens, steps, label % 2) == math.inf
    assert group_factor(tokens, steps, np.zeros_like(label)) is None


@given(counts, st.randoms(use_true_random=False), st.integers(1, 9))
def test_neither_the_order_nor_the_unit_matters(pairs, shuffle, factor):
    found = ratio(*columns(pairs))
    shuffled = list(pairs)
    shuffle.shuffle(shuffled)
    again = ratio(*columns([(factor * a, b) for a, b in shuffled]))
    assert again.value == pytest.approx(factor * found.value, rel=1e-12)
    assert again.low == pytest.approx(factor * found.low, rel=1e-9, abs=1e-9)
    assert again.high == pytest.approx(factor * found.high, rel=1e-9, abs=1e-9)


def test_one_cluster_says_nothing_of_the_spread():
    found = ratio(np.array([6]), np.array([2]))
    assert found == Estimate(3.0, -math.inf, math.inf)
    assert found.relative == math.inf
    assert found.times(2.0) == Estimate(6.0, -math.inf, math.inf)
    pair = np.array([6]), np.array([2])
    assert paired_difference(pair, pair) == Estimate(0.0, -math.inf, math.inf)


# --- coverage


def test_intervals_cover_what_they_say():
    # 4000 traces of 30 requests. If an interval covers with probability 0.95, the share of those that do has
    # a standard deviation of 0.0034; the linearisation costs up to half a percent at 30 clusters. Outside
    # [0.93, 0.967] is then 4.4 deviations away (false alarm 1e-5), with a fixed seed.
    rng = np.random.default_rng(7)
    covered = ignoring_clusters = 0
    for _ in range(4000):
        top, bottom = clustered(rng, 30)
        found = ratio(top, bottom)
        covered += found.low <= 3 <= found.high
        # What an interval would be that takes steps, not requests, for independent: Poisson tokens a step.
        half = 1.96 * math.sqrt(top.sum()) / bottom.sum()
        ignoring_clusters += abs(found.value - 3) <= half
    assert 0.93 <= covered / 4000 <= 0.967
    assert ignoring_clusters / 4000 < 0.6  # so the data are clustered, and the test would notice


@pytest.mark.parametrize("clusters", [2, 4, 8])
def test_few_clusters_still_cover(clusters):
    # Student's t, not the normal: with 2 clusters 1.96 standard errors cover 70 %. 3000 draws have a standard
    # deviation of 0.004; the range leaves the linearisation 2 % and chance five deviations (6e-7).
    rng = np.random.default_rng(clusters)
    hits = 0
    for _ in range(3000):
        found = ratio(*clustered(rng, clusters))
        hits += found.low <= 3 <= found.high
    assert 0.91 <= hits / 3000 <= 0.975


def test_the_interval_agrees_with_a_bootstrap_by_request():
    # 4000 resamples know the 2.5 % quantile to 2.5 % of the half-width, 400 requests make the curvature
    # negligible: 8 % is three standard deviations (false alarm 3e-3 if the seed were not fixed).
    rng = np.random.default_rng(3)
    top, bottom = clustered(rng, 400)
    draws = rng.integers(0, 400, (4000, 400))
    low, high = np.quantile(top[draws].sum(axis=1) / bottom[draws].sum(axis=1), [0.025, 0.975])
    found = ratio(top, bottom)
    assert found.high - found.low == pytest.approx(high - low, rel=0.08)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.08 * (high - low))


# --- paired differences


def test_pairing_narrows_a_difference_of_correlated_ratios_and_covers():
    # A request easy for one tree is easy for the other. 2000 draws have a standard deviation of 0.005: the
    # range leaves the linearisation half a percent and chance five deviations (false alarm 6e-7); fixed seed.
    rng = np.random.default_rng(11)
    narrower = hits = 0
    for _ in range(2000):
        easy = rng.uniform(-1, 1, 30)
        tokens = rng.integers(80, 200, 30)
        first = tokens, np.round(tokens / (3.5 + easy + rng.normal(0, 0.1, 30)))
        second = tokens, np.round(tokens / (3.0 + easy + rng.normal(0, 0.1, 30)))
        a, b, difference = ratio(*first), ratio(*second), paired_difference(first, second)
        assert difference.value == pytest.approx(a.value - b.value, abs=1e-12)
        apart = math.hypot(a.high - a.low, b.high - b.low)
        narrower += difference.high - difference.low < apart / 2
        # Tokens / Σ tokens / (c + easy): the harmonic mean's limit, by quadrature over easy ~ U(-1, 1).
        truth = 2 / math.log(4.5 / 2.5) - 2 / math.log(4.0 / 2.0)
        hits += difference.low <= truth <= difference.high
    assert narrower == 2000
    assert 0.92 <= hits / 2000 <= 0.975


@given(counts)
def test_nothing_differs_from_itself(pairs):
    pair = columns(pairs)
    found = paired_difference(pair, pair)
    assert found.value == 0
    assert len(pairs) == 1 or (found.low, found.high) == (0, 0)


@given(counts, st.integers(0, 2**32 - 1))
def test_a_difference_turned_round_changes_its_sign(pairs, seed):
    first = columns(pairs)
    second = first[0], np.random.default_rng(seed).permutation(first[1])
    found, back = paired_difference(first, second), paired_difference(second, first)
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low), abs=1e-9)


# --- scaling


@given(numbers, st.floats(0, 10), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_times_scales_the_value_and_adds_relative_errors_in_quadrature(value, half, factor, error):
    scaled = Estimate(value, value - half, value + half).times(factor, relative_error=error)
    due = math.hypot(half * factor, value * factor * error)
    assert scaled.value == pytest.approx(value * factor)
    if 0 < scaled.value <= scaled.high - scaled.value:  # nothing is known: in logarithms
        assert scaled.low > 0
        return
    assert scaled.high - scaled.value == pytest.approx(due, rel=1e-6, abs=1e-6)
    assert scaled.value - scaled.low == pytest.approx(due, rel=1e-6, abs=1e-6)


# --- what is refused


def test_pairs_need_the_same_requests():
    with pytest.raises(TraceError, match=r"the same length, found 2 and 1"):
        paired_difference((np.array([1, 2]), np.array([1, 1])), (np.array([1]), np.array([1])))


NAMES = [process.name for process in PROCESSES]


def test_intervals_that_cannot_be_trusted_are_doubted():
    """8 requests: doubted, whatever they are. 120 alike: trusted, and 150 samples of them cover within 4 deviations."""
    by_name = dict(zip(NAMES, PROCESSES, strict=True))
    rng = np.random.default_rng(0)
    few = coverage(by_name["lognormal lengths, tau varies"], 8, samples=150, rng=rng)
    assert few["warned"] == 1
    assert few["covered"] > few["linearised"]
    many = coverage(by_name["equal lengths, tau varies"], 120, samples=150, rng=rng)
    assert many["warned"] < 0.05
    assert many["covered"] == many["linearised"] > 0.87


@pytest.mark.slow
@pytest.mark.parametrize("process", PROCESSES, ids=NAMES)
@pytest.mark.parametrize("requests", [5, 30, 60, 125, 250])
def test_intervals_hold_or_are_doubted(process, requests):
    """400 samples of a share of 0.92 have a deviation of 1.4 %: 3.5 of them below, at 75 seeds fixed."""
    found = coverage(process, requests, samples=400, rng=np.random.default_rng(requests))
    assert found["covered_or_warned"] > 0.92 - 3.5 * 0.014


@pytest.mark.slow
def test_the_worst_domain_is_hardly_biased():
    found = worst_domain_bias(10, 10, samples=200, rng=np.random.default_rng(0))
    assert found["chosen_on_the_same"] < -0.05
    assert abs(found["chosen_on_others"]) < 5 * found["error"] + 0.01  # a ratio of sums over 10 requests


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
