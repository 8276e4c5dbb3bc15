import inspect
import math
from dataclasses import replace

import pytest
import torch

from executor.drafters.base.drafter import mask_token
from executor.drafters.base.recipe import recipes, replaced
from executor.drafters.eagle import EAGLE, HASS
from executor.drafters.eagle3 import EAGLE3
from executor.drafters.medusa import MEDUSA1, MEDUSA2
from executor.train import losses
from executor.train.training_run import fresh_drafter
from tests.helpers.model_families import family
from tests.helpers.models import random_prompts, small_target
from treeopt.errors import ExecutorError


@pytest.mark.parametrize("recipe", recipes().values(), ids=recipes())
def test_options_are_those_of_the_terms(recipe):
    for name, weight, options in recipe.terms():
        assert weight > 0
        assert set(options) < set(inspect.signature(losses.TERMS[name]).parameters)


def test_weights_of_depths_are_the_published():
    assert [round(MEDUSA1.weight(k), 3) for k in (1, 2, 3)] == [0.8, 0.64, 0.512]
    assert [round(MEDUSA2.weight(k), 3) for k in (1, 2)] == [0.16, 0.128]
    assert [round(EAGLE3.weight(k), 3) for k in (1, 2, 3)] == [1, 0.8, 0.64]
    assert HASS.weight(3) == EAGLE.weight(1) == 1


def test_ramps():
    ramps = {
        name: replaced(MEDUSA2, [f"ramp={name}", "ramp_share=0.5"]).ramped for name in ("linear", "sine", "sine_r")
    }
    for done in (0, 0.25, 0.5, 0.75, 1):
        assert ramps["linear"](done) == done
        assert ramps["sine"](done) == pytest.approx(math.sin(math.pi * done / 2))
        assert ramps["sine_r"](done) == pytest.approx(math.sin(math.pi * min(2 * done, 1) / 2))


def test_ablations_are_changes_by_name():
    hydra = replaced(recipes()["hydra"], ["hard_ce_weight=0", "soft_ce_weight=1", "layers=4", "noise=neftune"])
    assert list(hydra.terms()) == [("soft_ce", 1.0, {})]
    assert (hydra.layers, hydra.noise) == (4, "neftune")
    assert list(replaced(HASS, ["top_k=1", "top_k=5"]).terms())[-1] == ("top_k", 1.0, {"count": 5})
    assert replaced(recipes()["coral-router"], ["router_groups=8"]).router_groups == 8
    assert not replaced(recipes()["hydra"], ["grounded=false"]).grounded


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("gemma4", "eagle3"), ("gemma4", "dflash"), ("gemma3", "fastmtp"), ("olmo2", "fastmtp"), ("phi", "fastmtp")],
)
def test_targets_whose_layers_differ_are_trained_for(name, recipe):
    """Gemma 4's heads have two widths, Gemma 3's positions two kinds, OLMo 2's layers no first norm, Phi no `norm`."""
    target = family(name).target()
    drafter = fresh_drafter(replace(recipes()[recipe], layers=1), target)
    text = torch.tensor(random_prompts((12,), seed=3))
    (forced,) = drafter.teacher_forced(target, text, target.features(text, drafter.taps).features, 1)
    assert forced.scores.isfinite().all()


@pytest.mark.parametrize(
    ("name", "recipe", "words"),
    [
        ("gpt2", "fastmtp", "gpt2: mtp drafters do not fit gpt2 models .*: take another --recipe"),
        ("opt", "eagle", "opt: eagle drafters do not fit opt models .*: take another --recipe"),
        ("lfm2", "pard", "lfm2 models cannot draft: their recurrent layers keep"),
    ],
)
def test_targets_that_a_recipe_does_not_fit_are_refused_in_one_line(name, recipe, words):
    with pytest.raises(ExecutorError, match=words) as caught:
        fresh_drafter(recipes()[recipe], family(name).target())
    assert "\n" not in str(caught.value)


def test_the_token_of_those_to_come_is_one_of_the_target():
    target = small_target()
    config = target.model.config
    config.pad_token_id, config.eos_token_id = -1, [10**6, 5]
    assert mask_token(target) == 5
