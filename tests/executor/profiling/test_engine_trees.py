"""Dynamic trees in engines: step times told apart by tokens, levels and widths, and predicted beside measured."""

from dataclasses import replace

import pytest

from executor.profiling.configurations import dynamic_trees
from executor.profiling.profile_settings import Measuring
from executor.runners.engine_runner import EngineRunner
from executor.runners.runner import Requests
from executor.validation import LiveComparison
from tests.helpers.measured_profiles import measure_profile
from tests.helpers.small_plans import BUSHY, choice, entry, grown, plan_of
from treeopt.cost_model import StepShape
from treeopt.engines.driver import EngineStep
from treeopt.errors import EngineError
from treeopt.policies import DynamicTree
from treeopt.tree import Tree

PROMPTS = [[1, 2, 3, 4]] * 8
COMMITTED = 2


class Engine:
    """An engine whose steps take a known time: so much a step, a token, a level, and a node beyond one per level."""

    tree_requests, longest, alive = 1, 0, 1

    def launch(self, draft):
        return draft

    def __init__(self):
        self.meta = {"name": "openvino"}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    @staticmethod
    def step_s(draft):
        if draft == 0:
            return 0.010
        tree = draft if isinstance(draft, DynamicTree) else DynamicTree(draft, draft, 1)
        fed = tree.drafting.expanded
        return 0.010 + 0.0004 * (tree.nodes + 1) + 0.002 * len(fed) + 0.0003 * (sum(fed) - len(fed))

    def decode(self, requests, *, draft, concurrency):
        for number, request in enumerate(requests):
            at_s, left = 1.0, request.new_tokens
            yield EngineStep(number, 1, at_s, prefill=True)
            left -= 1
            while left > 0:
                committed = min(left, COMMITTED if draft else 1)
                left -= committed
                at_s += self.step_s(draft)
                yield EngineStep(number, committed, at_s, ended=left == 0)


class Chains(Engine):
    """The same engine without trees."""

    tree_requests = 0


SETTINGS = Measuring(batch=(1,), max_nodes=16, max_depth=5, new_tokens=24, rounds=2, policies=True)
GROWN = dynamic_trees(max_nodes=16, max_depth=5)


def runner(engine=Engine):
    return EngineRunner(lambda most: engine())


@pytest.fixture(scope="module")
def profile():
    return measure_profile(runner(), PROMPTS, SETTINGS)


def shape(draft):
    if isinstance(draft, DynamicTree):
        return StepShape(1, draft.nodes + 1, draft.drafting.expanded, growth=draft.growth)
    return StepShape.of(Tree.chain(draft), batch=1)


@pytest.mark.parametrize("draft", [1, 2, 3, 4, 5, *GROWN], ids=str)
def test_what_was_measured_keeps_its_time(profile, draft):
    assert profile.step_s([shape(draft)])[0] == pytest.approx(Engine.step_s(draft), rel=1e-3)


@pytest.mark.parametrize(("nodes", "depth", "beam"), [(10, 3, 3), (12, 4, 4), (7, 5, 2), (15, 2, 4), (5, 5, 1)])
def test_trees_that_were_not_measured_are_priced_by_their_shape(profile, nodes, depth, beam):
    tree = DynamicTree(nodes, depth, beam)
    assert profile.step_s([shape(tree)])[0] == pytest.approx(Engine.step_s(tree), rel=5e-3)


def test_the_error_at_trees_that_were_left_out_is_recorded(profile):
    record = profile.meta["growths"]["dynamic-tree"]
    assert record["cells"] == len(GROWN)
    assert record["median_error"] < 1e-6
    measured = [row["drafted"] for row in profile.meta["spread"] if isinstance(row["drafted"], dict)]
    assert len(measured) == len(GROWN)
    assert {row["nodes"] for row in measured} == {tree.nodes for tree in GROWN}


def test_trees_of_several_requests_are_refused_before_anything_is_measured():
    wide = replace(SETTINGS, batch=(1, 4))
    with pytest.raises(EngineError, match="dynamic trees with 1 request in flight: measure them with --batch 1"):
        measure_profile(runner(), PROMPTS, wide)
    with pytest.raises(EngineError, match="runs chains, no dynamic trees: leave out --policies"):
        measure_profile(runner(Chains), PROMPTS, SETTINGS)


TREE = DynamicTree(nodes=8, depth=3, beam=4)
REQUESTS = Requests(PROMPTS, 12)


def with_compared(planned, *choices):
    return replace(planned, compared=(*planned.compared, *choices))


def test_a_dynamic_tree_is_measured_beside_chains():
    plan = plan_of(grown(1, TREE))
    live = LiveComparison(runner(), plan, REQUESTS, blocks=2)
    assert list(live.shapes(plan.entries[0])) == [TREE, Tree.chain(3)]
    assert live.not_measured == []
    tree, chain = live.run()
    assert tree.tree is None
    assert tree.grown.policy == TREE
    assert chain.tree == Tree.chain(3)
    for compared, draft in ((tree, TREE), (chain, 3)):
        assert compared.measured.step_s == pytest.approx(Engine.step_s(draft))
        assert compared.measured.speedup.value == pytest.approx(
            compared.measured.tau.value * Engine.step_s(0) / Engine.step_s(draft)
        )


def test_what_the_engine_cannot_draft_is_left_out_with_the_reason():
    medusa, stopping = choice("Medusa's tree", BUSHY), grown(1, replace(TREE, min_probability=0.1)).choice
    plan = plan_of(with_compared(grown(1, TREE), medusa, replace(stopping, name="stopping")))
    live = LiveComparison(runner(), plan, REQUESTS)
    assert list(live.shapes(plan.entries[0])) == [TREE, Tree.chain(3)]
    lines = live.not_measured
    assert len(lines) == 2
    assert "not measured: Medusa's tree (batch 1): openvino runs chains and dynamic trees of EAGLE-2" in lines[0]
    assert "not measured: stopping (batch 1): its min_probability" in lines[1]


@pytest.mark.parametrize(
    ("planned", "engine", "message"),
    [
        (entry(1, BUSHY), Engine(), "chosen tree cannot be run: openvino runs chains and dynamic trees of EAGLE-2"),
        (grown(1, TREE), Chains(), "eagle2 cannot be run: openvino runs chains alone: search with --for"),
        (grown(4, TREE), Engine(), "batch 4: eagle2 cannot be run: openvino runs dynamic trees with 1 request"),
        (grown(1, replace(TREE, min_probability=0.1)), Engine(), "eagle2 cannot be run: its min_probability"),
    ],
)
def test_a_choice_that_the_engine_cannot_draft_is_refused(planned, engine, message):
    with pytest.raises(EngineError, match=message):
        LiveComparison(EngineRunner(lambda most: engine), plan_of(planned), REQUESTS, blocks=2).check()


class WithOverhead(Engine):
    """An engine whose dynamic trees take something that no chain does."""

    @staticmethod
    def step_s(draft):
        return Engine.step_s(draft) + (0.003 if isinstance(draft, DynamicTree) else 0.0)


def test_chains_keep_their_times_beside_trees_that_take_more():
    measured = measure_profile(runner(WithOverhead), PROMPTS, SETTINGS)
    for length in range(1, 6):
        assert measured.step_s([shape(length)])[0] == pytest.approx(Engine.step_s(length), rel=1e-3)
    for tree in GROWN:
        assert measured.step_s([shape(tree)])[0] == pytest.approx(WithOverhead.step_s(tree), rel=1e-3)
    assert measured.batches[0].growth["dynamic-tree"].step_s == pytest.approx(0.003, rel=0.01)
