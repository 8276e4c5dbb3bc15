"""What loading must do: number types, quantised weights, and a target shared out over processes."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from executor.models import identity, settings_hash, weights_hash
from executor.target import QUANTIZED
from executor.target.load_hf_model import DTYPES, check_finite, load_target, prepare
from executor.target.packed_linears import plain_tensors, quantization_of
from executor.target.target_model import Target
from executor.target.tokenizer import load_tokenizer
from executor.verification.tree_tensors import Topology
from tests.executor.train.test_token_rows import byte_tokenizer
from tests.helpers.models import CONFIGS, SMALL, random_heads, random_prompts, small_model
from tests.helpers.sharded import TREE, decoded
from treeopt.errors import ExecutorError

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_a_numbered_device_becomes_that_of_the_process(monkeypatch):
    """What CUDA is asked without naming a device, such as to record an event, is then asked of this one."""
    chosen = []
    monkeypatch.setattr("torch.accelerator.set_device_index", chosen.append)
    monkeypatch.setattr("executor.target.load_hf_model.torch.empty", lambda size, device: torch.zeros(size))
    for device in ("cuda:3", "cuda", "cpu", "cpu:0"):
        prepare(device)
    assert chosen == [3]


def test_a_tokenizer_may_have_added_tokens_that_the_model_lacks(tmp_path):
    """As that of Gemma 3's smaller models; of the tokens proper there is none too many."""
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    assert len(tokenizer) == 259
    for vocabulary in (300, 259, 258, 256):
        assert len(load_tokenizer(tmp_path, vocabulary=vocabulary)) == 259
    with pytest.raises(ExecutorError, match="has 256 tokens, the model a vocabulary of 255"):
        load_tokenizer(tmp_path, vocabulary=255)


def saved(folder: Path, config, *, dtype: torch.dtype = torch.float32) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """Its sizes are multiples of 32, as 4-bit groups must be."""
    config = LlamaConfig(**SMALL | {"intermediate_size": 64}, num_key_value_heads=2)
    return saved(tmp_path_factory.mktemp("models") / "tiny", config)


# Tensors that the model lacks


def stored_beside(folder: Path, config, more: dict[str, tuple[int, ...]], **said) -> Path:
    """A model whose file holds more tensors than its configuration describes, or whose configuration says otherwise."""
    saved(folder, config)
    tensors = load_file(folder / "model.safetensors") | {name: torch.ones(shape) for name, shape in more.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | said))
    return folder


LAYER = "model.layers.1."
DROPPED = {
    "biases": ({f"{LAYER}self_attn.{part}_proj.bias": (32,) for part in "qo"}, {}, "attention_bias False"),
    "bias of the head": ({"lm_head.bias": (61,)}, {}, "model_type llama"),
}
BESIDE = {
    "fewer layers": (
        {},
        {"num_hidden_layers": 1},
        "num_hidden_layers is 1 in config.json: stored layers 1 ",
    ),
    "a layer more": ({"model.layers.2.mlp.up_proj.weight": (48, 32)}, {}, "stored layers 2 are not used"),
    "a classifier": ({"score.weight": (2, 32)}, {}, "no place for score.weight: not used"),
}
WITHOUT_EFFECT = [
    "model.layers.0.self_attn.rotary_emb.inv_freq",
    "model.layers.0.attn.masked_bias",
    "model.layers.0.self_attn.k_proj.k_scale",
    "model.layers.0.self_attn.v_scale",
    "v_head.summary.weight",
    "mtp.layers.0.mlp.up_proj.weight",
    "model.visual.blocks.30.norm1.weight",
    "vision_tower.encoder.layers.9.mlp.fc1.bias",
    "model.layers.2.eh_proj.weight",
    "model.layers.0._extra_state",
]


@pytest.mark.parametrize("name", DROPPED)
@pytest.mark.parametrize("drafter", [True, False])
def test_tensors_of_a_part_that_the_configuration_leaves_out_are_refused(tmp_path, name, drafter):
    more, said, message = DROPPED[name]
    folder = stored_beside(tmp_path, CONFIGS["llama"], more, **said)
    with pytest.raises(ExecutorError) as caught:
        load_target(folder, drafter=drafter)
    assert f"LlamaForCausalLM has no place for {min(more)}" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", BESIDE)
