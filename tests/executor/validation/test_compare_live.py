"""Validation with a clock that counts tokens in place of seconds: what is measured is known beforehand."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3Config, LlamaConfig, Qwen2Config

from executor.decoding import decoder
from executor.decoding.decoder import Decoder
from executor.drafters.language_model.drafter import LanguageModel, of_layers
from executor.drafters.medusa.drafter import MedusaHeads
from executor.models import SHAPES, random_drafter, random_target, shape_config
from executor.runners import loop_runner
from executor.runners.loop_runner import LoopRunner, weights_read
from executor.runners.runner import Requests
from executor.target.target_model import Target
from executor.validation import LiveComparison
from executor.verification.acceptance_rules import Greedy
from executor.verification.sampling_rules import SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp, seeded_generator
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import BatchTimes, Profile
from simulate.profiles.step_tables import Prefill
from simulate.validation.predicted_vs_measured import comparison_record
from simulate.validation.predictions import Runs, closed_forms, ways_of, whole_runs
from tests.helpers.model_families import family
from tests.helpers.models import SMALL, random_heads, random_prompts, small_target
from tests.helpers.strategies import drawn_trace
from treeopt.comparison.trees_of_size import parse_sizes, sized_trees
from treeopt.cost_model import StepShape
from treeopt.errors import ExecutorError, TraceError, UsageError
from treeopt.planning.search_pipeline import search
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

BASE_S, TOKEN_S, DRAFT_S = 0.010, 0.001, 0.002  # of a forward, of each token in it, of each level drafted
BATCHES, BLOCKS = (1, 2), 3


class Clock:
    """Stands still unless somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """A verify forward of n tokens a sequence at batch b takes BASE_S + TOKEN_S b n; a drafted level DRAFT_S."""
    found = Clock()
    verify, level = Target.verify, MedusaHeads.level

    def timed_verify(self, tokens, *args, **kwargs):
        found.now += BASE_S + TOKEN_S * tokens.numel()
        return verify(self, tokens, *args, **kwargs)

    def timed_level(self, *args, **kwargs):
        found.now += DRAFT_S
        return level(self, *args, **kwargs)

    monkeypatch.setattr(Target, "verify", timed_verify)
    monkeypatch.setattr(MedusaHeads, "level", timed_level)
    for module in ("executor.device", "executor.decoding.decoder"):
        monkeypatch.setattr(f"{module}.time", found)
    return found


def step_s(batch: int, tree: Tree) -> float:
    return BASE_S + TOKEN_S * batch * (tree.nodes + 1) + DRAFT_S * tree.depth


def a_profile(batches=BATCHES, base_s=BASE_S, token_s=TOKEN_S) -> Profile:
    """What the clock does, measured without error."""
    return Profile(
        tuple(
            BatchTimes(
                b,
                base_s + token_s * b,
                tuple((d, DRAFT_S * d) for d in (1, 4)),
                tuple((n, base_s + token_s * b * n) for n in (2, 64)),
            )
            for b in batches
        ),
        (0, 500),
        0.02,
    )


def a_trace(requests: int, seed: int, longest: int = 15) -> Trace:
    lengths = np.random.default_rng(seed).integers(6, longest + 1, requests).tolist()
    return drawn_trace([[0.5, 0.2, 0.1], [0.7, 0.1, 0.1]], lengths, depth=4, rng=np.random.default_rng(seed))


@pytest.fixture(scope="module")
def plan():
    """A chain of 2 and the best tree of 7, besides what search finds."""
    trace = a_trace(40, 0)
    shapes = sized_trees(parse_sizes("chain:2,best:7"), trace)
    return search(trace, a_profile(), batch=BATCHES, max_nodes=7, compare=shapes)


def test_replayed_acceptance_is_measured_as_it_is(plan, clock):
    """tau of every cell is the replay's, step times are the clock's, speedup follows from both."""
    replayed = a_trace(2 * BLOCKS * max(BATCHES) + 1, 5, longest=8)
    requests = Requests(random_prompts([4] * replayed.requests), 64, replayed=replayed)
    told: list[int] = []
    forms = closed_forms(plan, weights=(1, 9))
    live = LiveComparison(LoopRunner(small_target(), random_heads()), plan, requests, blocks=BLOCKS, seed=2)
    cells = live.run(forms=forms, progress=told.append)
    assert sum(told) == live.runs
    assert [(c.batch, c.tree) for c in cells] == [(e.batch, tree) for e in plan.entries for tree in ways_of(e)]
    assert len(cells) >= 2 * 3
    for cell in cells:
        step, plain = step_s(cell.batch, cell.tree), step_s(cell.batch, EMPTY)
        tau = replay_tree(cell.tree, replayed).tau
        assert cell.measured.tau.value == pytest.approx(tau, rel=1e-12)
        assert cell.measured.step_s == pytest.approx(step, rel=1e-9)
        assert cell.measured.speedup.value == pytest.approx(tau * plain / step, rel=1e-9)
        assert cell.predicted.step_s == pytest.approx(step, rel=1e-9)
        assert cell.error == pytest.approx(cell.predicted.tau.value / tau - 1, rel=1e-6, abs=1e-9)
        assert cell.forms == forms[cell.batch, cell.tree.id]
        assert cell.plain_s == pytest.approx((plain, plain), rel=1e-9)
    assert {best["batch"] for best in comparison_record(cells)["best"]} == set(BATCHES)


