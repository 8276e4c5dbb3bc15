"""P-EAGLE: EAGLE-3's files with a mask, and the depths that its training keeps."""

import json

import pytest
import torch

from executor.checkpoints import load_drafter, save_drafter
from executor.drafters.base.recipe import recipes, replaced
from executor.train.training_run import fresh_drafter
from simulate.model_sizes.drafter_kinds import drafter_shape, kind_of_drafter
from tests.helpers.drafters import random_drafter
from tests.helpers.models import deep_target, random_prompts
from treeopt.errors import ExecutorError


def test_it_is_written_and_read_again(tmp_path):
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
