"""Learning curves against their parts and against simulated truth; rules of thumb; how many more requests."""

import math
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.helpers.strategies import drawn_trace, trace_of, traces, with_lengths
from treeopt.errors import TraceError, UsageError
from treeopt.planning.learning_curve import LearningCurve, Point, learning_curves, requests_needed
from treeopt.planning.search_warnings import advice, resemblance
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.best_first import count_prefixes
from treeopt.statistics import Estimate, paired_difference, ratio
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

# --- curves


@given(traces(requests=(4, 12), length=8), st.integers(0, 2**32 - 1), st.integers(2, 9), st.booleans())
def test_points_are_what_they_say(trace, seed, points, shrink):
    depth = trace.depth
    curves = learning_curves(trace, nodes=(3, 1), depth=depth, seed=seed, points=points, shrink=shrink)
    assert [curve.nodes for curve in curves] == [3, 1]
    rng = np.random.default_rng(seed)
    chosen_on, held = trace.split(share=0.5, rng=rng)
    for curve in curves:
        numbers = [point.requests for point in curve.points]
        assert numbers[0] == 1
        assert numbers[-1] == chosen_on.requests
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= points
        last = curve.points[-1]
        assert last.anchors == chosen_on.anchors
        if not shrink:
            assert last.tree == count_prefixes(chosen_on, nodes=3, depth=depth).tree(curve.nodes, depth)
            assert last.fitted == replay_tree(last.tree, chosen_on).tau
        assert (last.loss.value, last.loss.low, last.loss.high) == (0, 0, 0)
        best = replay_tree(last.tree, held)
        for point in curve.points:
            counts = replay_tree(point.tree, held)
            assert point.held_out == ratio(counts.committed, counts.steps)
            pair = (best.committed, best.steps), (counts.committed, counts.steps)
            assert point.loss == paired_difference(*pair)
            assert point.tree.nodes <= curve.nodes
        for few, more in pairwise(curve.points):
            assert few.anchors < more.anchors


def curve_of(lows: list[float], width: float = 0.15) -> LearningCurve:
    """A curve whose points lose at least so much, within intervals of this width; tau is 2."""
    tau = Estimate(2.0, 2.0, 2.0)
    losses = [Estimate(low, low, low + width) for low in lows]
    return LearningCurve(1, tuple(Point(i + 1, 10 * i, Tree.chain(1), 2.0, tau, loss) for i, loss in enumerate(losses)))


@pytest.mark.parametrize(
    ("lows", "requests"),
    [
        ([0.1, 0.1, 0.0], None),
        ([0.1, -0.1, 0.0], 2),
        ([-0.1, 0.1, -0.1, 0.0], 3),  # a lucky first point does not count
        ([0.0, 0.0], 1),
        ([0.0], None),
    ],
)
def test_flat_is_where_no_later_loss_is_seen(lows, requests):
    flat = curve_of(lows).flat
    assert (flat and flat.requests) == requests


def test_wide_intervals_do_not_call_a_curve_flat():
    """A tenth of tau is the most."""
    assert curve_of([0.0, 0.0], width=0.2).flat is not None
    for lows in ([0.0, 0.0], [-0.1, -0.1, 0.0]):
        wide = curve_of(lows, width=0.21)
        assert wide.flat is None
        assert wide.vague
    assert not curve_of([0.1, 0.0], width=0.21).vague  # a loss that is seen
    assert not curve_of([0.0, 0.0]).vague
    narrow, wide = curve_of([0.0, 0.0, 0.0]), curve_of([0.0, 0.0, 0.0], width=0.3)
    mixed = LearningCurve(1, (wide.points[0], *narrow.points[1:]))
    assert mixed.flat is mixed.points[1]


@pytest.mark.slow
def test_where_nothing_is_lost_the_curve_says_so():
    # Ranks 0 and 1 are equally likely and alike: whichever one node is chosen, its true tau is the same. Of 400
    # traces the number that calls the first point worse is binomial with 2.5 %: more than 22 has probability 3e-4.
    rng = np.random.default_rng(20240607)
    worse = differing = 0
    for seed in range(400):
        trace = drawn_trace([[0.35, 0.35], [0.15, 0.15]], [20] * 120, depth=1, rng=rng)
        (curve,) = learning_curves(trace, nodes=(1,), depth=1, seed=seed, points=2)
        first = curve.points[0]
        worse += first.loss.low > 0
        differing += first.tree != curve.points[-1].tree
    assert differing > 100  # otherwise the test would notice nothing
    assert worse <= 22


def test_where_much_is_lost_the_curve_says_so():
    # Requests are of two kinds, one a quarter as frequent: a tree chosen on one request of it misses most of the rest.
    rng = np.random.default_rng(5)
    lossy = 0
    for seed in range(40):
        trace = drawn_trace(
            [[0.8, 0.0, 0.1], [0.0, 0.6, 0.1], [0.8, 0.0, 0.1], [0.8, 0.0, 0.1]], [30] * 80, depth=2, rng=rng
        )
        (curve,) = learning_curves(trace, nodes=(2,), depth=2, seed=seed, points=4)
        *_, last = curve.points
        assert last.tree == Tree.chain(2)
        first = curve.points[0]
        assert (first.loss.low > 0) == (first.tree != last.tree)
        lossy += first.loss.low > 0
    assert 1 <= lossy <= 25


