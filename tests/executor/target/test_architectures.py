"""Every family of models verifies trees token for token as Hugging Face writes one by one, or is refused by name."""

import runpy
from pathlib import Path

import pytest
import torch
import transformers
from transformers import (
    AutoModelForImageTextToText,
    CohereConfig,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    Qwen2Config,
)

from executor.target.architectures import WITH_IMAGES, context_limit, refusal
from executor.target.load_hf_model import load_target
from tests.helpers.model_families import EAGER, FAMILIES, FIXED, IMAGES, RECURRENT, Oracle, decode, family, with_images
from tests.helpers.models import generated, random_prompts
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "original_max_position_embeddings": 32768}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


# One of each kind of positions, attention, windows and experts; Llama and Qwen3 are what other tests run.
DAILY = {
    "mistral",
    "qwen2_window",
    "gemma3",
    "gpt2",
    "opt",
    "falcon",
    "cohere2",
    "mixtral",
    "gpt_oss",
    "gemma4",
    "qwen3_next",
    "lfm2",
}


@pytest.mark.parametrize("name", slow_unless(lambda name: name in DAILY, FAMILIES))
def test_equals_generate_token_for_token(name):
    known = family(name)
    target = known.target()
    assert target.attention == ("eager" if name in EAGER else "sdpa" if name in FIXED else "packed")
    assert (target.attention_reason is None) == (target.attention == "packed")
    for batch, count, share in ((4, 64, 0.7), (4, 24, 1.0), (4, 5, 0.0), (1, 17, 0.8)):
        texts = known.texts[-batch:]
        found, best = decode(target, known.prompts[-batch:], Oracle(texts, count, share))
        assert found == texts
        assert best == 0 if share == 0 else best >= 4


@pytest.mark.parametrize("name", slow_unless(lambda name: name in DAILY, RECURRENT))
def test_recurrent_layers_equal_generate_with_chains(name):
    """A chain that is accepted in part is computed again from the state before it, sequence by sequence."""
    known = family(name)
    target = known.target()
    assert target.recurrent
    for batch, count, share in ((4, 9, 0.7), (4, 5, 0.95), (4, 4, 0.0), (1, 7, 0.8), (1, 1, 0.0)):
        texts = known.texts[-batch:]
        oracle = Oracle(texts, count, share, chain=True)
        found, best = decode(target, known.prompts[-batch:], oracle, chunk=5 if count == 5 else 1024)
        assert found == texts
        assert best == 0 if share == 0 else best >= 3


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind in ("aya_vision", "qwen3_vl"), IMAGES))
def test_the_text_part_of_models_with_images_equals_generate(tmp_path, kind):
    """Read from files; the window of aya_vision's layers is known to the code of the text part alone."""
    config = with_images(kind)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path)
    model.generation_config.eos_token_id = None
    target, prompts = load_target(tmp_path), random_prompts((9, 1, 4), seed=3)
    texts = [generated(model, prompt, 12) for prompt in prompts]
    assert min(len(set(text)) for text in texts) > 3
    assert target.warnings == ()
    assert decode(target, prompts, Oracle(texts, 6, 0.7, chain=target.recurrent), new=12)[0] == texts


def test_models_that_are_no_language_models_are_refused_by_name(tmp_path):
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(ExecutorError, match="vit models are no causal language models of transformers"):
        load_target(tmp_path)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (LlamaConfig(max_position_embeddings=4096), 4096),
        (LlamaConfig(max_position_embeddings=131072, rope_parameters=LLAMA3), 131072),
        (Qwen2Config(max_position_embeddings=32768, rope_parameters=YARN | {"factor": 4.0}), 131072),
        (LlamaConfig(max_position_embeddings=4096, rope_parameters=LINEAR), 16384),
        (LlamaConfig(max_position_embeddings=4096, rope_parameters=LINEAR | {"rope_type": "dynamic"}), 4096),
        (DeepseekV3Config(max_position_embeddings=163840, rope_parameters=YARN | {"factor": 4.0}), 163840),
        (CohereConfig(max_position_embeddings=8192, model_max_length=131072), 131072),
        (GPT2Config(n_positions=1024, model_max_length=9999), 1024),  # it has learnt so many
    ],
)
def test_the_context_of_stretched_positions(config, limit):
    assert context_limit(config) == limit


def test_the_page_of_families_lists_every_decoder():
    """`python docs/generate_target_families.py` writes it again."""
    made = runpy.run_path("docs/generate_target_families.py")
    lines = Path("docs/reference/target_families.md").read_text("utf-8").splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    if f"transformers {transformers.__version__} " not in "".join(lines):
        pytest.skip("the page is of another version of transformers")
    assert rows.keys() - {"model_type"} == made["MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"].keys() | WITH_IMAGES
    results = {kind: row.split(" | ")[1] for kind, row in rows.items() if kind != "model_type"}
    assert set(results.values()) <= {"trees", "chains", "refused", "not tried"}
    for kind in ("llama", "lfm2", "mamba"):
        assert made["row"](kind) == rows[kind]
    refused = [kind for kind in results if results[kind] == "refused"]
    assert all(made["row"](kind) == rows[kind] for kind in refused)


def test_a_bound_on_time_steps_of_several_tokens_alone_is_refused():
    """A verified chain would be bounded, and the same tokens one by one would not."""
    assert "time_step_min" in refusal(transformers.NemotronHConfig())
    assert refusal(transformers.NemotronHConfig(time_step_min=1e-9)) is None


def test_a_model_of_recurrent_layers_alone_is_refused_by_its_configuration():
    config = transformers.Qwen3NextConfig(num_hidden_layers=2, layer_types=["linear_attention"] * 2)
    assert refusal(config) == "none of its layers has attention"
    assert refusal(transformers.FalconH1Config()) is None  # each layer has both
