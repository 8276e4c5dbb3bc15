"""A step asks the device for nothing: no operator whose result the host must wait for, and one graph when compiled."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import executor.decoding.batch_rows
import executor.target.kv_cache
import executor.target.target_model
import executor.verification.replayed_acceptance
from executor.decoding.batch_rows import Rows
from executor.decoding.decoder import Decoder
from executor.device.upload import uploaded
from executor.drafters.drafter import Drafter
from executor.drafters.language_model import LanguageModel
from executor.target.target_model import Target
from executor.verification.acceptance_rules import RULES, Greedy, make_rule
from executor.verification.replayed_acceptance import Imposed
from executor.verification.temperature_top_k_top_p import Warp, seeded
from tests.helpers.drafters import MAKE, random_drafter
from tests.helpers.models import random_heads, random_prompts, small_target
from tests.helpers.slow_growth import CALIBRATION
from tests.helpers.slow_params import slow_unless
from tests.helpers.strategies import drawn_trace
from treeopt.policies import DynamicTree
from treeopt.tree import EMPTY, Tree

# Names of aten operators: their outcome is a number on the host, or of a size that the host must learn.
READS = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "allclose",
    "nonzero",
    "nonzero_numpy",
    "argwhere",
    "masked_select",
    "unique_dim",
    "unique_consecutive",
    "_unique",
    "_unique2",
    "bincount",
    "repeat_interleave",
)
TREES: dict[str, Tree | DynamicTree] = {
    "plain": EMPTY,
    "chain": Tree.chain(3),
    "branching": Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (2,)]),
    "dynamic": DynamicTree(nodes=8, depth=3, beam=3, width=3),
    "shared": DynamicTree(nodes=8, depth=3, beam=3, width=3, min_probability=0.02, budget=13),
    "calibrated": DynamicTree(nodes=5, depth=2, beam=3, min_probability=0.02, calibration=CALIBRATION),
}
CPU = torch.device("cpu")


class HostReadError(Exception):
    """The step waited for the device."""


class NoConversions(TorchFunctionMode):
    """Refuses to hand memory out; of a tensor on CPU no operator is called for that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("tolist", "numpy", "__array__", "cpu", "__dlpack__"):
            raise HostReadError(name)
        return func(*args, **(kwargs or {}))


class NoHostReads(TorchDispatchMode):
    """Refuses what would make the host wait, on CPU too, where waiting costs nothing and goes unnoticed."""

    def __enter__(self) -> Any:
        self._conversions = NoConversions()
        self._conversions.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._conversions.__exit__(*error)

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        name = func._schema.name.removeprefix("aten::")
        listed = name == "lift_fresh" and args[0].dim() > 0  # no read, but a copy that the host waits for
        # A number that is put at indices is made on the host first, and copied.
        number = name in ("index_put", "index_put_", "_index_put_impl_") and args[2].dim() == 0
        if name in READS or listed or number or self._by_mask(name, args):
            raise HostReadError(name)
        return func(*args, **(kwargs or {}))

    def _by_mask(self, name: str, args: Any) -> bool:
        """Indices of bools are turned into places, whose number is read. Written (index_put) they may stay a mask."""
        if name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
            return False
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def allowed(rule: str, tree: str) -> bool:
    if rule in ("leviathan", "block"):
        return tree in ("plain", "chain")
    return rule not in ("specinfer", "sequoia") or isinstance(TREES[tree], Tree)


GRID = [(rule, tree) for rule in RULES for tree in TREES if allowed(rule, tree)]


def drafter(kind: str) -> Drafter:
    if kind in MAKE:
        return random_drafter(kind, small_target())
    return random_heads(heads=3) if kind == "medusa" else LanguageModel(small_target(seed=1))


def running(rule: str, tree: str, kind: str, *, target: Target | None = None) -> Rows:
    """Rows with requests of unlike length, one idle, as a decoder that reads late sets them up."""
    warp = None if rule == "greedy" else Warp(1.2, 40, 0.9)
    made = make_rule(rule, warp=warp, generator=seeded(CPU, 0))
    decoder = Decoder(target or small_target(), drafter(kind), tree=TREES[tree], batch=4, rule=made, late=1)
    prompts = random_prompts((7, 1, 5))
    rows = decoder._begin(prompts, 40)
    rows.admit([0, 1, 3], prompts)
    return rows


@pytest.mark.parametrize("kind", ["medusa", "language-model"])
@pytest.mark.parametrize(("rule", "tree"), GRID)
def test_a_step_reads_nothing(rule, tree, kind):
    rows = running(rule, tree, kind)
    depth = rows.growth.depth
    for steps, all_fed in ((depth + 1, False), (depth + 1, True), (depth, True), (1, False)):
        if steps < 1:
            continue
        rows.committed.counts.clamp_(max=steps)  # what the host would have to know to say so
        with NoHostReads() as mode:
            step(rows, steps=steps, all_fed=all_fed)
        assert mode.calls > 50


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("imposed", [False, True])
def test_a_request_joins_without_a_read(monkeypatch, kind, imposed):
    """All that comes from the host is uploaded. A language model that drafts reads prompts there, and is left out."""
    rows = running("greedy", "chain", kind)
    if imposed:
        rows.imposed = Imposed(
            drawn_trace([(0.5, 0.2)], [20] * 3, depth=3, rng=np.random.default_rng(0)), TREES["chain"]
        )
        rows.imposed.begin(4, CPU)
    sent = []

    def uploading(values: Any, device: torch.device) -> Tensor:
        sent.append(values)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return uploaded(values, device)

    for module in (
        executor.decoding.batch_rows,
        executor.target.target_model,
        executor.target.kv_cache,
        executor.verification.replayed_acceptance,
    ):
        monkeypatch.setattr(module, "uploaded", uploading)
    rows.leave({1: 0, 3: 2})
    prompts = random_prompts((9, 1))
    with NoHostReads() as mode:
        rows.admit([3, 1], prompts, [0, 1])
    assert mode.calls > 20
    assert [3, 1] in sent
    assert rows.lengths.tolist()[1::2] == [0, 8]
    assert rows.root.tolist()[1::2] == [prompts[1][-1], prompts[0][-1]]
    assert not rows.idle[1::2].any()