def test_curves_of_too_few_requests_are_refused():
    with pytest.raises(TraceError, match=r"at least 4 requests, .*; this one has 3"):
        learning_curves(trace_of([[[0]]] * 3, width=1), nodes=(1,), depth=1, seed=0)


# --- advice


def plain(requests: int, length: int = 10, **meta: object) -> Trace:
    return with_lengths(np.zeros((requests * length, 1)), [length] * requests, width=1, meta=meta)


@pytest.mark.parametrize(
    ("trace", "nodes", "words"),
    [
        (plain(30), 7, r"300 anchors are few for 7 nodes: below 50 per node \(350\)"),
        (plain(29), 5, "29 requests are few: below 30"),
        (
            plain(40, repeated_4grams={"written": 0.25, "prompts": 0.05}),
            1,
            "25.0% of the written 4-grams .* flatters every drafter",
        ),
        (with_lengths(np.zeros((440, 1)), [45] + [5] * 79, width=1), 1, "request 0 holds 10% of the anchors"),
    ],
)
def test_each_rule_warns_alone(trace, nodes, words):
    (found,) = advice(trace, nodes)
    assert re.match(words, found), found
    assert advice(plain(30, repeated_4grams={"written": 0.15, "prompts": 0.05}), nodes=6) == ()  # enough data


def of_domains(shares: np.ndarray, each: int, *, seed: int = 0) -> Trace:
    """Requests of a drafter that is right so often, by domain."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(shares)), each)
    rank = np.where(rng.random((len(labels), 10)) < shares[labels, None], 0, -1)
    trace = with_lengths(rank.reshape(-1, 1), [10] * len(labels), width=1)
    return replace(trace, domain=labels.astype(np.int16), domain_names=tuple(map(str, range(len(shares)))))


def test_requests_of_one_domain_that_resemble_each_other():
    """Clusters of m requests whose values correlate by rho have 1 + (m - 1) rho times the variance (Kish 1965, 5.4)."""
    shares = np.tile([0.2, 0.8], 30)
    trace = of_domains(shares, 40)
    (found,) = resemblance(trace)
    counts = replay_tree(Tree.chain(1), trace)
    mean = counts.committed / counts.steps
    within = np.mean([mean[trace.domain == label].var() for label in range(60)])
    due = math.sqrt(1 + 39 * (1 - within / mean.var()))
    told = re.match(
        "requests of one domain .* by the 60 domains, that of tau is (.*) times as wide as by request", found
    )
    assert float(told[1]) == pytest.approx(due, rel=0.1)
    shuffled = np.random.default_rng(0).permutation(trace.domain)
    assert resemblance(replace(trace, domain=shuffled)) == ()
    (few,) = resemblance(of_domains(shares[:4], 40))
    assert few.startswith("intervals hold for new requests of these 4 domains only: too few to show")
    assert resemblance(of_domains(np.ones(60), 40)) == ()  # no spread
    assert resemblance(replace(trace, domain=None, domain_names=())) == ()


# --- more requests


@given(st.floats(0.5, 20), st.floats(1e-3, 2), st.integers(2, 300), st.floats(2e-3, 2))
def test_the_fewest_requests_that_do(value, relative, requests, target):
    half = value * relative
    more = requests_needed(Estimate(value, value - half, value + half), requests, target)

    def width(number: int) -> float:
        quantile = stats.t.ppf(0.975, number - 1) / stats.t.ppf(0.975, requests - 1)
        return relative * quantile * math.sqrt(requests / number)

    assert more >= 0
    assert width(requests + more) <= target * (1 + 1e-6)
    assert more == 0 or width(requests + more - 1) > target * (1 - 1e-6)


def test_nothing_more_is_needed_for_what_is_there():
    assert requests_needed(Estimate(2.0, 1.98, 2.02), requests=100, target=0.01) == 0
    assert requests_needed(Estimate(2.0, 2.0, 2.0), requests=5, target=0.01) == 0


def test_requests_that_are_said_to_do_do():
    # 60 requests foretell a spread to 10 % (1 / sqrt(2 · 59), normal influences), the width likewise: of 200 draws,
    # the mean of obtained over wanted is 1 up to 0.01 + curvature, each within 40 % (four deviations, 6e-5 a draw).
    rng = np.random.default_rng(7)

    def drawn(requests: int) -> Estimate:
        steps = rng.integers(20, 60, requests)
        return ratio(rng.poisson(steps * rng.uniform(2, 4, requests)), steps)

    widths = []
    for _ in range(200):
        total = 60 + requests_needed(drawn(60), 60, target=0.02)
        assert total > 60
        widths.append(drawn(total).relative / 0.02)
    assert 0.97 < np.mean(widths) < 1.05
    assert min(widths) > 0.6
    assert max(widths) < 1.4


def test_targets_without_meaning_and_estimates_that_foretell_nothing_are_refused():
    for target in (0.0, math.nan):
        with pytest.raises(UsageError, match="must be at least 1e-06"):
            requests_needed(Estimate(2.0, 1.9, 2.1), 10, target)
    for estimate, requests in ((Estimate(2.0, 1.9, 2.1), 1), (Estimate(2.0, -math.inf, math.inf), 5)):
        with pytest.raises(TraceError, match="at least 2 requests"):
            requests_needed(estimate, requests, 0.1)