@pytest.fixture
def prefill_clock(clock, monkeypatch) -> Clock:
    """Prompts padded to n tokens, b at once, take 0.05 + 0.001 b n, a drafter that reads them 0.02 more."""
    prefill, admit = Target.prefill, MedusaHeads.admit

    def timed_prefill(self, rows, prompts, **more):
        clock.now += 0.05 + 0.001 * len(prompts) * (1 + max(map(len, prompts)))  # the root is not read
        return prefill(self, rows, prompts, **more)

    def timed_admit(self, *args):
        clock.now += 0.02
        return admit(self, *args)

    monkeypatch.setattr(Target, "prefill", timed_prefill)
    monkeypatch.setattr(MedusaHeads, "admit", timed_admit)
    return clock


PREFILL = Prefill(*(tuple((tokens, more + 0.001 * tokens) for tokens in (2, 64)) for more in (0.05, 0.07)))


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("lengths", [[4], [5, 9, 2, 7]])
def test_whole_runs_take_as_long_as_they_are_predicted_to(prefill_clock, monkeypatch, lengths, late):
    """Of the very requests: prompts read together are padded, rows idle and are freed late, uneven pieces drain."""
    trace, batches = a_trace(40, 0), (1, 2, 4)
    profile = replace(a_profile(batches), prefill=PREFILL)
    plan = search(trace, profile, batch=batches, max_nodes=7, compare=sized_trees(parse_sizes("chain:2,best:7"), trace))
    replayed = a_trace(2 * BLOCKS * max(batches) + 5, 7)
    prompts = random_prompts(np.resize(lengths, replayed.requests).tolist())
    asked = Requests(prompts, 64, replayed=replayed)
    target = small_target()
    monkeypatch.setattr(loop_runner, "Decoder", partial(Decoder, late=late))
    runner = LoopRunner(target, random_heads())
    live = LiveComparison(runner, plan, asked, blocks=BLOCKS)
    runs = live.sizes
    assert runs.pieces == {1: (3, 3, 2, 2) * 2 + (3, 2, 2, 2), 2: (5, 5, 5, 5, 5, 4), 4: (10, 10, 9)}
    assert (runs.prompts, runs.new_tokens, runs.late) == (tuple(map(len, prompts)), 64, late)
    due = whole_runs(plan, replayed, profile, runs)
    cells = live.run(whole=due)
    assert len(cells) >= 3 * 2
    for cell in cells:
        assert cell.whole == due[cell.batch, cell.tree.id]
        assert cell.end_to_end == pytest.approx(cell.whole.value, rel=1e-9)
        assert cell.end_to_end != pytest.approx(cell.measured.speedup.value, rel=1e-3)
    assert comparison_record(cells)["end_to_end"]["max_error"] < 1e-9
    assert whole_runs(plan, replayed, a_profile(batches), runs) == {}


def test_whole_runs_are_as_uncertain_as_steps_of_their_batch(plan):
    """Steps that are known to 2 and 30 %; and what requests differ by, the more the fewer there are."""
    profile = a_profile()
    small, large = (replace(t, relative_error=e) for t, e in zip(profile.batches, (0.02, 0.3), strict=True))
    profile = replace(profile, batches=(small, large), prefill=PREFILL)
    few, many = (
        whole_runs(plan, a_trace(40, 7), profile, Runs({1: (3,), 2: (5,)}, (4,) * count, 64)) for count in (10, 40)
    )
    for cell, estimate in many.items():
        known = profile.error(StepShape(cell[0], 2, (1,)))
        assert known < estimate.relative < {1: 0.1, 2: 0.35}[cell[0]]
        alone = math.sqrt((estimate.relative**2 - known**2) / 2)
        assert few[cell].relative == pytest.approx(math.hypot(known, alone * math.sqrt(1 + 40 / 10)))


def test_whole_runs_are_priced_at_their_contexts(plan):
    """Steps behind 100 tokens take three times as long as those behind 10, plain ones as long."""
    tables = tuple(
        replace(times, context=context, rest=tuple((n, factor * s) for n, s in times.rest))
        for times in a_profile().batches
        for context, factor in ((10.0, 1.0), (100.0, 3.0))
    )
    profile = Profile(tables, (0, 200), 0.02, prefill=Prefill(((2, 1e-6),), ((2, 1e-6),)))
    short, long = (
        whole_runs(plan, a_trace(40, 7), profile, Runs({1: (3,), 2: (5,)}, (length,), 64)) for length in (8, 96)
    )
    assert short.keys() == long.keys()
    assert all(long[cell].value < 0.7 * short[cell].value for cell in short)


