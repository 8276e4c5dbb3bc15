"""Recorded candidates: a dynamic policy replayed from them takes the live loop's steps, whatever drafts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from executor.decoding.decoder import Decoder
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.recording.record_candidates import candidate_trees
from executor.recording.teacher_forced import Texts
from executor.verification.sample_and_match import SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp
from tests.helpers.drafters import DRAFTERS
from tests.helpers.models import random_heads, random_prompts, small_target
from treeopt.errors import ExecutorError, TraceError, UsageError
from treeopt.policies import CostAware, DynamicTree, OptTree
from treeopt.policies.reranking import shortlists
from treeopt.replay.dynamic_tree import UNKNOWN, Batches, accepted_lengths, replay_policy, visit
from treeopt.statistics.isotonic_regression import Curve
from treeopt.traces.candidates import Candidates
from treeopt.traces.trace import Trace, load_trace, save_trace

TOKENS = random_prompts((9, 4, 17, 2, 6, 12, 3), seed=8)
NEW = 24
# Not what these drafters are worth, but bent: order, stops and ties are others than the drafter's.
FITTED = tuple(
    tuple(Curve((0.0, 0.1, 0.3, 0.8), (0.0, 0.3 / (rank + 1), 0.3 / (rank + 1), 0.9 / (rank + 1))) for rank in range(6))
    for _ in range(4)
)
GENEROUS = DynamicTree(nodes=1, depth=4, beam=5, width=6)
# The recording's own beam and width: known at every position.
POLICIES = [
    DynamicTree(nodes=9, depth=4, beam=5, width=6),
    DynamicTree(nodes=40, depth=3, beam=5, width=6),
    DynamicTree(nodes=16, depth=4, beam=5, width=6, min_probability=0.02),
    DynamicTree(nodes=9, depth=4, beam=5, width=6, calibration=FITTED),
    DynamicTree(nodes=16, depth=4, beam=5, width=6, min_probability=0.02, calibration=FITTED),
    OptTree(nodes=16, depth=4, threshold=0.3, beam=5, width=6),
]


def cost_aware(*, shared: bool) -> CostAware:
    seconds = tuple(tuple(0.02 * level + 0.01 * (nodes // 3) for nodes in range(12)) for level in range(1, 5))
    going_on = tuple(Curve((0.1, 0.6), (-0.2 * level, 0.3)) for level in range(1, 4))
    return CostAware(12, 4, 5, 6, shared, 5.0, seconds, going_on, FITTED)


def recorded(target, drafter, tokens=TOKENS, **settings):
    settings = {"new_tokens": NEW, "width": 4, "depth": 4, "stop": [7], "batch": 3, "candidates": GENEROUS} | settings
    return collect(target, drafter, [Prompt("x")] * len(tokens), tokens, **settings)


@pytest.fixture(scope="module", params=DRAFTERS)
def each(request):
    target, drafter = DRAFTERS[request.param]()
    return target, drafter, recorded(target, drafter)


def assert_same_steps(steps, live):
    for request, generation in enumerate(live):
        assert steps.accepted[steps.request == request].tolist() == list(generation.accepted)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_replay_equals_the_live_loop_step_for_step(each, policy, batch):
    target, drafter, trace = each
    live = Decoder(target, drafter, tree=policy, batch=batch).generate(TOKENS, new_tokens=NEW, stop=[7])
    steps = visit(policy, trace)
    assert_same_steps(steps, live)
    assert (steps.accepted > 0).mean() > 0.05  # else the equality says little


@pytest.mark.parametrize(
    "policy",
    [
        DynamicTree(nodes=20, depth=4, beam=5, width=6, budget=4),
        DynamicTree(nodes=20, depth=4, beam=5, width=6, budget=4, calibration=FITTED),
        cost_aware(shared=False),
    ],
    ids=str,
)
def test_what_a_batch_shares_is_that_of_a_sequence_alone(each, policy):
    target, drafter, trace = each
    live = Decoder(target, drafter, tree=policy, batch=1).generate(TOKENS, new_tokens=NEW, stop=[7])
    assert_same_steps(visit(policy, trace), live)


@pytest.mark.parametrize(
    "policy",
    [
        DynamicTree(nodes=20, depth=4, beam=5, width=6, budget=11),
        DynamicTree(nodes=20, depth=4, beam=5, width=6, budget=11, calibration=FITTED),
        OptTree(nodes=16, depth=4, threshold=0.3, beam=5, width=6),
        cost_aware(shared=False),
        cost_aware(shared=True),
    ],
    ids=str,
)
def test_running_batches_take_the_live_loops_steps(each, policy):
    """As long as the queue lasts, rows are those of the live loop; then the replay repeats requests, the loop idles."""
    target, drafter, trace = each
    batches = Batches(trace, batch=3, seed=1)
    lists = shortlists(trace, policy.drafting, nodes=policy.nodes, calibration=policy.calibration)
    steps = batches.steps(policy, lists)
    (order,) = batches.queues.tolist()
    full = steps.counted.all((1, 2))
    decoder = Decoder(target, drafter, tree=policy, batch=3)
    live = decoder.steps([TOKENS[request] for request in order], new_tokens=NEW, stop=[7])
    compared = 0
    for time, step in zip(range(int(full.argmin())), live, strict=False):
        for row, request in enumerate(step.requests):
            anchor = int(steps.anchors[time, 0, row])
            left = int(trace.left[anchor])
            assert trace.request_index[anchor] == order[request]
            assert len(step.committed[row]) == min(int(steps.accepted[time, 0, row]) + 1, left)
            compared += 1
    assert compared > 40


NARROW = [
    DynamicTree(nodes=6, depth=3, beam=2, width=6),
    DynamicTree(nodes=9, depth=3, beam=4, width=2),
    DynamicTree(nodes=3, depth=3, beam=1, width=3),
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


def test_sampled_text_is_replayed_too(each):
    """Live sample-and-match writes a text; the candidates along that text give back its steps."""
    target, drafter, _ = each
    policy = POLICIES[0]
    rule = SampleAndMatch(Warp(), torch.Generator().manual_seed(3))
    live = Decoder(target, drafter, tree=policy, batch=2, rule=rule).generate(TOKENS, new_tokens=NEW)
    texts = Texts.read(target, drafter, TOKENS, [g.tokens for g in live])
    trees = candidate_trees(target, drafter, texts, GENEROUS)
    parts = {name: np.concatenate([one[name] for one in trees]) for name in trees[0]}
    anchors = NEW * len(TOKENS)
    blank = Trace(
        request=np.repeat(np.arange(len(TOKENS), dtype=np.int32), NEW),
        position=np.tile(np.arange(NEW, dtype=np.int32), len(TOKENS)),
        rank=np.full((anchors, 1), -1, dtype=np.int16),
        width=1,
        candidates=Candidates(np.append(0, parts.pop("sizes").cumsum()), **parts),
    )
    assert_same_steps(visit(policy, blank), live)
    steps = sum(len(g.accepted) for g in live)
    assert replay_policy(policy, blank).tau == anchors / steps


def test_candidates_agree_with_the_recorded_ranks(each):
    """A hit has the rank that the teacher-forced pass gave its token, as far as that is recorded."""
    *_, trace = each
    offset = trace.candidates.offset
    for anchor in range(trace.anchors):
        own = slice(offset[anchor], offset[anchor + 1])
        parent, hit = trace.candidates.parent[own], trace.candidates.hit[own]
        here, depth = -1, 0
        while True:
            below = np.flatnonzero((parent == here) & hit)
            if len(below) == 0:
                break
            here = int(below[0])
            rank = int(trace.candidates.rank[own][here])
            assert trace.rank[anchor, depth] == (rank if rank < trace.width else -1)
            depth += 1
        children = np.flatnonzero(parent == here)
        if len(children) and depth < 4:  # expanded, and none of its children is true
            assert trace.rank[anchor, depth] in (-2, -1)


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


def test_what_lies_deeper_matters_only_where_it_could_be_chosen(each):
    target, drafter, trace = each
    deeper = DynamicTree(nodes=9, depth=5, beam=5, width=6)
    found = accepted_lengths(deeper, trace)
    due = accepted_lengths(deeper, recorded(target, drafter, candidates=replace(deeper, nodes=1)))
    assert (due != UNKNOWN).all()
    assert (found[found != UNKNOWN] == due[found != UNKNOWN]).all()


def test_what_cannot_be_recorded_is_refused():
    target, heads = small_target(), random_heads()
    for policy, reason in (
        (DynamicTree(nodes=1, depth=6), "depth 6, the drafter drafts 5"),
        (DynamicTree(nodes=1, depth=2, beam=3, width=62), "61 children, 62"),
        (DynamicTree(nodes=1, depth=5, beam=200, width=60), "32768 candidates, 39660"),
    ):
        with pytest.raises(ExecutorError, match=reason):
            recorded(target, heads, candidates=policy)
    with pytest.raises(UsageError, match="rule sequoia draws its candidates"):
        recorded(target, heads, rule="sequoia", temperature=1.0)
