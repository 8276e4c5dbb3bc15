"""Prefill: measured by the loop, predicted from sizes, and what runs and servers make of it."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from executor.decoding.batch_rows import Rows
from executor.decoding.decoder import Decoder
from executor.decoding.request_queue import Step
from executor.profiling.profile_settings import Measuring
from executor.profiling.timed_blocks import PASSES, LoopBlocks
from executor.runners.loop_runner import LoopRunner
from simulate.profiles.profile import BatchTimes, Profile, load_profile, save_profile
from simulate.profiles.step_tables import Prefill, ladder
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import PIECE
from simulate.runs.batch_record import run
from simulate.runs.run_costs import FREE
from simulate.runs.server_load import Workload, read_requests
from simulate.runs.tree_switching import Switching
from simulate.whatif.unmeasured_profiles import transfer
from tests.helpers.command_line import done, refused
from tests.helpers.command_line import run as command
from tests.helpers.models import random_heads, small_target
from tests.helpers.served_days import serve
from tests.helpers.strategies import drawn_trace
from tests.simulate.roofline.test_roofline_model import as_profile
from tests.simulate.whatif.test_predicted_profile import model
from tests.treeopt.cli.test_simulate import files as files
from treeopt.errors import CostError
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import Tree

KNOWN = Prefill(((8, 0.01), (100, 0.05)), ((8, 0.02), (100, 0.08)))
CHAIN = ["--tree", "2", "--batch", "2"]


def warnings_of(record):
    """The warnings beside those of few requests."""
    return [each for each in record["warnings"] if not re.search(" requests (are few:|do not bound)", each)]


def reading(drafted):
    """Seconds of prompts that are read together, as the profile knows them."""
    return partial(KNOWN.seconds, drafted=drafted)


@pytest.fixture
def knowing(files, tmp_path):
    """The command's words, with a profile that knows prefill."""
    save_profile(replace(load_profile(files / "p.json"), prefill=KNOWN), tmp_path / "p.json")
    return ["simulate", "--trace", files / "t.npz", "--profile", tmp_path / "p.json"]


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 2), (1, 9), (20, 100), (64, 128), (5, 6)])
def test_a_ladder_holds_both_ends_and_leaves_no_wide_gap(low, high):
    found = ladder(low, high)
    assert (found[0], found[-1]) == (low, high)
    assert all(a < b <= 2 * a for a, b in pairwise(found))


def test_tokens_lie_between_what_is_known_or_are_read_in_parts():
    assert KNOWN.seconds([8, 54, 100], drafted=True) == pytest.approx([0.02, 0.05, 0.08])
    assert float(KNOWN.seconds(54, drafted=False)) == pytest.approx(0.03)
    assert KNOWN.seconds([200, 108, 201], drafted=True) == pytest.approx(
        [0.16, 0.10, 3 * KNOWN.seconds(67, drafted=True)]
    )
    assert Prefill(((8, 0.01),), ((8, 0.02),)).seconds([9, 16], drafted=False) == pytest.approx([0.02, 0.02])
    with pytest.raises(CostError, match="measured for 8 tokens and more, not for 7"):
        KNOWN.seconds([9, 7], drafted=False)


def test_the_loop_takes_prompts_in(monkeypatch):
    """What is told is the median of what the loop said that admitting took, the warm-up left out."""
    target, heads = small_target(), random_heads()
    seen, admit, steps = [], Rows.admit, Decoder.steps

    def watched(self, rows, prompts, requests=()):
        seen.append((self.drafter is not None, prompts))
        return admit(self, rows, prompts, requests)

    def timed(self, *args, **words):
        for step in steps(self, *args, **words):
            place = [(drafted, len(prompts), len(prompts[0])) for drafted, prompts in seen]
            drafted, many, tokens = place[-1]
            first = place.count(place[-1]) == 1
            yield Step(**vars(step) | {"admit_s": many * tokens + 1000 * drafted + 100 * first})

    monkeypatch.setattr(Rows, "admit", watched)
    monkeypatch.setattr(Decoder, "steps", timed)
    monkeypatch.setattr("executor.profiling.timed_blocks.ENOUGH", 99)
    settings = Measuring(batch=(6,), context=(3, 20))
    with LoopBlocks(LoopRunner(target, heads), [list(range(1, 30))], settings) as blocks:
        found = blocks.prefill(math.inf)
    sizes = (3, 4, 8, 16, 20, 40, 80)  # six of 20 are more than enough
    assert found.plain == tuple((n, float(n)) for n in sizes)
    assert found.drafted == tuple((n, 1000.0 + n) for n in sizes)
    assert len(seen) == PASSES * 2 * len(sizes)
    assert all(len({len(p) for p in prompts}) == 1 for _, prompts in seen)
    assert all(np.all(np.isin(np.diff(p), (1, -28))) for _, prompts in seen for p in prompts)  # going round


