"""The trainer: what is supervised, every recipe learns, optimiser, clipping, resumption, processes, LoRA."""

import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaForCausalLM

from executor.checkpoints import load_drafter
from executor.drafters.base.recipe import Recipe, recipes, replaced
from executor.drafters.eagle import EAGLE, HASS
from executor.drafters.eagle.drafter import Eagle
from executor.drafters.hydra import HYDRA
from executor.drafters.medusa import MEDUSA1, MEDUSA2
from executor.drafters.medusa.drafter import MedusaHeads
from executor.recording.teacher_forced import rank_of
from executor.target.target_model import Target
from executor.train import training_run
from executor.train.losses import TERMS, Anchors, Backbone, Lesson, Lora
from executor.train.token_rows import Rows
from executor.train.training_run import (
    DrafterTrainer,
    Job,
    arguments,
    begun,
    checkpoint,
    continued,
    fresh_drafter,
    run,
    step_count,
)
from tests.helpers.drafters import random_drafter
from tests.helpers.fuzzing import disk_of
from tests.helpers.model_families import family
from tests.helpers.models import CONFIGS, HIDDEN, VOCABULARY, random_heads, small_model, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError, UsageError

ROOT = Path(__file__).parent.parent.parent.parent


def random_rows(rows: int = 12, length: int = 12, *, seed: int = 0) -> Rows:
    """Random tokens, of which a third is not learnt."""
    rng = np.random.default_rng(seed)
    return Rows(rng.integers(0, VOCABULARY, (rows, length)), rng.random((rows, length)) < 0.67)


