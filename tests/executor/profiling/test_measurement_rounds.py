"""Profiles and validations of a tiny model: their structure and arithmetic, never how long anything took."""

import json
import re
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.decoding.decoder import Decoder
from executor.profiling.configurations import REQUIRED, TOKENS, Configuration, ranked_configurations
from executor.profiling.measurement_rounds import MARGIN, fit_schedule
from executor.profiling.profile_settings import Measuring
from executor.profiling.timed_blocks import TOGETHER, LoopBlocks, cell_of
from executor.runners.loop_runner import LoopRunner
from executor.runners.runner import RequestSteps, Run
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Greedy, make_rule
from executor.verification.temperature_top_k_top_p import Warp
from tests.helpers.measured_profiles import measure_profile
from tests.helpers.models import random_heads, random_prompts, small_target
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, ExecutorError, UsageError
from treeopt.policies import growths
from treeopt.tree import Tree


@pytest.fixture(scope="module")
def models():
    return small_target(), random_heads()


def measured(models, prompts, *, rule=None, graphs=False, work=None, progress=lambda blocks: None, **settings):
    runner = LoopRunner(*models, rule=rule, graphs=graphs)
    return measure_profile(runner, prompts, Measuring(**settings), work=work, progress=progress)


def block_of(draft_s, rest_s, committed=1.0, context=9.0, wall_s=1.0):
    """A run of one request whose steps commit so much in the mean."""
    steps = RequestSteps(0, (1, 2) if committed == 1.5 else (1,) * len(rest_s))
    return Run(draft_s, rest_s, (steps,), context, wall_s, len(rest_s))


@pytest.fixture(scope="module")
def profile(models):
    prompts = random_prompts([5] * 8)
    return measured(models, prompts, batch=(2, 1), max_nodes=15, new_tokens=12, rounds=2, steps=3)


def test_profile_covers_what_was_asked(profile):
    assert [times.batch for times in profile.batches] == [1, 2]
    assert profile.context == (5, 17)
    for batch in (1, 2):
        for tree in (Tree.chain(1), Tree.chain(5), Tree.from_paths([(r,) for r in range(15)])):
            assert profile.step_s([StepShape.of(tree, batch=batch)])[0] > 0
    with pytest.raises(CostError, match="tokens 17 at batch 1: the profile measured tokens 2 to 16"):
        profile.step_s([StepShape.of(Tree.from_paths([(r,) for r in range(16)]), batch=1)])
    assert {"kind": "medusa", "heads": 5}.items() < profile.meta["drafter"].items()


def test_profile_knows_what_prompts_take(models, profile):
    assert [n for n, _ in profile.prefill.plain] == [5, 10]  # of two rows
    told = TOLD | {"batch": (2,), "max_nodes": 1, "max_depth": 1}
    found = measured(models, random_prompts([5, 21] * 4), **(told | {"context": ()}))
    for points in (found.prefill.plain, found.prefill.drafted):
        assert [n for n, _ in points] == [5, 8, 16, 21, 42]
    assert min(s for _, s in found.prefill.drafted) > 0
    assert [n for n, _ in measured(models, random_prompts([5] * 4), **told).prefill.plain] == [6, 8, 16, 24, 48]


def test_a_profile_knows_the_memory_that_its_models_take(models, profile):
    target, drafter = models[:2]
    for context in profile.context:
        known = profile.meta["memory"][str(context)]
        assert known["weights"] == sum(value.nbytes for value in target.model.state_dict().values())
        assert (known["sequence"], known["drafted"]) == (
            target.cache_bytes(1, context),
            drafter.cache_bytes(1, context),
        )
        assert known["weights"] > known["drafter"] > 0 == known["snapshot"]
        assert (known["total"], known["share"]) == (None, 0.92)


