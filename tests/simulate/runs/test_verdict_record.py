"""The verdict: its choice, its assumption where confidences are missing, and its record."""

from dataclasses import replace

import numpy as np
import pytest

from simulate.profiles.profile import BatchTimes, Profile
from simulate.runs import verdict_record as verdict_record_module
from simulate.runs.simulate_settings import VerdictSettings
from simulate.runs.verdict_record import chosen, compare_lengths, with_assumed_confidences
from tests.helpers.strategies import drawn_trace, with_lengths
from treeopt.errors import TraceError
from treeopt.results.kinds import RESULTS
from treeopt.traces.confidence_reliability import reliability

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
    right = np.repeat(RNG.random((2400, 1)) < 0.5, 4, axis=1)
    trace = with_lengths(np.where(right, 0, -1), [40] * 60, width=1)
    known = type(trace)(
        trace.request, trace.position, trace.rank, 1, {"confidence": "head"}, confidence=right.astype(np.float16)
    )
    record = compare_lengths(known, profile_of(0.4), {8: None}, VerdictSettings(adaptive_s=0))
    assert record["loads"][0]["verdict"] == "adaptive"
    assert record["warnings"] == []
    assert record["overall"] is None


def test_assumed_confidences_keep_the_trace_and_are_calibrated():
    """25 600 steps: the rates of ten bins are off by less than 0.02; behind what is proposed, confidences are 0."""
    trace = drawn_trace([[0.7]], [128] * 200, depth=4, rng=RNG)
    made = with_assumed_confidences(trace, 0)
    assert made.rank is trace.rank
    assert reliability(made).error < 0.02
    none = replace(trace, rank=np.minimum(trace.rank, -1), drafted=np.zeros(trace.anchors, np.int16))
    assert not with_assumed_confidences(none, 0).confidence.any()


def test_confidences_behind_a_miss_do_not_know_of_it():
    """Counters mark all tokens behind a wrong one as wrong: known as such, adaptive was up to 5 % too fast."""
    right = np.cumprod(RNG.random((25_600, 4)) < 0.7, axis=1)
    made = with_assumed_confidences(with_lengths(right - 1, [128] * 200, width=1), 0)
    behind = (np.cumprod(made.rank == 0, axis=1)[:, :-1] == 0) & (made.rank[:, 1:] > -2)
    assert made.confidence[:, 1:][behind].mean(dtype=float) == pytest.approx(0.7, abs=0.02)


def test_a_shorter_chain_than_the_trace_walks_its_own_steps():
    """Half of the texts accept all: 40 tokens in 14 steps of a chain of 2; the steps of a chain of 4 would say 1.33."""
    easy = np.repeat([True, False], 40)
    trace = with_lengths(np.repeat(np.where(easy, 0, -1), 40)[:, None].repeat(4, axis=1), [40] * 80, width=1)
    trace = replace(trace, domain=easy.astype(np.int16), domain_names=("hard", "easy"))
    record = compare_lengths(trace, profile_of(0.01), {8: None}, VerdictSettings(adaptive_s=0), fixed=2)
    held = trace.split(share=0.5, rng=np.random.default_rng(0))[1]
    assert record["loads"][0]["configurations"][1]["tau"] == pytest.approx(40 / (40 - 26 * held.domain.mean()))
    assert not any("few" in warning for warning in record["warnings"])


def test_one_running_request_stands_for_as_many_texts_as_four():
    """A handful of short texts had another tau than the trace."""
    trace = made_trace(np.linspace(0.2, 0.9, 24))
    record = compare_lengths(trace, profile_of(0.1), {1: None, 4: None}, VerdictSettings(adaptive_s=0), fixed=4)
    one, four = (load["configurations"][1]["tau"] for load in record["loads"])
    assert one == pytest.approx(four)


def test_few_requests_are_warned_of_and_one_is_refused():
    few, one = made_trace([0.7]), with_lengths(np.zeros((9, 4)), [9], width=1)
    record = compare_lengths(few, profile_of(0.1), {1: None}, VerdictSettings())
    assert any("12 requests are few" in warning for warning in record["warnings"])
    with pytest.raises(TraceError, match="at least 4 requests"):
        compare_lengths(one, profile_of(0.1), {1: None}, VerdictSettings())


def test_loads_that_memory_does_not_hold_are_said():
    held = {"weights": 50, "drafter": 8, "sequence": 2, "drafted": 1, "snapshot": 1, "total": 100, "share": 1.0}
    known = profile_of(0.01)
    times = tuple(replace(each, context=5.0) for each in known.batches)
    meta = {"predicted": True, "device": "X", "memory": {"0": held, "9": held}}
    profile = replace(known, batches=times, meta=meta)
    record = compare_lengths(made_trace([0.9]), profile, {1: None, 8: None}, VerdictSettings())
    said = "X holds 6 sequences of 5 tokens with drafts of 4, and 25 without, not 8: larger loads are"
    assert f"{said} priced as if they fitted" in record["warnings"]


def test_the_order_of_simplicity():
    assert chosen({"none": 1.0, "fixed": 1.02, "schedule": 1.02, "adaptive": 1.0}) == "none"
    assert chosen({"none": 1.0, "fixed": 1.2, "schedule": 1.3, "adaptive": 1.32}) == "schedule"