def written_rows(target: Target, rows: int = 48, length: int = 24, *, seed: int = 0) -> Rows:
    """What the target writes at temperature 1 after random tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (rows, 1), generator=generator)
    while tokens.shape[1] < length:
        law = target.features(tokens).logits[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(law, 1, generator=generator)], 1)
    return Rows(tokens.numpy())


def test_heads_are_the_published_formula():
    """z = f + SiLU(A f + b), logits = U z, written out in float64; Cai et al. 2024, section 2.1."""
    target = small_target(dtype=torch.float64)
    heads = random_heads(own=True, dtype=torch.float64)
    f = torch.randn(3, HIDDEN, dtype=torch.float64)
    found = heads(target, f, 5)
    for k in range(5):
        a = f @ heads.weight[k, 0].T + heads.bias[k, 0]
        z = f + a / (1 + torch.exp(-a))
        torch.testing.assert_close(found[k], z @ heads.output[k].T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["medusa1", "hydra++", "coral", "eagle3", "eagle3 of fewer tokens"])
def test_what_is_supervised(name):
    """The loss of a batch is the terms over all anchors that a double loop finds."""
    target = small_target(dtype=torch.float64)
    recipe = replaced(recipes()[name.split()[0]], ["depths=3", "noise=none", "dropout=0"])
    torch.manual_seed(0)
    drafter = fresh_drafter(recipe, target) if name in recipes() else random_drafter("eagle3", target)
    rows = random_rows(3, 10)
    lesson = Lesson(drafter, target, recipe)
    found = lesson(**rows[:])["loss"].item()
    tokens, mask = rows.tokens, rows.mask
    outputs, taps = target.features(tokens), target.features(tokens, drafter.taps)
    words = {"detached": True} if recipe.detached else {}
    levels = list(drafter.teacher_forced(target, tokens, taps.features, 3, **words))
    due = 0.0
    for k, level in enumerate(levels, 1):
        chosen = [(b, t) for b in range(3) for t in range(10 - 1 - k) if mask[b, t + 1] and mask[b, t + 1 + k]]
        at = Anchors(
            scores=torch.stack([level.scores[b, t] for b, t in chosen]),
            labels=torch.stack([tokens[b, t + 1 + k] for b, t in chosen]),
            teacher=torch.stack([outputs.logits[b, t + k] for b, t in chosen]),
            features=torch.stack([outputs.features[b, t + k] for b, t in chosen]),
            hidden=None if level.hidden is None else torch.stack([level.hidden[b, t] for b, t in chosen]),
            earlier=torch.stack(
                [torch.stack([levels[j - 1].hidden[b, t + k - j] for b, t in chosen]) for j in range(1, k)]
            )
            if k > 1 and level.hidden is not None
            else None,
        )
        due += recipe.weight(k) * sum(w * TERMS[term](at, **options) for term, w, options in recipe.terms()).item()
    assert found == pytest.approx(due, rel=1e-6)  # summed in float32


def test_rows_shorter_than_the_depths_are_no_error():
    target = small_target()
    lesson = Lesson(fresh_drafter(replaced(EAGLE, ["depths=4"]), target), target, replaced(EAGLE, ["depths=4"]))
    assert lesson(**random_rows(2, 4)[:])["loss"].isfinite()
    assert lesson(**random_rows(2, 2)[:])["loss"].item() == 0
    assert lesson.measure(**random_rows(2, 2)[:]).sum() == 0


@pytest.mark.parametrize("name", ["medusa1", "eagle3"])
def test_measure_counts_ranks(name):
    """Tokens that are never drafted, as EAGLE-3 has them here, are no hits."""
    target, rows = small_target(), random_rows(12, 12)
    drafter = random_heads(heads=2) if name == "medusa1" else random_drafter(name, target)
    found = Lesson(drafter, target, replaced(recipes()[name], ["depths=2"])).eval().measure(**rows[:])
    forced = drafter.teacher_forced(target, rows.tokens, target.features(rows.tokens, drafter.taps).features, 2)
    missed = 0
    for k, (row, level) in enumerate(zip(found.tolist(), forced, strict=True), 1):
        chosen, truth = rows.mask[:, 1:-k] & rows.mask[:, 1 + k :], rows.tokens[:, 1 + k :]
        scores = level.scores[:, : -1 - k]
        ranks = rank_of(scores, truth)[chosen & ~scores.gather(-1, truth[..., None])[..., 0].isneginf()]
        assert row[0] == chosen.sum()
        missed += int(chosen.sum()) - len(ranks)
        assert row[2:] == [(ranks < top).sum().item() for top in (1, 2, 4, 8)]
        loss = nn.functional.cross_entropy(scores[chosen], truth[chosen])
        assert missed or row[1] / row[0] == pytest.approx(loss.item(), rel=1e-5)
    assert bool(missed) == (name == "eagle3")


def test_a_score_that_is_no_number_is_no_hit():
    scores = torch.tensor([[0.0, 2.0, 1.0, 1.0], [math.nan] * 4, [0.0, math.nan, 1.0, -math.inf]])
    assert rank_of(scores, torch.tensor([3, 0, 2])).tolist() == [2, 4, 1]


def test_noise_is_as_published_and_for_training_alone():
    target = small_target()
    features = torch.zeros(3, 200, HIDDEN)
    lesson = Lesson(fresh_drafter(EAGLE, target), target, EAGLE)
    reach = lesson._noisy(features).abs().max().item()
    assert 0.98 * 0.1 * 512 / 200 < reach <= 0.1 * 512 / 200
    lesson.recipe = replaced(HYDRA, ["noise=neftune", "noise_scale=75"])
    reach = lesson._noisy(features).abs().max().item()
    assert 0.98 < reach / (75 / (200 * HIDDEN) ** 0.5) <= 1
    lesson.recipe = EAGLE
    batch = random_rows()[:]
    assert lesson(**batch)["loss"] != lesson(**batch)["loss"]
    lesson.eval()
    assert lesson(**batch)["loss"] == lesson(**batch)["loss"]


# The published learning rates are for far larger targets.
FASTER = ["learning_rate=1e-2", "warmup=0.1", "noise=none", "draft_vocabulary=0"]


CYCLED = ["medusa1", "hydra", "hydra++", "eagle", "hass", "coral", "eagle3"]


@pytest.mark.parametrize("name", slow_unless(lambda name: name in {"medusa1", "eagle3"}, CYCLED))
def test_recipes_learn_a_cycle(tmp_path, name):
    """Text that is easy: after 60 steps the first choice is mostly right, at every depth."""
    target = small_target()
    rows = Rows(np.resize(np.arange(7), 16 * 40).reshape(40, 16).astype(np.int64))
    changes = ["depths=2", "hard_ce_weight=1", "soft_ce_weight=0", "smooth_l1_weight=0", "top_k_weight=0"]
    recipe = replaced(recipes()[name], [*FASTER, *changes])
    torch.manual_seed(0)
    drafter = fresh_drafter(recipe, target)
    found = run(Job(recipe, tmp_path, 60), target, drafter, rows, rows)
    for before, after in zip(found.before, found.after, strict=True):
        assert after.loss < before.loss / 2
        assert after.accuracy[0] > before.accuracy[0] + 0.3


def trainer_of(tmp_path, recipe: Recipe, *, steps: int = 10, target: Target | None = None, backbone=None):
    target = target or small_target()
    torch.manual_seed(0)
    drafter = fresh_drafter(recipe, target)
    settings = arguments(Job(recipe, tmp_path, steps, batch=4))
    rows = random_rows()
    lesson = Lesson(drafter, target, recipe, backbone)
    return DrafterTrainer(lesson, args=settings, train_dataset=rows, eval_dataset=rows)


def test_gradients_are_clipped_by_value_or_by_norm(tmp_path):
    largest, norms = [], []

    class Optimizer(torch.optim.AdamW):
        def step(self, closure=None):
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            largest.append(max(g.abs().max().item() for g in gradients))
            norms.append(torch.stack([g.norm() for g in gradients]).norm().item())
            return super().step(closure)

    for changes, seen, limit in (
        (["clip=0.001", "clip_by=value"], largest, 0.001),
        (["clip=0.01", "clip_by=norm"], norms, 0.01),
    ):
        seen.clear()
        trainer = trainer_of(tmp_path, replaced(EAGLE, changes), steps=3)
        trainer.optimizer = Optimizer(trainer.lesson.learnt().values(), lr=1e-5)
        trainer.train()
        assert seen
        assert all(0.5 * limit < x <= limit * (1 + 1e-4) for x in seen)


def test_the_optimiser_is_the_recipe_s(tmp_path):
    recipe = replaced(recipes()["hydra++"], ["depths=2"])
    trainer = trainer_of(tmp_path, recipe, steps=100)
    optimizer = trainer.create_optimizer()
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1, 0.0}
    assert all(group["betas"] == (0.9, 0.999) for group in optimizer.param_groups)
    plain = {p for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    named = dict(trainer.lesson.named_parameters())
    assert {name for name, p in named.items() if p in plain and p.requires_grad} == {
        name for name in named if name.endswith("bias") or "norm" in name
    }
    rates, schedule = [], trainer.create_scheduler(100, optimizer)
    for _ in range(100):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[0] == 0
    assert max(rates) == rates[10] == pytest.approx(5e-4)  # a tenth, not the published 100 steps
    assert schedule.get_last_lr()[0] == pytest.approx(0.33 * 5e-4)


def test_heads_learn_faster_than_a_backbone(tmp_path):
    target = small_target()
    trainer = trainer_of(tmp_path, MEDUSA2, target=target, backbone=Backbone(target))
    rates = {}
    for group in trainer.create_optimizer().param_groups:
        for value in group["params"]:
            rates[id(value)] = group["lr"]
    for name, value in trainer.lesson.learnt().items():
        assert rates[id(value)] == (4 if name.startswith("drafter.") else 1) * 5e-4
    assert len(rates) == len(list(target.model.parameters())) + len(list(trainer.lesson.drafter.parameters()))


def test_the_ramp_follows_the_steps(tmp_path):
    seen = []
    recipe = replaced(MEDUSA1, ["ramp=linear", "depths=2"])
    trainer = trainer_of(tmp_path, recipe, steps=4)
    forward = trainer.lesson.forward
    trainer.lesson.forward = lambda **words: (seen.append(trainer.lesson.done), forward(**words))[1]
    trainer.train()
    assert seen == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    "name", slow_unless(lambda name: name == "medusa2", ["medusa1", "hydra++", "eagle", "medusa2"])
)
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path, name):
    """Noise, dropout and the order of rows included."""
    recipe = replaced(recipes()[name], ["depths=2", "learning_rate=1e-2"])
    lora = Lora(rank=2, dropout=0.1) if name == "medusa2" else None
    rows, ends = random_rows(20), {}

    def train(folder: str, *, stop: int | None = None, resume: bool = False) -> None:
        target = small_target()
        torch.manual_seed(3)
        drafter = fresh_drafter(recipe, target)
        todo = Job(recipe, tmp_path / folder, 9, batch=4, save_every=4, resume=resume, lora=lora)
        if stop is not None:

            def report(step, logs):
                if step > stop:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                run(todo, target, drafter, rows, rows, report=report)
            return
        run(todo, target, drafter, rows, rows)
        ends[folder] = {**drafter.state_dict(), **(target.model.state_dict() if lora else {})}

    train("whole")
    train("parts", stop=5)
    assert (tmp_path / "parts" / "checkpoint-4").is_dir()
    assert not (tmp_path / "parts" / "training.json").exists()
    train("parts", resume=True)
    for key, value in ends["whole"].items():
        assert torch.equal(value, ends["parts"][key]), key


@pytest.mark.parametrize("size", [4_000, 30_000])
def test_a_full_disk_ends_the_training_in_one_line(tmp_path, size):
    """Within the weights of a checkpoint, and within the state of its optimiser."""
    job, target = Job(MEDUSA1, tmp_path, 4, batch=4, save_every=2), small_target()
    with (
        disk_of(size),
        pytest.raises(ExecutorError, match=f"{tmp_path}: cannot be written: .*[Tt]oo large|is the disk"),
    ):
        run(job, target, fresh_drafter(MEDUSA1, target), random_rows(), random_rows())
    assert checkpoint(tmp_path) is None


@pytest.mark.parametrize("state", [None, '{"global_step'])
def test_a_checkpoint_that_was_not_finished_is_not_gone_on_from(tmp_path, state):
    for step in (4, 12, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text('{"global_step": 1}')
    (tmp_path / "checkpoint-16").mkdir()
    (tmp_path / "checkpoint-last").mkdir()
    if state is not None:
        (tmp_path / "checkpoint-16" / "trainer_state.json").write_text(state)
    assert checkpoint(tmp_path) == str(tmp_path / "checkpoint-12")
    (tmp_path / "checkpoint-12" / "model.safetensors").write_bytes(b"damaged")
    assert checkpoint(tmp_path) == str(tmp_path / "checkpoint-8")
    assert checkpoint(tmp_path / "none") is None


def test_checkpoints_hold_what_learns_and_no_pickled_weights(tmp_path):
    recipe = replaced(MEDUSA2, ["depths=2"])
    target = small_target()
    trainer = trainer_of(tmp_path, recipe, target=target, backbone=Backbone(target, Lora(rank=2)))
    trainer.save_model(str(tmp_path / "c"))
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["model.safetensors"]
    stored = load_file(tmp_path / "c" / "model.safetensors")
    assert set(stored) == set(trainer.lesson.learnt())
    assert all("lora_" in key or key.startswith("drafter.") for key in stored)


def test_rows_without_anything_to_learn(tmp_path):
    """Nothing is written, so that the same folder can be named again."""
    target, recipe = small_target(), replaced(MEDUSA1, ["depths=3"])
    rows = random_rows(4, 12)
    mask = torch.zeros_like(rows.mask)
    mask[1, 5:8] = True  # depth 2: the first of the three, and the last
    few = Rows(rows.tokens.numpy(), mask.numpy())
    assert [few.anchors(depth) for depth in (1, 2, 3, 11, 12, 40)] == [2, 1, 0, 0, 0, 0]
    assert [Rows(rows.tokens.numpy()).anchors(depth) for depth in (1, 10, 11)] == [40, 4, 0]
    with pytest.raises(ExecutorError, match="nothing to learn at depth 3"):
        run(Job(recipe, tmp_path / "o", 2), target, fresh_drafter(recipe, target), few, rows)
    assert not (tmp_path / "o").exists()
    wrong = replaced(MEDUSA1, ["trainable=router", "depths=1"])
    with pytest.raises(ExecutorError, match="trains a router"):
        run(Job(wrong, tmp_path / "o", 2), target, fresh_drafter(recipe, target), rows, rows)
    assert not (tmp_path / "o" / "settings.json").exists()


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path):
    target = small_target()
    drafter = fresh_drafter(MEDUSA1, target)
    with torch.no_grad():
        drafter.weight.fill_(math.nan)
    seen = []
    with pytest.raises(ExecutorError, match="step 1: the loss is nan"):
        run(
            Job(MEDUSA1, tmp_path / "o", 3),
            target,
            drafter,
            random_rows(),
            random_rows(),
            report=lambda step, logs: seen.append(logs["loss"]),
        )
    assert len(seen) == 1
    assert math.isnan(seen[0])


@pytest.mark.parametrize("lora", [None, Lora(rank=4, dropout=0.0)])
def test_medusa2_trains_the_target_too(tmp_path, lora):
    """The folder is a model that transformers reads, and answers as the trained one."""
    target = small_target()
    untouched = small_target()
    recipe = replaced(MEDUSA2, ["depths=2", "learning_rate=5e-3"])
    torch.manual_seed(0)
    drafter = fresh_drafter(recipe, target)
    rows = written_rows(target, 32)
    run(Job(recipe, tmp_path, 20, lora=lora), target, drafter, rows, rows)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "target").eval()
    tokens = rows.tokens[:4]
    with torch.no_grad():
        found = loaded(tokens).logits
    torch.testing.assert_close(found, target.features(tokens).logits, rtol=1e-4, atol=1e-4)
    assert (found - untouched.features(tokens).logits).abs().max() > 1e-2
    assert not any(p.requires_grad for p in target.model.parameters())
    assert not any("lora" in name for name, _ in target.model.named_modules())


def test_adapters_leave_tied_heads_alone():
    config = copy.deepcopy(CONFIGS["llama"])
    config.tie_word_embeddings = True
    target = Target(LlamaForCausalLM(config).eval())
    before = target.head.weight.clone()
    backbone = Backbone(target, Lora(rank=2))
    assert not any("lm_head" in n for n, p in target.model.named_parameters() if p.requires_grad)
    backbone.finish()
    assert torch.equal(target.head.weight, before)


def test_self_distillation_compares_with_the_target_as_it_was():
    """The divergence is 0 before training, and the formula after a change."""
    target, was = small_target(dtype=torch.float64), small_target(dtype=torch.float64)
    recipe = replaced(MEDUSA2, ["depths=1", "lm_kl=true", "coefficient=0"])
    backbone = Backbone(target, Lora(rank=2, dropout=0.0))
    drafter = fresh_drafter(recipe, target)
    lesson = Lesson(drafter, target, recipe, backbone)
    batch = random_rows(3, 8)[:]
    assert lesson(**batch)["loss"].item() == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        for name, value in target.model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    q = target.features(batch["input_ids"]).logits.log_softmax(-1)
    p = was.features(batch["input_ids"]).logits.log_softmax(-1)
    each = (p.exp() * (p - q)).sum(-1)[:, :-1]
    due = each[batch["loss_mask"][:, 1:]].mean().item()
    assert due > 0.01
    assert lesson(**batch)["loss"].item() == pytest.approx(due, rel=1e-5)


def test_what_cannot_be_trained_is_refused(tmp_path):
    target = small_target()
    recipe = replaced(MEDUSA2, ["lm_kl=true"])
    with pytest.raises(UsageError, match="--lora"):
        run(Job(recipe, tmp_path, 1), target, fresh_drafter(recipe, target), random_rows(), random_rows())
    with pytest.raises(UsageError, match="does not"):
        run(Job(MEDUSA1, tmp_path, 1, lora=Lora()), target, None, random_rows(), random_rows())
    with pytest.raises(UsageError, match="float16 cannot learn"):
        Backbone(Target(small_model(dtype=torch.float16)))
    todo = Job(MEDUSA1, tmp_path, 1, resume=True)
    with pytest.raises(UsageError, match="no checkpoint"):
        run(todo, target, fresh_drafter(MEDUSA1, target), random_rows(), random_rows())


def test_only_the_router_learns(tmp_path):
    target = small_target()
    bare = fresh_drafter(EAGLE, target)
    recipe = replaced(recipes()["coral-router"], ["router_groups=8"])
    drafter = continued(recipe, bare, target)
    assert isinstance(drafter, Eagle)
    for key, value in bare.state_dict().items():
        assert torch.equal(drafter.state_dict()[key], value)
    lesson = Lesson(drafter, target, recipe)
    assert set(lesson.learnt()) == {f"drafter.router.{name}" for name, _ in drafter.router.named_parameters()}
    lesson(**random_rows()[:])["loss"].backward()
    assert all(p.grad.abs().sum() > 0 for p in lesson.learnt().values())
    with pytest.raises(ExecutorError, match="router"):
        Lesson(fresh_drafter(EAGLE, target), target, recipe)
    with pytest.raises(ExecutorError, match="set router_groups"):
        Lesson(fresh_drafter(EAGLE, target), target, replaced(EAGLE, ["router_ce_weight=1"]))


def test_a_drafter_that_is_there_is_gone_on_with():
    target = small_target()
    start = fresh_drafter(EAGLE, target).eval().requires_grad_(False)
    drafter = continued(HASS, start, target)
    assert drafter is not start
    assert all(torch.equal(a, b) for a, b in zip(drafter.parameters(), start.parameters(), strict=True))
    with pytest.raises(ExecutorError, match="trains hydra, this drafter is eagle"):
        continued(HYDRA, start, target)
    heads = fresh_drafter(replaced(MEDUSA1, ["depths=2"]), target)
    with pytest.raises(ExecutorError, match="5 depths, the drafter drafts 2"):
        continued(MEDUSA1, heads, target)


def test_a_drafter_that_is_gone_on_with_has_the_recipe_s_dropout_and_groups():
    target = small_target()
    recipe = replaced(recipes()["hydra++"], ["dropout=0.5"])
    heads = continued(recipe, fresh_drafter(replaced(recipe, ["dropout=0"]), target), target)
    given = torch.randn(64, 2 * HIDDEN)
    head = heads.heads[0].train()
    assert (head(given)[0] - head(given)[0]).abs().max() > 1e-3
    assert torch.equal(head.eval()(given)[0], head(given)[0])
    router = replaced(recipes()["coral-router"], ["router_groups=8", "active_groups=3"])
    start = fresh_drafter(replaced(router, ["active_groups=1"]), target)
    assert continued(router, start, target).active == 3
    with pytest.raises(UsageError, match="router_groups must be at most"):
        begun(replaced(router, ["router_groups=999"]), target, None, rows=random_rows(), seed=0)


@pytest.mark.parametrize("changes", ["own_output=true", "depths=3"])
def test_heads_begin_with_the_factor_after_the_lm_head(changes):
    """Granite divides its logits: heads that begin as the bare matrix would be as many times too sure."""
    target = family("granite").target()
    assert target.head_scaling[0] == pytest.approx(0.5)
    drafter = fresh_drafter(replaced(MEDUSA1 if "own" in changes else HYDRA, [changes]), target)
    outputs = drafter.output if "own" in changes else [head.output.weight for head in drafter.heads]
    for output in outputs:
        torch.testing.assert_close(output, target.head.weight / 2)


def test_drafters_begin_as_published():
    """Untrained heads guess the next token; own output layers are the LM head; the recipe's parts are there."""
    target = small_target()
    outputs = target.features(torch.randint(0, VOCABULARY, (1, 6)))
    torch.testing.assert_close(MedusaHeads(2, HIDDEN)(target, outputs.features[0], 2)[1], outputs.logits[0])
    heads = fresh_drafter(replaced(MEDUSA1, ["own_output=true", "layers=2", "depths=3"]), target)
    assert heads.weight.shape == (3, 2, HIDDEN, HIDDEN)
    assert all(torch.equal(output, target.head.weight) for output in heads.output)
    biased = small_target()
    biased.head.bias = torch.nn.Parameter(torch.randn(biased.vocabulary))
    hydra = fresh_drafter(recipes()["hydra++"], biased)
    for head in hydra.heads:
        assert torch.equal(head.output.weight, biased.head.weight)
        assert torch.equal(head.output.bias, biased.head.bias)
    hydra = fresh_drafter(recipes()["hydra++"], target)
    assert hydra.prefix is not None
    assert not hydra.heads[0].output.bias.any()
    assert hydra.max_depth == 4
    assert hydra.dropout == 0.2
    assert torch.equal(hydra.heads[3].output.weight, target.head.weight)
    assert not fresh_drafter(replaced(HYDRA, ["grounded=false"]), target).grounded
    few = replaced(recipes()["eagle3"], ["draft_vocabulary=3"])
    eagle3 = fresh_drafter(few, target, frequent=lambda count: [1, 5, 9][:count])
    assert (eagle3.draft_ids.tolist(), eagle3.lm_head.weight.shape) == ([1, 5, 9], (3, HIDDEN))
    assert fresh_drafter(EAGLE, small_target(dtype=torch.float64)).fc.weight.dtype == torch.float64
    assert fresh_drafter(EAGLE, Target(small_model().bfloat16())).fc.weight.dtype == torch.float32