def test_ways_reach_every_size_depth_and_width():
    found = ranked_configurations((1, 4), (None,), max_nodes=63, max_depth=5)
    assert [importance for importance, _ in found] == sorted(importance for importance, _ in found)
    for batch in (1, 4):
        trees = [way.tree for _, way in found if way.batch == batch and way.imposed is None]
        assert len(set(trees)) == len(trees)
        assert {tree.nodes for tree in trees} >= {0, *(n - 1 for n in TOKENS)}
        assert {Tree.chain(depth) for depth in range(1, 6)} <= set(trees)
        assert max(tree.nodes for tree in trees) == 63
        assert {2, 4, 8, 16} <= {tree.fed_widths[-1] for tree in trees if tree.nodes}
        sizes = {tree.nodes + 1 for tree in trees}
        for edge in (16, 32, 64, 128):  # tokens of the batch
            assert edge > 64 * batch or edge // batch in sizes
            assert edge >= 64 * batch or edge // batch + 1 in sizes
    least = {way.tree.nodes for importance, way in found if importance == REQUIRED}
    assert least == {0, 1, 5, 63}
    assert {way.imposed for _, way in found if way.tree == Tree.chain(5)} == {None, 0, 5}
    assert [way.batch for _, way in found[:4]] == [1, 4, 1, 4]  # none is left out before the other


@pytest.mark.parametrize(("max_nodes", "max_depth"), [(63, 5), (63, 8), (7, 2), (63, 1), (1, 1), (1, 4), (3, 5)])
def test_trees_drawn_anew_lie_within_the_profile(max_nodes, max_depth):
    """All of them or none are measured, at each batch size; static trees are those without them."""
    deepest = min(max_depth, max_nodes)  # of the chains
    given = ((1, 4), (None, 512))
    ranked = ranked_configurations(*given, max_nodes=max_nodes, max_depth=max_depth, policies=True)
    anew = [way for _, way in ranked if way.growth is not None]
    without = ranked_configurations(*given, max_nodes=max_nodes, max_depth=max_depth)
    assert {way for _, way in ranked if way.growth is None} == {way for _, way in without}
    required = [way for importance, way in ranked if importance == REQUIRED and way.growth is None]
    widest = max(max(way.widths, default=1) for way in required)
    assert widest == 16 or (max_nodes, deepest) != (63, 5)
    assert {importance for importance, way in ranked if way.growth is not None} == {REQUIRED}
    for growth in growths():
        for batch in (1, 4):
            mine = [way for way in anew if (way.growth, way.batch) == (growth, batch)]
            assert len(mine) >= 2
            assert max(max(way.widths) for way in mine) <= widest
            assert max(max(way.widths) for way in mine) == 16 or max_nodes < 63 or deepest == 1
            assert {1, deepest} <= {way.tree.depth for way in mine} <= set(range(1, deepest + 1))
            assert min(way.tree.nodes for way in mine) == 1
            assert max(way.tree.nodes for way in mine) <= max_nodes
            assert all(way.context is None and way.widths == way.tree.drafting.expanded for way in mine)
    assert {str(way) for way in anew if way.batch == 4} >= {"batch 4: 2 tokens, depth 1, opt-tree"}


def law_of(way):
    """Seconds of a made-up machine, by what a way feeds and verifies and how its trees are drawn."""
    tokens, fed = way.tree.nodes + 1, sum(way.widths)
    anew = 0.0 if way.growth is None else 1 + growths().index(way.growth)
    draft = 0.01 * len(way.widths) + anew * way.batch * (1e-3 + 5e-4 * len(way.widths) + 1e-4 * fed + 1e-5 * tokens)
    return draft, 0.5 + 0.01 * way.batch * tokens


WITH_POLICIES = {"batch": (1, 2), "max_nodes": 15, "max_depth": 3, "policies": True, "rounds": 3, "steps": 2}


