"""A server against an event loop written a second time, and queueing theory's closed forms."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.runs.server_figures import figures
from simulate.runs.server_load import Load, Workload, read_requests, replicate
from simulate.runs.tree_switching import Switching
from tests.helpers.served_days import serve
from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, traces, trees, with_lengths
from tests.simulate.runs.test_batch_timeline import COST, Priced
from treeopt.errors import UsageError
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Proof, Switch
from treeopt.replay.static_tree import accepted_lengths, replay_tree
from treeopt.statistics import Estimate
from treeopt.tree import EMPTY, Tree

PLAIN = Switching((None,))


@dataclass(frozen=True)
class Constant(Priced):
    """A step takes so long, whoever is in it."""

    seconds: float = 0.02

    def price(self, batch, tokens, context):
        return self.seconds


def slow_serve(trace, work, switching, cost, rows, prefill):
    """Request by request: admission and (time, tokens) of bursts; and (way, requests) of steps."""
    accepted = [accepted_lengths(tree or EMPTY, trace).tolist() for tree in switching.trees]
    place = {i: int(trace.starts[r]) for i, r in enumerate(work.request)}
    stop = {i: place[i] + int(n) for i, n in enumerate(work.tokens)}
    arrivals, now, way, inside = work.arrived_s.tolist(), 0.0, 0, []
    waiting, admitted, steps = list(range(len(arrivals))), {}, []
    bursts = {i: [] for i in waiting}
    while waiting or inside:
        if not inside:
            now = max(now, arrivals[waiting[0]])
        joined = [i for i in waiting if arrivals[i] <= now][: rows - len(inside)]
        for i in joined:
            waiting.remove(i)
            admitted[i] = now
        inside += joined
        now += sum(prefill[i] for i in joined)
        before = way
        while way < len(switching.up) and len(inside) >= switching.up[way]:
            way += 1
        while way > 0 and len(inside) <= switching.down[way - 1]:
            way -= 1
        now += switching.switch_s * (way != before)
        tree = switching.trees[way] or EMPTY
        context = None
        if work.prompt_tokens is not None:
            lengths = [int(work.prompt_tokens[i] + place[i] - trace.starts[work.request[i]]) for i in inside]
            context = round(sum(lengths) / len(lengths))
        now += cost.price(len(inside), tree.nodes + 1, context)
        steps.append((way, len(inside)))
        for i in list(inside):
            tokens = min(accepted[way][place[i]] + 1, stop[i] - place[i])
            bursts[i].append((now, tokens))
            place[i] += tokens
            if place[i] == stop[i]:
                inside.remove(i)
    return [admitted[i] for i in range(len(arrivals))], list(bursts.values()), steps


@st.composite
def cases(draw):
    trace = draw(traces(requests=(1, 4)))
    count = draw(st.integers(1, 3))
    kinds = st.none() | trees(width=trace.width, depth=trace.depth, min_nodes=1)
    ways = tuple(draw(st.lists(kinds, min_size=count, max_size=count)))
    up = draw(st.lists(st.integers(2, 5), min_size=count - 1, max_size=count - 1).map(sorted))
    down = [n - 1 - draw(st.integers(0, 2)) for n in up]
    switching = Switching(ways, tuple(up), tuple(down), draw(st.sampled_from([0.0, 0.25])))
    number = draw(st.integers(1, 12))
    # Times of steps are multiples of 1/64: arrivals between them, for whom a tie decides is not said.
    gaps = draw(st.lists(st.integers(0, 40), min_size=number, max_size=number))
    arrived_s = np.cumsum(gaps) / 8 + 1 / 128
    request = np.array(draw(st.lists(st.integers(0, trace.requests - 1), min_size=number, max_size=number)))
    lengths = trace.lengths[request]
    tokens = np.array([draw(st.integers(1, int(n))) for n in lengths])
    prompts = draw(st.none() | st.lists(st.integers(1, 50), min_size=number, max_size=number).map(np.array))
    prefill = draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=number, max_size=number))
    return trace, Workload(arrived_s, request, tokens, prompts), switching, draw(st.integers(1, 5)), prefill


def test_steps_are_priced_with_what_each_tree_commits():
    trace = drawn_trace([[0.7], [0.3]], [20] * 8, depth=2, rng=np.random.default_rng(3))
    work = Workload(np.linspace(0, 5, 8), np.arange(8), trace.lengths)
    switching = Switching((Tree.chain(2), None), up=(2,), down=(1,))
    served = serve(trace, work, switching, Priced(commit=0.5), rows=3)
    way, size = served.tree_index, served.timeline.occupancy
    due = [COST.price(n, 1 if w else 3, None) for w, n in zip(way, size, strict=True)]
    assert set(way) == {0, 1}
    more = np.where(way == 0, 0.5 * (replay_tree(Tree.chain(2), trace).tau - 1), 0)
    assert served.timeline.step_s == pytest.approx(due + more)


@given(cases())
@settings(max_examples=examples(200))
def test_a_server_equals_the_slow_loop(case):
    trace, work, switching, rows, prefill = case
    admitted, bursts, steps = slow_serve(trace, work, switching, COST, rows, prefill)
    served = serve(trace, work, switching, COST, rows=rows, prefill_s=np.array(prefill))
    found = served.timeline
    assert found.arrived_s.tolist() == work.arrived_s.tolist()
    assert found.admitted_s.tolist() == admitted
    assert found.first_s.tolist() == [each[0][0] for each in bursts]
    assert found.done_s.tolist() == [each[-1][0] for each in bursts]
    assert found.tokens.tolist() == [sum(n for _, n in each) for each in bursts]
    assert list(zip(served.tree_index.tolist(), found.occupancy.tolist(), strict=True)) == steps
    changes = sum(a != b for (a, _), (b, _) in zip([(0, 0), *steps], steps, strict=False))
    assert len(served.switched_s) == changes


@given(cases())
def test_requests_tokens_and_time_are_conserved(case):
    trace, work, switching, rows, prefill = case
    served = serve(trace, work, switching, COST, rows=rows, prefill_s=np.array(prefill))
    found = served.timeline
    assert found.tokens.tolist() == work.tokens.tolist()
    assert found.committed.sum() == work.tokens.sum()
    assert found.occupancy.max() <= rows
    assert (found.arrived_s <= found.admitted_s).all()
    assert (np.diff(found.admitted_s) >= 0).all()  # first come, first served
    assert (found.admitted_s < found.first_s).all()
    assert (found.first_s <= found.done_s).all()
    idle = float(np.diff(served.idle_s, axis=1).sum())
    changes = len(served.switched_s) * switching.switch_s
    assert found.share_s.sum() + idle + changes == pytest.approx(found.total_s, rel=1e-9)
    # Little's law over the whole day: requests inside, over time, add up to their sojourns.
    times = np.unique(np.concatenate([found.arrived_s, found.admitted_s, found.done_s]))
    inside = served.running(times[:-1]) + served.waiting(times[:-1])
    assert float(inside @ np.diff(times)) == pytest.approx(float(found.e2e_s.sum()), rel=1e-9)
    assert served.running(times[-1:]).tolist() == [0]


# --- queueing theory


def waits(trace, tree, *, rate, rows, step_s, requests=1500, replications=12):
    """Mean wait for a row in the steady state, with its interval; the share of time that the server is busy."""
    load = Load(requests=requests)

    def simulation(rng):
        work = load.workload(trace, None, rng, rate=rate)
        served = serve(trace, work, Switching((tree,)), Constant(seconds=step_s), rows=rows)
        later = served.timeline.arrived_s > 100
        wait = (served.timeline.admitted_s - served.timeline.arrived_s)[later].mean()
        return {"wait": float(wait), **figures(served, load, warmup_s=100)}

    return replicate(simulation, replications=replications, seed=1)


def close(estimate: Estimate, due: float, *, more: float = 0.0) -> bool:
    """Within 2.3 half-widths of a 95 % interval over 12 runs: 5 standard errors, false alarm 4e-4; seeds are fixed."""
    return abs(estimate.value - due) <= 2.3 * (estimate.high - estimate.value) + more


def test_one_row_and_constant_texts_are_m_d_1():
    """Wait rho S / (2 (1 - rho)) (Pollaczek 1930, Khinchin 1932); utilisation rho; Little's law."""
    trace = with_lengths(np.full((2, 1), -1), [2], width=1)
    found = waits(trace, None, rate=0.7, rows=1, step_s=0.5)
    assert close(found["wait"], 0.7 / (2 * 0.3))
    assert close(found["busy"], 0.7)
    assert close(found["running"], 0.7)
    assert close(found["waiting"], 0.7 * 0.7 / (2 * 0.3))
    assert close(found["requests_s"], 0.7)
    assert close(found["tokens_s"], 1.4)