def test_tensors_beside_a_models_parts_are_told_of_a_target_and_refused_of_a_drafter(tmp_path, name):
    more, said, message = BESIDE[name]
    folder = stored_beside(tmp_path, CONFIGS["llama"], more, **said)
    (warning,) = load_target(folder).warnings
    assert message in warning
    with pytest.raises(ExecutorError, match="LlamaForCausalLM has no place for ") as caught:
        load_target(folder, drafter=True)
    assert next(iter(more), "model.layers.1.") in str(caught.value)


@pytest.mark.parametrize("drafter", [True, False])
def test_tensors_without_effect_are_left_out(tmp_path, drafter):
    folder = stored_beside(tmp_path, CONFIGS["llama"], dict.fromkeys(WITHOUT_EFFECT, (2,)))
    assert load_target(folder, drafter=drafter).warnings == ()
    folder = stored_beside(
        tmp_path, CONFIGS["llama"], {"model.layers.2.mlp.up_proj.weight": (48, 32)}, num_nextn_predict_layers=1
    )
    assert load_target(folder, drafter=drafter).warnings == ()


# Number types


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_asked_for_is_the_one_computed_in(tiny, dtype):
    target = load_target(tiny, dtype=dtype)
    assert target.dtype == DTYPES[dtype]
    target.allocate(1, 16)
    target.prefill([0], [[1, 2, 3]])
    assert target.features(torch.tensor([[1, 2, 3]])).logits.dtype == DTYPES[dtype]
    assert identity(target, random_heads())["target"]["dtype"] == dtype


def test_auto_is_what_the_checkpoint_says(tiny, tmp_path):
    assert load_target(tiny, dtype="auto").dtype == torch.float32
    assert load_target(saved(tmp_path, CONFIGS["llama"], dtype=torch.bfloat16), dtype="auto").dtype == torch.bfloat16


def test_other_dtypes_are_refused(tiny):
    with pytest.raises(ExecutorError, match=r"dtype must be one of auto, float32.*got int8"):
        load_target(tiny, dtype="int8")


# Quantised weights


@pytest.fixture(params=QUANTIZED)
def quantized(tiny, request) -> Target:
    return load_target(tiny, quantize=request.param)


def parts(target: Target):
    """Name, quantised weight and its parts, of every layer that has one."""
    for name, value in target.model.named_parameters():
        found = dict(plain_tensors("", value))
        if len(found) > 1:
            yield name, value, found


