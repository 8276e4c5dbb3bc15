"""Objectives by their definitions, with intervals of ratios and means; steps priced along a walk."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from simulate.profiles.profile import BatchTimes, Profile
from simulate.runs.batch_record import run
from tests.helpers.strategies import with_lengths
from treeopt.defaults import HELD_OUT
from treeopt.errors import TraceError
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import LATENCY, OBJECTIVES, THROUGHPUT, WORST_DOMAIN
from treeopt.replay.static_tree import plain_share, replay_tree, step_seconds, upper_levels, visit
from treeopt.results.trace import ENTRY as TRACE
from treeopt.results.trace import describe
from treeopt.statistics import ratio
from treeopt.terminal import print_blocks
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


def trace_with(sizes: list[int], domains: list[int] | None = None) -> Trace:
    rank = np.zeros((sum(sizes), 2))
    names = ("code", "chat", "maths", "law")
    labels = None if domains is None else np.array(domains, dtype=np.int16)
    return with_lengths(rank, sizes, width=1, domain=labels, domain_names=names if domains else ())


@st.composite
def cases(draw, fewest=1):
    """Requests of three of four domains, and the steps of two walks through them."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=fewest, max_size=8))
    trace = trace_with(sizes, [draw(st.sampled_from([0, 1, 3])) for _ in sizes])
    first, second = (np.array([draw(st.integers(1, size)) for size in sizes]) for _ in range(2))
    return trace, first, second


def by_definition(name: str, steps: np.ndarray, trace: Trace) -> float:
    sizes = trace.lengths
    if name == "throughput":
        return sizes.sum() / steps.sum()
    if name == "latency":
        return 1 / np.mean(steps / sizes)
    return min(sizes[trace.domain == d].sum() / steps[trace.domain == d].sum() for d in set(trace.domain.tolist()))


@given(cases())
def test_values_are_those_of_the_definitions_and_a_token_a_step_costs_one(case):
    trace, steps, other = case
    for name, objective in OBJECTIVES.items():
        assert objective.name == name
        due = by_definition(name, steps, trace)
        assert objective.tokens(steps, trace) == pytest.approx(due, rel=1e-13)
        assert objective.estimate(steps, trace).value == pytest.approx(due, rel=1e-13)
        assert objective.share(steps, other, trace).value == pytest.approx(due / by_definition(name, other, trace))
        prices = objective.prices(trace)
        assert (prices >= 0).all()
        assert prices @ trace.lengths == pytest.approx(np.ones(len(prices)), rel=1e-13)
        assert objective.tokens(trace.lengths, trace) == pytest.approx(1, rel=1e-13)
        assert 1 / objective.tokens(steps, trace) == pytest.approx((prices @ steps).max(), rel=1e-13)


@given(cases(fewest=2))
def test_intervals_are_those_of_the_ratio_and_of_the_mean_turned_over(case):
    trace, steps, other = case
    sizes = trace.lengths
    found, due = THROUGHPUT.estimate(steps, trace), ratio(sizes, steps)
    assert (found.low, found.high) == pytest.approx((due.low, due.high), rel=1e-9)
    found, due = THROUGHPUT.share(steps, other, trace), ratio(other, steps)
    assert (found.low, found.high) == pytest.approx((due.low, due.high), rel=1e-9, abs=1e-12)
    # 1 / m to first order: its half-width is that of the mean over m²; wider where few requests take most steps.
    each = steps / sizes
    half = stats.t.ppf(0.975, len(each) - 1) * stats.sem(each) / each.mean() ** 2
    found = LATENCY.estimate(steps, trace)
    assert found.high - found.value >= half * (1 - 1e-6) - 1e-9
    many = trace_with([30] * 80)
    steps = np.random.default_rng(1).integers(8, 20, 80)
    half = stats.t.ppf(0.975, 79) * stats.sem(steps / 30) / np.mean(steps / 30) ** 2
    found = LATENCY.estimate(steps, many)
    assert found.high - found.value == pytest.approx(half, rel=1e-6, abs=1e-9)


def test_the_worst_domain_is_chosen_on_other_requests():
    """The worst of several noisy means is too low; a domain that other requests chose is not."""
    rng = np.random.default_rng(4)
    trace = trace_with([20] * 40, np.tile(np.arange(4), 10).tolist())
    same, other = [], []
    for _ in range(200):
        fit, held = (1 + rng.binomial(19, rng.beta(4, 4, 40)) for _ in range(2))
        same.append(WORST_DOMAIN.estimate(held, trace).value)
        other.append(WORST_DOMAIN.estimate(held, trace, row=WORST_DOMAIN.row(fit, trace)).value)
    truth = 20 / (1 + 19 / 2)  # 200 draws know the mean to 0.4 %; a ratio of sums over 10 requests is 1 % too high
    assert np.mean(same) < 0.93 * truth
    assert np.mean(other) == pytest.approx(truth, rel=0.03)


