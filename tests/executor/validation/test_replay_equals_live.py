"""Replayed tau equals live tau: a replay of the recorded trace takes the steps of the live loop, one by one.

Static trees are replayed from ranks, policies from recorded candidates; the same must come out of a validation.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from executor.decoding.decoder import Decoder
from executor.profiling.profile_settings import Measuring
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.recording.record_candidates import candidate_trees
from executor.recording.teacher_forced import Texts
from executor.runners.loop_runner import LoopRunner
from executor.runners.runner import Requests
from executor.validation import LiveComparison
from executor.verification.sampling_rules import SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp
from simulate.validation.predicted_vs_measured import Figures, comparison_record
from simulate.validation.predictions import ways_of
from tests.helpers.drafters import DRAFTERS
from tests.helpers.measured_profiles import measure_profile
from tests.helpers.models import random_heads, random_prompts, small_target
from tests.helpers.policy_replay import replay_policy, visit
from tests.helpers.slow_params import slow_unless
from treeopt.errors import UsageError
from treeopt.planning.search_pipeline import search
from treeopt.policies import DynamicTree, OptTree
from treeopt.policies.reranking import shortlists
from treeopt.replay.dynamic_tree import Batches
from treeopt.replay.static_tree import replay_tree
from treeopt.replay.static_tree import visit as visit_static
from treeopt.statistics import Curve
from treeopt.traces.trace import Candidates, Trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import EAGLE, MEDUSA, published_trees

DAILY = ("medusa", "language-model", "eagle3", "prompt-lookup")
TOKENS = random_prompts((9, 4, 17, 2, 6, 12, 3), seed=8)
NEW = 24
TREES = [
    Tree.chain(5),
    published_trees()[MEDUSA],
    published_trees()[EAGLE],
    Tree.from_paths([(11,), (3, 3, 3), (0, 7)]),
]
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


def with_drafters(values, *, batches=(4,)):
    """All drafters, values and batch sizes; every day Medusa with all values, and others with one of three each."""

    def daily(name, value, batch=4):
        place = values.index(value) % 3
        return batch == 4 and name in DAILY and (name == "medusa" or place == DAILY.index(name) % 3)

    return slow_unless(daily, product(DRAFTERS, values, *([batches] if len(batches) > 1 else [])))


def recorded(target, drafter, tokens=TOKENS, **settings):
    settings = {"new_tokens": NEW, "width": 4, "depth": 4, "stop": [7], "batch": 3, "candidates": GENEROUS} | settings
    return collect(target, drafter, [Prompt("x")] * len(tokens), tokens, **settings)


# --- static trees


@cache
def static(name):
    """A greedy trace of a kind of drafter, whose requests end by limit or stop token."""
    target, drafter = DRAFTERS[name]()
    return target, drafter, recorded(target, drafter, width=12, depth=5, candidates=None)


@pytest.mark.parametrize(("name", "tree", "batch"), with_drafters(TREES, batches=(1, 4)), ids=str)
def test_replay_of_a_static_tree_takes_the_live_steps(name, tree, batch):
    target, drafter, trace = static(name)
    live = Decoder(target, drafter, tree=tree, batch=batch).generate(TOKENS, new_tokens=NEW, stop=[7])
    steps = visit_static(tree, trace)
    for request, generation in enumerate(live):
        assert steps.accepted[steps.request == request].tolist() == list(generation.accepted)


@pytest.mark.parametrize("name", slow_unless(lambda name: name in DAILY, DRAFTERS))
def test_every_drafter_is_right_at_times(name):
    """Otherwise the equality above says little."""
    *_, trace = static(name)
    accepted = visit_static(TREES[1], trace).accepted
    assert (accepted > 0).mean() > 0.05


# --- dynamic trees


@cache
def dynamic(name):
    target, drafter = DRAFTERS[name]()
    return target, drafter, recorded(target, drafter)


def assert_same_steps(steps, live):
    for request, generation in enumerate(live):
        assert steps.accepted[steps.request == request].tolist() == list(generation.accepted)


@pytest.mark.parametrize(("name", "policy", "batch"), with_drafters(POLICIES, batches=(1, 4)), ids=str)
def test_replay_of_a_policy_takes_the_live_steps(name, policy, batch):
    target, drafter, trace = dynamic(name)
    live = Decoder(target, drafter, tree=policy, batch=batch).generate(TOKENS, new_tokens=NEW, stop=[7])
    steps = visit(policy, trace)
    assert_same_steps(steps, live)
    assert (steps.accepted > 0).mean() > 0.05  # else the equality says little


RUNNING = [
    DynamicTree(nodes=20, depth=4, beam=5, width=6, min_probability=0.02),
    DynamicTree(nodes=20, depth=4, beam=5, width=6, min_probability=0.02, calibration=FITTED),
    OptTree(nodes=16, depth=4, threshold=0.3, beam=5, width=6),
]


@pytest.mark.parametrize(("name", "policy"), with_drafters(RUNNING), ids=str)
def test_running_batches_take_the_live_loops_steps(name, policy):
    """Rows are those of the live loop while the queue lasts; then the replay repeats requests and the loop idles."""
    target, drafter, trace = dynamic(name)
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


@pytest.mark.parametrize("name", slow_unless(lambda name: name in ("medusa", "eagle3"), DRAFTERS))
def test_sampled_text_is_replayed_too(name):
    """Live sample-and-match writes a text; the candidates along that text give back its steps."""
    target, drafter, _ = dynamic(name)
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


# --- validation


@pytest.fixture(scope="module")
def models():
    return small_target(), random_heads()


@pytest.fixture(scope="module")
def profile(models):
    prompts = random_prompts([5] * 8)
    return measure_profile(
        LoopRunner(*models), prompts, Measuring(batch=(2, 1), max_nodes=7, new_tokens=12, rounds=2, steps=3)
    )


def test_validation_measures_what_the_plan_names(models, profile):
    target, heads = models
    tokens = random_prompts([6] * 40, seed=4)
    trace = collect(target, heads, [Prompt("x")] * 24, tokens[:24], new_tokens=12, width=12)
    plan = search(trace, profile, batch=(1, 2), max_nodes=7)
    fresh = tokens[24:]
    cells = LiveComparison(LoopRunner(target, heads), plan, Requests(fresh, 12), blocks=2).run()
    assert {c.batch for c in cells} == {1, 2}
    again = collect(target, heads, [Prompt("x")] * 16, fresh, new_tokens=12, width=12)
    for cell in cells:
        counts = replay_tree(cell.tree, again)
        assert cell.measured.tau.value == pytest.approx(counts.tau)  # live tau is the replay of these prompts
        entry = plan.entries[[e.batch for e in plan.entries].index(cell.batch)]
        due = Figures.of_run(ways_of(entry)[cell.tree], judged=12, requests=16)
        assert due == cell.predicted
        assert due.tau.relative == pytest.approx(ways_of(entry)[cell.tree].tau.relative * (1 + 12 / 16) ** 0.5)
        assert cell.error == pytest.approx(cell.predicted.speedup.value / cell.measured.speedup.value - 1)
        assert cell.end_to_end > 0
    record = comparison_record(cells)
    errors = [abs(cell.error) for cell in cells]
    assert record["mean_error"] == pytest.approx(np.mean(errors))
    assert record["max_error"] == pytest.approx(max(errors))
    with pytest.raises(UsageError, match="2 blocks at batch 2 need at least 8 prompts, got 7"):
        LiveComparison(LoopRunner(target, heads), plan, Requests(fresh[:7]), blocks=2).run()
