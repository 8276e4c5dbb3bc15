"""A step asks the device for nothing and mixes it with no other: traced with fake CUDA tensors, and as one graph."""

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
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
)

from executor.checkpoints import load_drafter
from executor.decoding.batch_rows import Rows
from executor.decoding.decoder import Decoder
from executor.decoding.tree_growth import DynamicGrowth
from executor.drafters.base.drafter import Drafter
from executor.drafters.language_model.drafter import LanguageModel
from executor.drafters.medusa.drafter import MedusaHeads
from executor.drafters.ngram.drafter import NGram
from executor.verification.acceptance_rules import Greedy, Rule, make_rule
from executor.verification.replayed_acceptance import Imposed
from executor.verification.temperature_top_k_top_p import Warp, seeded_generator
from tests.helpers.drafters import MAKE, random_drafter
from tests.helpers.fake_cuda import CUDA, Queued, WaitError, fake_cuda, moved_drafter, moved_target, trace
from tests.helpers.models import VOCABULARY, random_heads, random_prompts, small_target
from tests.helpers.slow_growth import CALIBRATION
from tests.helpers.slow_params import slow_unless
from tests.helpers.strategies import drawn_trace
from treeopt.acceptance_rule_entries import RULES
from treeopt.policies import DynamicTree, OptTree, Policy
from treeopt.tree import EMPTY, Tree

TREES: dict[str, Tree | DynamicTree] = {
    "plain": EMPTY,
    "chain": Tree.chain(3),
    "branching": Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (2,)]),
    "dynamic": DynamicTree(nodes=8, depth=3, beam=3, width=3),
    "stopping": DynamicTree(nodes=8, depth=3, beam=3, width=3, min_probability=0.02),
    "calibrated": DynamicTree(nodes=5, depth=2, beam=3, min_probability=0.02, calibration=CALIBRATION),
}
ASKING: dict[str, Policy] = {"opt-tree": OptTree(nodes=8, depth=3, threshold=0.1)}
CPU = torch.device("cpu")
ENGINES = ("prompt-lookup:vllm", "prompt-lookup:llama.cpp", "prompt-lookup:transformers")
LOOKUP = ("prompt-lookup", "prompt-lookup:1", *ENGINES)
# HASS has EAGLE's weights under EAGLE's name.
KINDS = (*MAKE, "medusa-tied", "language-model", "ngram", *LOOKUP)
PROMPTS = random_prompts((7, 1, 5))


def allowed(kind: str, rule: str, tree: str) -> bool:
    if kind in ENGINES:  # an engine's rule proposes one chain or nothing
        return tree in ("chain", "branching") and rule in ("greedy", "sample-and-match", "point-mass")
    if rule in ("leviathan", "block"):
        return tree in ("plain", "chain")
    return rule not in ("specinfer", "sequoia", "imposed") or isinstance(TREES[tree], Tree)


def drafter(kind: str) -> Drafter:
    if kind in MAKE:
        return random_drafter(kind, small_target())
    if kind in LOOKUP:
        return load_drafter(kind, small_target())
    if kind == "ngram":
        return NGram.count(random_prompts([300] * 2, seed=5), order=3, vocabulary=VOCABULARY)
    return random_heads(heads=3) if kind == "medusa-tied" else LanguageModel(small_target(seed=1))


def made_rule(name: str, tree: str) -> Rule:
    if name == "imposed":
        texts = drawn_trace([(0.5, 0.2, 0.1)], [20] * len(PROMPTS), depth=3, rng=np.random.default_rng(0))
        return Imposed(texts, TREES[tree])
    warp = None if name == "greedy" else Warp(1.2, 40, 0.9)
    return make_rule(name, warp=warp, generator=seeded_generator(CPU, 0))


# Every drafter, rule and kind of tree once, graphs with some; the slow suite has each drafter with each kind of tree.
DAILY = {
    ("medusa", "typical", "branching", False),
    ("medusa", "greedy", "calibrated", True),
    ("medusa-tied", "greedy", "plain", False),
    ("hydra", "specinfer", "branching", False),
    ("hydra++", "sequoia", "branching", True),
    ("eagle", "sample-and-match", "dynamic", False),
    ("eagle-qkv-bias", "block", "chain", False),
    ("coral-router", "point-mass", "stopping", False),
    ("eagle3", "sample-and-match", "stopping", True),
    ("eagle3-variants", "imposed", "branching", False),
    ("mtp", "sample-and-match", "branching", False),
    ("dflash", "greedy", "branching", True),
    ("dspark", "sample-and-match", "branching", False),
    ("p-eagle", "greedy", "chain", False),
    ("pard", "greedy", "chain", False),
    ("ngram", "leviathan", "chain", False),
    ("prompt-lookup", "greedy", "dynamic", False),
    ("prompt-lookup:llama.cpp", "point-mass", "chain", False),
}
EVERY = {
    *product(["medusa"], [*RULES, "imposed"], TREES, [False]),
    *product(KINDS, ["sample-and-match"], ["chain", "branching", "dynamic", "stopping"], [False, True]),
}


def traced(kind: str, rule: str, tree: Tree | Policy, *, graphs: bool = False, **changes: Any) -> tuple[int, int]:
    """Steps and operators of a run on the device that is not there; with some drafters a request is replaced."""
    prompts = PROMPTS if kind in ("medusa", "language-model") else PROMPTS[:2]
    if kind == "mtp-several":  # three modules read at least three tokens
        prompts = [prompt * 3 for prompt in prompts]
    target, drafts = small_target(), drafter(kind)
    named = made_rule(rule, next((name for name in TREES if TREES[name] is tree), ""))
    with fake_cuda(target, drafts):
        decoder = Decoder(moved_target(target), moved_drafter(drafts), tree=tree, batch=2, rule=named, graphs=graphs)
        vars(decoder).update(changes)
        return trace(decoder, prompts, new_tokens=2)


