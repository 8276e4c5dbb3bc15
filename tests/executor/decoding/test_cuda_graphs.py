"""Graphs without a device that has them: what is captured when, and that warming up leaves no trace."""

import re
from collections.abc import Callable
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from executor.decoding.batch_rows import Rows
from executor.decoding.cuda_graphs import WARM_UP, Graphs, state_of
from executor.decoding.decoder import Decoder, graphs_refusal
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.target_model import Target
from executor.verification.replayed_acceptance import Imposed
from executor.verification.sampling_rules import SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp, seeded_generator
from tests.helpers.drafters import MAKE, random_drafter
from tests.helpers.fake_cuda import STANDINS, fake_cuda, moved_drafter, moved_target
from tests.helpers.models import continued, noisy, random_heads, small_model, small_target
from tests.helpers.slow_growth import CALIBRATION
from tests.helpers.slow_params import slow_unless
from treeopt.api.runners import graphs_used
from treeopt.errors import ExecutorError, UsageError
from treeopt.policies import DynamicTree, OptTree
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import MEDUSA, published_trees

NEW = 16
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
    return random_heads() if kind == "medusa" else LanguageModel(Target(noisy(small_model())))


KINDS = ("medusa", "language-model", "hydra++", "eagle3")
DAILY = set(zip(KINDS, SHAPES, strict=True))


@pytest.mark.parametrize(("kind", "shape"), slow_unless(lambda *case: case in DAILY, product(KINDS, SHAPES)))
def test_replayed_steps_equal_generate(monkeypatch, kind, shape):
    """Prompts are long enough that a run crosses from one view into the next."""
    prompts, texts = continued((250, 2, 9, 120), NEW)
    made: list[Graphs] = []

    def graphs(rows: Rows) -> Graphs:
        made.append(Graphs(rows, Recorder(rows)))
        return made[-1]

    monkeypatch.setattr("executor.decoding.decoder.Graphs", graphs)
    decoder = Decoder(small_target(), drafter(kind), tree=SHAPES[shape], batch=2, late=1)
    decoder.bucket, decoder.graphs = 16, True
    found = decoder.generate(prompts, new_tokens=NEW)
    assert [list(g.tokens) for g in found] == texts
    decoder.graphs = False
    assert decoder.generate(prompts, new_tokens=NEW) == found  # accepted lengths too: the drafter's cache is whole
    recorder = made[0]._capture
    assert isinstance(recorder, Recorder)
    assert recorder.captures == 2 * len(made[0]._views)
    assert made[0].seconds > 0
    assert {256, made[0].rows.capacity} <= made[0]._views.keys() <= {16, 32, 64, 128, 256, made[0].rows.capacity}
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

    graphs = Graphs(rows, capture)
    assert graphs.prepare(view=16)
    assert not graphs.prepare(view=16)
    assert calls == 2
    assert WARM_UP >= 1
    for tensor, value in zip(state_of(rows), before, strict=True):
        if tensor is not rows.committed.fed:  # what was fed there has been moved into place
            assert torch.equal(tensor, value)
    assert rows.committed.fed.tolist() == [[0, 1, 2, 3]] * 2


def one_step_trace() -> Trace:
    """One request of three tokens whose first ranks are all right."""
    rank = np.array([[0, 0], [0, 0], [0, -2]], dtype=np.int16)
    return Trace(np.zeros(3, dtype=np.int32), np.arange(3, dtype=np.int32), rank, 1)


def test_warming_up_draws_no_chances():
    rule = SampleAndMatch(Warp(), seeded_generator(torch.device("cpu"), 0))
    for judge in (rule, Imposed(one_step_trace(), Tree.chain(2), rule=rule)):
        rows = Decoder(small_target(), random_heads(), tree=Tree.chain(2), rule=judge)._begin([[1, 2]], 4)
        before = rule.generator.get_state()
        Graphs(rows, lambda work: lambda: None).prepare(view=16)
        assert torch.equal(rule.generator.get_state(), before)