# --- changes


def test_switching_has_a_dead_band():
    switching = Switching((None, Tree.chain(1), Tree.chain(2)), up=(3, 6), down=(1, 4))
    seen, way = [], 0
    for running in (1, 2, 3, 2, 1, 2, 6, 5, 4, 3, 1):
        way = switching.next_tree(way, running)
        seen.append(way)
    assert seen == [0, 0, 1, 1, 0, 0, 2, 2, 1, 1, 0]
    with pytest.raises(UsageError, match=r"down\[0\] must be below up\[0\], got 3 and 3"):
        Switching(switching.trees, (3, 4), (3, 1))


def plan(trees_by_batch, switches=()):
    one, proof = Estimate(1.0, 1.0, 1.0), Proof("tokens", optimal=False, statement="none")
    entries = [
        PlanEntry(batch, Choice("x", tree, one, 0.01, one), None, (), {}, proof)
        for batch, tree in trees_by_batch.items()
    ]
    return Plan(tuple(entries), switches=switches)


def test_switching_of_a_plan():
    one, two = Tree.chain(1), Tree.chain(2)
    sizes = {4: one, 1: two, 2: two, 8: None}
    assert Switching.of(plan(sizes)) == Switching((two, one, None), up=(3, 5), down=(2, 4))
    assert Switching.of(plan(sizes), switch_s=0.5) == Switching((two, one, None), (3, 5), (2, 4), 0.5)
    told = (Switch(small=2, large=4, up=4, down=1), Switch(small=4, large=8, up=8, down=4))
    assert Switching.of(plan(sizes, told)) == Switching((two, one, None), up=(4, 8), down=(1, 4))
    crossed = (Switch(small=2, large=4, up=16, down=2), Switch(small=4, large=8, up=8, down=1))
    assert Switching.of(plan(sizes, crossed)) == Switching((two, one, None), up=(8, 8), down=(2, 2))
    assert Switching.of(plan({3: one})) == Switching((one,))
    grown = plan({1: None})
    choice = Choice("x", None, Estimate(1, 1, 1), 0.01, Estimate(1, 1, 1), Grown("expand", {}, 4, 2))
    grown = Plan((PlanEntry(1, choice, None, (), {}, grown.entries[0].proof),))
    with pytest.raises(UsageError, match="has a dynamic tree at batch 1"):
        Switching.of(grown)


