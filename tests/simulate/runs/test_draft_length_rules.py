"""Draft lengths while serving, against forty lines written before the product's; the verdict; running requests."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.profiles.profile import BatchTimes, Profile, load_profile
from simulate.runs import verdict_record as verdict_record_module
from simulate.runs.batch_record import run
from simulate.runs.draft_length_rules import Budgeted, Confident, StepTimes, length_rule, survivals, times_of
from simulate.runs.length_server import LengthDecoding, run_lengths
from simulate.runs.run_costs import PromptSettings
from simulate.runs.server import serve_day
from simulate.runs.server_load import LOADS, Workload, read_running
from simulate.runs.simulate_settings import VerdictSettings
from simulate.runs.verdict_record import chosen, compare_lengths, with_assumed_confidences
from tests.helpers.adaptive_forty_lines import seconds_and_steps
from tests.helpers.strategies import drawn_trace, trace_of, traces, with_lengths
from treeopt.errors import CostError, TraceError, UsageError
from treeopt.results.kinds import RESULTS
from treeopt.storage.user_files import shipped
from treeopt.traces.confidence_reliability import reliability
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree

PROFILE = load_profile(shipped("profiles/medusa-cpu.json"))


def decoding_of(trace, text, *, rows, times=None, survival=None, **rule):
    depth = rule.pop("depth", trace.depth)
    make = partial(length_rule, text, depth=depth, lengths=lambda: [depth] * rows, **rule)
    known = survivals(trace, text, make().depth)[0] if survival is None else survival
    decoding = LengthDecoding(trace, make, known, PROFILE, rows=rows, pad=True)
    decoding.times = times or decoding.times
    return decoding


@settings(deadline=None)
@given(
    trace=traces(requests=(1, 6), length=12, depth=3),
    rows=st.integers(1, 3),
    oracle=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_adaptive_verification_equals_forty_lines(trace, rows, oracle, seed):
    """Seconds, requests, verified and committed tokens of every step; with an oracle's confidences and any others."""
    rng, depth = np.random.default_rng(seed), trace.depth
    draft_s = np.append(0, np.sort(rng.random(rows))) + 0.1
    verify_s = np.cumsum(rng.choice([0.0, 0.25, 1.0], rows * (depth + 1) + 1)) + 1
    right = np.logical_and.accumulate(trace.rank == 0, axis=1)
    confidence = right.astype(float) if oracle else rng.choice([0.25, 0.5, 0.75, 0.875, 1.0], right.shape)

    def times(requests, context):
        return StepTimes(0.0, np.full(depth + 1, draft_s[requests]), verify_s[requests : requests * (depth + 1) + 1])

    decoding = decoding_of(trace, "adaptive", rows=rows, times=times, survival=np.cumprod(confidence, axis=1))
    work = Workload(np.zeros(trace.requests), np.arange(trace.requests), trace.lengths)
    timeline = serve_day(decoding, work, rows=rows).timeline
    spans = [slice(*span) for span in zip(trace.starts, trace.stops, strict=True)]
    total_s, steps = seconds_and_steps(
        [confidence[span].tolist() for span in spans],
        [right[span].sum(axis=1).tolist() for span in spans],
        rows=rows,
        draft_s=draft_s.tolist(),
        verify_s=verify_s.tolist(),
    )
    assert timeline.total_s == pytest.approx(total_s, rel=1e-12)
    assert timeline.occupancy.tolist() == [requests for requests, *_ in steps]
    assert timeline.committed.tolist() == [committed for *_, committed in steps]
    seconds = [draft_s[requests] + verify_s[requests + budget] for requests, budget, _ in steps]
    assert timeline.step_s == pytest.approx(seconds)