def test_plain_decoding_and_trees_are_judged_by_the_rule_that_was_asked_for(plan, clock, monkeypatch):
    judged, accept = Counter(), SampleAndMatch.accept

    def spied(self, logits, draft):
        judged[logits.shape[1]] += 1
        return accept(self, logits, draft)

    monkeypatch.setattr(SampleAndMatch, "accept", spied)
    monkeypatch.setattr(Greedy, "accept", lambda *args: pytest.fail("greedy was not asked for"))
    rule = SampleAndMatch(Warp(1.0), seeded_generator(torch.device("cpu"), 3))
    plan, prompts = replace(plan, entries=plan.entries[1:]), random_prompts([4] * 2 * BLOCKS * max(BATCHES))
    runner = LoopRunner(small_target(), random_heads(), rule=rule)
    cells = LiveComparison(runner, plan, Requests(prompts, 5), blocks=BLOCKS).run()
    assert set(judged) == {1, *(1 + cell.tree.nodes for cell in cells)}
    for cell in cells:
        assert cell.measured.step_s == pytest.approx(step_s(cell.batch, cell.tree), rel=1e-9)


def test_an_interrupted_comparison_equals_an_uninterrupted_one(plan, clock, tmp_path):
    """With sampled texts, too: each group of runs has random numbers of its own."""
    plan, requests = replace(plan, entries=plan.entries[:1]), Requests(random_prompts([4] * 2 * BLOCKS), 3)
    work, count = tmp_path / "work", 0

    def compared(**more):
        rule = SampleAndMatch(Warp(1.0), seeded_generator(torch.device("cpu"), 3))
        runner = LoopRunner(small_target(), random_heads(), rule=rule)
        return LiveComparison(runner, plan, requests, blocks=BLOCKS).run(**more)

    def stop(runs):
        nonlocal count
        count += runs
        if count == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(work=work, progress=stop)
    told: list[int] = []
    resumed, whole = compared(work=work, progress=told.append), compared()
    assert told[0] > 0  # runs that were kept
    for cell, other in zip(resumed, whole, strict=True):
        assert (cell.batch, cell.tree, cell.measured.tau) == (other.batch, other.tree, other.measured.tau)
        assert cell.measured.speedup.value == pytest.approx(other.measured.speedup.value)