def test_weights_are_within_half_a_step(quantized, tiny):
    """The bound of rounding to the nearest: half a scale, and fp32 rounding of what is multiplied back."""
    full = dict(load_target(tiny).model.named_parameters())
    names = set()
    for name, value, found in parts(quantized):
        names.add(name)
        steps = found[".scale"].repeat_interleave(value.shape[1] // found[".scale"].shape[1], 1)
        assert ((value.dequantize() - full[name]).abs() <= steps / 2 + 1e-6 * full[name].abs()).all()
        assert found[".qdata"].dtype == torch.int8
    assert len(names) == 2 * 7  # projections of two layers
    bits = 8 if "int8" in quantization_of(quantized.model) else 4
    assert all(found[".qdata"].int().abs().max() <= 2 ** (bits - 1) for _, _, found in parts(quantized))


def test_logits_are_those_of_the_rounded_weights(quantized, tiny):
    """An ordinary fp32 model of the same rounded weights; 1e-4 of the largest logit is fp32 rounding over 14 layers."""
    plain = load_target(tiny)
    state = dict(plain.model.named_parameters())
    tokens = torch.tensor(random_prompts([12, 12]))
    before = plain.features(tokens).logits
    for name, value, _ in parts(quantized):
        state[name].copy_(value.dequantize())
    expected = plain.features(tokens).logits
    found = quantized.features(tokens).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    assert not torch.allclose(before, expected, rtol=0, atol=1e-3)


def test_a_verified_tree_equals_plain_decoding_of_the_same_weights(quantized):
    """Every node's logits are those of its path as a text: fp32 rounding only, as without quantisation."""
    lengths = (5, 9)
    prompts = random_prompts(lengths)
    quantized.allocate(2, 32)
    quantized.prefill([0, 1], prompts)
    topology = Topology.of(TREE, quantized.device)
    fed = torch.tensor(random_prompts([TREE.nodes + 1] * 2, seed=3))
    out = quantized.verify(fed, torch.tensor(lengths), topology.depth, topology.ancestors, 32)
    for row, prompt in enumerate(prompts):
        for node in range(TREE.nodes + 1):
            line = fed[row, topology.path[0, node, : int(topology.depth[0, node]) + 1]].tolist()
            with torch.no_grad():
                alone = quantized.model(torch.tensor([prompt + line])).logits[0, -1]
            torch.testing.assert_close(out.logits[row, node], alone, rtol=1e-4, atol=1e-4)


def test_identity_names_the_quantisation(quantized, tiny, tmp_path):
    """And a checkpoint saved quantised is the same model."""
    kind = quantization_of(quantized.model)
    assert kind in {f"{each} (torchao)" for each in QUANTIZED}
    found = identity(quantized, random_heads())["target"]
    assert found == {
        "name": "tiny",
        "weights": weights_hash(quantized.model),
        "settings": settings_hash({"config": quantized.model.config}),
        "dtype": "float32",
        "quantization": kind,
    }
    assert found["weights"] != weights_hash(load_target(tiny).model)
    quantized.model.save_pretrained(tmp_path)
    again = load_target(tmp_path)
    assert identity(again, random_heads())["target"] == found | {"name": tmp_path.name}
    with pytest.raises(ExecutorError, match="quantised already"):
        load_target(tmp_path, quantize="int8")
    with pytest.raises(ExecutorError, match="quantised to compute in float32; load it with dtype float32"):
        load_target(tmp_path, dtype="bfloat16")


def test_full_precision_is_recorded_as_ever(tmp_path):
    """The hash is that of a version which knew neither quantised nor shared-out weights."""
    target = load_target(saved(tmp_path, CONFIGS["llama"]))
    assert set(identity(target, random_heads())["target"]) == {"name", "weights", "settings", "dtype"}
    assert weights_hash(small_model()) == weights_hash(target.model) == "9c8f8193938ca258"


def test_scales_that_are_no_numbers_are_refused(quantized):
    _, _, found = next(parts(quantized))
    found[".scale"].fill_(torch.nan)
    with pytest.raises(ExecutorError, match=r"model: .*proj.weight.scale"):
        check_finite("model", quantized.model)


def test_what_cannot_be_quantised_is_refused(tiny, tmp_path):
    with pytest.raises(ExecutorError, match="quantize must be one of int8, int4, got int3"):
        load_target(tiny, quantize="int3")
    with pytest.raises(ExecutorError, match="compute in float32 or bfloat16 or float16, got float64"):
        load_target(tiny, quantize="int8", dtype="float64")
    with pytest.raises(ExecutorError, match="int4 weights on cuda compute in bfloat16, got float32"):
        load_target(tiny, quantize="int4", device="cuda")
    with pytest.raises(ExecutorError, match="intermediate_size is 48"):
        load_target(saved(tmp_path, LlamaConfig(**SMALL | {"intermediate_size": 48})), quantize="int4")


def test_weights_that_change_as_they_are_used_are_refused(tmp_path):
    config = deepcopy(CONFIGS["llama"])
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    config.save_pretrained(tmp_path)
    with pytest.raises(ExecutorError, match="bitsandbytes repacks 4-bit weights on the CPU"):
        load_target(tmp_path)


def test_a_missing_package_is_named(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr("executor.target.packed_linears.find_spec", lambda name: None)
    with pytest.raises(ExecutorError, match=r"need torchao: pip install 'treeopt\[quantized\]'"):
        load_target(tiny, quantize="int8")
    config = deepcopy(CONFIGS["llama"])
    config.quantization_config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    config.save_pretrained(tmp_path)
    with pytest.raises(ExecutorError, match=rf"{tmp_path}.*gptqmodel.*pip install gptqmodel"):
        load_target(tmp_path)


# A target shared out


SHARED = {
    "llama": CONFIGS["llama"],
    "tied": LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": CONFIGS["qwen3"],
    "gpt_neox": CONFIGS["gpt_neox"],
}


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """What two processes with gloo computed, beside the models."""
    folder = tmp_path_factory.mktemp("shared")
    for name, config in SHARED.items():
        saved(folder / name, config)
    saved(folder / "one_head", CONFIGS["gemma"])
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "-m", "tests.helpers.sharded", str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow  # two processes that import torch; test_decode.py has the daily one
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_target_computes_what_one_process_does(shared, name):
    """Prefill, trees, commits, features, the drafter's use of the head. fp32, sums in another order: 1e-4 of O(1)."""
    expected = decoded(load_target(shared / name))
    first, second = (load_file(shared / f"{name}.{rank}.safetensors") for rank in range(2))
    for key, value in expected.items():
        assert torch.equal(first[key], second[key]), key
        if value.is_floating_point():
            torch.testing.assert_close(
                first[key], value, rtol=1e-4, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
            )
        else:
            assert torch.equal(first[key], value), key


@pytest.mark.slow
def test_a_shared_target_is_the_same_model_with_its_heads_apart(shared):
    said = [json.loads((shared / f"said.{rank}.json").read_text()) for rank in range(2)]
    assert [each["main"] for each in said] == [True, False]
    for each in said:
        assert each["device"] == "2 x cpu, 1 threads"
        for name in SHARED:
            target = load_target(shared / name)
            heads = getattr(target.model.config, "num_key_value_heads", target.model.config.num_attention_heads)
            assert each[name] == {"heads": heads // 2, "identity": identity(target, random_heads())["target"]}
        assert "1 key/value heads cannot be split evenly over 2 processes" in each["one_head"]
        assert "quantised weights cannot be split over" in each["quantize"]
        assert "give cpu" in each["device refused"]


def test_sharing_out_needs_torchrun(tiny, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ExecutorError, match="torchrun --nproc-per-node"):
        load_target(tiny, tensor_parallel=True)


# Positions


def described(folder: Path, config=None, *, drop: tuple[str, ...] = (), **said) -> Path:
    """A model of one layer whose config.json says other things than what it was made of."""
    saved(folder, config or LlamaConfig(**SMALL | {"num_hidden_layers": 1}))
    fields = json.loads((folder / "config.json").read_text()) | said
    (folder / "config.json").write_text(json.dumps({name: fields[name] for name in fields if name not in drop}))
    return folder


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 1e4}
UNREADABLE = {
    "another width": ({"hidden_size": 30}, "The hidden size (30) is not a multiple of the number of attention heads"),
    "unknown positions": ({"rope_parameters": {"rope_type": "foo", "rope_theta": 1e4}}, "rope_type foo is not one"),
    "LongRoPE": ({"rope_parameters": LONG | {"original_max_position_embeddings": 32}}, "LongRoPE changes all"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_configuration_that_cannot_be_used_is_refused_with_file_and_reason(tmp_path, name):
    said, message = UNREADABLE[name]
    folder = described(tmp_path, **said)
    with pytest.raises(ExecutorError) as caught:
        load_target(folder)
    assert str(caught.value).startswith(str(folder))
    assert "config.json" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_that_the_model_lacks_is_a_warning(tmp_path):
    folder = described(tmp_path / "model", sliding_window=4)
    for drafter in (True, False):
        (warning,) = load_target(folder, drafter=drafter).warnings
        assert warning == f"{folder}: sliding_window is 4 in config.json, but LlamaForCausalLM has no windows: not used"
    plain = described(tmp_path / "plain", sliding_window=512)
    assert load_target(plain).warnings == ()


def test_a_model_that_cannot_be_built_is_refused_in_one_line(tmp_path):
    folder = described(tmp_path, pad_token_id=10**6)
    with pytest.raises(ExecutorError, match=f"^{folder}: transformers cannot load this model: Padding_idx must be"):
        load_target(folder)


def test_settings_that_change_a_greedy_text_are_a_warning(tmp_path):
    folder, file = described(tmp_path / "model"), tmp_path / "model" / "generation_config.json"
    fields = {"repetition_penalty": 1.05, "min_length": 0, "no_repeat_ngram_size": 3, "temperature": 0.7}
    file.write_text(json.dumps(fields | {"do_sample": True}))
    (warning,) = load_target(folder).warnings
    assert warning.startswith(f"{folder}: repetition_penalty is 1.05, no_repeat_ngram_size is 3 in generation_config")
    assert load_target(folder, drafter=True).warnings == ()
    file.write_text(json.dumps(fields | {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}))
    assert load_target(folder).warnings == ()