@settings(deadline=None)
@given(
    trace=traces(requests=(1, 6), length=12, depth=3), rows=st.integers(1, 3), length=st.integers(0, 3), data=st.data()
)
def test_stretches_of_one_length_equal_its_single_steps(trace, rows, length, data):
    arrived_s = np.sort(data.draw(st.lists(st.floats(0, 2), min_size=trace.requests, max_size=trace.requests)))
    work = Workload(arrived_s, np.arange(trace.requests), trace.lengths)
    length = min(length, trace.depth)
    decoding = decoding_of(trace, f"fixed:{length}" if length else "none", rows=rows)
    together = serve_day(decoding, work, rows=rows).timeline
    decoding.length = None
    single = serve_day(decoding, work, rows=rows).timeline
    assert (together.steps == single.steps).all()
    assert together.occupancy.tolist() == single.occupancy.tolist()
    for name in ("admitted_s", "first_s", "done_s", "share_s", "gap_s", "started_s", "step_s"):
        assert getattr(together, name) == pytest.approx(getattr(single, name), abs=1e-9)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_fixed_lengths_take_the_steps_of_static_chains(length):
    """At batch 1 and 4, where the profile was measured; steps differ by what committed tokens cost, below 2 %."""
    trace = load_trace(shipped("traces/medusa-t0.npz")).select(np.arange(40))
    prompts = PromptSettings(prefill_s=0.0).on(trace, PROFILE)
    for batch in (1, 4):
        text = f"fixed:{length}" if length else "none"
        timeline = run_lengths(decoding_of(trace, text, rows=batch), prompts, batch=batch)
        static = run(trace, Tree.chain(length), PROFILE, batch=batch, pad=True)
        assert (timeline.steps == static.steps).all()
        assert timeline.occupancy.tolist() == static.occupancy.tolist()
        assert timeline.ttft_s == pytest.approx(static.ttft_s, rel=0.05)  # from when a request's row is free
        assert timeline.total_s == pytest.approx(static.total_s, rel=0.02)


def test_an_oracle_is_never_slower_than_the_best_fixed_length():
    """It verifies right tokens alone; one stale step at each request's beginning is within 2 %."""
    trace = drawn_trace([[0.7]], [64] * 30, depth=5, rng=np.random.default_rng(0))
    prompts = PromptSettings(prefill_s=0.0).on(trace, PROFILE)
    total = {
        text: run_lengths(decoding_of(trace, text, rows=16), prompts, batch=16).total_s
        for text in ("oracle", "none", *(f"fixed:{length}" for length in range(1, 6)))
    }
    assert total["oracle"] < 1.02 * min(total.values())


def test_a_schedule_changes_with_hysteresis_and_pays_for_it():
    rule = length_rule("schedule:3@2,0", depth=4, lengths=list, hysteresis=1, switch_s=0.5)
    chosen = [rule.choose(np.ones((n, 3)), np.ones((n, 3)), None) for n in (1, 3, 2, 1)]
    assert [one.levels for one in chosen] == [3, 0, 0, 3]
    assert [one.extra_s for one in chosen] == [0.0, 0.5, 0.0, 0.5]


def test_a_switch_goes_off_for_good_when_the_last_requests_accepted_too_little():
    rule = length_rule("switch:4,2.0@2", depth=4, lengths=list)
    levels = []
    for tokens in (30, 15, 12, 90, 90):
        levels.append(rule.choose(np.ones((1, 4)), np.ones((1, 4)), None).levels)
        rule.ended(tokens, 10)
    assert levels == [4, 4, 4, 0, 0]


def test_llama_cpp_drafts_until_its_confidence_falls():
    live = np.cumprod([[0.9, 0.8, 0.3, 0.9], [0.4, 1, 1, 1]], axis=1)
    chosen = Confident(4, 0.5).choose(live, live, None)
    assert (chosen.lengths.tolist(), chosen.levels) == ([2, 0], 3)


def test_a_budget_is_that_of_the_earlier_step_and_goes_to_the_best_present_tokens():
    times = StepTimes(1.0, np.zeros(3), np.array([1.0, 1.2, 1.4, 9.0, 9.0]))
    aged, live = np.array([[0.9, 0.1], [0.8, 0.1]]), np.array([[0.2, 0.1], [0.9, 0.8]])
    assert Budgeted(2, 1).choose(live, aged, times).lengths.tolist() == [0, 2]


def test_prices_lie_between_those_of_chains():
    times = times_of(PROFILE, 4)(4, None)
    chain = PROFILE.parts(batch=4, tokens=5, depth=4, width=1)
    assert times.verify_s[[4, 16]] == pytest.approx(chain.verify_s[[2, 5]])
    assert times.draft_s[4] == pytest.approx(chain.draft_s[:, 1].sum())
    assert times.plain_s == PROFILE.plain_s(batch=4)