def test_the_interval_of_latency_covers():
    # 2000 traces of 40 requests; a covering probability of 0.95 would spread by 0.005, the linearisation may take a
    # percent: outside the range is more than 4 deviations off (false alarm 6e-5). Fixed seed.
    rng = np.random.default_rng(2)
    sizes = rng.integers(20, 60, 40)
    trace = trace_with(sizes.tolist())
    covered = 0
    for _ in range(2000):
        steps = rng.binomial(sizes, rng.beta(4, 8, 40))  # steps a token have mean 1/3
        found = LATENCY.estimate(steps, trace)
        covered += found.low <= 3 <= found.high
    assert 0.92 <= covered / 2000 <= 0.97


def test_two_walks_of_one_worst_domain_are_paired_and_of_two_are_not():
    trace = trace_with([10, 12, 10, 14], [0, 0, 1, 1])
    slow, slower = np.array([9, 8, 2, 3]), np.array([10, 10, 3, 2])
    found, due = WORST_DOMAIN.share(slow, slower, trace), ratio(slower[:2], slow[:2])
    assert (found.value, found.low, found.high) == pytest.approx((due.value, due.low, due.high))
    steady, other = np.array([9, 11, 2, 3]), np.array([3, 2, 7, 10])
    found = WORST_DOMAIN.share(steady, other, trace)
    a, b = ratio(np.array([10, 12]), steady[:2]), ratio(np.array([10, 14]), other[2:])
    assert found.value == pytest.approx(a.value / b.value)
    assert found.relative == pytest.approx(np.hypot(a.relative, b.relative))


def test_the_interval_of_a_share_is_the_bootstraps():
    # 4000 resamples of 60 requests know their standard deviation to 1.2 %; the linearisation is good to some percent.
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 60, 60)
    trace = trace_with(sizes.tolist())
    own = rng.binomial(sizes, rng.beta(6, 6, 60))
    best = rng.binomial(own, 0.7)
    for name in ("throughput", "latency"):
        found = OBJECTIVES[name].share(own, best, trace)
        price = OBJECTIVES[name].prices(trace)[0]
        picks = rng.integers(0, 60, (4000, 60))
        shares = (price * best)[picks].sum(1) / (price * own)[picks].sum(1)
        half = stats.t.ppf(0.975, 59) * shares.std()
        assert found.high - found.value == pytest.approx(half, rel=0.1)


def test_domains_without_requests_do_not_count():
    trace = trace_with([4, 6, 2], [0, 3, 3])
    assert WORST_DOMAIN.prices(trace).tolist() == [[1 / 4, 0, 0], [0, 1 / 8, 1 / 8]]
    assert WORST_DOMAIN.tokens(np.array([1, 3, 1]), trace) == 2
    part = trace.select(np.array([0]))
    assert WORST_DOMAIN.tokens(np.array([1]), part) == 4
    assert WORST_DOMAIN.estimate(np.array([1]), part).high == math.inf


def test_what_has_no_answer_is_refused():
    trace = trace_with([4, 6])
    with pytest.raises(TraceError, match="needs a trace with `domain`"):
        WORST_DOMAIN.tokens(np.array([1, 1]), trace)
    for objective in (THROUGHPUT, LATENCY):
        with pytest.raises(TraceError, match=r"of 2 requests, found \(3,\)"):
            objective.tokens(np.array([1, 1, 1]), trace)


DEPTH, REQUESTS, LENGTH = 3, 12, 30
CHAIN_S = {0: 1.0, 1: 1.25, 2: 1.5, 3: 1.75}  # a step of a chain of that length, at batch 1


def profile(batches=(1, 4)):
    times = [
        BatchTimes(batch, 1.0 * batch, ((1, 0.125), (3, 0.375)), ((2, 1.125 * batch), (4, 1.375 * batch)))
        for batch in batches
    ]
    return Profile(tuple(times), (0, 100), 0.02)


def trace(seed=0):
    """A drafter that proposes 0 to 3 tokens, 0 at half of the anchors."""
    rng = np.random.default_rng(seed)
    anchors = REQUESTS * LENGTH
    position = np.tile(np.arange(LENGTH, dtype=np.int32), REQUESTS)
    drafted = np.where(rng.random(anchors) < 0.5, 0, rng.integers(1, DEPTH + 1, anchors)).astype(np.int16)
    rank = np.where(rng.random((anchors, DEPTH)) < 0.7, 0, -1).astype(np.int16)
    rank[np.arange(DEPTH) >= drafted[:, None]] = -1
    rank[position[:, None] + np.arange(DEPTH) >= LENGTH] = -2
    request = np.repeat(np.arange(REQUESTS, dtype=np.int32), LENGTH)
    return Trace(request, position, rank, 2, drafted=drafted)


