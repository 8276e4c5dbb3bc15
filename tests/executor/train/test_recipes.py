import inspect
import math

import pytest

from executor.drafters.base.recipe import recipes, replaced
from executor.drafters.eagle import EAGLE, HASS
from executor.drafters.eagle3 import EAGLE3
from executor.drafters.medusa import MEDUSA1, MEDUSA2
from executor.train import loss_module


@pytest.mark.parametrize("recipe", recipes().values(), ids=recipes())
def test_options_are_those_of_the_terms(recipe):
    for name, weight, options in recipe.terms():
        assert weight > 0
        assert set(options) < set(inspect.signature(loss_module.TERMS[name]).parameters)


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