def test_a_load_whose_padded_tokens_have_no_cost_is_priced_as_the_next_batch():
    """A total padded to 256 is more than the 64 tokens per sequence of the profile at batch 3, not at batch 4."""
    padded = replace(PROFILE, captured=(256,))
    with pytest.raises(CostError, match="chain of 4 tokens at batch 3 has no cost"):
        times_of(padded, 4)(3, None)
    assert times_of(padded, 4, pad_to=4)(3, None).verify_s[-1] == times_of(padded, 4)(4, None).verify_s[-1]


def test_calibrated_confidences_are_right_on_average():
    """The fit's gradient is 0: at each position the mean confidence is the share of right tokens, but for the pull."""
    rng = np.random.default_rng(1)
    true = rng.beta(2, 1, (4000, 1))
    trace = trace_of([[[0 if rng.random() < p else -1] for p in true[:, 0]]], width=1)
    trace = type(trace)(trace.request, trace.position, trace.rank, 1, confidence=(true**3).astype(np.float16))
    assert survivals(trace, "adaptive", 1)[0].mean() == pytest.approx((trace.rank == 0).mean(), abs=1e-3)


NO_SCHEDULES = ["schedule:3@x", "schedule:3@2", "schedule:3@2,2@1,0", "schedule:3,0"]


@pytest.mark.parametrize(
    "text", ["fixed", "fixed:x", "often", "switch:3", "switch:3,nan@5", "switch:3,2@0", "conf-min:2", *NO_SCHEDULES]
)
def test_other_texts_are_refused_with_all_forms(text):
    with pytest.raises(UsageError, match="a draft length is none, fixed:K, schedule"):
        length_rule(text, depth=4, lengths=list)


def test_what_the_trace_lacks_is_named():
    with pytest.raises(UsageError, match="must be 0 to 4"):
        length_rule("fixed:9", depth=4, lengths=list)
    with pytest.raises(TraceError, match="record them with `trace collect --confidences`"):
        survivals(trace_of([[[0]]], width=1), "adaptive", 1)


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


LOG = "INFO [loggers.py:271] Engine 000: Avg generation throughput: 72.0 tokens/s, Running: {} reqs, Waiting: 0 reqs\n"
TOKENS = """# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 10.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 40.0
"""
FORMS = {
    "requests,share\n4, 1\n0,5\n16,3\n": {4: 0.25, 16: 0.75},
    "vllm:num_requests_running{m='a'} 8.0\nvllm:num_requests_running{m='a'} 2\n": {2: 0.5, 8: 0.5},
    TOKENS + "vllm:num_requests_running 4\n": {4: 1.0},  # steps that read prompts are in the histogram, too
    "ray_vllm_num_requests_running{ReplicaId='a'} 6\n": {6: 1.0},
    LOG.format(8) + LOG.format(2) + "Running: tests\n": {2: 0.5, 8: 0.5},
    "sglang:num_running_reqs 3\nother 7\n": {3: 1.0},
    'trtllm_num_requests_running 3.0\nlmdeploy:num_requests_running{engine="0"} 5.0\n': {3: 0.5, 5: 0.5},
}


@pytest.mark.parametrize("text", FORMS)
def test_every_form(tmp_path, text):
    (tmp_path / "f").write_text(text)
    found = read_running(tmp_path / "f")
    assert found == FORMS[text]


def test_many_loads_are_joined_to_a_few_with_the_same_mean(tmp_path):
    (tmp_path / "f").write_text("requests,share\n" + "".join(f"{n},1\n" for n in range(1, 201)))
    found = read_running(tmp_path / "f")
    assert len(found) == LOADS
    assert sum(found.values()) == pytest.approx(1)
    assert sum(n * share for n, share in found.items()) == pytest.approx(100.5, abs=0.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "requests,share\nx,1\n",
        "requests,share\n1,nan\n2,1\n",
        "requests,share\n1,-1\n2,1\n",
        "requests,time\n1,1\n",
        "vllm:num_requests_running 0\n",
        TOKENS + "vllm:num_requests_running 0\n",  # tokens of prompts and drafts are no requests
    ],
)
def test_others_are_refused_with_what_is_wanted(tmp_path, text):
    (tmp_path / "f").write_text(text)
    with pytest.raises(UsageError, match=r"f: (must hold running requests|is no distribution)"):
        read_running(tmp_path / "f")