PLANTED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x.max()),
    "bool": lambda x: bool((x > 0).any()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "tolist": lambda x: x.tolist(),
    "select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "in a row": lambda x: x.unique_consecutive(),
    "where": lambda x: torch.where(x > 0),
    "count": lambda x: x.bincount(),
    "repeat": lambda x: x.repeat_interleave(x),
    "numpy": lambda x: x.numpy(),
    "copy": lambda x: x.cpu(),
    "constant": lambda x: x + torch.tensor([1], device=x.device),
    "assigned": lambda x: x.clone().__setitem__(torch.zeros_like(x), 1),
}


@pytest.mark.parametrize("kind", [kind for kind in MAKE if kind != "medusa"])
@pytest.mark.parametrize("tree", ["chain", "branching", "dynamic"])
def test_no_drafter_reads(tree, kind):
    test_a_step_reads_nothing("sample-and-match", tree, kind)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_read_is_noticed(monkeypatch, planted):
    """In the verdict, where it would be tempting; each kind of read."""
    rows = running("sample-and-match", "branching", "language-model")
    accept = type(rows.rule).accept

    def reading(self: Any, logits: Tensor, draft: Any) -> Any:
        found = accept(self, logits, draft)
        PLANTED[planted](found.count)
        return found

    monkeypatch.setattr(type(rows.rule), "accept", reading)
    with NoHostReads(), pytest.raises(HostReadError):
        step(rows, steps=1)


def test_an_adaptive_growth_reads_and_is_for_cpu_only():
    """Of static and dynamic trees; a decoder that reads late never makes it. Other policies always ask the host."""
    tree = DynamicTree(nodes=8, depth=3, beam=3, width=3, min_probability=0.02)
    kinds = {late: Decoder(small_target(), drafter("medusa"), tree=tree, late=late).growth for late in (0, 1)}
    assert [getattr(kinds[late], "adaptive", None) for late in (0, 1)] == [True, False]
    rows = running("greedy", "shared", "medusa")
    rows.growth = kinds[0]
    with NoHostReads(), pytest.raises(HostReadError):
        rows.draft(view=64, steps=1, all_fed=False)


def step(rows: Rows, *, steps: int | None = None, all_fed: bool = False) -> None:
    draft = rows.draft(view=64, steps=rows.growth.depth + 1 if steps is None else steps, all_fed=all_fed)
    outputs = rows.verify(draft, view=64)
    rows.commit(draft, outputs, rows.accept(draft, outputs))


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "medusa", ["medusa", "language-model"]))
@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        pytest.param("greedy", "plain", marks=pytest.mark.slow),
        ("greedy", "shared"),
        pytest.param("typical", "branching", marks=pytest.mark.slow),
        ("sample-and-match", "dynamic"),
        pytest.param("point-mass", "branching", marks=pytest.mark.slow),
        ("block", "chain"),
        pytest.param("leviathan", "chain", marks=pytest.mark.slow),
        pytest.param("specinfer", "branching", marks=pytest.mark.slow),
        ("sequoia", "branching"),
    ],
)
def test_a_step_is_one_graph(rule, tree, kind):
    """Drafting, verifying and committing without a break, and no second compilation as texts grow.

    Dynamo cannot trace a `torch.Generator` ("Missing as_proxy() implementation"), so rules draw from torch's own here.
    """
    torch._dynamo.reset()
    outcomes = []
    counter = CompileCounterWithBackend("eager")
    for run in (step, torch.compile(step, fullgraph=True, dynamic=False, backend=counter)):
        rows = running(rule, tree, kind)
        if hasattr(rows.rule, "generator"):
            rows.rule = replace(rows.rule, generator=None)
        torch.manual_seed(0)
        found = []
        for _ in range(4):
            run(rows)
            found.append(rows.outcome.clone())
        outcomes.append(torch.stack(found))
    torch._dynamo.reset()
    assert counter.frame_count == 1
    assert counter.op_count > 100
    assert torch.equal(*outcomes)


@pytest.mark.parametrize(
    ("kind", "tree"),
    slow_unless(
        lambda kind, tree: (kind, tree) in {("hydra++", "branching"), ("eagle3", "dynamic")},
        product(["hydra++", "coral-router", "eagle3"], ["branching", "dynamic"]),
    ),
)
def test_drafting_is_in_the_graph(tree, kind):
    test_a_step_is_one_graph("greedy", tree, kind)


def test_a_planted_read_breaks_the_graph(monkeypatch):
    rows = running("greedy", "chain", "medusa")
    accept = Greedy.accept

    def reading(self: Greedy, logits: Tensor, draft: Any) -> Any:
        found = accept(self, logits, draft)
        return found if found.count.max() > 0 else accept(self, logits, draft)

    monkeypatch.setattr(Greedy, "accept", reading)
    torch._dynamo.reset()
    with pytest.raises(Unsupported):
        torch.compile(step, fullgraph=True, backend="eager")(rows)
    torch._dynamo.reset()
