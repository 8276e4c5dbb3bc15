"""Draft lengths chosen while serving, against forty lines written before the product's, and against static trees."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.profiles.profile import load_profile
from simulate.runs.batch_record import run
from simulate.runs.draft_length_rules import Budgeted, Confident, StepTimes, length_rule, survivals, times_of
from simulate.runs.length_server import LengthDecoding, run_lengths
from simulate.runs.run_costs import PromptSettings
from simulate.runs.server import serve_day
from simulate.runs.server_load import Workload
from tests.helpers.adaptive_forty_lines import seconds_and_steps
from tests.helpers.strategies import drawn_trace, trace_of, traces
from treeopt.errors import CostError, TraceError, UsageError
from treeopt.storage.user_files import shipped
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
