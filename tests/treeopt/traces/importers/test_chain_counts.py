"""Chains that were counted and figures of acceptance, as traces that replay to them; what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treeopt
from tests.helpers.command_line import done
from treeopt.errors import TraceError, UsageError
from treeopt.replay.static_tree import replay_tree, visit
from treeopt.statistics import Estimate, ratio
from treeopt.traces.importers import chain_counts
from treeopt.traces.importers.acceptance_curves import (
    acceptance,
    from_positions,
    from_sum,
    published_acceptance,
    survival,
)
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts, chain_from_steps, chain_trace, with_windows
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


def kept(histogram):
    """Steps that kept at least 1, 2, ... drafts, counted one by one."""
    return [sum(histogram[length:]) for length in range(1, len(histogram))]


# --- a trace of counts

histograms = st.lists(st.integers(0, 40), min_size=2, max_size=6).filter(lambda h: sum(h) > 0)


@given(histograms, st.integers(1, 9), st.integers(0, 99))
def test_the_chain_that_ran_replays_to_its_own_counts(histogram, requests, seed):
    chain = chain_from_counts(kept(histogram), steps=sum(histogram), draft_tokens=sum(histogram) * (len(histogram) - 1))
    trace = chain_trace(chain, requests=requests, rng=np.random.default_rng(seed), meta={})
    counts = replay_tree(Tree.chain(trace.depth), trace)
    repeats = counts.steps.sum() // sum(histogram)
    assert counts.accepted_counts.tolist() == [repeats * number for number in histogram]
    assert counts.tau == pytest.approx(chain.tau, abs=1e-12)
    assert trace.requests == min(requests, sum(histogram), max(10, sum(histogram) // 25))
    assert max(counts.steps) - min(counts.steps) <= repeats


@settings(max_examples=20)
@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=5), st.integers(0, 99))
def test_shorter_chains_replay_to_the_same_rates(conditional, seed):
    """tau of k drafts is 1 + S_1 + ... + S_k; six standard deviations, and a token for the end of each request."""
    survival = tuple(np.cumprod(conditional).tolist())
    trace = chain_trace(Chain(survival, 20_000), requests=20, rng=np.random.default_rng(seed), meta={})
    for length in range(1, len(survival) + 1):
        counts = replay_tree(Tree.chain(length), trace)
        due = 1 + sum(survival[:length])
        steps = counts.steps.sum()
        assert abs(counts.tau - due) < 6 * length / 2 / steps**0.5 + 20 * length / steps


def test_requests_and_orders_that_are_known_are_kept():
    lengths = ((3, 0, 1, 2, 1), (0, 0), (3,))
    chain = Chain((0.5, 0.375, 0.25), 8, lengths, ordered=True)
    trace = chain_trace(chain, requests=99, rng=np.random.default_rng(0), meta={"assumed": ["first"]})
    assert trace.requests == 3
    assert replay_tree(Tree.chain(3), trace).steps.tolist() == [5, 2, 1]
    starts = np.cumsum([0, *(length + 1 for length in lengths[0][:-1])])
    assert [(row == 0).sum() for row in trace.rank[starts]] == list(lengths[0])
    assert trace.meta["assumed"][0] == "first"
    assert chain_counts.BY_STEP not in trace.meta["assumed"]
    assert trace.meta["visited"] == {"length": 3, "anchors": 8, "ordered": True}
    shuffled = chain_trace(Chain((0.5, 0.375, 0.25), 8, lengths), requests=9, rng=np.random.default_rng(0), meta={})
    assert replay_tree(Tree.chain(3), shuffled).steps.tolist() == [5, 2, 1]


def test_more_steps_than_a_trace_can_hold(monkeypatch):
    monkeypatch.setattr(chain_counts, "MAX_STEPS", 1000)
    chain = Chain((0.75, 0.5), 123_456_789)
    trace = chain_trace(chain, requests=10, rng=np.random.default_rng(0), meta={})
    assert replay_tree(Tree.chain(2), trace).steps.sum() % 1000 == 0
    assert replay_tree(Tree.chain(2), trace).tau == pytest.approx(2.25, abs=1e-3)
    assert "1000 of 123456789 steps were drawn: intervals are wider than with all of them" in trace.meta["assumed"]
    monkeypatch.setattr(chain_counts, "MAX_STEPS", 10**9)
    monkeypatch.setattr(chain_counts, "MAX_BYTES", 9000)
    trace = chain_trace(chain, requests=1, rng=np.random.default_rng(0), meta={})
    assert "1000 of 123456789 steps were drawn: intervals are wider than with all of them" in trace.meta["assumed"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (((), 5), "a chain has 1 to 64 positions, found 0"),
        (((0.5, 0.6), 5), r"position 1 is accepted more often \(0.6\) than the one before it \(0.5\)"),
        (((1.5,), 5), r"position 0 must have a rate in \[0, 1\], found 1.5"),
        (((0.5,), 0), "no step was counted"),
    ],
)
def test_chains_that_are_none(words, message):
    with pytest.raises(TraceError, match=message):
        Chain(*words)


def test_drafts_of_different_lengths():
    few = chain_from_counts([50, 20], steps=100, draft_tokens=198)
    assert few.survival == (0.5, 0.2)
    assert "1.0% of the tokens that steps of 2 would have were not drafted" in few.assumed[0]
    with pytest.raises(TraceError, match=r"150 tokens were drafted in 100 steps of up to 2.*--uneven"):
        chain_from_counts([50, 20], steps=100, draft_tokens=150)
    assert chain_from_counts([50, 20], steps=100, draft_tokens=150, uneven=True).survival == (0.5, 0.2)
    known = chain_from_counts([50, 20], steps=100, drafted=[100, 50])
    assert known.survival == (0.5, 0.4)
    assert "each position's rate is a share of the steps that drafted it" in known.assumed[0]
    assert chain_from_counts([50, 20], steps=100, drafted=[100, 50], uneven=True).survival == (0.5, 0.2)
    assert chain_from_counts([50, 20], steps=100, drafted=[100, 100, 0]).survival == (0.5, 0.2)
    assert chain_from_counts([50], steps=100, drafted=[100, 100]).survival == (0.5, 0.0)
    assert chain_from_counts([50], steps=100, draft_tokens=300).survival == (0.5, 0.0, 0.0)
    for accepted, drafted, message in [
        ([50, 40], [100, 50], r"0.500, 0.800: drafts were longer where they were better"),
        ([50, 60], [100, 50], "position 1: at most 50 can be accepted, found 60"),
        ([50, 20], [100, 120], "position 1: at most 100 can be drafted, found 120"),
        ([50, 20], [100], "2 positions are accepted, 1 drafted"),
    ]:
        with pytest.raises(TraceError, match=message):
            chain_from_counts(accepted, steps=100, drafted=drafted)


# --- few steps


def estimated(trace: Trace, length: int) -> Estimate:
    counts = replay_tree(Tree.chain(length), trace)
    return ratio(counts.committed.astype(float), counts.steps.astype(float))


@pytest.mark.parametrize("steps", [50, 100, 200, 500, 10_000])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_tau_of_the_chain_that_ran_is_the_counters_own(length, steps):
    accepted = [steps * (9 - position) // 10 for position in range(length)]
    trace = chain_trace(chain_from_counts(accepted, steps=steps), rng=np.random.default_rng(steps), meta={})
    assert replay_tree(Tree.chain(length), trace).tau == pytest.approx(1 + sum(accepted) / steps, rel=1e-12)
    assert trace.requests >= 10


def test_shorter_chains_of_few_steps_are_not_biased():
    """Rates 0.8, 0.6, 0.4 of 100 steps: the mean over 40 drawings lies within 1 % of 1.8 and 2.4 (0.3 % by chance)."""
    chain = chain_from_counts([80, 60, 40], steps=100)
    traces = [chain_trace(chain, rng=np.random.default_rng(seed), meta={}) for seed in range(40)]
    for length, expected in ((1, 1.8), (2, 2.4)):
        assert np.mean([replay_tree(Tree.chain(length), trace).tau for trace in traces]) == pytest.approx(
            expected, rel=0.01
        )
        assert all(found.low < expected < found.high for found in (estimated(trace, length) for trace in traces))


def test_an_interval_is_that_of_the_steps_that_were_counted():
    """As wide as that of a mean of independent steps, within the chance of 20 texts; repeating adds no knowledge."""
    chain = chain_from_counts([400, 300, 200], steps=500)
    accepted = np.repeat([0, 1, 2, 3], [100, 100, 100, 200])
    expected = 1.96 * accepted.std(ddof=1) / 500**0.5
    found = [estimated(chain_trace(chain, rng=np.random.default_rng(seed), meta={}), 3) for seed in range(20)]
    assert np.mean([(each.high - each.low) / 2 for each in found]) == pytest.approx(expected, rel=0.15)


def test_windows_that_differ_make_wide_intervals():
    """20 windows of 100 steps whose rate is 0.3 or 0.7: their difference is known, and belongs to the interval."""
    rates = [0.3, 0.7] * 10
    chain = with_windows(Chain((0.5,), 2000), [((rate,), 100) for rate in rates])
    trace = chain_trace(chain, rng=np.random.default_rng(0), meta={})
    found = estimated(trace, 1)
    assert (trace.requests, found.value) == (20, pytest.approx(1.5))
    assert (found.high - found.low) / 2 == pytest.approx(2.093 * 0.2 * (20 / 19) ** 0.5 / 20**0.5, rel=0.01)
    assert chain_counts.BY_WINDOW.format(20) in trace.meta["assumed"]
    few = with_windows(Chain((0.5,), 200), [((rate,), 10) for rate in rates])
    assert chain_counts.BY_STEP in chain_trace(few, rng=np.random.default_rng(0), meta={}).meta["assumed"]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "steps"), [(1, 50), (3, 50), (7, 50), (3, 200), (7, 200), (3, 1000)])
def test_intervals_cover_the_truth(length, steps):
    """95 % intervals of the chain that ran hold the true tau in 92 to 98 % of 600 random chains.

    Of 600 chains a share of 0.95 has a standard error of 0.9 points: 3 points have a probability below 0.001.
    """
    rng, covered = np.random.default_rng(7), 0
    for _ in range(600):
        survival = np.cumprod(rng.uniform(0.35, 0.95, length))
        histogram = rng.multinomial(steps, -np.diff([1.0, *survival, 0.0]))
        trace = chain_trace(chain_from_counts(kept(histogram.tolist()), steps=steps), rng=rng, meta={})
        found = estimated(trace, length)
        covered += found.low <= 1 + survival.sum() <= found.high
    assert 0.92 <= covered / 600 <= 0.98


# --- records of steps


def test_an_ordered_record_is_held_exactly():
    """The walk of the chain that ran visits the recorded anchors, in order; steps without a draft accept nothing."""
    record = ((2, 0, 1), (3,), (0, 0))
    drafted = ((3, 0, 3), (3,), (3, 0))
    chain = chain_from_steps(record, drafted=drafted)
    assert (chain.steps, chain.drafted, chain.survival) == (6, drafted, (3 / 6, 2 / 6, 1 / 6))
    trace = chain_trace(chain, rng=np.random.default_rng(0), meta={})
    walk = visit(Tree.chain(3), trace)
    assert walk.accepted.tolist() == [2, 0, 1, 3, 0, 0]
    assert walk.anchors.tolist() == [0, 3, 4, 6, 10, 11]
    assert trace.meta["visited"] == {"length": 3, "anchors": 6, "ordered": True}
    assert trace.anchors == 12
    assert not any("stands" in sentence for sentence in trace.meta["assumed"])


@pytest.mark.parametrize(
    ("requests", "more", "message"),
    [
        ([], {}, "no step was counted"),
        ([(1, 2)], {"depth": 1}, "a step has 2 drafts, more than the depth of 1"),
        ([(1, 2)], {"drafted": [(1, 1)]}, "request 0, step 1 accepted 2 of 1 drafts"),
        ([(1, 2)], {"drafted": [(1, 2), (1,)]}, "one entry for each step"),
    ],
)
def test_records_that_contradict_themselves(requests, more, message):
    with pytest.raises(TraceError, match=message):
        chain_from_steps(requests, **more)


def test_acceptance_of_nothing_is_said_loudly():
    none = chain_trace(Chain((0.0, 0.0), 300), rng=np.random.default_rng(0), meta={})
    assert none.meta["assumed"][0].startswith("NO DRAFT WAS ACCEPTED in 300 steps: ")
    assert replay_tree(Tree.chain(2), none).tau == 1.0
    some = chain_trace(Chain((0.01, 0.0), 300), rng=np.random.default_rng(0), meta={})
    assert not any("NO DRAFT" in sentence for sentence in some.meta["assumed"])


def tau(trace, length):
    counts = replay_tree(Tree.chain(length), trace)
    return ratio(counts.committed, counts.steps, trace.domain)


@given(st.floats(-3, 3), st.floats(-1, 2), st.integers(1, 12))
def test_the_law(level, slope, length):
    by_hand, alive = [], 1.0
    for k in range(1, length + 1):
        alive *= 1 / (1 + np.exp(-(level - slope * np.log(k))))
        by_hand.append(alive)
    assert survival(level, slope, length) == pytest.approx(by_hand)


@given(st.floats(0.02, 0.98), st.integers(1, 8))
def test_a_sum_holds_on_every_curve_and_its_ends_enclose_the_others(mean, drafted):
    curves = from_sum(lambda curve: float(curve[:drafted].sum()), mean * drafted, 8)
    for curve in (curves.expected, curves.faster, curves.slower):
        assert curve[:drafted].sum() == pytest.approx(mean * drafted, abs=1e-6)
        assert (np.diff(curve) <= 0).all()
    assert curves.faster[-1] <= curves.expected[-1] <= curves.slower[-1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(lambda rates: np.cumprod(rates).tolist()))
def test_given_positions_are_kept(rates):
    curves = from_positions(rates, 10)
    for curve in (curves.expected, curves.faster, curves.slower):
        assert curve[: len(rates)].tolist() == rates
        assert (np.diff(curve) <= 1e-12).all()


@pytest.mark.parametrize(
    ("figure", "length", "expected"),
    [
        ("0.48@3", 3, 1 + 3 * 0.48),
        ("48%@3", 3, 1 + 3 * 0.48),
        ("0.08@7", 7, 1 + 7 * 0.08),
        ("0.26@8", 8, 1 + 8 * 0.26),
        ("0.73,0.52,0.35", 3, 2.60),
        ("0.73 / 0.52 / 0.35", 3, 2.60),
        ([0.8, 0.6, 0.4], 2, 2.40),
        ("kimi-k3-dspark", 8, 4.00),
        ("Kimi-K3-DSpark", 8, 4.00),
        (1.0, 8, 9.0),
        (0, 8, 1.0),
    ],
)
def test_replay_gives_the_figure_back(figure, length, expected):
    assert tau(acceptance(figure), length).value == pytest.approx(expected, rel=0.005)


def test_lengths_and_shares_of_drafted_tokens_count_the_bonus():
    trace = acceptance(accepted_length="3.2@5")
    assert tau(trace, 5).value == pytest.approx(3.2, rel=0.005)
    card = acceptance(accepted_length="1.86, 2.56, 3.08, 3.53, 3.73")
    assert [tau(card, k).value for k in (1, 3, 5)] == pytest.approx([1.86, 3.08, 3.73], rel=0.005)
    assert tau(trace, 5).relative < 0.01 < tau(trace, 2).relative
    assert "accepted, 16 drafted a step: 13 tokens per step, bonus counted" in acceptance("0.75@16").meta["assumed"][0]


def test_what_a_figure_leaves_open_is_in_the_interval():
    trace = acceptance("0.8,0.6,0.4")
    assert tau(trace, 3).relative < 0.01
    assert 0.05 < tau(trace, 6).relative < tau(trace, 8).relative


def test_published_lengths_lie_in_the_interval_that_their_length_at_3_gives():
    inside = []
    for published in published_acceptance().values():
        curves = from_sum(lambda curve: float(curve[:3].sum()), published[2] - 1, 8)
        ends = 1 + np.cumsum([curves.faster, curves.slower], axis=1)
        for value, low, high in zip(published, ends.min(axis=0), ends.max(axis=0), strict=False):
            inside.append(low * 0.98 <= value <= high * 1.02)  # published lengths are rounded and noisy
    assert len(inside) > 80
    assert np.mean(inside) >= 0.93


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"figure": "1.2"}, "position 0 must be in 0 to 1"),
        ({"figure": "0.5,0.6"}, "if each is given the one before, they are 0.5,0.3"),
        ({"figure": "1.0,0.8,0.6"}, "leave out the 1 of the step itself"),
        ({"figure": "2.8"}, "tokens per step are --accepted-length L@K"),
        ({"figure": "0.5@99"}, "behind @ stands the number of draft tokens, 1 to 64"),
        (
            {"figure": "gpt-oss"},
            r"'gpt-oss' is no figure of acceptance: give 0.75 .*published_acceptance\(\)`: minimax-m3",
        ),
        ({"accepted_length": "3.2"}, "say of how many draft tokens: 3.2@K"),
        ({"accepted_length": "0.8,0.6"}, "1 draft token and the bonus give 1 to 2 tokens per step, got 0.8; without"),
        ({"accepted_length": "2.9,3.2,3.4"}, "1 draft token and the bonus give 1 to 2 tokens per step, got 2.9"),
        ({"accepted_length": "tau=3"}, "'tau=3' is no figure of acceptance: give 3.2@5"),
        ({"accepted_length": ",".join(["2"] * 65)}, "at most 64"),
        ({"accepted_length": "1.83 / 4"}, "is no figure of acceptance: give 3.2@5"),
        ({"accepted_length": "7@5"}, "give 1 to 6 tokens"),
        ({"accepted_length": "0.5@3"}, "without the bonus, add 1"),
    ],
)
def test_other_figures_and_lengths_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        acceptance(**words)


def test_commands_take_a_figure(tmp_path):
    times = tmp_path / "times.csv"
    times.write_text("batch,drafted,step_ms\n1,0,10\n1,1,12\n1,3,14\n")
    profile = tmp_path / "profile.json"
    done("times", times, "--device", "H100", "--context", "512-512", "--output", profile)
    figure = ("--acceptance", "0.8,0.6,0.4", "--profile", profile)
    plan = json.loads(done("search", *figure, "--batch", 1, "--json").stdout)
    chosen = plan["entries"][0]["choice"]
    assert (len(chosen["tree"]["paths"]), round(chosen["tau"]["value"], 2)) == (3, 2.8)
    assert [warning for warning in plan["warnings"] if "held out" in warning] == []
    same = treeopt.search(treeopt.acceptance("0.8,0.6,0.4"), profile, batch=1)
    assert same.entries[0].choice.tau.value == chosen["tau"]["value"]
    simulated = done("simulate", *figure, "--tree", 3, "--batch", 1).stdout
    assert "--acceptance 0.8,0.6,0.4" in simulated
    compared = done("compare", "--acceptance", 0.75, "--acceptance", "0.6", "--shapes", "chain:3").stdout
    assert "acceptance 0.75 commits the most tokens per step" in compared


def test_a_token_that_chance_accepts_always_says_little():
    """MiniMax-M3's direct curve: its fourth token is accepted more often than its third; published at 8 are 4.06."""
    curves = from_positions((0.84, 0.68, 0.445, 0.445), 8)
    low, high = sorted((1 + curves.faster.sum(), 1 + curves.slower.sum()))
    assert low < 4.06 < high < 4.5
