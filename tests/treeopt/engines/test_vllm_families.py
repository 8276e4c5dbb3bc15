"""Experts and latent attention in vLLM on a CPU: its steps with n-grams against replay.

Linear attention (Qwen3-Next) runs there in bf16 without prefix caching, and ends at the first step that drafts less
than the one before had accepted (`_spec_forward` of `gdn_attention.py`, vLLM 0.32): n-grams do that all the time.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto import CONFIG_MAPPING

from executor.checkpoints import load_drafter
from executor.prompts.prompt_files import encode, read_prompts
from executor.recording.collect_trace import collect
from executor.recording.engine_steps import engine_texts, record_requests
from executor.runners.engine_runner import EngineRunner
from executor.target.load_hf_model import load_target
from executor.target.tokenizer import load_tokenizer
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, SETUPS
from treeopt.engines import ENGINES as KINDS
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.replay.static_tree import accepted_lengths
from treeopt.storage.user_files import shipped
from treeopt.storage.work_file import WorkFile
from treeopt.tree import Tree

BASE = {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64}
BASE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "bos_token_id": None}
BASE |= {"eos_token_id": 0, "tie_word_embeddings": False, "moe_intermediate_size": 64, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
MODELS = {  # with the head sizes that vLLM's kernels for CPUs have
    "glm4_moe": {**ROUTED, "use_qk_norm": True},
    "deepseek_v3": {**ROUTED, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    | {"qk_nope_head_dim": 128, "v_head_dim": 128, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
}
LENGTH, NEW, LOOKUP = 3, 64, "prompt-lookup:vllm:1-3"


def written(name: str, folder: Path) -> Path:
    """A model whose head prefers few tokens, so that its texts repeat themselves."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**BASE | MODELS[name])
    config.initializer_range = 0.1
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight[:48] *= 4
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((shipped("models/stdlib-llama") / file).read_bytes())
    return folder


@pytest.mark.engines
@pytest.mark.parametrize("name", MODELS)
def test_steps_with_ngrams_are_those_of_replay(name, tmp_path, monkeypatch):
    """Along the engine's own texts. Of two steps whose answers arrive together only the sum is known.

    With latent attention vLLM's texts with drafts differ from those without, and from transformers'.
    """
    setup = SETUPS["vllm"]
    if not (ENGINES / setup.python).exists():
        pytest.skip("needs vLLM below .engines")
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    folder = written(name, tmp_path)
    target = load_target(folder)
    prompts = read_prompts(shipped("prompts/stdlib.jsonl"))[:6]
    tokens = encode(load_tokenizer(folder, vocabulary=target.vocabulary), prompts)
    settings = DriverSettings(
        "vllm", str(folder), lookup=LOOKUP, python=ENGINES / setup.python, arguments=setup.arguments, concurrency=2
    )
    engine = KINDS["vllm"].start(settings)
    requests = [EngineRequest(tuple(prompt), NEW, ignore_stop=True) for prompt in tokens]
    with EngineRunner(lambda most: engine) as runner, WorkFile(None, {}) as work:
        runner.concurrency = 2
        records = record_requests(runner, requests, draft=LENGTH, work=work)
    texts, mine = engine_texts(records), dict[int, list[list[int]]]()
    drafter, shape = load_drafter(LOOKUP, target), {"width": 1, "depth": LENGTH, "new_tokens": NEW}
    trace = collect(target, drafter, prompts, tokens, texts=texts, **shape)
    if name == "glm4_moe":
        collect(target, drafter, prompts, tokens, written=mine, **shape)
        assert [text for first in sorted(mine) for text in mine[first]] == texts
    lengths, merged, steps, accepted = accepted_lengths(Tree.chain(LENGTH), trace), 0, 0, 0
    for number, record in enumerate(records):
        at = record.committed[0]
        for committed in record.committed[1:]:
            begun, replayed = at, 0
            while at - begun < committed:
                replayed += 1
                at += min(int(lengths[trace.starts[number] + at]) + 1, NEW - at)
            assert at - begun == committed, (number, begun, committed)
            merged, steps, accepted = merged + (replayed > 1), steps + 1, accepted + committed - replayed
    print(json.dumps({"model": name, "steps": steps, "accepted": accepted, "merged": merged}))
    assert accepted > 30
    assert merged <= 0.03 * steps
