"""The shipped EAGLE-3 drafter under many spellings: those that mean the same leave tau as it is, others change it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from executor.checkpoints import load_drafter
from executor.target.load_hf_model import load_target

MODELS = Path("data/models")
DEPTH = 4
BASE = {
    "model_type": "llama",
    "hidden_size": 160,
    "intermediate_size": 432,
    "num_attention_heads": 5,
    "head_dim": 32,
    "num_key_value_heads": 5,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "vocab_size": 4096,
    "num_hidden_layers": 1,
    "rope_theta": 10000.0,
    "draft_vocab_size": 2048,
}
FORGE, VLLM = {"architectures": ["LlamaForCausalLMEagle3"]}, {"architectures": ["Eagle3LlamaForCausalLM"]}
OUTER = ("lm_head.weight", "d2t", "t2d")


@pytest.fixture(scope="module")
def shipped():
    held = safe_open(str(MODELS / "stdlib-eagle3" / "model.safetensors"), "pt")
    return {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118 - it is no dict


@pytest.fixture(scope="module")
def target():
    return load_target(MODELS / "stdlib-llama")


@pytest.fixture(scope="module")
def texts(target):
    """Two texts that the target writes greedily, and their features."""
    tokens = torch.randint(1, 4096, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for _ in range(30):
            tokens = torch.cat([tokens, target.model(tokens).logits[:, -1:].argmax(-1)], 1)
    return tokens


FEATURES: dict = {}  # by taps: the target's part is the same for every spelling


def tau(drafter, target, tokens) -> float:
    """Tokens per step of a chain, drafted at every position of the texts."""
    if drafter.taps not in FEATURES:
        FEATURES[drafter.taps] = target.features(tokens, drafter.taps).features
    features = FEATURES[drafter.taps]
    right = torch.ones(len(tokens), tokens.shape[1] - DEPTH - 1)
    total = torch.ones_like(right)
    for k, forced in enumerate(drafter.teacher_forced(target, tokens, features, DEPTH), 1):
        guess = forced.scores.argmax(-1)[:, : right.shape[1]]
        right = right * (guess == tokens[:, 1 + k : 1 + k + right.shape[1]])
        total = total + right
    return float(total.mean())


def vllm(tensors):
    return {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}


def prefixed(prefix, tensors):
    return {(name if name in OUTER else prefix + name): value for name, value in tensors.items()}


def without(tensors, *names):
    return {name: value for name, value in tensors.items() if name not in names}


def reordered(tensors, order):
    ids = tensors["d2t"] + torch.arange(2048)
    return tensors | {"lm_head.weight": tensors["lm_head.weight"][order], "d2t": ids[order] - torch.arange(2048)}


def by_frequency(tensors):
    return reordered(tensors, torch.randperm(2048, generator=torch.Generator().manual_seed(1)))


def fields(*leave, **more):
    return {name: value for name, value in BASE.items() if name not in leave} | more


def nested(**layer):
    said = {"speculators_model_type": "eagle3", "norm_before_residual": False, "draft_vocab_size": 2048}
    return said | {
        "architectures": ["Eagle3DraftModel"],
        "transformer_layer_config": fields("draft_vocab_size", **layer),
    }


SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 2048}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Name -> the tensors made of the shipped ones, and the configuration.
SAME = {
    "reference": (lambda t: t, fields()),
    "no configuration": (lambda t: t, None),
    "vllm": (vllm, fields(**VLLM)),
    "model.": (lambda t: prefixed("model.", vllm(t)), fields(**FORGE)),
    "module.": (lambda t: {f"module.{name}": v for name, v in t.items()}, fields()),
    "eagle_module.": (lambda t: {f"eagle_module.{name}": v for name, v in t.items()}, fields()),
    "int32 d2t": (lambda t: t | {"d2t": t["d2t"].int()}, fields()),
    "no t2d": (lambda t: without(t, "t2d"), fields()),
    "verifier's copies": (lambda t: t | {"verifier_norm.weight": torch.ones(160)}, fields()),
    "by frequency": (by_frequency, fields(**FORGE)),
    "inputs": (lambda t: t, fields(eagle_aux_hidden_state_layer_ids=[2, 6, 9])),
    "outputs": (
        lambda t: t,
        fields(**FORGE, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}),
    ),
    "null": (lambda t: t, fields(eagle_aux_hidden_state_layer_ids=None, eagle_config=None)),
    "Automodel": (
        lambda t: prefixed("model.", vllm(t)),
        fields(**FORGE, norm_output=False, fc_norm=False, target_hidden_size=160, parallel_drafting=False),
    ),
    "SpecForge's norm_output": (lambda t: t, fields(**FORGE, norm_output=True)),
    "SpecForge's since 879": (lambda t: t, fields(**FORGE, norm_output=False)),
    "rope_parameters": (lambda t: t, fields("rope_theta", rope_parameters=ROPE)),
    "no base": (lambda t: t, fields("rope_theta")),
    "wide window": (lambda t: t, fields(**SLIDING)),
    "the target's layer types": (
        lambda t: t,
        fields(layer_types=["full_attention", "sliding_attention"], sliding_window=16),
    ),
    "speculators": (vllm, nested()),
    "speculators, window": (vllm, nested(**SLIDING, use_sliding_window=True)),
    "vllm's model": (vllm, {"model_type": "eagle", "model": fields(), "method": "eagle3"}),
    "copied from a target": (
        vllm,
        fields(**VLLM, num_experts=64, moe_intermediate_size=8, attention_bias=False, max_window_layers=28),
    ),
}
OTHER = {
    "base": (lambda t: t, fields(rope_theta=100.0)),
    "linear": (lambda t: t, fields(rope_scaling={"rope_type": "linear", "factor": 8.0})),
    "narrow window": (lambda t: t, fields(layer_types=["sliding_attention"], sliding_window=2)),
    "norm_output": (lambda t: t, fields(**VLLM, norm_output=True)),
    "norm_before_residual": (lambda t: t, fields(norm_before_residual=True)),
    "layers": (lambda t: t, fields(eagle_aux_hidden_state_layer_ids=[1, 3, 5])),
    "epsilon": (lambda t: t, fields("rms_norm_eps", rms_norm_eps=10.0)),
    "activation": (lambda t: t, fields("hidden_act", hidden_act="relu")),
    "norms of queries and keys": (
        lambda t: t | {f"midlayer.self_attn.{part}_norm.weight": torch.ones(32) for part in "qk"},
        fields(),
    ),
    "the target's head": (lambda t: without(t, "lm_head.weight", "d2t", "t2d"), fields(draft_vocab_size=None)),
}


@pytest.fixture(scope="module")
def found(shipped, target, texts, tmp_path_factory):
    """tau under a spelling."""

    def measure(make, config):
        folder = tmp_path_factory.mktemp("spelling")
        save_file({n: v.contiguous().clone() for n, v in make(shipped).items()}, folder / "model.safetensors")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return tau(load_drafter(folder, target), target, texts)

    return measure


@pytest.fixture(scope="module")
def due(target, texts):
    value = tau(load_drafter(MODELS / "stdlib-eagle3", target), target, texts)
    assert value > 1.3
    return value


@pytest.mark.parametrize("name", SAME)
def test_spellings_that_mean_the_same(found, due, name):
    assert found(*SAME[name]) == due


@pytest.mark.parametrize("name", OTHER)
def test_spellings_that_mean_something_else(found, due, name):
    assert found(*OTHER[name]) != due


def test_shards_and_torch_files(shipped, target, texts, due, tmp_path):
    names = sorted(shipped)
    parts = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
    for file, keys in parts.items():
        save_file({key: shipped[key].clone() for key in keys}, tmp_path / file)
    places = {key: file for file, keys in parts.items() for key in keys}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text(json.dumps(fields()))
    assert tau(load_drafter(tmp_path, target), target, texts) == due
    for file in parts:
        (tmp_path / file).unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    torch.save(shipped, tmp_path / "pytorch_model.bin")
    assert tau(load_drafter(tmp_path, target), target, texts) == due
