"""The verdict: its choice, its assumption where confidences are missing, and its record."""

import numpy as np
import pytest

from simulate.profiles.profile import BatchTimes, Profile
from simulate.runs import verdict_record as verdict_record_module
from simulate.runs.simulate_settings import VerdictSettings
from simulate.runs.verdict_record import chosen, compare_lengths, with_assumed_confidences
from tests.helpers.strategies import drawn_trace, with_lengths
from treeopt.replay.static_tree import replay_tree
from treeopt.results.kinds import RESULTS
from treeopt.traces.drafter_confidence import reliability
from treeopt.tree import Tree

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(verdict_record_module, "MOST", 200)


def profile_of(token_s):
    """Each drafted token of a request costs `token_s` to verify; drafting takes 0.1 for any length."""
    rest = ((1, 1.0), (5, 1.0 + 4 * token_s))
    times = [BatchTimes(batch, 1.0, ((1, 0.1), (4, 0.1)), rest) for batch in (1, 8)]
    return Profile(tuple(times), (0, 9), 0.0, {"predicted": True})


def made_trace(accepted):
    """A trace of a chain whose steps have these acceptances by text."""
    return drawn_trace([[rate] for rate in accepted], [40] * 24, depth=4, rng=RNG)


@pytest.mark.parametrize(
    ("accepted", "token_s", "verdict"),
    [
        ([0.05], 1.0, "none"),
        ([0.9], 0.01, "fixed"),  # every token is worth its verification
    ],
)
def test_the_simplest_of_the_fastest_is_the_verdict(accepted, token_s, verdict):
    record = compare_lengths(made_trace(accepted), profile_of(token_s), {1: 0.5, 8: 0.5}, VerdictSettings(adaptive_s=0))
    assert [load["verdict"] for load in record["loads"]] == [verdict] * 2
    assert record["overall"]["verdict"] == verdict
    assert RESULTS["verdict"].of_record(record | {"meta": {}}) is not None


def test_adaptive_verification_wins_where_steps_differ_and_verification_is_dear():
    """Half of the chains are right throughout, and the drafter knows which."""
    right = np.repeat(RNG.random((960, 1)) < 0.5, 4, axis=1)
    trace = with_lengths(np.where(right, 0, -1), [40] * 24, width=1)
    known = type(trace)(
        trace.request, trace.position, trace.rank, 1, {"confidence": "head"}, confidence=right.astype(np.float16)
    )
    record = compare_lengths(known, profile_of(0.4), {8: None}, VerdictSettings(adaptive_s=0))
    assert record["loads"][0]["verdict"] == "adaptive"
    assert record["warnings"] == []
    assert record["overall"] is None


def test_assumed_confidences_keep_acceptance_by_position_and_are_calibrated():
    """25 600 steps: standard errors of survival are below 0.004; calibration is off by less than 0.02 (ten bins)."""
    trace = made_trace([0.9, 0.5])
    made = with_assumed_confidences(trace, 0)
    counts = replay_tree(Tree.chain(4), trace).accepted_counts
    survival = counts[::-1].cumsum()[::-1][1:] / counts.sum()
    inside = made.left >= 4
    ranks = np.logical_and.accumulate(made.rank[inside] == 0, axis=1).mean(axis=0)
    assert ranks == pytest.approx(survival, abs=0.016)
    assert reliability(made).error < 0.02


def test_the_order_of_simplicity():
    assert chosen({"none": 1.0, "fixed": 1.02, "schedule": 1.02, "adaptive": 1.0}) == "none"
    assert chosen({"none": 1.0, "fixed": 1.2, "schedule": 1.3, "adaptive": 1.32}) == "schedule"


def test_a_made_up_trace_keeps_the_lengths_of_prompts_and_texts():
    """Its prefill is that of the trace, as in `simulate`."""
    given = with_lengths(np.zeros((60, 4)), [20, 40], width=1)
    given = type(given)(given.request, given.position, given.rank, 1, {}, prompt_tokens=np.int32([300, 7]))
    made = with_assumed_confidences(given, 0)
    assert set(zip(made.lengths.tolist(), made.prompt_tokens.tolist(), strict=True)) == {(20, 300), (40, 7)}