# --- figures


def test_figures_by_hand():
    """One row, steps of 1 s, texts of 2 tokens: 0-2, 2-4 (waited 1), 4-6 (waited 1.5), 8-10 after idling."""

    class Second(Priced):
        def price(self, batch, tokens, context):
            return 1.0

    trace = with_lengths(np.full((2, 1), -1), [2], width=1)
    work = Workload(np.array([0.0, 1.0, 2.5, 8.0]), np.zeros(4, dtype=np.int64), np.full(4, 2))
    served = serve(trace, work, PLAIN, Second(), rows=1)
    assert served.timeline.done_s.tolist() == [2, 4, 6, 10]
    assert served.idle_s.tolist() == [[6, 8]]
    found = figures(served, Load(ttft_s=2.0, tpot_s=1.0), warmup_s=0.0)
    assert found["tokens_s"] == 6 / 8
    assert found["requests_s"] == 3 / 8
    assert found["piled"] == 0
    assert found["within"] == 2 / 3  # who came at 0 came with the beginning; the one at 2.5 waited 2.5 s for a token
    assert found["goodput_s"] == 2 / 8
    assert found["running"] == 6 / 8
    assert found["waiting"] == 2.5 / 8
    assert found["busy"] == 6 / 8
    assert found["tree_0"] == 1
    assert found["ttft_s_p50"] == 2
    assert found["itl_s_p99"] == 1
    late = figures(served, Load(), warmup_s=2.0)
    assert late["tokens_s"] == 4 / 6
    assert late["within"] == 1
    limited = figures(served, Load(ttft_s=2.0), warmup_s=1.0)  # of those at 2.5 and 8, the second
    assert (limited["within"], limited["goodput_s"]) == (1 / 2, 1 / 7)
    with pytest.raises(UsageError, match="warm-up must end before the last arrival at 8 s, got 8 s"):
        figures(served, Load(), warmup_s=8.0)


