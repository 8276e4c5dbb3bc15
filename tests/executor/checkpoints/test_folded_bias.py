"""EAGLE for vLLM: the bias after `fc` folded into the drafter's embeddings, the error stated, and read back."""

import json

import pytest
import torch
from safetensors.torch import load_file

from executor.checkpoints import load_drafter, save_drafter
from tests.helpers.drafters import random_drafter
from tests.helpers.models import HIDDEN, random_prompts, small_target
from treeopt.errors import ExecutorError

LAYER_KEYS = 8  # projections and one norm


@pytest.fixture(scope="module")
def target():
    return small_target()


def saved(folder, drafter, target, dtype="float32"):
    return save_drafter(folder, drafter, dtype=dtype, meta={}, layout="vllm", target=target)


def scores(drafter, target):
    text = torch.tensor(random_prompts((12,), seed=3))
    features = target.features(text).features
    return [forced.scores for forced in drafter.teacher_forced(target, text, features, 3)]


def test_the_file_has_no_bias_and_means_the_same(tmp_path, target):
    """W [E + d; f] equals W [E; f] + b for every token, up to rounding; the key `bias` is vLLM's for attention."""
    drafter = random_drafter("eagle", target)
    remark = saved(tmp_path, drafter, target)
    assert remark.startswith("fc.bias is folded into the drafter's embeddings: relative error ")
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert "fc.bias" not in tensors
    assert len(tensors) == LAYER_KEYS + 2
    assert "bias" not in config
    assert (config["attention_bias"], config["qkv_bias"]) == (False, False)
    table = target.model.get_input_embeddings().weight
    half = drafter.fc.weight[:, :HIDDEN]
    torch.testing.assert_close(
        tensors["embed_tokens.weight"] @ half.T, table @ half.T + drafter.fc.bias, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("size", [1, 0.1, 0.02])
def test_it_is_read_back_with_its_bias(tmp_path, target, size):
    """Also a small one, whose mean over the rows is not free of their rounding."""
    drafter = random_drafter("eagle", target)
    drafter.fc.bias.mul_(size)
    saved(tmp_path, drafter, target)
    found = load_drafter(tmp_path, target)
    torch.testing.assert_close(found.fc.bias, drafter.fc.bias, rtol=1e-3, atol=1e-4)
    for one, other in zip(scores(found, target), scores(drafter, target), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_a_drafter_without_bias_needs_no_embeddings(tmp_path, target):
    drafter = random_drafter("eagle", target)
    drafter.fc.bias = None
    assert saved(tmp_path, drafter, target) == ""
    assert "embed_tokens.weight" not in load_file(tmp_path / "model.safetensors")
    assert load_drafter(tmp_path, target).fc.bias is None
    save_drafter(tmp_path / "reference", drafter, dtype="float32", meta={}, layout="eagle", target=target)
    assert json.loads((tmp_path / "reference" / "config.json").read_text())["bias"] is False  # true is its default


def test_biases_of_queries_keys_and_values_are_stated_alone(tmp_path, target):
    """vLLM takes `attention_bias` for a bias of all four projections; these drafters have three."""
    saved(tmp_path, random_drafter("eagle-qkv-bias", target), target)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["attention_bias"], config["qkv_bias"]) == (False, True)
    assert load_drafter(tmp_path, target).config.attention_bias


def test_a_bias_that_cannot_be_folded_is_refused(tmp_path, target):
    """Row 0 of W_e is zero: no embedding moves output 0."""
    drafter = random_drafter("eagle", target)
    drafter.fc.weight[0, :HIDDEN] = 0
    drafter.fc.bias[0] = 10
    with pytest.raises(ExecutorError, match=r"in float32 this fc\.bias cannot be folded .* above 0\.016; write"):
        saved(tmp_path / "out", drafter, target)
    assert not (tmp_path / "out").exists()


def test_the_shift_is_small_where_the_type_is_coarse(tmp_path):
    """W_e with a singular value near zero: the exact shift is large, and rounded to bfloat16 it would be useless."""
    target = small_target(dtype=torch.bfloat16)
    drafter = random_drafter("eagle", target).double()
    u, s, v = torch.linalg.svd(drafter.fc.weight[:, :HIDDEN])
    s[-1] = s[0] * 1e-4
    drafter.fc.weight[:, :HIDDEN] = u @ torch.diag(s) @ v
    drafter.fc.bias.copy_(u @ s + 0.05 * u[:, -1])
    exact = torch.linalg.solve(drafter.fc.weight[:, :HIDDEN], drafter.fc.bias)
    drafter = drafter.bfloat16()
    remark = saved(tmp_path, drafter, target, "bfloat16")
    assert "after rounding to bfloat16" in remark
    table = target.model.get_input_embeddings().weight
    shift = (load_file(tmp_path / "model.safetensors")["embed_tokens.weight"].double() - table.double()).mean(0)
    assert float(shift.norm()) < 0.2 * float(exact.norm())