@pytest.mark.parametrize("name", ["medusa1", "eagle3"])
def test_targets_in_half_precision(tmp_path, name):
    target = Target(small_model(dtype=torch.bfloat16))
    recipe = replaced(recipes()[name], ["depths=2"])
    drafter = fresh_drafter(recipe, target)
    todo = Job(recipe, tmp_path, 2, precision=training_run.precision_of(target))
    found = run(todo, target, drafter, random_rows(), random_rows())
    assert all(np.isfinite(score.loss) for score in found.after)
    assert all(p.dtype == torch.float32 for p in drafter.parameters())


def test_accumulated_batches_are_one(tmp_path):
    """Two batches of 4 to a step leave the weights that one batch of 8 does."""
    ends = []
    for batch, accumulate in ((8, 1), (4, 2)):
        target, recipe = small_target(), replaced(MEDUSA1, ["depths=1"])
        drafter = MedusaHeads(1, HIDDEN)
        nn.init.constant_(drafter.bias, 0.1)
        settings = arguments(Job(recipe, tmp_path, 3, batch=batch, accumulate=accumulate))
        rows = Rows(random_rows(24).tokens.numpy())
        DrafterTrainer(Lesson(drafter, target, recipe), args=settings, train_dataset=rows).train()
        ends.append(drafter.weight.detach())
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-6)


