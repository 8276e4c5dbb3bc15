import pytest
import torch
from transformers import AutoModelForCausalLM, Cohere2Config, Gemma2Config, GraniteConfig

from executor.target.causal_model import head_scaling
from executor.target.target_model import Target
from tests.helpers.models import SMALL, small_target
from treeopt.errors import ExecutorError

CONFIGS = {
    "cohere2": (Cohere2Config(**SMALL, logit_scale=0.125, sliding_window=8), (0.125, None)),
    "granite": (GraniteConfig(**SMALL, logits_scaling=8.0), (0.125, None)),
    "gemma2": (Gemma2Config(**SMALL, head_dim=8, num_key_value_heads=2, final_logit_softcapping=3.0), (1.0, 3.0)),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_scored_features_are_the_model_s_logits(kind):
    config, (factor, cap) = CONFIGS[kind]
    torch.manual_seed(0)
    target = Target(AutoModelForCausalLM.from_config(config).eval())
    outputs = target.features(torch.randint(0, 61, (2, 7)))
    assert not torch.allclose(target.head(outputs.features), outputs.logits, atol=1e-2)
    torch.testing.assert_close(target.scored(outputs.features), outputs.logits)
    assert target.head_scaling[0] == pytest.approx(factor, rel=1e-5)
    assert target.head_scaling[1] == cap


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("largest", [1.0, 4.0, 30.0])
def test_a_cap_far_above_the_logits_is_no_factor(dtype, largest):
    """Gemma 2's cap of 30, where tanh is nearly a line."""
    config = CONFIGS["gemma2"][0].__class__(final_logit_softcapping=30.0)
    raw = torch.linspace(-largest, largest, 500).to(dtype)
    assert head_scaling(config, raw, 30 * (raw / 30).tanh()) == (1.0, 30.0)


def test_a_cap_that_is_named_and_not_used():
    config = CONFIGS["gemma2"][0].__class__(final_logit_softcapping=30.0)
    raw = torch.linspace(-4, 4, 500)
    assert head_scaling(config, raw, raw) == (1.0, None)
    assert head_scaling(config, raw, raw * (1 + 1e-7)) == (1.0, None)
    assert head_scaling(config, raw, raw / 4)[0] == pytest.approx(0.25)
    bent = 30 * (raw / 30).tanh()
    with pytest.raises(ExecutorError, match="llama models"):
        head_scaling(small_target().model.config, raw, bent)


def test_what_is_not_known_is_refused():
    raw = torch.randn(1, 1, 61)
    with pytest.raises(ExecutorError, match="llama models change their logits in a way that is not known"):
        head_scaling(small_target().model.config, raw, raw.square())