def test_replications_are_reproduced_and_one_has_no_interval():
    def simulation(rng):
        return {"x": float(rng.normal())}

    first, again = (replicate(simulation, replications=5, seed=3) for _ in range(2))
    assert first == again
    assert first != replicate(simulation, replications=5, seed=4)
    assert math.isinf(replicate(simulation, replications=1)["x"].high)
    clipped = replicate(lambda rng: {"within": rng.random(), "piled": rng.normal()}, replications=2)
    assert (clipped["within"].low, clipped["within"].high) == (0, 1)
    assert clipped["piled"].low < 0


# --- what comes


def test_poisson_arrivals_have_their_rate():
    """The mean of 10 000 exponential gaps is within 5 % (5 standard errors; false alarm 6e-7)."""
    trace, rng = with_lengths(np.zeros((6, 1)), [2, 4], width=1), np.random.default_rng(0)
    found = Load(requests=10_000).workload(trace, None, rng, rate=4.0).arrived_s
    assert found[-1] / 10_000 == pytest.approx(0.25, rel=0.05)
    assert (np.diff(found) > 0).all()


def test_requests_of_a_file(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [{"prompt_tokens": 7, "tokens": 3}, {"prompt_tokens": 9, "tokens": 5}]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    asked = read_requests(path)
    assert asked.arrived_s is None
    trace = with_lengths(np.zeros((12, 1)), [2, 4, 6], width=1)
    work = asked.on(trace, np.arange(5.0), rng=np.random.default_rng(0))
    assert work.tokens.tolist() == [3, 5, 3, 5, 3]
    assert work.prompt_tokens.tolist() == [7, 9, 7, 9, 7]
    assert set(work.request.tolist()) <= {1, 2}
    assert work.request[1] == work.request[3] == 2
    with pytest.raises(UsageError, match=r"log\.jsonl: line 3: `tokens` must be at most 4, .*found 5"):
        asked.on(with_lengths(np.zeros((6, 1)), [2, 4], width=1), np.zeros(2), rng=np.random.default_rng(0))
    path.write_text("\n".join(json.dumps(line | {"arrived_s": i}) for i, line in enumerate(lines)), "utf-8-sig")
    assert read_requests(path).arrived_s.tolist() == [0, 1]


def test_broken_files_are_refused(tmp_path):
    path, good = tmp_path / "log.jsonl", '{"prompt_tokens": 3, "tokens": 2}'
    for text, message in (
        ("", "holds no requests"),
        ('{"tokens": 3}', "line 1: .*missing required field `prompt_tokens`"),
        (good[:-1] + ', "arrived_s": -1}', "line 1: `arrived_s` must not fall, nor be negative"),
        (good[:-1] + ', "arrived_s": 1}\n' + good, "`arrived_s` must be in all lines or in none, found 1 of 2"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=f"{path}: .*{message}|{path} {message}"):
            read_requests(path)