def test_kept_prompts_are_read_again_to_be_timed(monkeypatch):
    """With a stream of one token all prompts are equal, and a row that holds one would not be filled again."""
    target, filled = small_target(), []
    fill = type(target)._prefill

    def counted(self, rows, prompts, *rest):
        filled.extend(map(len, prompts))
        return fill(self, rows, prompts, *rest)

    monkeypatch.setattr(type(target), "_prefill", counted)
    settings = Measuring(batch=(2,), context=(9,))
    with LoopBlocks(LoopRunner(target, random_heads()), [[7]], settings) as blocks:
        blocks.prefill(math.inf)
    assert filled == [8] * 3 * 2 * PASSES


@pytest.mark.parametrize("piece", [None, 2])
def test_prompts_that_join_together_are_read_at_once(piece):
    """Two rows, four requests of one token each: two joins of two prompts, whose step waits for both."""
    trace = drawn_trace([[0.5]], [1] * 4, depth=1, rng=np.random.default_rng(0))
    profile = Profile(tuple(BatchTimes(b, 1.0, ((1, 1.0),), ((2, 1.0),)) for b in (1, 2)), (0, 99), 0.0)
    prompts = np.array([8, 2, 3, 7])
    how = {"batch": 2, "prompt_tokens": prompts, "piece": piece}
    found = run(trace, None, profile, prefill_s=lambda tokens: tokens + 2.0, **how)
    assert found.done_s.tolist() == [13, 13, 26, 26]
    apart = run(trace, None, profile, prefill_s=prompts + 2.0, **how)
    assert apart.done_s.tolist() == [15, 15, 30, 30]