def test_a_rule_s_generator_is_registered(monkeypatch):
    """CUDA must know it, or every replay would draw the same numbers."""
    generator = seeded_generator(torch.device("cpu"), 0)
    rule = SampleAndMatch(Warp(), generator)
    rows = Decoder(small_target(), random_heads(), tree=Tree.chain(2), rule=rule)._begin([[1, 2]], 4)
    known: list[torch.Generator] = []
    graph = Mock(register_generator_state=known.append)
    changed = {"CUDAGraph": lambda: graph, "memory_reserved": lambda device: len(known) * 100}
    for name, standin in (STANDINS | changed).items():
        monkeypatch.setattr(torch.cuda, name, standin)
    graphs = Graphs(rows)
    graphs._captured(16)
    assert known == [generator, generator]
    assert graphs.bytes == 200


def test_runs_that_no_graph_can_hold_are_refused(monkeypatch):
    """Elsewhere than on CUDA, by several processes, where positions are looked at, or where a policy asks the host."""
    target = small_target()
    with pytest.raises(UsageError, match="graphs are for CUDA devices, got cpu"):
        Decoder(target, graphs=True)
    monkeypatch.setitem(vars(target), "device", torch.device("cuda"))
    with monkeypatch.context() as changed:
        changed.setattr("executor.decoding.decoder.processes", lambda: 2)
        with pytest.raises(UsageError, match="several processes"):
            Decoder(target, graphs=True)
    target.model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0}
    with pytest.raises(UsageError, match="dynamic rotary scaling"):
        Decoder(target, graphs=True)
    del target.model.config.rope_parameters
    with pytest.raises(UsageError, match="OptTree asks the host after each level"):
        Decoder(target, random_heads(), tree=OptTree(nodes=4, depth=2, threshold=0.1), graphs=True)


@pytest.mark.parametrize(
    ("place", "error", "told"),
    [
        ("verify", type("OutOfResources", (Exception,), {})("shared memory"), "shared memory: take a smaller batch,"),
        ("verify", torch.OutOfMemoryError("Tried 2 MiB. GPU 0 has a"), "Tried 2 MiB: take a smaller batch, shorter"),
        (
            "capture",
            RuntimeError("refused\nwhen capturing"),
            "(experts may ask the host, suffix decoding does): RuntimeError: refused: give",
        ),
    ],
)
def test_what_a_device_cannot_do_is_told_in_one_line(monkeypatch, place, error, told):
    decoder, fail = Decoder(small_target()), Mock(side_effect=error)
    decoder.graphs = place == "capture"
    monkeypatch.setattr("executor.decoding.decoder.Graphs", lambda rows: Graphs(rows, fail))
    monkeypatch.setattr(decoder.target, place, fail, raising=False)
    with pytest.raises(ExecutorError, match=re.escape(told)):
        decoder.generate([[1, 2]], new_tokens=2)


def test_a_trial_capture_reads_as_many_columns_as_its_tree_has(monkeypatch):
    target, medusa, views = small_target(), random_heads(), []
    monkeypatch.setattr(Graphs, "prepare", lambda self, *, view, strict: views.append(view))
    tree = Tree.from_paths([(first, second) for first in range(16) for second in range(16)])
    with fake_cuda(target, medusa):
        assert graphs_refusal(moved_target(target), moved_drafter(medusa), tree) is None
    assert views == [512]


@pytest.mark.parametrize("asks", [False, True])
def test_auto_uses_graphs_where_a_capture_succeeds(caplog, asks):
    """A layer that reads which experts are hit, as those of several families do, is found by trying."""
    target = small_target()
    with fake_cuda(target), caplog.at_level("INFO", "treeopt"):
        target = moved_target(target)
        if asks:
            layer = target.model.get_decoder().layers[0]
            layer.register_forward_pre_hook(lambda _, args: args[0].nonzero() and None)
        assert graphs_used("auto", target, None, EMPTY) is not asks
        assert not graphs_used("auto", target, None, None)
    told = ["a step cannot be captured (experts may"] * asks + ["some policies ask the host"]
    assert [message[26 : 26 + len(reason)] for message, reason in zip(caplog.messages, told, strict=True)] == told
    assert not graphs_used("auto", small_target(), None, EMPTY)
