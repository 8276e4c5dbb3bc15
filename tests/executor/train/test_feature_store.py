"""The target's features on disk: equal to its forward, computed once, shared, refused if they are another's."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.drafters.base.recipe import recipes, replaced
from executor.drafters.medusa import MEDUSA2
from executor.target.target_model import Target
from executor.train.feature_store import FeatureStore
from executor.train.losses import Lesson
from executor.train.token_rows import Rows
from executor.train.training_run import Job, run
from tests.helpers.drafters import random_drafter
from tests.helpers.model_families import family
from tests.helpers.models import HIDDEN, VOCABULARY, random_heads, small_target
from treeopt.errors import ExecutorError, UsageError


def random_rows(rows: int = 6, length: int = 10, *, seed: int = 0) -> Rows:
    return Rows(np.random.default_rng(seed).integers(0, VOCABULARY, (rows, length)))


@pytest.fixture
def forwards(monkeypatch):
    """How many rows each forward of a target over rows was given, beside the one that asks what follows its LM head."""
    counts: list[int] = []
    features = Target.features

    def counted(self, tokens, *words, **more):
        if "head_scaling" in vars(self):
            counts.append(len(tokens))
        return features(self, tokens, *words, **more)

    monkeypatch.setattr(Target, "features", counted)
    return counts


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "cohere2"])  # the last two change their logits
@pytest.mark.parametrize("taps", [(), (0, 2)])
def test_what_is_kept_is_what_the_target_gives(tmp_path, forwards, architecture, taps):
    target, tokens = family(architecture).target(), random_rows().tokens
    due = target.features(tokens, taps)
    forwards.clear()
    for _ in range(2):
        found = FeatureStore(tmp_path, target, "float32").outputs(tokens, taps)
        torch.testing.assert_close(found.features, due.features, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.logits, due.logits, rtol=1e-5, atol=1e-5)
    assert forwards == [6]
    assert len(list(tmp_path.glob("*.safetensors"))) == 6


def test_only_what_is_not_there_is_computed(tmp_path, forwards):
    target, tokens = small_target(), random_rows().tokens
    store = FeatureStore(tmp_path, target, "float32")
    store.outputs(tokens[:2], ())
    whole = store.outputs(tokens[[1, 4, 0]], ()).features
    assert forwards == [2, 1]
    store.outputs(tokens[:2], (1,))  # another layer of rows that are there
    assert forwards == [2, 1, 2]
    torch.testing.assert_close(store.outputs(tokens[[1, 4, 0]], ()).features, whole, rtol=0, atol=1e-6)
    store.outputs(tokens[:2], (1,))
    store.outputs(tokens[:2], ())
    assert forwards == [2, 1, 2]


def test_half_precision_is_kept_as_it_is(tmp_path):
    target, tokens = small_target(dtype=torch.bfloat16), random_rows().tokens
    store = FeatureStore(tmp_path, target, "bfloat16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, again = store.outputs(tokens, (1,)), store.outputs(tokens, (1,))
    assert first.features.dtype == again.features.dtype == target.features(tokens).features.dtype
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.logits, again.logits)


@pytest.mark.parametrize("name", ["medusa1", "hydra++", "coral", "eagle3"])
def test_a_lesson_is_the_same(tmp_path, name):
    """Losses, gradients and measurements."""
    target, rows = small_target(), random_rows()
    recipe = replaced(recipes()[name], ["depths=3", "noise=none"] + ["dropout=0"] * (name == "hydra++"))
    kind = {"medusa1": "medusa", "hydra++": "hydra++", "coral": "eagle"}.get(name, name)
    drafter = random_drafter(kind, target)
    found = []
    for store in (None, FeatureStore(tmp_path, target, "float32"), FeatureStore(tmp_path, target, "float32")):
        lesson = Lesson(drafter, target, recipe, store=store)
        drafter.zero_grad()
        loss = lesson(**rows[:])["loss"]
        loss.backward()
        lesson.eval()
        slopes = {n: p.grad.clone() for n, p in drafter.named_parameters() if p.grad is not None}
        found.append((loss.detach(), slopes, lesson.measure(**rows[:])))
    assert found[0][1]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-6)


def test_a_training_goes_through_the_target_once(tmp_path, forwards):
    target, rows, held_out = small_target(), random_rows(), random_rows(2, seed=1)
    assert target.head_scaling == (1.0, None)
    recipe = replaced(recipes()["medusa1"], ["depths=2"])
    trained = []
    for name, features in (("plain", None), ("first", tmp_path / "kept"), ("second", tmp_path / "kept")):
        forwards.clear()
        torch.manual_seed(0)
        job = Job(recipe, tmp_path / name, steps=6, batch=3, features=features)
        trained.append((run(job, target, random_heads(heads=2), rows, held_out), sum(forwards)))
    (plain, all_rows), (first, once), (second, none) = trained
    assert (all_rows, once, none) == (6 * 3 + 2 * 2, 6 + 2, 0)
    for kept in (first, second):
        assert [s.hits for s in kept.after] == [s.hits for s in plain.after]
        np.testing.assert_allclose([s.loss for s in kept.after], [s.loss for s in plain.after], rtol=1e-5)


def test_of_another_target(tmp_path):
    FeatureStore(tmp_path, small_target(), "float32")
    FeatureStore(tmp_path, small_target(), "float32")
    with pytest.raises(UsageError, match="a target whose weights is"):
        FeatureStore(tmp_path, small_target(seed=1), "float32")
    with pytest.raises(UsageError, match="precision is float32, not bfloat16"):
        FeatureStore(tmp_path, small_target(), "bfloat16")


def test_damaged_files(tmp_path):
    target, tokens = small_target(), random_rows(1).tokens
    store = FeatureStore(tmp_path, target, "float32")
    store.outputs(tokens, ())
    (path,) = tmp_path.glob("*.safetensors")
    whole = load_file(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ExecutorError, match=f"{path.name}: features cannot be read, remove the file"):
        store.outputs(tokens, ())
    save_file({"head": whole["head"][:-1].clone()}, path)
    with pytest.raises(ExecutorError, match=rf"head must be \(10, {HIDDEN}\), found \(9, {HIDDEN}\)"):
        store.outputs(tokens, ())
    (tmp_path / "target.json").write_text("{}")
    with pytest.raises(ExecutorError, match=r"target.json: schema must be 'treeopt.features/1'"):
        FeatureStore(tmp_path, target, "float32")


def test_a_target_that_learns_has_none(tmp_path):
    job = Job(replaced(MEDUSA2, ["depths=2"]), tmp_path / "o", steps=1, features=tmp_path / "kept")
    with pytest.raises(UsageError, match="medusa2 trains it"):
        run(job, small_target(), random_heads(heads=2), random_rows(), random_rows(2))
    assert not (tmp_path / "o").exists()