def test_a_server_reads_prompts_that_wait_together(files):
    trace = drawn_trace([[0.5]], [1] * 4, depth=1, rng=np.random.default_rng(0))
    profile = Profile(tuple(BatchTimes(b, 1.0, ((1, 1.0),), ((2, 1.0),)) for b in (1, 2, 3)), (0, 99), 0.0)
    arrived, request = np.array([0.0, 0.5, 0.5, 0.5]), np.arange(4)
    work = Workload(arrived, request, np.ones(4, dtype=np.int64), np.array([8, 2, 3, 7]))
    how = {"rows": 3, "prefill_s": lambda tokens: tokens + 2.0}
    found = serve(trace, work, Switching((None,)), profile, **how).timeline
    assert found.done_s.tolist() == [11, 11 + 14 + 1, 26, 26]


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_predicted_prefill_is_a_forward_of_the_prompt(kind):
    """Without constants and attention, bytes and FLOP of the matrices; a drafter's layer reads it, heads do not."""
    bare = replace(model(kind), overheads=Overheads.none())
    tokens = 1 + PIECE
    products = sum(c * o * i for c, o, i, _ in bare.forward.matrices)
    split = bare.prefill(tokens, drafted=False)
    flop_s = 2 * products * PIECE / bare.kernels.flop_rate
    keys = PIECE / 2  # seen by a token, in the mean
    attention_s = 4 * bare.target.layers * bare.target.heads * bare.target.head_dim * PIECE * keys
    attention_s /= bare.kernels.flop_rate
    assert flop_s + attention_s < float(split.work_s) < 1.2 * (flop_s + attention_s)
    more = float(bare.prefill(tokens, drafted=True).total_s) / float(split.total_s)
    assert (1 / 40 < more - 1 < 1 / 20) if kind == "eagle" else more == 1  # one layer and its projection beside 32
    assert float(bare.prefill(1, drafted=True).total_s) == 0
    own = model(kind)
    for window in (128, 512, 4096):  # it can only save
        near = replace(own, target=replace(own.target, window=window, groups=()))
        for n in (129, 2049, 9000):
            seen, all_ = (float(each.prefill(n, drafted=True).total_s) for each in (near, own))
            assert seen < all_ if n > 2 * window else seen == all_
    seconds = [float(bare.prefill(n, drafted=True).total_s) for n in (2, 100, PIECE, PIECE + 1, PIECE + 2, 5 * PIECE)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 5 * seconds[2]  # later tokens see more


def test_prefill_is_carried_over_with_its_utilisation():
    here, there = model("eagle"), model("eagle", "h200")
    sizes = (1, 2, 300, 5000)
    read = [tuple((n, 2 * float(here.prefill(n, drafted=d).total_s) + (n == 1)) for n in sizes) for d in (False, True)]
    measured = replace(as_profile(replace(here, context=300)), prefill=Prefill(*read))
    same = transfer(measured, measured_on=here, to=here, context=300).prefill
    assert np.array(same.plain) == pytest.approx(np.array(measured.prefill.plain))
    double = replace(
        there, device=replace(here.device, flops=2 * here.device.flops, bandwidth=2 * here.device.bandwidth)
    )
    carried = transfer(measured, measured_on=here, to=double, context=300).prefill
    for points, before in ((carried.plain, measured.prefill.plain), (carried.drafted, measured.prefill.drafted)):
        assert [n for n, _ in points] == list(sizes)
        assert all(s <= b for (_, s), (_, b) in zip(points, before, strict=True))
        assert points[0] == before[0]  # nothing is read
        assert 0.5 < points[-1][1] / before[-1][1] < 0.55  # little of it is fixed
    assert transfer(replace(measured, prefill=None), measured_on=here, to=there, context=300).prefill is None
    for context in (250, 8192):  # measured from 200 to 400 tokens: nobody knows longer prompts
        found = transfer(measured, measured_on=here, to=double, context=context).prefill
        assert found == (carried if context == 250 else None)


def assert_runs(record, trace, profile, **how):
    """Check that a chain and plain decoding take what runs of them take."""
    for way, tree, drafted in zip(record["configurations"], (Tree.chain(2), None), (True, False), strict=True):
        due = run(trace, tree, profile, batch=2, pad=True, prefill_s=reading(drafted), **how)
        assert way["total_s"] == pytest.approx(due.total_s, rel=1e-12)
        assert way["ttft_s"]["p50"]["value"] == pytest.approx(due.percentiles("ttft", (0.5,))[0].value, rel=1e-12)


def test_a_run_takes_prefill_from_its_profile(files, knowing):
    record = json.loads(done(*knowing, *CHAIN, "--prompt-tokens", "54", "--json").stdout)
    trace, profile = load_trace(files / "t.npz"), load_profile(files / "p.json")
    assert record["meta"]["settings"]["prefill_s"] is None
    assert_runs(record, trace, profile, prompt_tokens=54)
    told = "Prefill of prompts of 54 tokens, those that join together read at once, as in the profile: 30 ms "
    assert record["conditions"][1].startswith(told + "per prompt, 50 ms with the drafter")


def test_a_server_takes_prefill_from_its_profile(files, knowing, tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [{"prompt_tokens": 20 + i, "tokens": 1, "arrived_s": float(100 * i)} for i in range(40)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = [*CHAIN, "--requests-file", log, "--warmup", "0", "--json"]
    record = json.loads(done(*knowing, *settings).stdout)
    assert FREE not in record["warnings"]
    assert record["conditions"][1].startswith(
        "Prefill of prompts of the file, those that join together read at once, as"
    )
    trace, profile = load_trace(files / "t.npz"), load_profile(files / "p.json")
    asked = read_requests(log)
    for way, tree, drafted in zip(record["configurations"], (Tree.chain(2), None), (True, False), strict=True):
        work = asked.on(trace, asked.arrived_s, rng=np.random.default_rng(0))
        due = serve(trace, work, Switching((tree,)), profile, rows=2, prefill_s=reading(drafted), pad=True).timeline
        # Nobody waits for another, and every request is one step.
        assert way["figures"]["ttft_s_p50"]["value"] == pytest.approx(
            due.percentiles("ttft", (0.5,))[0].value, rel=0.05
        )
    lines[7]["prompt_tokens"] = 5
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(command(*knowing, *settings), f"{log}: line 8: prefill was measured for 8 tokens and more, not for 5")


def remembering(files, tmp_path, lengths):
    """The trace, telling so many tokens of each prompt."""
    trace = load_trace(files / "t.npz")
    save_trace(replace(trace, prompt_tokens=np.int32(lengths)), tmp_path / "t.npz")
    return load_trace(tmp_path / "t.npz"), ["simulate", "--trace", tmp_path / "t.npz"]


def test_a_run_takes_its_prompts_from_the_trace(files, knowing, tmp_path):
    lengths = 60 + np.arange(24)
    trace, asked = remembering(files, tmp_path, lengths)
    profile = load_profile(files / "p.json")
    record = json.loads(done(*asked, "--profile", tmp_path / "p.json", *CHAIN, "--json").stdout)
    assert_runs(record, trace, profile, prompt_tokens=lengths)
    assert warnings_of(record) == []
    assert record["conditions"][1].startswith("Prefill of prompts of 60 to 83 tokens, those that join together")


def test_a_server_draws_prompts_with_their_texts(files, knowing, tmp_path):
    """Everybody is served alone, and texts that begin behind longer prompts take longer to their first token."""
    lengths = np.where(np.arange(24) % 2, 100, 20)
    _, asked = remembering(files, tmp_path, lengths)
    server = [*CHAIN, "--arrivals", "0.001", "--requests", "40", "--json"]
    record = json.loads(done(*asked, "--profile", tmp_path / "p.json", *server).stdout)
    assert FREE not in record["warnings"]
    for way, drafted in zip(record["configurations"], (True, False), strict=True):
        short, long = KNOWN.seconds([20, 100], drafted=drafted)
        apart = way["figures"]["ttft_s_p95"]["value"] - way["figures"]["ttft_s_p50"]["low"]
        assert way["figures"]["ttft_s_p99"]["value"] > long
        assert apart > 0.9 * (long - short)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ([3], "prefill of 4.2% of the trace's prompts is priced as 8 or 100 tokens"),
        ([99], None),
        ([3, 190], "covers prefill of 8 to 100 tokens, 8.3% of the trace's prompts lie outside: they cost"),
    ],
)
def test_prompts_that_the_profile_does_not_reach_are_told(files, knowing, tmp_path, odd, told):
    lengths = np.full(24, 50)
    lengths[: len(odd)] = odd
    trace, asked = remembering(files, tmp_path, lengths)
    asked += ["--profile", tmp_path / "p.json", "--batch", "2"]
    record = json.loads(done(*asked, "--json").stdout)
    assert [bool(re.search(told or "", each)) for each in warnings_of(record)] == [True] * (told is not None)
    few = len(odd) == 1
    (plain,) = record["configurations"]
    near = np.clip(lengths, 8, 100)
    taken = {"prompt_tokens": near, "prefill_s": reading(drafted=False)}
    due = run(trace, None, load_profile(files / "p.json"), batch=2, pad=True, **(taken if few else {}))
    assert plain["total_s"] == pytest.approx(due.total_s, rel=1e-12)
    if not few:
        server = [*asked, "--arrivals", "1", "--requests", "9", "--json"]
        assert FREE in json.loads(done(*server).stdout)["warnings"]
        assert record["conditions"][1].startswith("Prefill costs nothing: the profile does not cover their lengths")


def test_steps_are_priced_without_contexts_that_the_profile_lacks(files, knowing, tmp_path):
    """Prompts that are read as the profile knows, and texts that then go beyond its contexts."""
    trace, asked = remembering(files, tmp_path, np.full(24, 90))
    save_profile(replace(load_profile(tmp_path / "p.json"), context=(8, 100)), tmp_path / "p.json")
    profile = load_profile(files / "p.json")
    asked += ["--profile", tmp_path / "p.json", *CHAIN, "--json"]
    record = json.loads(done(*asked).stdout)
    (warning,) = warnings_of(record)
    assert re.search(r"75.0% of the trace's requests reach contexts .*: steps are priced at its own", warning)
    assert_runs(record, trace, profile, prompt_tokens=90, by_context=False)
    server = json.loads(done(*asked, "--arrivals", "1", "--requests", "20").stdout)
    assert server["warnings"][0] == warning
    assert FREE not in server["warnings"]
