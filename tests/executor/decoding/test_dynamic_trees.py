"""Dynamic policies: every step equals a plain simulation; sweeps, prices and the bound that none exceeds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.policy_replay import accepted_lengths, replay_policy
from tests.helpers.slow_growth import POLICIES, drafted, run
from tests.helpers.slow_params import examples
from tests.helpers.strategies import grown_trace
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, TraceError
from treeopt.policies import DynamicTree, OptTree, growths
from treeopt.policies.beam import Drafting, reach
from treeopt.policies.policy_kinds import sweeps
from treeopt.policies.reranking import calibrate, shortlists
from treeopt.replay.dynamic_tree import Batches, Steps, choose
from treeopt.searchers.choose_policy import best_policy, upper_bound
from treeopt.searchers.step_prices import Prices, price_replay
from treeopt.statistics import Curve

DEPTH, WIDTH, FULL = 3, 3, 9  # a beam of 9 expands everything down to depth 3


@st.composite
def worlds(draw, *, requests=(1, 5), length=7, beam=None):
    """A trace with whole trees, or those of a beam."""
    lengths = draw(st.lists(st.integers(1, length), min_size=requests[0], max_size=requests[1]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grain = draw(st.sampled_from([0.25, 0.0371, 3.0]))
    return grown_trace(lengths, depth=DEPTH, width=WIDTH, rng=rng, beam=beam, grain=grain)


@st.composite
def curves(draw, low=0.0, high=1.0):
    x = sorted(draw(st.sets(st.integers(1, 97), min_size=1, max_size=4)))
    y = sorted(draw(st.lists(st.integers(0, 97), min_size=len(x), max_size=len(x))))
    return Curve(tuple(v / 97 for v in x), tuple(low + (high - low) * v / 97 for v in y))


@st.composite
def policies(draw):
    """Any policy that whole trees tell everything about."""
    depth, width = draw(st.integers(1, DEPTH)), draw(st.integers(1, WIDTH))
    beam = draw(st.integers(1, FULL))
    most = Drafting(depth, beam, width).candidates
    nodes = draw(st.integers(1, min(most, 14)))
    least = draw(st.sampled_from([0.0, 0.0, 0.011, 0.13, 0.47]))
    kind = draw(st.sampled_from(["dynamic", "opt-tree", "calibrated"]))
    if kind == "dynamic":
        return DynamicTree(nodes, depth, beam, width, least)
    if kind == "opt-tree":
        return OptTree(nodes, depth, draw(st.sampled_from([0.0, 0.03, 0.2, 0.6])), beam, width)
    calibration = tuple(tuple(draw(curves()) for _ in range(width)) for _ in range(depth))
    return DynamicTree(nodes, depth, beam, width, least, calibration)


def of(policy, trace):
    return shortlists(trace, policy.drafting, nodes=policy.nodes, calibration=policy.calibration)


def two_traces(*, beam=None):
    """A trace to choose by, and one to judge by."""
    rng = np.random.default_rng(1)
    return [grown_trace([12] * 10, depth=DEPTH, width=WIDTH, rng=rng, beam=beam) for _ in range(2)]


# --- steps


@settings(max_examples=examples(200), deadline=None)
@given(worlds(), policies(), st.integers(1, 4), st.integers(0, 5))
def test_steps_equal_a_plain_simulation(trace, policy, batch, seed):
    batches = Batches(trace, batch=batch, seed=seed)
    steps = batches.steps(policy, of(policy, trace))
    queues = [queue[:length].tolist() for queue, length in zip(batches.queues, batches.lengths, strict=True)]
    assert sorted(request for queue in queues for request in queue) == list(range(trace.requests))
    due = run(policy, trace, batch=batch, queues=queues)
    for lane, lines in enumerate(due):
        for time, (levels, rows) in enumerate(lines):
            found = zip(
                steps.anchors[time, lane].tolist(),
                steps.counted[time, lane].tolist(),
                steps.accepted[time, lane].tolist(),
                steps.nodes[time, lane].tolist(),
                strict=True,
            )
            assert (int(steps.levels[time, lane]), list(found)) == (levels, rows)
    assert len(steps.anchors) == max(map(len, due))


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), policies(), st.integers(1, 3))
def test_running_batches_take_the_steps_of_a_request_alone(trace, policy, batch):
    steps = Batches(trace, batch=batch).steps(policy, of(policy, trace))
    taken = np.bincount(trace.request_index[steps.anchors[steps.counted]], minlength=trace.requests)
    assert taken.tolist() == replay_policy(policy, trace).steps.tolist()


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), st.integers(1, 12), st.integers(1, DEPTH))
def test_opt_tree_without_threshold_takes_the_best_of_the_whole_tree(trace, nodes, depth):
    nodes = min(nodes, Drafting(depth, nodes, WIDTH).candidates)
    policy = OptTree(nodes, depth, 0.0, width=WIDTH)
    everything = Drafting(depth, FULL, WIDTH)
    for anchor, found in enumerate(accepted_lengths(policy, trace).tolist()):
        best = sorted(drafted(trace, anchor, everything, None), key=lambda node: node.order)[:nodes]
        assert found == sum(node.hit for node in best)


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), policies(), st.integers(0, 2**32 - 1))
def test_nothing_is_looked_at_that_is_not_known_at_run_time(trace, policy, seed):
    """Other hits change nothing, nor do other candidates below the level at which drafting stopped."""
    rng = np.random.default_rng(seed)
    here = rng.integers(0, trace.anchors, 4)
    before = policy.choose(of(policy, trace)[here])
    candidates = trace.candidates
    level = np.zeros(len(candidates.parent), dtype=np.int64)
    above = np.repeat(candidates.offset[:-1], np.diff(candidates.offset)) + candidates.parent
    for _ in range(DEPTH):
        level = np.where(candidates.parent < 0, 1, level[above] + 1)
    logs = -rng.integers(1, 30, len(level)).astype(np.float32) / 7
    for place, anchor in enumerate(here):
        stop = before.levels[place]
        changed = replace(
            candidates, hit=np.zeros_like(candidates.hit), logprob=np.where(level > stop, logs, candidates.logprob)
        )
        after = policy.choose(of(policy, replace(trace, candidates=changed))[[anchor]])
        assert after.levels.tolist() == [stop]
        assert after.nodes.tolist() == [before.nodes[place]]


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 6), policies(), st.integers(0, 2**32 - 1))
def test_what_is_told_of_a_narrower_recording_is_true(beam, policy, seed):
    """Where the recording's beam was too narrow, the answer is that of a whole recording, or that it is not known."""
    whole = grown_trace([4, 3], depth=DEPTH, width=WIDTH, rng=np.random.default_rng(seed))
    candidates = whole.candidates
    size = int(candidates.offset[1])
    expanded = [
        {-1} | {n.place for n in drafted(whole, anchor, Drafting(DEPTH, beam, WIDTH), None) if n.expanded}
        for anchor in range(whole.anchors)
    ]
    kept = np.array([int(up) in expanded[i // size] for i, up in enumerate(candidates.parent)])
    # Children of what was not expanded are there no more: the others keep their places relative to each other.
    place = [np.cumsum(kept[a * size : (a + 1) * size]) - 1 for a in range(whole.anchors)]
    parents = [place[i // size][up] if up >= 0 else -1 for i, up in enumerate(candidates.parent.tolist()) if kept[i]]
    sizes = kept.reshape(-1, size).sum(1)
    part = replace(
        whole,
        candidates=replace(
            candidates,
            offset=np.append(0, np.cumsum(sizes)),
            parent=np.array(parents, dtype=np.int16),
            rank=candidates.rank[kept],
            logprob=candidates.logprob[kept],
            hit=candidates.hit[kept],
        ),
    )
    found, due = choose(policy, of(policy, part)), choose(policy, of(policy, whole))
    assert due.known.all()
    # A wider beam may expand other nodes than a narrow one: children of a node that the narrow one leaves.
    wanted = [
        {n.place for n in drafted(whole, anchor, policy.drafting, None) if n.expanded}
        for anchor in range(whole.anchors)
    ]
    there = np.array([mine <= recorded for mine, recorded in zip(wanted, expanded, strict=True)])
    assert found.known[there].all() or policy.drafting.width < WIDTH
    assert there.all() or beam != policy.drafting.beam or policy.drafting.width < WIDTH
    for name in ("levels", "nodes"):
        assert (getattr(found, name) == getattr(due, name))[found.known].all()
    accepted = of(policy, part).accepted(found.levels, found.nodes)
    assert (accepted == of(policy, whole).accepted(due.levels, due.nodes))[found.known].all()


# --- what is fitted


def test_a_calibration_is_a_table_of_frequencies():
    """Two probabilities at the root, by hand: 1 of 4 and 2 of 3 of the first children are true."""
    trace = grown_trace([1] * 7, depth=1, width=2, rng=np.random.default_rng(0))
    first = np.log(np.float32([0.3] * 4 + [0.6] * 3))
    hit = np.array([True, False, False, False, True, True, False])
    candidates = replace(
        trace.candidates,
        logprob=np.stack([first, np.full(7, -3, np.float32)], 1).ravel(),
        hit=np.stack([hit, np.zeros(7, dtype=bool)], 1).ravel(),
    )
    (curves,) = calibrate(replace(trace, candidates=candidates), Drafting(1, 1, 2))
    assert curves[0].x == pytest.approx((0.3, 0.6))
    assert curves[0].y == pytest.approx((0.25, 2 / 3))
    assert curves[1].y == (0.0,)


def assert_calibrated(trace, drafting):
    """Of each depth and rank the chances sum to the number of true candidates below true ones, as isotonic means do."""
    curves = calibrate(trace, drafting)
    promised, true = np.zeros((2, drafting.depth, drafting.width))
    for anchor in range(trace.anchors):
        left = int(trace.left[anchor])
        nodes = {node.place: node for node in drafted(trace, anchor, drafting, None)}
        own = slice(*trace.candidates.offset[anchor : anchor + 2].tolist())
        parent, rank = trace.candidates.parent[own].tolist(), trace.candidates.rank[own].tolist()
        for place, node in nodes.items():
            if node.level <= left and (parent[place] < 0 or nodes[parent[place]].hit):
                log = np.float64(trace.candidates.logprob[own][place])
                here = (node.level - 1, rank[place])
                promised[here] += curves[here[0]][here[1]].at(np.exp(log))
                true[here] += node.hit
    assert np.allclose(promised, true, atol=1e-6)
    return true


@settings(max_examples=50, deadline=None)
@given(worlds(requests=(3, 8)), st.integers(1, WIDTH))
def test_calibrated_probabilities_are_those_of_true_candidates(trace, width):
    assert_calibrated(trace, Drafting(DEPTH, FULL, width))


# --- time


class Stairs:
    """Seconds that rise in steps with nodes and levels; fed nodes cost `wide`, and of trees drawn anew `anew` more."""

    def __init__(self, seed, *, wide=0.0, most=64, commit=0.0, anew=None):
        rng = np.random.default_rng(seed)
        self.nodes = 1 + rng.integers(0, 3, most).cumsum() * 0.1
        self.levels = rng.integers(0, 3, 12).cumsum() * 0.2
        self.wide, self.most, self.commit, self.meta = wide, most, commit, {}
        self.growths, self.anew = (() if anew is None else growths()), anew or 0.0

    @property
    def separable(self):
        return not self.wide

    def step_s(self, shapes):
        if max(shape.tokens for shape in shapes) > self.most:
            raise CostError(f"tokens {max(shape.tokens for shape in shapes)}: at most {self.most}")
        return np.array(
            [
                self.nodes[s.tokens - 1]
                + self.levels[len(s.widths)]
                + (self.wide + self.anew * (s.growth is not None)) * sum(s.widths)
                + self.commit * ((s.committed or 1) - 1)
                for s in shapes
            ]
        )

    def plain_s(self, *, batch, context=None):
        return 0.9

    def error(self, shape):
        return 0.0


@pytest.mark.parametrize(("padding", "nodes", "levels"), [("full", 9, 3), ("widest", 7, 2), ("none", 4, 2)])
def test_a_batch_is_priced_as_one_forward(padding, nodes, levels):
    cost = Stairs(0, wide=0.01, commit=0.1)
    steps = Steps(
        anchors=np.array([[[0, 1]]]),
        counted=np.array([[[True, False]]]),
        accepted=np.array([[[1, 0]]]),
        nodes=np.array([[[7, 0]]]),
        levels=np.array([[2]]),
    )
    policy = DynamicTree(9, 3, 2, 3)
    due = cost.step_s([StepShape(2, nodes + 1, policy.drafting.expanded[:levels], committed=1.5)])
    assert Prices(cost, 2, padding).of(policy, steps).tolist() == [due.tolist()]
    found = price_replay(
        grown_trace([2, 1], depth=1, width=1, rng=np.random.default_rng(0)), steps, policy, Prices(cost, 2, padding)
    )
    assert found.seconds.tolist() == [*due.tolist(), 0.0]
    assert (found.steps.tolist(), found.nodes.tolist(), found.levels.tolist()) == ([1, 0], [7, 0], [2, 0])


@pytest.mark.parametrize("padding", ["full", "widest", "none"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_drawing_trees_anew_is_paid_for_in_every_step(policy, padding):
    trace = grown_trace([6] * 5, depth=DEPTH, width=8, rng=np.random.default_rng(3))
    steps = Batches(trace, batch=2).steps(policy, of(policy, trace))
    static, anew = (Prices(Stairs(1, anew=seconds), 2, padding).of(policy, steps) for seconds in (None, 0.25))
    levels = np.full_like(steps.levels, policy.depth) if padding == "full" else steps.levels
    fed = np.append(0, np.cumsum(policy.drafting.expanded))[levels]
    assert anew - static == pytest.approx(0.25 * fed)
    assert fed.min() > 0


@pytest.mark.parametrize("kind", sweeps())
def test_narrower_beams_are_tried_where_trees_drawn_anew_cost(kind):
    """Of every kind, with sizes and depths of their own, as far as the recording tells what they draft."""
    fit, held = two_traces(beam=4)

    def tried(cost):
        return [policy for policy, _ in best_policy(fit, held, Prices(cost, 1), kind=kind, max_nodes=12).tried]

    narrow, wide = tried(Stairs(2, anew=0.05)), tried(Stairs(2))
    assert all(policy.beam == (min(policy.nodes, 4) if kind == "opt-tree" else 4) for policy in wide)
    assert {policy.beam for policy in narrow} >= {1, 2, 4}
    assert len({policy.depth for policy in narrow if policy.beam == 1}) > 1


# --- the bound


@settings(max_examples=examples(100), deadline=None)
@given(
    worlds(),
    policies(),
    st.integers(1, 3),
    st.integers(0, 99),
    st.sampled_from(["full", "widest", "none"]),
    st.sampled_from([0.0, 0.02]),
)
def test_no_policy_is_faster_than_the_bound_on_any_request(trace, policy, batch, seed, padding, wide):
    prices = Prices(Stairs(seed, wide=wide, commit=wide), batch, padding)
    found = price_replay(trace, Batches(trace, batch=batch, seed=seed).steps(policy, of(policy, trace)), policy, prices)
    bound = upper_bound(trace, prices, nodes=14, depth=DEPTH)
    assert (bound.seconds <= found.seconds + 1e-9).all()
    assert bound.committed.tolist() == found.committed.tolist()


@settings(max_examples=60, deadline=None)
@given(worlds(requests=(1, 2), length=6), st.integers(0, 99), st.integers(1, 3))
def test_the_bound_is_the_best_of_all_ways_through_a_request(trace, seed, nodes):
    cost = Stairs(seed)
    table = Prices(cost, 1).table(Drafting(DEPTH, 1, 1), nodes)
    price = [min(0.9, table.min())] + [table[k - 1 :, k - 1 :].min() for k in range(1, min(nodes, DEPTH) + 1)]
    offset, hit = trace.candidates.offset, trace.candidates.hit
    reachable = [int(hit[offset[t] : offset[t + 1]].sum()) for t in range(trace.anchors)]

    def least(anchor, stop):
        if anchor >= stop:
            return 0.0
        most = min(reachable[anchor], len(price) - 1)
        return min(price[kept] + least(anchor + kept + 1, stop) for kept in range(most + 1))

    due = [least(start, stop) for start, stop in zip(trace.starts.tolist(), trace.stops.tolist(), strict=True)]
    found = upper_bound(trace, Prices(cost, 1), nodes=nodes, depth=DEPTH)
    assert found.seconds == pytest.approx(due)
    assert (found.steps >= 1).all()


# --- sweeps


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", sweeps())
def test_the_best_of_a_sweep_is_judged_on_other_requests(kind, batch):
    fit, held = two_traces(beam=4)
    cost = Stairs(2, most=9)
    judged = best_policy(fit, held, Prices(cost, batch), kind=kind, max_nodes=20, seed=3)
    rates = dict(judged.tried)
    assert judged.policy == max(rates, key=rates.get)
    assert all("at most 9" in reason for reason in judged.refused.values())
    if kind in ("eagle2", "opt-tree"):
        assert set(judged.refused.values()) >= {"tokens 11: at most 9", "tokens 13: at most 9"}
    prices = Prices(cost, batch)
    for part, due in ((fit, rates[judged.policy]), (held, judged.held.tokens_s.value)):
        steps = Batches(part, batch=batch, seed=3).steps(judged.policy, of(judged.policy, part))
        assert price_replay(part, steps, judged.policy, prices).rate == pytest.approx(due)
    result = judged.held
    assert result.tokens_s.value == pytest.approx(result.tau.value / result.per_step(result.seconds))
    assert result.tokens_s.low < result.tokens_s.value < result.tokens_s.high
    assert result.per_step(result.nodes) <= judged.policy.nodes
    assert 1 <= result.per_step(result.levels) <= DEPTH
    bound = upper_bound(held, prices, nodes=8, depth=DEPTH)
    assert result.tokens_s.value <= bound.rate


def test_what_a_recording_cannot_tell_is_refused_with_its_reason():
    rng = np.random.default_rng(4)
    trace = grown_trace([6] * 8, depth=DEPTH, width=WIDTH, rng=rng, beam=2)
    assert reach(trace) == Drafting(DEPTH, 2, WIDTH)
    narrow = best_policy(trace, trace, Prices(Stairs(0, wide=0.1), 1), kind="eagle2", max_nodes=4)
    reasons = {name: reason for name, reason in narrow.refused.items() if "not recorded" in reason}
    assert reasons
    assert all("beam=1" in name for name in reasons)
    with pytest.raises(TraceError, match="anchor 0: the policy expands a candidate whose children were not recorded"):
        replay_policy(DynamicTree(3, 1, 3), _without_first(trace))


def test_a_policy_that_only_the_requests_held_out_refuse_gives_way_to_the_next():
    rng = np.random.default_rng(1)
    fit = grown_trace([12] * 8, depth=DEPTH, width=WIDTH, rng=rng, beam=4)
    held = grown_trace([12] * 8, depth=1, width=WIDTH, rng=rng)
    cost = Stairs(3)
    cost.levels[:] = 0
    judged = best_policy(fit, held, Prices(cost, 1), kind="eagle2", max_nodes=6)
    assert max(judged.tried, key=lambda one: one[1])[0].depth > 1
    assert any(reason.startswith("on the requests held out: anchor") for reason in judged.refused.values())
    assert judged.held.tau.value > 1


def _without_first(trace):
    """The trace without the candidates of its first anchor."""
    size, candidates = int(trace.candidates.offset[1]), trace.candidates
    offset = np.append(0, np.maximum(candidates.offset[1:] - size, 0))
    parts = {name: getattr(candidates, name)[size:] for name in ("parent", "rank", "logprob", "hit")}
    return replace(trace, candidates=replace(candidates, offset=offset, **parts))
