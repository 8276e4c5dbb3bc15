"""A server against an event loop written a second time and queueing theory's closed forms; its capacity."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.profiles.profile import BatchTimes, Profile, load_profile, save_profile
from simulate.runs.run_costs import by_parabolas, price_steps
from simulate.runs.server import Decoding, serve_day
from simulate.runs.server_capacity import LEAST, MOST, NEAR, PILING, highest_rate, keeps_up
from simulate.runs.server_figures import figures
from simulate.runs.server_load import Load, Workload, read_requests, replicate
from simulate.runs.tree_switching import Switching
from tests.helpers.command_line import done, refused
from tests.helpers.command_line import run as command
from tests.helpers.served_days import serve
from tests.helpers.slow_params import examples
from tests.helpers.strategies import drawn_trace, traces, trees, with_lengths
from tests.simulate.runs.test_batch_timeline import COST, Priced
from tests.treeopt.cli.test_simulate import files, words  # noqa: F401 - a fixture
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
def test_a_server_equals_the_slow_loop_and_conserves_requests_tokens_and_time(case):
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
    assert found.tokens.tolist() == work.tokens.tolist()
    assert found.committed.sum() == work.tokens.sum()
    assert found.occupancy.max() <= rows
    assert (found.arrived_s <= found.admitted_s).all()
    assert (np.diff(found.admitted_s) >= 0).all()  # first come, first served
    assert (found.admitted_s < found.first_s).all()
    assert (found.first_s <= found.done_s).all()
    idle = float(np.diff(served.idle_s, axis=1).sum())
    changing_s = changes * switching.switch_s
    assert found.share_s.sum() + idle + changing_s == pytest.approx(found.total_s, rel=1e-9)
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


DAYS = ["--requests", "60", "--replications", "2"]


@given(st.floats(2 * LEAST, MOST / 2))
def test_the_highest_rate_is_found(highest):
    looked: list[float] = []

    def holds(rate):
        looked.append(rate)
        return rate <= highest

    assert highest / (1 + NEAR) <= highest_rate(holds) <= highest
    assert len(looked) < 50


@given(st.floats(2 * LEAST, MOST / 2), st.floats(0, MOST))
def test_where_the_search_begins_changes_nothing(highest, near):
    assert highest_rate(lambda rate: rate <= highest, near) == highest_rate(lambda rate: rate <= highest)
    assert highest_rate(lambda rate: False, near) == 0


def test_what_never_or_always_holds_is_said():
    assert highest_rate(lambda rate: False) == 0
    with pytest.raises(UsageError, match="the limits are met even at 524288 requests per second"):
        highest_rate(lambda rate: True)


def test_a_day_keeps_up_with_its_share_and_its_queue():
    assert keeps_up({"within": 0.95, "piled": PILING}, share=0.95)
    assert not keeps_up({"within": 0.9499, "piled": 0.0}, share=0.95)
    assert not keeps_up({"within": 1.0, "piled": 1.01 * PILING}, share=0.95)


def test_the_rate_is_the_highest_that_keeps_the_limits(files, tmp_path):  # noqa: F811
    """Fewer rows carry less; below the rate found the limits are kept, at twice it they are not."""
    out = tmp_path / "c.json"
    asked = ["--tree", "2", "--batch", "4", *DAYS, "--capacity", "0.9", "--tpot-s", "0.03", "--ttft-s", "0.5"]
    shown = done(*words(files, *asked, "--json", "--output", out))
    record = json.loads(shown.stdout)
    assert record == json.loads(out.read_text("utf-8"))
    assert record["schema"] == "treeopt.capacity/2"
    assert (record["rows"], record["share"]) == (4, 0.9)
    assert record["slo"] == {"ttft_s": 0.5, "tpot_s": 0.03}
    tree, plain = record["configurations"]
    assert (tree["name"], tree["trees"]) == ("chain of 2", [[[0], [0, 0]]])
    assert (plain["name"], plain["trees"], plain["over"]) == ("no speculation", [None], None)
    ratio = tree["requests_s"]["value"] / plain["requests_s"]["value"]
    assert tree["over"]["value"] == pytest.approx(ratio)
    assert 0 < tree["over"]["low"] <= ratio <= tree["over"]["high"]
    served = ["--tree", "2", "--batch", "4", "--requests", "150", "--tpot-s", "0.03", "--ttft-s", "0.5", "--json"]
    within = [
        json.loads(done(*words(files, *served, "--arrivals", str(share * tree["requests_s"]["value"]))).stdout)
        for share in (0.8, 2)
    ]
    kept = [each["configurations"][0]["figures"]["within"]["value"] for each in within]
    assert kept[0] > 0.9 > kept[1]
    less = json.loads(done(*words(files, *asked, "--batch", "1", "--json")).stdout)
    assert less["configurations"][0]["requests_s"]["value"] < tree["requests_s"]["value"]


def test_the_interval_carries_the_error_of_steps(files, tmp_path):  # noqa: F811
    """Its ends are the rates with steps as slow and as fast as the error allows; plain decoding has no such error."""
    asked = ["--tree", "2", "--batch", "4", *DAYS, "--capacity", "0.9", "--tpot-s", "0.03", "--ttft-s", "0.5", "--json"]
    profile, found = load_profile(files / "p.json"), {}
    for error in (0.0, 0.4):
        save_profile(replace(profile, relative_error=error), tmp_path / "p.json")
        shown = done(*words(files, *asked, "--profile", tmp_path / "p.json")).stdout
        found[error] = json.loads(shown)["configurations"]
    (sure, plain), (unsure, other) = found[0.0], found[0.4]
    assert plain == other
    for key in ("requests_s", "over"):
        assert unsure[key]["value"] == sure[key]["value"]
        assert unsure[key]["low"] < 0.8 * sure[key]["value"]
        assert unsure[key]["high"] > max(1.2 * sure[key]["value"], sure[key]["high"])


def test_days_share_their_prices():
    """Each number of requests is priced once, at whatever rate and day."""
    trace, priced = drawn_trace([[0.6]], [20, 30] * 10, depth=1, rng=np.random.default_rng(0)), []

    class Counted(Constant):
        def price(self, batch, tokens, context):
            priced.append((batch, tokens))
            return super().price(batch, tokens, context)

    decoding = Decoding(trace, Switching((Tree.chain(1), None), (3,), (1,)), Counted(), rows=4)
    for rate in (1.0, 10.0, 100.0):
        work = Load(requests=50).workload(trace, None, np.random.default_rng(1), rate=rate)
        served = serve_day(decoding, work, rows=4)
        assert served.requests.done_s == pytest.approx(served.timeline.done_s, rel=1e-12)
    assert len(priced) == len(set(priced)) > 4


def test_a_plan_changes_its_trees_while_the_rate_is_looked_for(files):  # noqa: F811
    asked = ["--plan", files / "plan.json", *DAYS, "--capacity", "0.9", "--tpot-s", "0.03", "--json"]
    plan, plain = json.loads(done(*words(files, *asked)).stdout)["configurations"]
    assert plan["name"] == "plan"
    assert len(plan["trees"]) == len(plan["up"]) + 1 == 2
    assert plan["requests_s"]["value"] > plain["requests_s"]["value"]


def test_what_cannot_be_is_refused(files):  # noqa: F811
    server = words(files, "--batch", "2")
    limited = [*server, "--tpot-s", "0.1"]
    refused(command(*limited, "--capacity", "0.9", "--arrivals", "3"), "--capacity finds the rate that", code=2)
    refused(command(*server, "--capacity", "0.9"), "--capacity needs limits: give --ttft-s, --tpot-s or both", code=2)
    refused(command(*limited, "--capacity", "1.1"), "--capacity", code=2)
    refused(command(*server, "--tpot-s", "0.1"), "give --arrivals, --capacity or --requests-file", code=2)


def test_prices_by_context_are_those_of_the_profile():
    """Three contexts, a batch size between two: parabolas between the tables, to rounding."""
    tables = [
        BatchTimes(
            b, 0.01 * b**0.3 + c * b / 1e6, ((1, 1e-3 + c / 1e6),), ((2, 0.011 + c * b / 1e6), (8, 0.02 * b)), (), c
        )
        for b in (1, 4)
        for c in (16.0, 100.5, 400.0)
    ]
    profile, contexts = Profile(tuple(tables), (10, 500), 0.02), np.arange(10, 501)
    for tree in (None, Tree.chain(1)):
        price = price_steps(tree, profile, committed=1.5)
        for batch in (1, 3, 4):
            due = [price(batch, context) for context in contexts.tolist()]
            assert by_parabolas(price, profile)(batch, contexts) == pytest.approx(due, rel=1e-9)