@pytest.mark.slow
def test_ways_and_batches_come_in_another_order_in_each_block(plan, clock, monkeypatch):
    """All ways of a batch size decode every request equally often, warmed up; two blocks are hardly ever alike."""
    seen, steps = [], decoder.Decoder.steps

    def spied(self, prompts, **words):
        seen.append((self.batch, self.tree, len(prompts)))
        return steps(self, prompts, **words)

    monkeypatch.setattr(decoder.Decoder, "steps", spied)
    count = 2 * BLOCKS * max(BATCHES)
    runner, requests = LoopRunner(small_target(), random_heads()), Requests(random_prompts([4] * count), 5)
    live = LiveComparison(runner, plan, requests, blocks=BLOCKS)
    live.run()
    warmed, blocks = len({way[:2] for way in seen}), live.runs // BLOCKS
    measured, cuts = seen[warmed:], live.pieces
    assert cuts == {1: (2, 1), 2: (1, 2)}  # a token at batch 1 takes about twice as long
    assert len(measured) == blocks * BLOCKS
    assert all(size == count // BLOCKS // cuts[batch][0] for batch, _, size in measured)
    orders = [[way[:2] for way in measured[start : start + blocks]] for start in range(0, len(measured), blocks)]
    for order in orders:
        assert Counter(order) == {(batch, tree): math.prod(cuts[batch]) for batch, tree in orders[0]}
        firsts = [batch for (batch, _), before in zip(order, [(0, None), *order], strict=False) if before[0] != batch]
        assert len(firsts) == len(BATCHES)  # a batch size is left when all its pieces are decoded
    assert len({tuple(order) for order in orders}) == BLOCKS  # by chance alike: below 1 in 10!


def test_a_limit_below_the_trace_s_ends_requests_earlier(plan, clock):
    replayed = a_trace(2 * BLOCKS * max(BATCHES), 6)
    requests = Requests(random_prompts([4] * replayed.requests), 7, replayed=replayed)
    assert requests.limits == [min(7, n) for n in replayed.lengths.tolist()]
    assert requests.context == round(4 + sum(requests.limits) / len(requests.limits) / 2)
    part = requests.part(np.array([1, 4]))
    assert part.limits == [requests.limits[1], requests.limits[4]]
    assert part.replayed is not None
    np.testing.assert_array_equal(part.replayed.rank, replayed.select(np.array([1, 4])).rank)


def test_refusals(plan):
    runner = LoopRunner(small_target(), random_heads())
    replayed, prompts = a_trace(12, 1), random_prompts([4] * 12)
    with pytest.raises(UsageError, match="11 prompts cannot replay a trace of 12 requests"):
        Requests(prompts[:11], replayed=replayed)
    with pytest.raises(UsageError, match="3 blocks at batch 2 need at least 12 prompts, got 11"):
        LiveComparison(runner, plan, Requests(prompts[:11]), blocks=3).run()
    shallow = drawn_trace([[0.5]], [9] * 12, depth=1, rng=np.random.default_rng(0))
    with pytest.raises(TraceError, match="the trace records"):
        LiveComparison(runner, plan, Requests(prompts, replayed=shallow), blocks=3).run()
    with pytest.raises(ExecutorError, match="context"):
        LiveComparison(runner, plan, Requests(prompts, 600), blocks=3).run()


# --- models of a shape


def test_shapes_have_the_sizes_of_the_models_they_are_named_after():
    """Published parameter counts: Llama 3.1 8.03 B and 70.6 B, Llama 3.2 1.24 B with tied embeddings (0.26 B more)."""
    counts = {name: Shape.from_config(shape_config(name).to_dict()).parameters / 1e9 for name in SHAPES}
    due = {"100m": 0.11, "1b": 1.24 + 0.26, "8b": 8.03, "70b": 70.6, "14b": 14.77}
    for name, count in due.items():
        assert counts[name] == pytest.approx(count, rel=0.01 if name != "100m" else 0.1), name


def test_random_models_are_the_same_each_time(tmp_path):
    first, again = random_target("toy"), random_target("toy")
    assert first.name == "random-toy"
    for one, other in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    LlamaConfig(**shape_config("toy").to_dict() | {"num_hidden_layers": 3}).save_pretrained(tmp_path)
    mine = random_target(tmp_path, dtype=torch.bfloat16)
    assert (mine.dtype, mine.model.config.num_hidden_layers) == (torch.bfloat16, 3)


@pytest.mark.parametrize("source", ["medusa:3", "layers:1", "eagle"])
def test_random_drafters_draft(source):
    target = random_target("toy")
    drafter = random_drafter(source, target)
    loop = decoder.Decoder(target, drafter, tree=Tree.chain(3))
    assert len(loop.generate([[1, 2, 3]], new_tokens=6)[0].tokens) == 6


def test_fewer_layers_of_a_configuration_of_several_parts():
    """The text part's are cut, and with them what is said of each layer."""
    text = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 4, "sliding_window": 8}
    text["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = Gemma3Config(text_config=text, vision_config=vision)
    small = of_layers(config, 2)
    assert (small.num_hidden_layers, len(small.layer_types)) == (2, 2)
    assert small.layer_types == config.get_text_config().layer_types[:2]
    assert len(AutoModelForCausalLM.from_config(small).model.layers) == 2
    with pytest.raises(UsageError, match="layers:5: the model has 4 layers that differ"):
        of_layers(config, 5)
    for name in ("gemma4", "gemma4_shared"):  # heads of layers differ in width, and layers share keys
        fewer = of_layers(family(name).model.config, 1)
        assert AutoModelForCausalLM.from_config(fewer).config.num_hidden_layers == 1
    ends = LlamaConfig(**SMALL | {"num_hidden_layers": 2, "eos_token_id": [1, 2]})
    alike = Qwen2Config(**SMALL | {"num_hidden_layers": 2, "num_key_value_heads": 2})
    assert of_layers(alike, 3).layer_types == ["full_attention"] * 3
    assert (of_layers(ends, 3).num_hidden_layers, of_layers(ends, 1).eos_token_id) == (3, [1, 2])


def test_weights_are_counted_where_shapes_tell():
    target = random_target("toy")
    shape = Shape.from_config(target.model.config.to_dict())
    one_layer = random_drafter("layers:1", target)
    assert isinstance(one_layer, LanguageModel)
    assert weights_read(target, one_layer) == (
        shape.step_parameters - shape.layer_groups[0].weights(),
        shape.step_parameters,
    )
    head = shape.hidden**2 + shape.hidden
    assert weights_read(target, random_drafter("medusa:3", target)) == (
        head + shape.vocab * shape.hidden,
        shape.step_parameters,
    )
    assert weights_read(small_target("gpt_neox"), random_heads()) is None


def test_other_shapes_are_refused(tmp_path):
    with pytest.raises(ExecutorError, match="neither a shape"):
        random_target(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(ExecutorError, match=r"transformers cannot take its config\.json"):
        random_target(tmp_path)
