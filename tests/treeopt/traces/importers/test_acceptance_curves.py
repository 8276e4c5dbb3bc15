"""Figures of acceptance as people have them: what they stand for, what they leave open, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treeopt
from tests.helpers.command_line import done
from treeopt.errors import UsageError
from treeopt.replay.static_tree import replay_tree
from treeopt.statistics import ratio
from treeopt.traces.importers.acceptance_curves import (
    acceptance,
    from_positions,
    from_sum,
    published_acceptance,
    survival,
)
from treeopt.tree import Tree


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


def test_an_accepted_length_counts_the_bonus():
    trace = acceptance(accepted_length="3.2@5")
    assert tau(trace, 5).value == pytest.approx(3.2, rel=0.005)
    card = acceptance(accepted_length="1.86, 2.56, 3.08, 3.53, 3.73")
    assert [tau(card, k).value for k in (1, 3, 5)] == pytest.approx([1.86, 3.08, 3.73], rel=0.005)
    assert tau(trace, 5).relative < 0.01 < tau(trace, 2).relative


def test_a_share_of_the_drafted_tokens_says_the_tokens_per_step_that_it_makes():
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
    ("figure", "words"),
    [
        ("1.2", "position 0 must be in 0 to 1"),
        ("0.5,0.6", "if each is given the one before, they are 0.5,0.3"),
        ("1.0,0.8,0.6", "leave out the 1 of the step itself"),
        ("2.8", "tokens per step are --accepted-length L@K"),
        ("0.5@99", "behind @ stands the number of draft tokens, 1 to 64"),
        ("gpt-oss", r"'gpt-oss' is no figure of acceptance: give 0.75 .*published_acceptance\(\)`: minimax-m3"),
    ],
)
def test_other_figures_are_refused(figure, words):
    with pytest.raises(UsageError, match=words):
        acceptance(figure)


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ("3.2", "say of how many draft tokens: 3.2@K"),
        ("0.8,0.6", "1 draft token and the bonus give 1 to 2 tokens per step, got 0.8; without"),
        ("2.9,3.2,3.4", "1 draft token and the bonus give 1 to 2 tokens per step, got 2.9"),
        ("tau=3", "'tau=3' is no figure of acceptance: give 3.2@5"),
        (",".join(["2"] * 65), "at most 64"),
        ("1.83 / 4", "is no figure of acceptance: give 3.2@5"),
        ("7@5", "give 1 to 6 tokens"),
        ("0.5@3", "without the bonus, add 1"),
    ],
)
def test_other_lengths_are_refused(length, words):
    with pytest.raises(UsageError, match=words):
        acceptance(accepted_length=length)


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