def test_a_profile_prices_trees_drawn_anew(models, monkeypatch):
    """What each growth takes is found through the whole measurement, and static trees cost what they do without."""

    def made(self, way, number, *, steps=2):
        draft, rest = law_of(way)
        return block_of((draft,) * steps, (rest,) * steps, 1.0, 9.0, 1.0)

    monkeypatch.setattr(LoopBlocks, "block", made)
    found, without = (
        measured(models, random_prompts([5] * 8), **(WITH_POLICIES | {"policies": policies}))
        for policies in (True, False)
    )
    assert set(found.growths) == set(found.meta["growths"]) == set(growths())
    static = [StepShape(batch, tokens, (1, 1, 4)) for batch in (1, 2) for tokens in range(2, 16)]
    assert found.step_s(static) == pytest.approx(without.step_s(static))
    for times in found.batches:
        for factor, growth in enumerate(growths(), 1):
            known = times.growth[growth]
            due = [factor * times.batch * seconds for seconds in (1e-3, 5e-4, 1e-4, 1e-5)]
            assert [known.step_s, known.level_s, known.node_s, known.token_s] == pytest.approx(due, rel=1e-3)
    from_graphs = measured(models, random_prompts([5] * 8), graphs=True, **WITH_POLICIES)
    assert set(from_graphs.growths) == {"dynamic-tree", "calibrated-tree"}  # the others ask the host


RANKED = ranked_configurations((1, 2), (None,), max_nodes=31, max_depth=4)


@given(st.integers(2, 9), st.floats(1, 1e4))
def test_a_schedule_fits_its_budget(rounds, budget_s):
    def block_s(way):
        return 0.5 + 0.1 * way.batch * (way.tree.nodes + 1)

    least = sum(importance == REQUIRED for importance, _ in RANKED)
    try:
        count, found = fit_schedule(RANKED, rounds=rounds, block_s=block_s, budget_s=budget_s)
    except UsageError:
        assert 2 * MARGIN * sum(block_s(way) for _, way in RANKED[:least]) > budget_s
        return
    costs = [block_s(way) for _, way in RANKED]
    assert found * MARGIN * sum(costs[:count]) <= budget_s + 1e-9
    assert least <= count <= len(RANKED)
    if count < len(RANKED):  # one more would not have fitted
        assert found * MARGIN * sum(costs[: count + 1]) > budget_s
    if found == rounds and count == len(RANKED):
        return
    assert rounds * MARGIN * sum(block_s(way) for _, way in RANKED) > budget_s


def test_a_machine_that_slows_down_for_a_while_changes_no_ratio(models, monkeypatch):
    """Rounds at thrice the pace of others, and a half of one at five times: all ratios stay what they are."""
    prompts = random_prompts([5] * 4)
    told = {"batch": (1, 2), "max_nodes": 7, "max_depth": 3, "rounds": 3, "steps": 2}

    def profiled(paces):
        begun = iter(paces)

        def made(self, way, number, *, steps=2):
            pace = next(begun, 1.0) if way.tree.nodes == 0 else made.pace
            made.pace = pace
            rest = 1.0 + way.batch * way.tree.nodes / 4
            return block_of((0.25 * pace * bool(way.tree.nodes),) * steps, (rest * pace,) * steps, 1.0, 9.0, 1.0)

        monkeypatch.setattr(LoopBlocks, "block", made)
        return measured(models, prompts, **told)

    steady, unsteady = profiled([]), profiled([3.0] * 5 + [1.0] * 8 + [5.0] * 2)
    shapes = [StepShape.of(Tree.chain(k), batch=batch) for batch in (1, 2) for k in (1, 2, 3)]
    for profile in (steady, unsteady):
        ratios = profile.step_s(shapes) / [profile.plain_s(batch=shape.batch) for shape in shapes]
        assert ratios == pytest.approx([1.25 + shape.batch * (shape.tokens - 1) / 4 for shape in shapes])


