"""A kind of drafter that no package has: registered, then trained, recorded, searched for, decoded with and priced.

It follows CONTRIBUTING.md, "Add a drafter", with one file in place of a folder.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import treeopt
from executor.checkpoints import load_drafter, save_drafter
from executor.checkpoints.tensors.lazy_tensors import Stored, fill_module
from executor.checkpoints.tensors.write_tensors import Written
from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.drafters.base.recipe import Recipe, recipes, replaced
from executor.models import random_drafter
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.runners.loop_runner import weights_read
from executor.target.causal_model import keep_last, pick_rows, put_last
from executor.target.target_model import Target
from executor.train.token_rows import Rows
from executor.train.training_run import Job, begun, run
from simulate.drafter_kinds import (
    DRAFTERS,
    DrafterKind,
    DrafterShape,
    Files,
    RandomWeights,
    Sizes,
    Training,
    drafter_shape,
    heads_of,
    kind_of_drafter,
)
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import BatchTimes, Profile
from tests.helpers.models import HIDDEN, VOCABULARY, generated, random_prompts, small_target
from treeopt.errors import ExecutorError, UsageError
from treeopt.tree import Tree


@dataclass(frozen=True)
class ToyRecipe(Recipe):
    """A recipe with a field that no other kind has."""

    spread: float = 0.1


class Toy(nn.Module):
    """One matrix, applied to the target's last feature once more for each level; then the target's LM head."""

    kind = "toy"
    abstains = False
    taps: tuple[int, ...] = ()
    max_depth = 4
    settings: Mapping[str, Any] = {}

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.step = nn.Linear(hidden, hidden, bias=False)

    def scores(self, target: Target, features: Tensor, depth: int) -> Tensor:
        for _ in range(depth):
            features = features + self.step(features)
        return target.scored(features)

    def cache_bytes(self, batch: int, capacity: int) -> int:
        return 0

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> SimpleNamespace:
        return SimpleNamespace(target=target, feature=torch.zeros(batch, target.hidden), level=0)

    def lasting(self, state: SimpleNamespace) -> tuple[Tensor]:
        return (state.feature,)

    def admit(self, state: SimpleNamespace, admitted: Admitted) -> None:
        put_last(state.feature, admitted.rows, admitted.features, admitted.lengths - 1)

    def extend(self, state: SimpleNamespace, committed: Committed, *, view: int, all_fed: bool) -> None:
        keep_last(state.feature, committed.features, committed.counts)
        state.level = 0

    def level(self, state: SimpleNamespace, tokens: Tensor, parents: Tensor) -> Tensor:
        state.level += 1
        return self.scores(state.target, state.feature, state.level)[:, None]

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        for k in range(1, depth + 1):
            yield Forced(self.scores(target, pick_rows(features, rows), k))


def read(stored: Stored, target: Target) -> Toy:
    return fill_module(lambda: Toy(target.hidden), stored, lambda name: f"toy.{name}")


def write(drafter: Toy, layout: str | None, target: Target | None, name: str) -> Written:
    return Written("toy.safetensors", {"toy.step.weight": drafter.step.weight}, {"toy_layers": 1}, {"kind": "toy"})


def untrained(recipe: ToyRecipe, target: Target, frequent: object) -> Toy:
    toy = Toy(target.hidden)
    nn.init.normal_(toy.step.weight, std=recipe.spread)
    return toy


def drawn(target: Target, count: int, packed: bool) -> Toy:
    return Toy(target.hidden)


def toy_reads(drafter: Toy, target: Shape) -> int:
    return drafter.step.weight.numel() + target.vocab * target.hidden


def toy_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    width, vocabulary = heads_of(target).hidden, heads_of(target).vocab
    return DrafterShape(Forward((), (vocabulary, width), whole=((1, width, width),)), parallel=True)


TOY = DrafterKind(
    "toy",
    "the toy",
    fields=("toy_layers",),
    words=("toy",),
    parallel=True,
    sizes=Sizes(toy_shape),
    files=Files(
        lambda names: any(name.startswith("toy.") for name in names),
        read=f"{__name__}:read",
        write=f"{__name__}:write",
        layouts=("toy-v1",),
        names=("toy.safetensors",),
    ),
    training=Training((ToyRecipe("toy", "toy", depths=3, hard_ce_weight=1.0),), f"{__name__}:untrained"),
    random=RandomWeights("toy", f"{__name__}:drawn"),
    reads=f"{__name__}:toy_reads",
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with DRAFTERS.registered(TOY):
        yield


def test_it_is_trained_recorded_searched_for_and_decoded_with(tmp_path):
    target = small_target()
    prompts = random_prompts([9, 7, 11, 8, 6, 10], seed=3)
    texts = [[*prompt, *generated(target.model, prompt, 24)] for prompt in prompts]
    rows = Rows(np.array([text[:28] for text in texts]))
    recipe = replaced(recipes()["toy"], ["learning_rate=1e-2", "spread=0.01"])
    drafter = begun(recipe, target, None, rows=rows, seed=0)
    trained = run(Job(recipe, tmp_path / "toy", steps=20, batch=2), target, drafter, rows, rows)
    assert trained.after[0].loss < trained.before[0].loss

    loaded = load_drafter(tmp_path / "toy", target)
    assert loaded.kind == "toy"
    torch.testing.assert_close(loaded.step.weight, drafter.step.weight.detach())
    trace = collect(target, loaded, [Prompt("")] * 6, prompts, new_tokens=16, depth=3, width=4)
    assert trace.meta["drafter"]["kind"] == "toy"
    times = BatchTimes(1, 0.01, ((1, 1e-3), (3, 2e-3)), ((2, 0.01), (64, 0.02)))
    plan = treeopt.search(trace, profile=Profile((times,), (0, 100), 0.02), batch=1, max_nodes=8)
    assert [entry.batch for entry in plan.entries] == [1]
    priced = treeopt.whatif(trace, hardware="h100", target="8b", batch=1, max_nodes=4)
    assert priced["cells"][0]["batch"] == 1

    decoder = Decoder(target, loaded, tree=Tree.from_paths([(0,), (1,), (0, 0), (0, 0, 1)]), batch=3)
    written = decoder.generate(prompts, new_tokens=16)
    assert [list(text.tokens) for text in written] == [generated(target.model, prompt, 16) for prompt in prompts]


def test_its_files_are_known_by_their_tensors_and_its_configuration(tmp_path):
    target = small_target()
    save_drafter(tmp_path, Toy(HIDDEN), dtype="float32", meta={}, layout="toy-v1")
    (tmp_path / "toy.safetensors").rename(tmp_path / "model.safetensors")
    assert load_drafter(tmp_path, target).kind == "toy"
    assert kind_of_drafter(tmp_path) == kind_of_drafter({"toy_layers": 2}) == "toy"
    config = tmp_path / "config.json"
    with DRAFTERS.registered(replace(TOY, words=("domino",))):  # a name that is refused where no kind has it
        config.write_text(config.read_text().replace("{", '{"architectures": ["DominoDraftModel"], ', 1))
        assert load_drafter(tmp_path, target).kind == "toy"
    with pytest.raises(ExecutorError, match="blocks with a correction"):
        load_drafter(tmp_path, target)
    with pytest.raises(UsageError, match="layout of the toy must be one of toy-v1, got v2"):
        save_drafter(tmp_path, Toy(HIDDEN), dtype="float32", meta={}, layout="v2")


def test_it_is_priced_and_timed():
    sizes = {"hidden": HIDDEN, "intermediate": 48, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": VOCABULARY}
    shape = drafter_shape({"toy_layers": 1}, kind="toy", target=Shape(layers=2, **sizes))
    assert shape.level.weights == HIDDEN**2 + VOCABULARY * HIDDEN
    target = small_target()
    drafter = random_drafter("toy", target)
    read, _ = weights_read(target, drafter) or (0, 0)
    assert read == shape.level.weights
