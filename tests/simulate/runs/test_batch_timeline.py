"""Runs of a batch against an event loop written a second time, token by token, and against closed forms."""

import math
from dataclasses import astuple, dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.runs.batch_record import run
from simulate.runs.timeline import Emissions, Timeline, speedup
from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, traces, trees, with_lengths
from treeopt.errors import CostError
from treeopt.replay.static_tree import accepted_lengths, replay_tree
from treeopt.tree import Tree


@dataclass(frozen=True)
class Priced:
    """A cost model in one line; sizes that it lacks are refused."""

    separable = True
    sizes: frozenset[int] = frozenset(range(1, 100))
    meta: dict[str, str] = field(default_factory=dict)
    commit: float = 0.0

    def price(self, batch, tokens, context):
        if batch not in self.sizes:
            raise CostError(f"batch {batch} was not measured")
        return 1.0 + 0.25 * batch + 0.125 * tokens + (context or 0) / 64

    def step_s(self, shapes):
        return np.array([self.price(s.batch, s.tokens, s.context) + (s.committed - 1) * self.commit for s in shapes])

    def plain_s(self, *, batch, context=None):
        return self.price(batch, 1, context)


COST = Priced()


def slow_run(trace, tree, cost, batch, prefill, prompts, *, piece, fixed_shape):
    """Of each request: when its row was free, and (time, tokens) of every burst; step by step, row by row."""
    accepted = accepted_lengths(tree, trace).tolist()
    starts, stops = trace.starts.tolist(), trace.stops.tolist()
    waiting, rows = list(range(trace.requests)), [None] * batch
    edges = set() if piece is None else set(np.cumsum(np.resize(piece, trace.requests)).tolist())
    place, now, admitted, bursts = {}, 0.0, {}, {r: [] for r in range(trace.requests)}
    while waiting or any(r is not None for r in rows):
        began = now
        for i in range(batch):
            begun = trace.requests - len(waiting)
            room = begun not in edges or all(r is None for r in rows)
            if rows[i] is None and waiting and room:
                rows[i] = waiting.pop(0)
                place[rows[i]], admitted[rows[i]] = starts[rows[i]], began
                now += prefill[rows[i]]
        here = [r for r in rows if r is not None]
        context = None
        if prompts is not None:
            context = round(sum(prompts[r] + place[r] - starts[r] for r in here) / len(here))
        now += cost.price(batch if fixed_shape else len(here), tree.nodes + 1, context)
        own = {r: accepted[place[r]] + 1 for r in here}
        for i, r in enumerate(rows):
            if r is not None:
                tokens = min(own[r], stops[r] - place[r])
                bursts[r].append((now, tokens))
                place[r] += tokens
                rows[i] = None if place[r] == stops[r] else r
    return [admitted[r] for r in range(trace.requests)], list(bursts.values())


