"""Recorded candidates: what they hold, and how far they allow policies to be replayed."""

from dataclasses import replace

import numpy as np
import pytest

from tests.executor.validation.test_replay_equals_live import GENEROUS, POLICIES, recorded
from tests.helpers.drafters import DRAFTERS
from tests.helpers.models import random_heads, small_target
from tests.helpers.policy_replay import UNKNOWN, accepted_lengths, visit
from tests.helpers.slow_params import slow_unless
from treeopt.errors import TraceError
from treeopt.policies import DynamicTree
from treeopt.traces.trace import PAST_END
from treeopt.traces.trace_files import load_trace, save_trace


@pytest.fixture(scope="module", params=slow_unless(lambda name: name in ("medusa", "eagle"), DRAFTERS))
def each(request):
    target, drafter = DRAFTERS[request.param]()
    return target, drafter, recorded(target, drafter)


NARROW = [
    DynamicTree(nodes=6, depth=3, beam=2, width=6),
    DynamicTree(nodes=8, depth=3, beam=3, width=4, min_probability=0.1),
]


def test_narrower_policies_are_replayed_as_far_as_they_are_known(each):
    """Against recordings made for those very policies."""
    target, drafter, _ = each
    trace = recorded(target, drafter, candidates=DynamicTree(nodes=1, depth=3, beam=24, width=6))
    for policy in NARROW:
        found = accepted_lengths(policy, trace)
        assert (found != UNKNOWN).mean() > 0.1
        due = accepted_lengths(policy, recorded(target, drafter, candidates=replace(policy, nodes=1)))
        assert (due != UNKNOWN).all()
        assert (found[found != UNKNOWN] == due[found != UNKNOWN]).all()


def test_every_nth_position(tmp_path):
    target, heads = small_target(), random_heads()
    whole, some = recorded(target, heads), recorded(target, heads, stride=3)
    there = some.position % 3 == 0
    assert (np.diff(some.candidates.offset) == np.where(there, GENEROUS.drafting.candidates, 0)).all()
    due, found = accepted_lengths(POLICIES[0], whole), accepted_lengths(POLICIES[0], some)
    assert (found == np.where(there, due, UNKNOWN)).all()
    assert some.meta["candidates"] == {"depth": 4, "beam": 5, "width": 6, "stride": 3}
    with pytest.raises(TraceError, match=r"anchor \d+: the policy expands a candidate whose children were not"):
        visit(POLICIES[0], some)
    save_trace(some, tmp_path / "t.npz")
    assert (accepted_lengths(POLICIES[0], load_trace(tmp_path / "t.npz")) == found).all()


def test_a_trace_without_candidates_and_a_policy_beyond_them(each):
    *_, trace = each
    with pytest.raises(TraceError, match="the trace has none"):
        visit(POLICIES[0], replace(trace, candidates=None))
    wider = DynamicTree(nodes=9, depth=2, beam=5, width=7)
    assert (accepted_lengths(wider, trace) == UNKNOWN).all()
    stopping = DynamicTree(nodes=9, depth=5, beam=5, width=6, min_probability=1e-30)
    assert (accepted_lengths(stopping, trace) == UNKNOWN).all()


def test_confidences_are_those_of_the_chain_that_is_drafted(each):
    """Against candidates recorded with a beam of one, and, along the text, against the teacher-forced pass."""
    target, drafter, _ = each
    chain = DynamicTree(nodes=1, depth=3, beam=1, width=1)
    trace = recorded(target, drafter, candidates=chain, confidences=True, probabilities=True, depth=3)
    logs = trace.candidates.logprob.reshape(trace.anchors, 3)
    assert np.array_equal(trace.confidence, np.exp(logs).astype(np.float16))
    assert trace.meta["confidence"] == "probability"
    right = np.cumprod(np.pad(trace.rank[:, :-1] == 0, ((0, 0), (1, 0)), constant_values=True), axis=1).astype(bool)
    right &= trace.rank != PAST_END
    assert right[:, 1:].any()
    # Half precision holds 11 bits; the two passes round differently in float32.
    assert np.abs(trace.confidence - trace.draft_prob[:, :, 0])[right].max() < 2e-3
