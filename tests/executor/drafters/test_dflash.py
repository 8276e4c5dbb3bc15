"""DFlash and DSpark: equal to transformers' own class, read from the layouts of their projects, priced as one pass."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from executor.checkpoints import assumptions_of, load_drafter, save_drafter
from executor.drafters.base.recipe import recipes, replaced
from executor.drafters.dflash.drafter import spread_taps
from executor.train.loss_module import Lesson
from executor.train.training_run import fresh_drafter
from simulate.model_sizes.drafter_kinds import drafter_shape, kind_of_drafter
from simulate.model_sizes.model_shape import Shape
from tests.helpers.drafters import random_drafter
from tests.helpers.models import HIDDEN, deep_target, random_prompts, small_target
from treeopt.errors import ExecutorError, UsageError

PLAIN = {"vocab_size": 16, "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
PLAIN |= {"num_key_value_heads": 2, "head_dim": 4}


def test_a_block_is_that_of_transformers_own_class():
    """Its context projection is `encoder`; its layers all see the whole block, with or without a window."""
    target = small_target()
    drafter = random_drafter("dflash", target)
    config = MuseGlimmerAssistantConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=drafter.config.rms_norm_eps,
        rope_parameters=drafter.config.rope_parameters,
        layer_types=["full_attention"] * 2,
        target_layer_ids=[0, 1],
        block_size=6,
    )
    model = MuseGlimmerAssistantModel(config).eval()
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({names.get(name, name): value for name, value in drafter.state_dict().items()})
    text = torch.tensor(random_prompts((12, 12), seed=3))
    features = target.features(text, drafter.taps).features
    forced = list(drafter.teacher_forced(target, text, features, 5))
    for anchor in (0, 4, 9):
        block = torch.cat([text[:, anchor + 1, None], torch.full((2, 5), 3)], 1)
        with torch.no_grad():
            due = model(noise_embeds=target.embed(block), context_hidden_states=features[:, : anchor + 1])
        for k, level in enumerate(forced, 1):
            scores = target.scored(due.last_hidden_state[:, k])
            torch.testing.assert_close(level.scores[:, anchor], scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["dflash", "dflash-variants", "dspark"])
def test_it_is_written_and_read_again(tmp_path, name):
    target = small_target()
    drafter = random_drafter(name, target)
    layouts = [None] if name == "dspark" else [None, "speculators-dflash"]
    for layout in layouts if name != "dflash-variants" else layouts[:1]:
        save_drafter(tmp_path, drafter, dtype="float32", meta={}, layout=layout, target=target)
        loaded = load_drafter(tmp_path, target)
        assert loaded.kind == drafter.kind == kind_of_drafter(tmp_path)
        kept = ("taps", "mask", "slots", "from_anchor", "windows", "causal")
        assert [getattr(loaded, each) for each in kept] == [getattr(drafter, each) for each in kept]
        text = torch.tensor(random_prompts((9,), seed=3))
        features = target.features(text, drafter.taps).features
        passes = (each.teacher_forced(target, text, features, 3) for each in (loaded, drafter))
        for found, due in zip(*passes, strict=True):
            torch.testing.assert_close(found.scores, due.scores)


def changed(folder, **fields):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **fields, "treeopt_drafter": {}}))
    return config


def test_fields_are_read_or_refused_by_name(tmp_path):
    target = small_target()
    save_drafter(tmp_path, random_drafter("dflash", target), dtype="float32", meta={}, target=target)
    config = changed(tmp_path)["dflash_config"]
    shorter = load_drafter(f"dflash:4:{tmp_path}", target)
    assert (shorter.slots, shorter.max_depth) == (4, 3)
    with pytest.raises(UsageError, match=r"must be dflash:SLOTS:PATH"):
        load_drafter("dflash:no", target)
    for fields, words in (
        ({"dflash_config": config | {"mask_token_id": 9999}}, "mask_token_id must be a token of the target's"),
        ({"dflash_config": config | {"attention_sink_bias": True}}, "attention_sink_bias is not supported"),
        ({"dflash_config": config | {"target_layer_ids": [0, 7]}}, "must name layers of the target's 2"),
        ({"aux_hidden_state_layer_ids": [0, 1]}, "one list of target_layer_ids is needed"),
        ({"dflash_config": config, "aux_hidden_state_layer_ids": [1, 2], "block_size": 1}, "block_size must be 2"),
        ({"num_target_layers": 9}, "num_target_layers is 9"),
    ):
        before = changed(tmp_path, **fields)
        with pytest.raises(ExecutorError, match=words):
            load_drafter(tmp_path, target)
        (tmp_path / "config.json").write_text(json.dumps(before))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"confidence_head.proj.weight": torch.ones(1, HIDDEN)}, tmp_path / "model.safetensors")
    assert "confidence_head is not read" in str(assumptions_of(load_drafter(tmp_path, target)))


def test_training_learns_from_some_anchors_and_weighs_slots():
    target = deep_target()
    recipe = replaced(recipes()["dflash"], ["layers=2", "depths=3", "anchors=4"])
    assert recipe.weight(3) / recipe.weight(1) == pytest.approx(torch.tensor(-0.5).exp().item())
    lesson = Lesson(fresh_drafter(recipe, target), target, recipe).train()
    tokens = torch.tensor(random_prompts((20, 20), seed=1))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    torch.manual_seed(0)
    rows = lesson._drawn(tokens)
    assert rows.shape == (2, 4)
    torch.manual_seed(0)
    loss = lesson(tokens, mask)["loss"]
    outputs = target.features(tokens, lesson.drafter.taps)
    due = torch.zeros((), dtype=torch.float64)
    for k, level in enumerate(lesson.drafter.teacher_forced(target, tokens, outputs.features, 3), 1):
        pairs = [(level.scores[b, t].double(), outputs.logits[b, t + k].double()) for b in (0, 1) for t in rows[b]]
        q, p = (torch.stack(values).log_softmax(-1) for values in zip(*pairs, strict=True))
        due += recipe.weight(k) * (p.exp() * (p - q)).sum(-1).mean()
    assert loss.item() == pytest.approx(due.item(), rel=1e-5)
    assert spread_taps(36, 5) == (2, 10, 18, 26, 34)


def test_a_block_is_priced_as_one_forward_of_all_its_slots():
    config = PLAIN | {"block_size": 8, "dflash_config": {"target_layer_ids": [1, 2, 3]}}
    target = Shape.from_config({"model_type": "llama", **PLAIN})
    shape = drafter_shape(config, kind="dflash", target=target)
    assert (shape.slots, shape.parallel, shape.at(1).weights) == (8, True, 0)
    assert shape.opening.weights == 2 * 2 * 8 * 8 + 8 * 24
    dspark = drafter_shape(config | {"markov_rank": 4}, kind="dspark", target=target)
    assert dspark.at(1).weights == 4 * PLAIN["vocab_size"]
    assert drafter_shape(PLAIN, kind="dflash", target=target).slots == 16