@st.composite
def cases(draw):
    trace = draw(traces(requests=(1, 7)))
    tree = draw(trees(width=trace.width, depth=trace.depth))
    prefill = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=trace.requests, max_size=trace.requests))
    prompts = draw(st.none() | st.lists(st.integers(0, 99), min_size=trace.requests, max_size=trace.requests))
    flags = {
        "piece": draw(st.none() | st.integers(1, 8) | st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        "fixed_shape": draw(st.booleans()),
    }
    return trace, tree, draw(st.integers(1, 5)), prefill, prompts, flags


@given(cases())
@settings(max_examples=examples(300))
def test_runs_equal_the_slow_loop_and_conserve_tokens_and_time(case):
    trace, tree, batch, prefill, prompts, flags = case
    admitted, bursts = slow_run(trace, tree, COST, batch, prefill, prompts, **flags)
    lengths = None if prompts is None else np.array(prompts)
    found = run(trace, tree, COST, batch=batch, prefill_s=np.array(prefill), prompt_tokens=lengths, **flags)
    # Prices are multiples of 1/64 but for a mean context, which is rounded: sums are exact.
    assert found.admitted_s.tolist() == admitted
    assert found.first_s.tolist() == [each[0][0] for each in bursts]
    assert found.done_s.tolist() == [each[-1][0] for each in bursts]
    assert found.steps.tolist() == [len(each) for each in bursts]
    assert found.tokens.tolist() == [sum(n for _, n in each) for each in bursts]
    assert found.total_s == max(each[-1][0] for each in bursts)
    gaps = [b - a for each in bursts for (a, _), (b, _) in pairwise(each)]
    assert found.gap_s.tolist() == gaps
    # Every latency between successive tokens of a request, one by one.
    itl = sorted(
        b - a for each in bursts for times in [[t for t, n in each for _ in range(n)]] for a, b in pairwise(times)
    )
    shares = (0.1, 0.5, 0.9, 1.0)
    if itl:
        due = [itl[math.ceil(share * len(itl)) - 1] for share in shares]
        assert [e.value for e in found.percentiles("itl", shares)] == due
    assert found.tokens.tolist() == trace.lengths.tolist()
    assert found.committed.sum() == trace.anchors
    assert found.occupancy.sum() == found.steps.sum()
    assert found.occupancy.min() >= 1
    assert found.occupancy.max() <= batch
    assert found.share_s.sum() == pytest.approx(found.total_s, rel=1e-12)
    assert found.rate().value == pytest.approx(trace.anchors / found.total_s, rel=1e-12)
    # Little: requests in the system over time add up to their sojourns; steps and the prefill before them.
    order = np.argsort(found.admitted_s)
    edges = np.unique(np.concatenate([found.admitted_s[order], found.done_s]))
    inside = [(found.admitted_s <= t).sum() - (found.done_s <= t).sum() for t in edges]
    area = float(np.array(inside[:-1]) @ np.diff(edges))
    assert area == pytest.approx(float((found.done_s - found.admitted_s).sum()), rel=1e-9)
    assert found.tau == pytest.approx(replay_tree(tree, trace).tau)


@given(cases())
def test_one_request_alone_takes_its_steps_times_their_cost(case):
    trace, tree, _, _, _, flags = case
    alone = run(trace, tree, COST, batch=1, **flags)
    counts = replay_tree(tree, trace)
    step_s = COST.price(1, tree.nodes + 1, None)
    assert alone.total_s == counts.steps.sum() * step_s
    assert (alone.done_s - alone.admitted_s).tolist() == (counts.steps * step_s).tolist()
    assert alone.mean_occupancy == 1
    plain = run(trace, None, COST, batch=1)
    assert plain.total_s == trace.anchors * COST.price(1, 1, None)
    speed = speedup(alone, plain)
    assert speed.throughput.value == pytest.approx(plain.total_s / alone.total_s)
    quotients = counts.committed * COST.price(1, 1, None) / (counts.steps * step_s)
    assert speed.per_request.value == pytest.approx(quotients.mean())


def test_steps_are_priced_with_what_the_tree_commits():
    trace = drawn_trace([[0.7], [0.3]], [20] * 30, depth=2, rng=np.random.default_rng(3))
    tree = Tree.chain(2)
    plainly, dearly = (run(trace, tree, Priced(commit=c), batch=3) for c in (0.0, 0.5))
    assert dearly.step_s - plainly.step_s == pytest.approx(0.5 * (replay_tree(tree, trace).tau - 1))


@pytest.mark.slow
def test_the_interval_of_the_rate_is_as_wide_as_reruns_with_resampled_requests():
    """400 reruns: their spread is known to 3.5 % (one standard error), and the linearised one must be within 15 %."""
    rng = np.random.default_rng(11)
    trace = drawn_trace([[0.8], [0.2], [0.5]], rng.integers(10, 60, 150).tolist(), depth=3, rng=rng)
    found = run(trace, Tree.chain(3), COST, batch=4).rate()
    rates = []
    for _ in range(400):
        drawn = rng.integers(0, trace.requests, trace.requests)
        again = with_lengths(
            np.concatenate([trace.rank[trace.starts[r] : trace.stops[r]] for r in drawn]),
            trace.lengths[drawn].tolist(),
            width=1,
        )
        rates.append(run(again, Tree.chain(3), COST, batch=4).rate().value)
    assert (found.high - found.value) / 1.976 == pytest.approx(np.std(rates), rel=0.15)


def test_batches_without_cost_are_named_and_padded_only_when_asked():
    trace = with_lengths(np.zeros((14, 1)), [2, 3, 4, 5], width=1)
    cost = Priced(sizes=frozenset([1, 4]))
    with pytest.raises(CostError, match=r"steps of batch 2, 3 have no cost \(batch 3 was not measured\)"):
        run(trace, None, cost, batch=4)
    padded = run(trace, None, cost, batch=4, pad=True)
    assert padded.occupancy.tolist() == [4, 4, 3, 2, 1]
    four, one = cost.price(4, 1, None), cost.price(1, 1, None)
    assert padded.step_s.tolist() == [four] * 4 + [one]
    with pytest.raises(CostError, match="steps of batch 3 have no cost"):
        run(trace.select(np.array([0, 1, 2])), None, Priced(sizes=frozenset([1, 2])), batch=3, pad=True)


# --- latencies


def timeline(bursts):
    """Requests alone one after the other: (seconds of the step, tokens) of each of their steps."""
    steps = [step for request in bursts for step in request]
    step_s = np.array([seconds for seconds, _ in steps])
    end_s = np.cumsum(step_s)
    request = np.repeat(np.arange(len(bursts)), [len(each) for each in bursts])
    tokens = np.array([n for _, n in steps])
    first = np.flatnonzero(np.diff(request, prepend=-1))
    started_s = np.append(0.0, end_s[:-1])
    none_s = np.zeros(len(bursts))
    times = {"started_s": started_s, "step_s": step_s, "prefill_s": none_s, "admitted_s": started_s[first]}
    return Timeline.of(Emissions(request, np.arange(len(steps)), tokens), **times)


def test_latencies_of_a_burst():
    found = timeline([[(2.0, 3), (1.0, 1), (4.0, 2)]])
    assert found.ttft_s.tolist() == [2]
    assert found.tpot_s.tolist() == [1]  # 5 seconds for 5 tokens after the first
    assert found.e2e_s.tolist() == [7]
    # 0 0 1 4 0: three of five inside bursts.
    assert [e.value for e in found.percentiles("itl", (0.6, 0.61, 0.8, 0.99))] == [0, 1, 1, 4]


def test_a_request_of_one_token_has_no_time_per_token():
    found = timeline([[(2.0, 1)], [(1.0, 1), (3.0, 1)]])
    assert np.isnan(found.tpot_s[0])
    assert found.percentiles("tpot", (0.5,))[0].value == 3
    alone = timeline([[(2.0, 1)]])
    for latency in ("tpot", "itl"):
        assert np.isnan(alone.percentiles(latency, (0.5,))[0].value)


@pytest.mark.slow
def test_percentile_intervals_hold_what_they_say():
    """Median and p95 of 200 exponential latencies lie in their 95 % intervals 95 times in 100.

    Of 300 samples fewer than 268 or more than 297 with probability below 1e-4 if the coverage is 0.95.
    """
    rng, inside, due = np.random.default_rng(2), np.zeros(2), np.log([2, 20])
    for seed in range(300):
        found = timeline([[(seconds, 1)] for seconds in rng.exponential(size=200).tolist()])
        ends = np.array([astuple(one) for one in found.percentiles("ttft", (0.5, 0.95), seed=seed)])
        inside += (ends[:, 1] <= due) & (due <= ends[:, 2])
    assert ((inside >= 268) & (inside <= 297)).all(), inside