@pytest.mark.parametrize("done", [2, 5])
def test_a_machine_that_changes_during_an_interruption_changes_no_ratio(models, monkeypatch, tmp_path, done):
    prompts, work, left = random_prompts([5] * 4), tmp_path / "work", []
    told = {"batch": (1,), "max_nodes": 7, "max_depth": 3, "rounds": 2, "steps": 2, "work": work}

    def made(self, way, number, *, steps=2):
        if len(left) == done and made.pace == 1.0:
            raise KeyboardInterrupt
        rest = made.pace * (1.0 + way.tree.nodes / 4)
        return block_of((0.25 * made.pace * bool(way.tree.nodes),) * steps, (rest,) * steps, 1.0, 9.0, 1.0)

    monkeypatch.setattr(LoopBlocks, "block", made)
    made.pace = 1.0
    with pytest.raises(KeyboardInterrupt):
        measured(models, prompts, progress=left.append, **told)
    made.pace = 5.0
    profile = measured(models, prompts, **told)
    (times,) = profile.batches
    assert [s / times.plain_s for _, s in times.rest] == pytest.approx([1 + (n - 1) / 4 for n, _ in times.rest])
    assert [s / times.plain_s for _, s in times.draft] == pytest.approx([0.25] * 3)


def test_a_cell_is_the_centre_of_its_blocks():
    tree = Tree.from_paths([(0, 0), (1,)])
    blocks = [block_of((0.5 + d,) * 3, (2.0 + d,) * 3, 1.5, 9.0, 1.0) for d in (0.0, 5.0, 0.1)]  # one outlying block
    cell = cell_of(Configuration(3, 7, tree), blocks, context=7, spread=0.03)
    assert (cell.batch, cell.context, cell.tokens, cell.widths, cell.committed) == (3, 7, 4, (1, 1), 1.5)
    assert (cell.draft_s, cell.rest_s) == (pytest.approx(0.6), pytest.approx(2.1))
    assert cell.error == pytest.approx(1.12 * 0.03 / 3**0.5)
    assert not cell.forced
    assert cell_of(Configuration(3, 7, tree, 2), blocks, context=7, spread=0.0).forced


def test_several_processes_take_as_many_steps(models, monkeypatch):
    """Each has a clock of its own: none may end a block before the others do."""
    steps, seen = Decoder.steps, []

    def slow(self, *args, **words):
        counted = [0]
        seen.append((self.batch, self.tree.nodes, counted))
        for step in steps(self, *args, **words):
            counted[0] += 1
            yield replace(step, rest_s=1.0)

    monkeypatch.setattr(Decoder, "steps", slow)
    told = {"batch": (1,), "max_nodes": 3, "max_depth": 2, "rounds": 2, "steps": 4, "new_tokens": 5}
    counts = []
    for processes in (1, 2):
        monkeypatch.setattr("executor.profiling.timed_blocks.processes", lambda processes=processes: processes)
        measured(models, random_prompts([5] * 4), **told)
        counts.append({counted[0] for *_, counted in seen})
        seen.clear()
    assert counts == [{1, 2, 4}, {1, 4, 5}]  # with the one that warms up; three of imposed blocks, one of a prompt