def slow_mean(tree, recorded):
    """The mean over the walk's steps, one by one."""
    walk = visit(tree, recorded)
    lengths = np.minimum(recorded.drafted[walk.anchors], tree.depth)
    return float(np.mean([CHAIN_S[length] for length in lengths.tolist()]))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_sequence_takes_the_mean_of_its_steps(depth):
    recorded, chain = trace(), Tree.chain(depth)
    counts = replay_tree(chain, recorded)
    assert counts.drafted_counts.sum() == counts.steps.sum()
    found = step_seconds(chain, profile(), batch=1, drafted=counts.drafted_counts)
    assert found == pytest.approx(slow_mean(chain, recorded), rel=1e-12)
    assert found < step_seconds(chain, profile(), batch=1)


def test_a_batch_is_interpolated_at_the_mean_proposal():
    chain, cost, drafted = Tree.chain(3), profile(), np.array([4, 0, 0, 6])
    one, two = (step_seconds(Tree.chain(k), cost, batch=4) for k in (1, 2))
    assert step_seconds(chain, cost, batch=4, drafted=drafted) == pytest.approx(0.2 * one + 0.8 * two)
    assert step_seconds(chain, cost, batch=4, drafted=np.array([5, 0, 0, 0])) == cost.plain_s(batch=4)
    whole = step_seconds(chain, cost, batch=4, drafted=np.array([0, 0, 0, 5]))
    assert whole == step_seconds(chain, cost, batch=4)


def test_always_drafting_all_costs_what_no_record_costs():
    recorded = trace()
    rank = np.where(recorded.rank == -2, -2, 0).astype(np.int16)
    always = replace(recorded, rank=rank, drafted=np.full(recorded.anchors, DEPTH, dtype=np.int16))
    plans = [search(part, profile(), batch=(1, 4)) for part in (always, replace(always, drafted=None))]
    assert plans[0].entries == plans[1].entries
    assert len(plans[0].warnings) == len(plans[1].warnings) + 1


def test_the_counts_do_not_depend_on_how_walks_are_replayed():
    recorded, chain = trace(), Tree.chain(2)
    fast, slow = Replayer(recorded, Tree.chain(3)).replay(chain), replay_tree(chain, recorded)
    for name in ("steps", "committed", "accepted_counts", "drafted_counts"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name))
    assert replay_tree(chain, replace(recorded, drafted=None)).drafted_counts is None
    assert plain_share(None) == 0
    assert plain_share(slow.drafted_counts) == np.mean(recorded.drafted[visit(chain, recorded).anchors] == 0)


def test_a_tree_is_cut_to_its_upper_levels():
    tree = Tree.from_paths([(0, 1), (2, 0), (2, 1)])
    assert upper_levels(tree, 1) == Tree.from_paths([(0,), (2,)])
    assert upper_levels(tree, 2) == tree


def test_search_and_a_run_agree():
    """Plan and simulated run price the same walk."""
    recorded, cost = trace(), profile()
    plan = search(recorded, cost, batch=1, near=0.0)
    (entry,) = plan.entries
    tree = entry.choice.tree
    fit, held = hold_out(recorded, held_out=HELD_OUT, seed=0)
    assert entry.choice.step_s == pytest.approx(slow_mean(tree, fit), rel=1e-12)
    share = np.mean(held.drafted[visit(tree, held).anchors] == 0)
    assert f"batch 1: nothing is drafted in {share:.1%} of the steps of the chosen tree" in " ".join(plan.warnings)
    for batch in (1, 4):
        timeline = run(recorded, Tree.chain(3), profile((1, 2, 3, 4)), batch=batch, fixed_shape=True)
        counts = replay_tree(Tree.chain(3), recorded)
        step_s = step_seconds(Tree.chain(3), cost, batch=batch, drafted=counts.drafted_counts)
        total_s = float(timeline.step_s.sum())
        assert total_s == pytest.approx(len(timeline.step_s) * step_s, rel=1e-9)


def test_trace_info_prints_how_often_nothing_is_proposed(capsys):
    recorded = trace()
    facts, walk = describe(recorded)["drafted"], visit(Tree.chain(3), recorded)
    assert facts == {
        "mean": round(float(recorded.drafted.mean()), 4),
        "nothing": round(float((recorded.drafted == 0).mean()), 4),
        "nothing_in_steps": round(float((recorded.drafted[walk.anchors] == 0).mean()), 4),
    }
    print_blocks(TRACE.blocks(recorded), Console(width=200), verbose=True)
    assert f"none at {facts['nothing']:.1%} of positions" in capsys.readouterr().out
    assert "drafted" not in describe(replace(recorded, drafted=None))
