"""GGUF files: tensors and fields as llama.cpp names them, read with the gguf package; refusals.

Files of the shipped models were compared with those of llama.cpp's own script: all tensors are equal bit for bit.
"""

import json

import gguf
import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from executor.checkpoints.convert import main as convert
from executor.checkpoints.gguf_file import pre_tokenizer_name, read_vocabulary, write_gguf
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.target_model import Target
from tests.helpers.drafters import random_drafter
from tests.helpers.models import HIDDEN, SMALL, VOCABULARY, deep_target
from treeopt.errors import ExecutorError, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target of seven layers in a folder, with a byte-level tokenizer of 40 tokens."""
    place = tmp_path_factory.mktemp("target")
    deep_target().model.save_pretrained(place)
    tokenizer = {
        "model": {"type": "BPE", "vocab": {chr(65 + i): i + 1 for i in range(38)}, "merges": [["A", "B"]]},
        "added_tokens": [{"id": 0, "content": "<end>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    }
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    (place / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    return place


def written(drafter, folder, output, dtype="float32", layers=7):
    sizes = {"vocabulary": VOCABULARY, "hidden": HIDDEN, "layers": layers}
    return gguf.GGUFReader(write_gguf(output, drafter, folder, dtype=dtype, **sizes))


def tensors(reader):
    return {t.name: t for t in reader.tensors}


def value(reader, name):
    return reader.fields[name].contents()


def test_eagle3_holds_what_llama_cpp_reads(tmp_path, folder, target):
    drafter = random_drafter("eagle3", target)
    reader = written(drafter, folder, tmp_path)
    found = tensors(reader)
    layer = ["attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm"]
    layer += ["ffn_gate", "ffn_up", "ffn_down"]
    names = {f"blk.0.{part}.weight" for part in layer} | {"fc.weight", "output_norm.weight", "output.weight", "d2t"}
    assert set(found) == names
    assert found["d2t"].tensor_type == gguf.GGMLQuantizationType.I64
    assert found["d2t"].data.tolist() == drafter.draft_ids.tolist()  # ids, not differences
    assert np.array_equal(found["fc.weight"].data, drafter.fc.weight.numpy())
    query, heads = drafter.layer.self_attn.q_proj.weight, drafter.config.num_attention_heads
    first = found["blk.0.attn_q.weight"].data[: len(query) // heads]
    half = len(query) // heads // 2
    assert np.array_equal(first[0::2], query[:half].numpy())
    assert np.array_equal(first[1::2], query[half : 2 * half].numpy())
    assert value(reader, "general.architecture") == "eagle3"
    assert value(reader, "eagle3.target_layers") == list(drafter.taps)
    assert value(reader, "eagle3.target_hidden_size") == HIDDEN
    assert value(reader, "eagle3.norm_before_residual") is False
    assert value(reader, "tokenizer.ggml.pre") == "gpt-2"
    assert len(value(reader, "tokenizer.ggml.tokens")) == VOCABULARY
    assert value(reader, "tokenizer.ggml.token_type")[:2] == [gguf.TokenType.CONTROL, gguf.TokenType.NORMAL]


def test_eagle3_with_a_norm_before_fc(tmp_path, folder, target):
    reader = written(random_drafter("eagle3-input-norm", target), folder, tmp_path)
    assert value(reader, "eagle3.norm_before_fc") is True
    assert "enc.output_norm.weight" in tensors(reader)
    assert "d2t" not in tensors(reader)


def test_dflash_and_dspark_hold_what_llama_cpp_reads(tmp_path, folder, target):
    drafter = random_drafter("dspark", target)
    reader = written(drafter, folder, tmp_path)
    found = tensors(reader)
    assert {"fc.weight", "enc.output_norm.weight", "markov_w1.weight", "markov_w2.weight"} <= set(found)
    query = drafter.layers[0].self_attn.q_proj.weight
    assert np.array_equal(found["blk.0.attn_q.weight"].data, query.numpy())  # halves as they are
    assert found["blk.0.attn_k_norm.weight"].data.shape == (drafter.config.head_dim,)
    for name, due in (
        ("general.architecture", "dflash"),
        ("dflash.block_count", len(drafter.configs)),
        ("dflash.block_size", drafter.slots),
        ("dflash.target_layers", list(drafter.taps)),
        ("dflash.attention.causal", drafter.causal[0]),
        ("dflash.sample_from_anchor", drafter.from_anchor),
        ("dflash.has_confidence_head", drafter.confidence_head is not None),
        ("tokenizer.ggml.mask_token_id", drafter.mask),
    ):
        assert value(reader, name) == due, name


def test_a_language_model_in_half_precision_keeps_its_norms_whole(tmp_path, folder, target):
    reader = written(LanguageModel(target), folder, tmp_path, dtype="bfloat16")
    found = tensors(reader)
    assert len(found) == 7 * 9 + 3
    assert value(reader, "llama.block_count") == 7
    assert found["blk.6.attn_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    assert found["token_embd.weight"].tensor_type == gguf.GGMLQuantizationType.BF16
    table = target.model.get_input_embeddings().weight.detach().bfloat16().float().numpy()
    stored = gguf.dequantize(found["token_embd.weight"].data, gguf.GGMLQuantizationType.BF16)
    assert np.array_equal(stored, table)


def test_llama_3_s_rotary_positions_are_divisors(tmp_path, folder):
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 64
    config = LlamaConfig(**{**SMALL, "num_key_value_heads": 2, "rope_parameters": rope})
    found = tensors(written(LanguageModel(Target(LlamaForCausalLM(config))), folder, tmp_path))
    factors = found["rope_freqs.weight"].data
    assert factors[0] == pytest.approx(1.0)  # fast ones stay
    assert factors[-1] == pytest.approx(8.0)


def test_converting_through_the_command_line(tmp_path, folder):
    words = [str(folder), str(folder), str(tmp_path / "out"), "--layout", "gguf"]
    assert convert([*words, "--dtype", "float16"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.gguf"]


def test_what_llama_cpp_cannot_run_is_refused(tmp_path, folder, target):
    for name, why in (
        ("eagle3-variants", "gguf cannot express norm_output, fc_norm"),
        ("medusa", "gguf is written for EAGLE-3, DFlash, DSpark and Llama models, not for MedusaHeads"),
    ):
        with pytest.raises(ExecutorError, match=why):
            written(random_drafter(name, target), folder, tmp_path / "out")
    with pytest.raises(ExecutorError, match=r"llama\.cpp reads inputs of the target's 2 layers"):
        written(random_drafter("dflash", target), folder, tmp_path / "out", layers=2)
    with pytest.raises(UsageError, match="gguf holds"):
        written(random_drafter("eagle3", target), folder, tmp_path / "out", dtype="float64")
    biased = LlamaConfig(**{**SMALL, "num_key_value_heads": 2, "attention_bias": True})
    with pytest.raises(ExecutorError, match="gguf: not written for attention_bias: convert it with llama"):
        written(LanguageModel(Target(LlamaForCausalLM(biased))), folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tokenizers_that_would_split_otherwise_are_refused(tmp_path, folder):
    digits = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    assert pre_tokenizer_name({"type": "Sequence", "pretokenizers": [digits, level]}, tmp_path) == "smollm"
    for rule in (
        None,
        {"type": "Metaspace"},
        level | {"add_prefix_space": True},
        {"type": "Sequence", "pretokenizers": [level, digits]},
    ):
        with pytest.raises(ExecutorError, match=r"llama\.cpp's name of this pre-tokenizer is not known here"):
            pre_tokenizer_name(rule, tmp_path)
    with pytest.raises(ExecutorError, match=r"token id 38 is not in the model's vocabulary of 30"):
        read_vocabulary(folder, 30)
    with pytest.raises(ExecutorError, match="must be the tokenizer of a Hugging Face folder"):
        read_vocabulary(tmp_path, 30)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": {}}}')
    with pytest.raises(ExecutorError, match="byte-level BPE tokenizers, found Unigram"):
        read_vocabulary(tmp_path, 30)