class Clock:
    """Time that passes by looking at it, and by verifying tokens; in binary fractions, so that sums are exact."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 2**-10
        return self.now

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture(scope="module")
def clocked(models, tmp_path_factory):
    """A profile by a clock that counts tokens, and the text of its work file."""
    work = tmp_path_factory.mktemp("kept") / "p.json.work"
    with pytest.MonkeyPatch.context() as patch:
        set_clock(patch)
        return measured(models, random_prompts([5] * 4), work=work, **TOLD), work.read_text("utf-8")


@pytest.fixture
def clock(monkeypatch):
    set_clock(monkeypatch)


def set_clock(monkeypatch):
    made, verify = Clock(), Target.verify

    def timed(self, tokens, *rest, **more):
        made.now += tokens.numel() * 2**-10
        return verify(self, tokens, *rest, **more)

    monkeypatch.setattr(Target, "verify", timed)
    for module in ("executor.device", "executor.decoding.decoder", "executor.profiling.timed_blocks"):
        monkeypatch.setattr(f"{module}.time", made)
    monkeypatch.setattr("executor.profiling.measurement_rounds.time", made)


TOLD = {"batch": (1, 2), "context": (6, 24), "max_nodes": 5, "max_depth": 3, "rounds": 2, "steps": 2}


def same(profile):
    """What must not depend on when it was measured."""
    meta = {key: value for key, value in profile.meta.items() if key not in ("provenance", "clock_mhz")}
    return replace(profile, meta=meta)


def blocks_in(work):
    """The blocks that a work file holds: index, round and turn, and the run."""
    records = [json.loads(line) for line in work.read_text("utf-8").splitlines()]
    return [record["visit"] for record in records if "visit" in record]


@pytest.mark.parametrize("budget_s", [None, 20.0])
@pytest.mark.slow
def test_a_resumed_measurement_is_the_uninterrupted_one(models, clock, tmp_path, budget_s):
    prompts = random_prompts([5] * 4)
    told = TOLD | {"budget_s": budget_s}
    whole = measured(models, prompts, **told)
    work = tmp_path / "p.json.work"
    done = 0

    def stop(blocks):
        nonlocal done
        done += blocks
        if done in (1, 20):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measured(models, prompts, work=work, progress=stop, **told)
    with work.open("ab") as file:
        file.write(b'{"visit": {"ke')  # the end of a record that was cut off
    left = []
    found = measured(models, prompts, work=work, progress=left.append, **told)
    assert same(found) == same(whole)
    blocks = blocks_in(work)
    visits = {tuple(block["key"]) for block in blocks}
    place = len(visits) // 2 // 4  # of a round; what an interruption cut in two is measured anew
    assert len(visits) - 20 <= len(left) < len(visits) - 20 + 2 * (place + TOGETHER)
    again = []
    assert same(measured(models, prompts, work=work, progress=again.append, **told)) == same(whole)
    assert again == []
    if budget_s is not None:
        work.write_text(re.sub('"configurations": ?[0-9]+', '"configurations": 999', work.read_text("utf-8")))
        with pytest.raises(UsageError, match="planned: 999 configurations in"):
            measured(models, prompts, work=work, **told)


@pytest.mark.parametrize("name", ["sample-and-match", "specinfer"])
def test_all_steps_choose_by_the_rule(models, clock, monkeypatch, name):
    """Plain ones, those of trees, and those whose acceptance is imposed."""

    def unwanted(*_: object) -> None:
        raise AssertionError("judged greedily")

    monkeypatch.setattr(Greedy, "accept", unwanted)
    generator = torch.Generator().manual_seed(0)
    rule = make_rule(name, warp=Warp(0.9, top_k=7), generator=generator)
    profile = measured(models, random_prompts([5] * 4), **(TOLD | {"batch": (1,), "context": (6,)}), rule=rule)
    told = {"verification": name, "temperature": 0.9, "top_k": 7}
    assert told.items() <= profile.meta.items()
    assert [tokens for tokens, _ in profile.batches[0].rest][-1] == 6


def test_a_work_file_of_other_settings_is_refused(models, clocked, tmp_path):
    prompts, work = random_prompts([5] * 4), tmp_path / "p.json.work"
    work.write_text(clocked[1], "utf-8")
    for other, name in (
        ({"steps": 3}, "steps 2, not 3"),
        ({"batch": (1,)}, r"batch \[1, 2\], not \[1\]"),
        ({"rule": make_rule("typical", warp=Warp())}, 'verification "greedy", not "typical"'),
    ):
        with pytest.raises(UsageError, match=f"was begun with {name}"):
            measured(models, prompts, work=work, **(TOLD | other))
    with pytest.raises(UsageError, match="was begun with prompts"):
        measured(models, random_prompts([5] * 4, seed=1), work=work, **TOLD)


def test_a_broken_work_file_is_refused(models, clocked, tmp_path):
    """In each kind of record: the file and what to do are named."""
    prompts, work, written = random_prompts([5] * 4), tmp_path / "p.json.work", clocked[1].splitlines()
    for line, record in (
        (0, {}),
        (1, {"prefill": {"plain": [], "drafted": []}}),
        (2, {"planned": {"configurations": 1, "rounds": 2, "took_s": 0.0}}),
        (3, []),
        (3, {"visit": {"key": [999, 0, 0], "run": json.loads(written[3])["visit"]["run"]}}),
        (3, {"visit": {"key": [0, 0, 0], "run": {"draft_s": [-1]}}}),
    ):
        lines = list(written)
        lines[line] = json.dumps(record)
        work.write_text("\n".join([*lines, ""]), "utf-8")
        with pytest.raises(UsageError, match=r"remove (it|the file) to start again") as caught:
            measured(models, prompts, work=work, **TOLD)
        assert str(work) in str(caught.value)


def test_a_work_file_without_a_block_is_removed(models, tmp_path):
    work = tmp_path / "p.json.work"
    with pytest.raises(ExecutorError, match="context"):
        measured(models, random_prompts([5] * 4), work=work, **(TOLD | {"context": (600,)}))
    assert not work.exists()


def test_a_budget_leaves_out_what_does_not_fit(models, clocked, clock):
    prompts, whole = random_prompts([5] * 4), clocked[0]
    short = measured(models, prompts, **(TOLD | {"budget_s": 2.0, "rounds": 4}))
    assert whole.meta["left_out"] == []
    assert "context" in short.meta["left_out"][0]
    for profile in (whole, short):  # the bounds are always there
        shapes = [
            StepShape(batch, tokens, (1,), context) for batch in (1, 2) for tokens in (2, 6) for context in (6, 24)
        ]
        assert (profile.step_s(shapes) > 0).all()
    with pytest.raises(UsageError, match=r"the smallest profile takes about \d+\.\d s"):
        measured(models, prompts, **(TOLD | {"budget_s": 0.3}))


def test_a_profile_says_what_the_clock_said(clocked):
    """Two looks at the clock while drafting is timed and one after it, and a tick a token."""
    profile, _ = clocked
    tick = 2**-10
    for times in profile.batches:
        assert dict(times.rest) == {n: tick * (2 + n * times.batch) for n, _ in times.rest}
        assert {seconds for _, seconds in times.draft} == {tick}
        assert times.plain_s == tick * (3 + times.batch)
    assert profile.separable
    assert profile.relative_error < 0.3  # few sizes


def test_imposed_acceptance_is_compared_at_one_context(models, clock, tmp_path):
    """Steps that keep more move on faster: what they take longer must not be the context's."""
    work = tmp_path / "work"
    measured(models, random_prompts([5] * 4), work=work, **(TOLD | {"steps": 3, "batch": (2,)}))
    ways_here = [way for _, way in ranked_configurations((2,), (6, 24), max_nodes=5, max_depth=3)]
    lengths: dict[tuple[int, Tree], dict[int, float]] = {}
    for record in blocks_in(work):
        way = ways_here[record["key"][0]]
        if way.imposed is not None:
            assert {n for row in record["run"]["requests"] for n in row["committed"]} == {1 + way.imposed}
            lengths.setdefault((way.batch, way.tree), {})[way.imposed] = record["run"]["context"]
    assert {len(found) for found in lengths.values()} == {2}
    assert all(len(set(found.values())) == 1 for found in lengths.values())


def test_contexts_are_measured_at_the_lengths_asked_for(clocked):
    profile, _ = clocked
    places = [(times.batch, times.context) for times in profile.batches]
    assert [batch for batch, _ in places] == [1, 1, 2, 2]
    near, far = (context for _, context in places[:2])
    assert 6 < near < 16
    assert 24 < far < 34
    assert profile.context[0] == 6
    assert profile.context[1] >= far
    with pytest.raises(CostError, match="context 5 lies outside"):
        profile.plain_s(batch=1, context=5)
