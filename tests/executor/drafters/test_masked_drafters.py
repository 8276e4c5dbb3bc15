"""PARD and P-EAGLE: files with a mask token, the anchors of their training, and the formula of PARD's loss."""

import json

import pytest
import torch
from transformers import MistralForCausalLM

from executor.checkpoints import load_drafter, save_drafter
from executor.drafters.base.recipe import recipes, replaced
from executor.drafters.language_model.drafter import LanguageModel
from executor.drafters.pard.drafter import Pard
from executor.target.architectures import model_class
from executor.target.target_model import Target
from executor.train.losses import Lesson
from executor.train.training_run import continued, fresh_drafter
from simulate.drafter_kinds import drafter_shape, kind_of_drafter
from tests.helpers.drafters import random_drafter
from tests.helpers.model_families import with_images
from tests.helpers.models import deep_target, random_prompts, small_target
from treeopt.errors import ExecutorError, UsageError

RECIPE = replaced(recipes()["pard"], ["depths=3", "layers=1"])


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_pard_is_written_and_read_again(tmp_path, kind):
    target, drafter = small_target(), Pard(small_target(kind, seed=1), mask=5)
    save_drafter(tmp_path, drafter, dtype="float32", meta={}, target=target)
    loaded = load_drafter(tmp_path, target)
    assert (loaded.kind, loaded.mask) == (kind_of_drafter(tmp_path), 5) == ("pard", 5)
    assert drafter_shape(tmp_path, kind="pard").slots == 8
    text = torch.tensor(random_prompts((9, 9), seed=3))
    with torch.no_grad():
        passes = (each.teacher_forced(target, text, torch.zeros(0), 3) for each in (loaded, drafter))
        for found, due in zip(*passes, strict=True):
            torch.testing.assert_close(found.scores, due.scores)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pard_token": 10**6}))
    with pytest.raises(ExecutorError, match=r"pard_token must be in 0\.\.\d+, found 1000000"):
        load_drafter(tmp_path, target)


def test_pard_s_loss_is_its_formula():
    """The mean over depths of the mean cross-entropy after the text and masks, each read alone: float64, to 1e-10."""
    target = small_target(dtype=torch.float64)
    drafter = fresh_drafter(RECIPE, target)
    torch.testing.assert_close(drafter.model.lm_head.weight, target.model.lm_head.weight)
    text, depths = torch.tensor(random_prompts((14, 14), seed=3)), RECIPE.depths
    lesson = Lesson(drafter, target, RECIPE).train()
    torch.manual_seed(4)
    loss = lesson(text, torch.ones_like(text, dtype=torch.bool))["loss"]
    torch.manual_seed(4)
    order = torch.rand(2, 13 - depths).argsort(-1)
    due = torch.zeros((), dtype=torch.float64)
    for k, kept in enumerate((10, 7, 5), 1):  # 0.7^(k - 1) of the ten anchors that have all depths
        scored = []
        for tokens, anchors in zip(text, order[:, :kept].tolist(), strict=True):
            for t in anchors:
                read = torch.cat([tokens[: t + 2], tokens.new_full((k - 1,), drafter.mask)])
                scored.append(-drafter.model(input_ids=read[None]).logits[0, -1].log_softmax(-1)[tokens[t + 1 + k]])
        due = due + torch.stack(scored).mean() / 8
    torch.testing.assert_close(loss, due, rtol=0, atol=1e-10)
    loss.backward()
    assert all(value.grad.abs().sum() > 0 for value in drafter.parameters())


def test_training_begins_from_any_language_model():
    target, start = small_target(), LanguageModel(small_target("qwen3", seed=1))
    drafter = continued(RECIPE, start, target)
    assert type(drafter) is Pard
    assert type(drafter.model) is type(start.model)
    with pytest.raises(ExecutorError, match="recipe p-eagle trains p-eagle, this drafter is language-model"):
        continued(recipes()["p-eagle"], start, target)


def test_training_begins_from_the_text_part_of_a_model_with_images():
    configs = map(with_images, ("mistral3", "qwen3_vl"))
    target, text = (Target(model_class(config).from_config(config).eval()) for config in configs)
    drafter = fresh_drafter(RECIPE, target)
    assert type(drafter.model) is MistralForCausalLM
    due = target.model.get_decoder().state_dict() | {"lm_head.weight": target.head.weight}
    for name, value in drafter.model.state_dict().items():
        torch.testing.assert_close(value, due[name.removeprefix("model.")])
    with pytest.raises(UsageError, match="qwen3_vl_text: transformers has no language model of this text part: name"):
        fresh_drafter(RECIPE, text)


def test_a_configuration_is_priced_as_one_forward_of_eight_slots():
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 16, "num_hidden_layers": 2}
    config |= {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 4}
    config |= {"num_key_value_heads": 2}
    assert kind_of_drafter(config | {"pard_token": 3, "spd_type": "pard"}) == "pard"
    shape = drafter_shape(config | {"pard_token": 3}, kind="pard")
    assert (shape.slots, shape.at(1).weights) == (8, 0)
    assert shape.level == drafter_shape(config, kind="language-model").level


def test_p_eagle_is_written_and_read_again(tmp_path):
    target = deep_target()
    drafter = random_drafter("p-eagle", target)
    text = torch.tensor(random_prompts((9,), seed=3))
    features = target.features(text, drafter.taps).features
    for layout in (None, "speculators-peagle"):
        save_drafter(tmp_path, drafter, dtype="float32", meta={}, layout=layout, target=target)
        loaded = load_drafter(tmp_path, target)
        assert loaded.kind == kind_of_drafter(tmp_path) == "p-eagle"
        passes = (each.teacher_forced(target, text, features, 3) for each in (loaded, drafter))
        for found, due in zip(*passes, strict=True):
            torch.testing.assert_close(found.scores, due.scores)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mask_token_id": None}))
    with pytest.raises(ExecutorError, match="mask_token_id must be a token of the target's, found None"):
        load_drafter(tmp_path, target)


def test_a_configuration_with_parallel_drafting_is_priced_as_one_pass():
    config = {"architectures": ["LlamaForCausalLMEagle3"], "parallel_drafting": True, "model_type": "llama"}
    config |= {"vocab_size": 16, "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16}
    config |= {"num_attention_heads": 2}
    assert kind_of_drafter(config) == "p-eagle"
    shape = drafter_shape(config, kind="p-eagle")
    assert (shape.slots, shape.at(1).weights) == (8, 0)
    assert shape.level == drafter_shape(config | {"parallel_drafting": False}, kind="eagle3").level


def test_fewer_anchors_are_learnt_from_at_deeper_depths():
    recipe = recipes()["p-eagle"]
    assert [round(recipe.share(k), 3) for k in (1, 2, 5, 8)] == [1, 0.7, 0.24, 0.2]
    target = deep_target()
    drafter = fresh_drafter(replaced(recipe, ["layers=2", "depths=3"]), target)
    torch.testing.assert_close(drafter.embed_tokens.weight.detach(), target.embed(torch.arange(target.vocabulary)))
    assert (len(drafter.configs), drafter.max_depth) == (2, 3)
