"""Graphs without a device that has them: what is captured when, and that warming up leaves no trace."""

from collections.abc import Callable

import pytest
import torch

from executor.acceptance import SampleAndMatch
from executor.decode import Decoder
from executor.drafters.language_model import LanguageModel
from executor.graphs import WARM_UP, Graphs, state_of
from executor.rows import Rows
from executor.sampling import Warp, seeded
from tests.drafters import MAKE, random_drafter
from tests.growing import CALIBRATION
from tests.models import generated, random_heads, random_prompts, small_model, small_target
from treeopt.errors import UsageError
from treeopt.policies import DynamicTree, OptTree
from treeopt.published import MEDUSA, published_trees
from treeopt.tree import Tree

NEW = 24
SHAPES = {
    "chain": Tree.chain(3),
    "medusa": published_trees()[MEDUSA],
    "dynamic": DynamicTree(nodes=9, depth=3, beam=3),
    "calibrated": DynamicTree(nodes=5, depth=2, beam=3, calibration=CALIBRATION),
}


class Recorder:
    """Stands for CUDA's capture: runs the work as a capture would, and again at every replay, at fixed addresses."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.captures, self.replays = rows, 0, 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1

        def replay() -> None:
            before = [tensor.data_ptr() for tensor in state_of(self.rows)]
            work()
            self.replays += 1
            assert [tensor.data_ptr() for tensor in state_of(self.rows)] == before

        return replay


def drafter(kind: str) -> LanguageModel | object:
    if kind in MAKE:
        return random_drafter(kind, small_target())
    return random_heads() if kind == "medusa" else LanguageModel(small_target(seed=1))


@pytest.mark.parametrize("kind", ["medusa", "language-model", "hydra++", "eagle3"])
@pytest.mark.parametrize("shape", SHAPES)
def test_replayed_steps_equal_generate(monkeypatch, kind, shape):
    """Prompts are long enough that a run crosses from one view into the next."""
    prompts = random_prompts((250, 2, 9, 120), seed=3)
    texts = [generated(small_model(), prompt, NEW) for prompt in prompts]
    made: list[Graphs] = []

    def graphs(rows: Rows) -> Graphs:
        made.append(Graphs(rows, Recorder(rows)))
        return made[-1]

    monkeypatch.setattr("executor.decode.Graphs", graphs)
    decoder = Decoder(small_target(), drafter(kind), tree=SHAPES[shape], batch=2, late=1)
    decoder.bucket, decoder.graphs = 64, True
    found = decoder.generate(prompts, new_tokens=NEW)
    assert [list(g.tokens) for g in found] == texts
    recorder = made[0]._capture
    assert isinstance(recorder, Recorder)
    assert recorder.captures == 2 * len(made[0]._views)
    assert len(made[0]._views) >= 2
    assert recorder.replays > 2 * recorder.captures


def test_warming_up_leaves_the_state_as_it_was():
    rows = Decoder(small_target(), random_heads(), tree=Tree.chain(3), batch=2)._begin([[1, 2, 3], [4]], 8)
    rows.admit([0, 1], [[1, 2, 3], [4]])
    before = [tensor.clone() for tensor in state_of(rows)]
    calls = 0

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        nonlocal calls
        calls += 1
        return lambda: None

    Graphs(rows, capture).draft(view=16)
    assert calls == 2
    assert WARM_UP >= 1
    for tensor, value in zip(state_of(rows), before, strict=True):
        assert torch.equal(tensor, value)


def test_a_rule_s_generator_is_registered(monkeypatch):
    """CUDA must know it, or every replay would draw the same numbers."""
    generator = seeded(torch.device("cpu"), 0)
    rule = SampleAndMatch(Warp(), generator)
    rows = Decoder(small_target(), random_heads(), tree=Tree.chain(2), rule=rule)._begin([[1, 2]], 4)
    known = []

    class Graph:
        replay = None

        def register_generator_state(self, found: torch.Generator) -> None:
            known.append(found)

    class Capturing:
        def __init__(self, graph: Graph, pool: object) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr("torch.cuda.CUDAGraph", Graph)
    monkeypatch.setattr("torch.cuda.graph", Capturing)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: 0)
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: len(known) * 100)
    graphs = Graphs(rows)
    graphs._captured(16)
    assert known == [generator, generator]
    assert graphs.bytes == 200


def test_graphs_without_cuda_are_refused():
    with pytest.raises(UsageError, match="graphs are for CUDA devices, got cpu"):
        Decoder(small_target(), graphs=True)


def test_policies_that_ask_the_host_are_refused():
    decoder = Decoder(small_target(), random_heads())
    decoder.graphs = True
    with pytest.raises(UsageError, match="OptTree asks the host after each level"):
        decoder._growth(OptTree(nodes=4, depth=2, threshold=0.1), adaptive=False)