def test_steps_of_epochs():
    assert step_count(100, epochs=1, batch=8, accumulate=2, processes=3) == 3
    assert step_count(3, epochs=0.1, batch=8, accumulate=1, processes=1) == 1


PART = """
import sys
from pathlib import Path
import torch
from executor.target.tensor_parallel import leave, processes
from executor.train.training_run import fresh_drafter
from executor.train.training_run import Job
from executor.train.training_run import run
from executor.drafters.base.recipe import recipes, replaced
from tests.helpers.drafters import random_drafter
from tests.helpers.models import small_target
from tests.executor.train.test_train import random_rows
recipe = replaced(recipes()[sys.argv[2]], ["depths=2", "noise=none"])
target = small_target()
torch.manual_seed(0)
drafter = fresh_drafter(recipe, target)
rows = random_rows(24)
rows.mask[:] = True  # else the mean of two batches' means is not the mean of both
found = run(Job(recipe, Path(sys.argv[1]), 3, batch=24 // 3 // int(sys.argv[3])), target, drafter, rows, random_rows(7))
assert processes() == int(sys.argv[3])
assert [score.anchors for score in found.after] == [int(x) for x in sys.argv[4:]], found.after
leave()
"""


@pytest.mark.slow  # two processes that import torch; test_decode.py has the daily one
@pytest.mark.parametrize("name", ["eagle", "hydra"])
def test_two_processes_train_what_one_does(tmp_path, name):
    """With half the batch each: the same losses and weights, but for rounding, and each held-out row counted once."""
    (tmp_path / "part.py").write_text(PART)
    mask = random_rows(7).mask
    anchors = [str(int((mask[:, 1:-k] & mask[:, 1 + k :]).sum())) for k in (1, 2)]
    for words, count in ((["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], 2), ([], 1)):
        done = subprocess.run(
            [sys.executable, *words, str(tmp_path / "part.py"), str(tmp_path / str(count)), name, str(count), *anchors],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    one, two = (load_drafter(tmp_path / part, small_target()).state_dict() for part in ("1", "2"))
    for key, value in one.items():
        # Adam turns the rounding of a gradient near zero into a step of the learning rate, here and there.
        apart = (two[key] - value).abs()
        assert apart.max() <= 6 * 1e-3
        assert (apart > 1e-6).float().mean() < 0.02, key
    logs = [json.loads((tmp_path / part / "training.json").read_text())["log"] for part in ("1", "2")]
    for a, b in zip(*(log[:3] for log in logs), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
