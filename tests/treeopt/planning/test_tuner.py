"""The tuner: what it asks for, when it ends, and how far its choice is from the best of known engines."""

from itertools import pairwise

import numpy as np
import pytest

from treeopt.errors import UsageError
from treeopt.planning.tuner import FIRST, MOST, NEAR, Result, Setting, Tuner

REQUESTS, TOKENS = 6, 47


def result(setting, *, alpha, noise, rng, seed=0, interrupted=()):
    """Measure as an engine would whose drafted tokens are accepted with probability alpha, the same in every draft."""
    steps, tokens, reached = {}, {}, np.zeros(setting.draft, dtype=int)
    for number in range(REQUESTS):
        request = 1000 * setting.round + 10 * setting.batch + number
        coins, left, count = np.random.default_rng([seed, request]), TOKENS, 0
        while left > 0:
            accepted = 0
            while accepted < setting.draft and coins.random() < alpha:
                accepted += 1
            accepted = min(accepted, left - 1)
            left, count = left - accepted - 1, count + 1
            reached[:accepted] += 1
        steps[request], tokens[request] = count, TOKENS
    step_s = step_of(setting.draft) * float(np.exp(noise * rng.standard_t(3)))
    if (setting.batch, setting.draft, setting.round) in interrupted:
        step_s /= 200
    return Result(step_s, steps, tokens, tuple(reached.tolist()))


def step_of(draft):
    return 0.010 + (0.003 + 0.002 * draft) * (draft > 0)


def rate_of(draft, alpha):
    return sum(alpha**k for k in range(draft + 1)) / step_of(draft)


def tuned(alpha, noise, seed, *, interrupted=(), **settings):
    rng, tuner = np.random.default_rng(seed), Tuner((1, 4), range(7), seed=seed, **settings)
    asked = []
    while (setting := tuner.ask()) is not None:
        asked.append(setting)
        tuner.tell(setting, result(setting, alpha=alpha, noise=noise, rng=rng, seed=seed, interrupted=interrupted))
    return tuner, asked


def chosen(tuner):
    return {verdict.batch: verdict for verdict in tuner.verdicts() if verdict.chosen}


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.7])
def test_the_choice_is_near_the_best_and_its_speedup_is_right(alpha):
    best = max(rate_of(draft, alpha) for draft in range(7))
    tuner, _ = tuned(alpha, 0.01, seed=3)
    assert tuner.decided
    for verdict in chosen(tuner).values():
        assert rate_of(verdict.draft, alpha) > 0.95 * best
        truth = rate_of(verdict.draft, alpha) / rate_of(0, alpha)
        assert verdict.speedup.low * 0.95 <= truth <= verdict.speedup.high * 1.05


def test_no_speculation_is_found_where_it_is_the_fastest():
    tuner, _ = tuned(0.2, 0.02, seed=1)
    assert [verdict.draft for verdict in chosen(tuner).values()] == [0, 0]


def test_slow_lengths_are_left_out_and_the_choice_is_measured_most_often():
    tuner, asked = tuned(0.7, 0.04, seed=6)
    rounds = {draft: len({s.round for s in asked if (s.batch, s.draft) == (1, draft)}) for draft in range(7)}
    assert min(rounds.values()) == FIRST < max(rounds.values())  # the slow ones are too slow from the beginning
    assert rounds[chosen(tuner)[1].draft] == rounds[0] == max(rounds.values())


def test_lengths_that_are_as_fast_as_each_other_are_not_told_apart():
    tuner, _ = tuned(0.7, 0.02, seed=2)
    near = [v for v in tuner.verdicts() if v.decided and not v.chosen and v.behind.high > 1 + NEAR]
    best = max(rate_of(draft, 0.7) for draft in range(7))
    assert near
    assert all(rate_of(verdict.draft, 0.7) > 0.9 * best for verdict in near)
    assert tuner.rounds < MOST


@pytest.mark.parametrize("differs", [False, True])
def test_acceptance_is_that_of_all_batch_sizes_unless_one_contradicts_it(differs):
    rng, tuner = np.random.default_rng(0), Tuner((1, 4), (0, 3))
    while (setting := tuner.ask()) is not None:
        alpha = 0.1 if differs and setting.batch == 4 else 0.7
        tuner.tell(setting, result(setting, alpha=alpha, noise=0.01, rng=rng))
    few, many = (verdict.tau for verdict in tuner.verdicts() if verdict.draft)
    assert (few == many) is not differs
    if differs:
        assert few.value == pytest.approx(sum(0.7**k for k in range(4)), rel=0.1)
        assert many.value == pytest.approx(sum(0.1**k for k in range(4)), rel=0.1)


def test_one_absurd_round_does_not_change_the_choice_nor_make_an_interval_negative():
    best = max(rate_of(draft, 0.6) for draft in range(7))
    tuner, _ = tuned(0.6, 0.01, seed=5, interrupted={(1, 6, 1)})
    assert rate_of(chosen(tuner)[1].draft, 0.6) > 0.95 * best
    assert all(verdict.speedup.low > 0 for verdict in tuner.verdicts())


def test_three_launches_where_each_runs_one_length():
    tuner, asked = tuned(0.7, 0.01, seed=4, one_launch=False)
    lengths = list(dict.fromkeys(s.draft for s in sorted(asked, key=lambda s: (s.round, s.draft > 0, -s.draft))))
    assert lengths[:2] == [0, 6]
    assert len(lengths) == 3
    states = {verdict.draft: verdict.rounds for verdict in tuner.verdicts() if verdict.batch == 1}
    assert sorted(states) == list(range(7))  # the others are predicted
    assert [draft for draft, rounds in states.items() if not rounds] == sorted(set(range(7)) - set(lengths))
    best = max(rate_of(draft, 0.7) for draft in range(7))
    assert rate_of(chosen(tuner)[1].draft, 0.7) > 0.9 * best


def launches_of(asked):
    """How often an engine is launched that holds one of plain decoding and drafts."""
    kinds = [setting.draft > 0 for setting in asked]
    return 1 + sum(a != b for a, b in pairwise(kinds))


def test_plain_decoding_comes_first_and_last_where_launches_cannot_take_turns():
    tuner, asked = tuned(0.6, 0.01, seed=7, takes_turns=False)
    assert launches_of(asked) == 3
    assert (asked[0].draft, asked[-1].draft) == (0, 0)
    assert tuner.rounds == FIRST
    assert launches_of(tuned(0.6, 0.01, seed=7)[1]) > 6


def test_what_was_not_asked_for_and_results_without_sense_are_refused():
    tuner = Tuner((1,), (0, 1))
    setting = tuner.ask()
    with pytest.raises(UsageError, match="was not asked for"):
        tuner.tell(Setting(9, 9, 9), Result(1.0, {0: 1}, {0: 1}))
    with pytest.raises(UsageError, match="a step time above 0"):
        tuner.tell(setting, Result(0.0, {0: 1}, {0: 1}))
    for arguments in ({"batches": (), "drafts": (0, 1)}, {"batches": (1,), "drafts": (1, 2)}):
        with pytest.raises(UsageError, match="tuning needs"):
            Tuner(**arguments)