@pytest.mark.parametrize(
    ("kind", "rule", "tree", "graphs"),
    slow_unless(lambda *case: case in DAILY, sorted(case for case in DAILY | EVERY if allowed(*case[:3]))),
)
def test_the_loop_on_a_device(kind, rule, tree, graphs):
    """Prompts join, trees are drafted, verified, accepted and committed, and outcomes are read late."""
    steps, calls = traced(kind, rule, TREES[tree], graphs=graphs)
    assert steps >= 1
    assert calls > 300


def _family(kind):
    return kind.partition("-")[0].partition(":")[0]


def test_the_cases_of_every_day_are_complete():
    assert {_family(kind) for kind, *_ in DAILY} == {_family(kind) for kind in KINDS} - {"language"}  # a slow one
    assert {rule for _, rule, *_ in DAILY} == {*RULES, "imposed"}
    assert {tree for *_, tree, _ in DAILY} == set(TREES)
    assert all(allowed(*case[:3]) for case in DAILY)


@pytest.mark.parametrize("policy", ASKING)
def test_policies_that_ask_the_host_wait(policy):
    """These choose by what was drafted, with the code that replays them on traces; CUDA graphs refuse them."""
    with pytest.raises(WaitError, match="_to_copy"):
        traced("medusa", "greedy", ASKING[policy])


def test_an_adaptive_growth_reads_and_is_for_cpu_only():
    """Static and dynamic trees have one; a decoder that reads late never makes it."""
    tree = TREES["stopping"]
    kinds = {late: Decoder(small_target(), drafter("medusa"), tree=tree, late=late).growth for late in (0, 1)}
    assert [getattr(kinds[late], "adaptive", None) for late in (0, 1)] == [True, False]
    with pytest.raises(DataDependentOutputException):
        traced("medusa", "greedy", tree, growth=DynamicGrowth(tree, CPU, adaptive=True))


PLANTED: dict[str, tuple[type[Exception], Callable[[Tensor], object]]] = {
    "item": (DataDependentOutputException, lambda x: x.sum().item()),
    "bool": (DataDependentOutputException, lambda x: bool((x > 0).any())),
    "nonzero": (DynamicOutputShapeException, lambda x: x.nonzero()),
    "mask": (DynamicOutputShapeException, lambda x: x[x > 0]),
    "unique": (DynamicOutputShapeException, lambda x: x.unique()),
    "where": (DynamicOutputShapeException, lambda x: torch.where(x > 0)),
    "copy": (WaitError, lambda x: x.cpu()),
    "constant": (WaitError, lambda x: x + torch.tensor([1], device=x.device)),
    "assigned": (WaitError, lambda x: x.clone().__setitem__(torch.zeros_like(x), 1)),
    "index": (WaitError, lambda x: x[torch.zeros(1, dtype=torch.long)]),
    "mixed": (FakeTensorDeviceMismatchError, lambda x: x + torch.ones(len(x))),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_faults_are_noticed(planted):
    error, fault = PLANTED[planted]
    with fake_cuda():
        numbers = torch.zeros(3, dtype=torch.long, device=CUDA)
        with Queued(), pytest.raises(error):
            fault(numbers)


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [(MedusaHeads, "level", "item"), (MedusaHeads, "admit", "copy"), (Greedy, "accept", "mixed")],
)
def test_planted_faults_fail_the_loop(monkeypatch, owner, name, planted):
    """In a drafter and in the verdict, where they would be tempting."""
    error, fault = PLANTED[planted]
    honest = getattr(owner, name)

    def faulty(self: Any, given: Any, *others: Any) -> Any:
        fault(torch.zeros(3, dtype=torch.long, device=CUDA))
        return honest(self, given, *others)

    monkeypatch.setattr(owner, name, faulty)
    with pytest.raises(error):
        traced("medusa", "greedy", TREES["chain"])


# --- as one graph


def running(rule: str, tree: str, kind: str) -> Rows:
    """Rows with requests of unlike length, one idle, as a decoder that reads late sets them up."""
    drafts = drafter("medusa-tied" if kind == "medusa" else kind)
    decoder = Decoder(small_target(), drafts, tree=TREES[tree], batch=4, rule=made_rule(rule, tree), late=1)
    rows = decoder._begin(PROMPTS, 40)
    rows.admit([0, 1, 3], PROMPTS)
    return rows


def step(rows: Rows, *, steps: int | None = None, all_fed: bool = False) -> None:
    draft = rows.draft(view=64, steps=rows.growth.depth + 1 if steps is None else steps, all_fed=all_fed)
    outputs = rows.verify(draft, view=64)
    rows.settle(draft, outputs)


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "medusa", ["medusa", "language-model"]))
@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        pytest.param("greedy", "plain", marks=pytest.mark.slow),
        pytest.param("greedy", "stopping", marks=pytest.mark.slow),
        pytest.param("typical", "branching", marks=pytest.mark.slow),
        pytest.param("sample-and-match", "dynamic", marks=pytest.mark.slow),
        pytest.param("point-mass", "branching", marks=pytest.mark.slow),
        pytest.param("block", "chain", marks=pytest.mark.slow),
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
        lambda kind, tree: (kind, tree) == ("eagle3", "dynamic"),
        product(["hydra++", "coral-router", "eagle3"], ["branching", "dynamic"]),
    ),
)
def test_drafting_is_in_the_graph(tree, kind):
    test_a_step_is_one_graph("greedy", tree, kind)


@pytest.mark.slow
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
