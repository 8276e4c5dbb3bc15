"""Texts beyond a drafter's `max_position_embeddings` are warned of, from the recording to the export."""

import json
import shutil

from tests.helpers.command_line import done
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace

ENGINES = "vLLM stops drafting or crashes (vllm#48894, vllm#57964), SGLang drafts with positions that may be untrained"


def test_texts_beyond_the_drafters_positions_are_warned_of(tmp_path):
    models, prompts = shipped("models"), shipped("prompts") / "stdlib.jsonl"
    shutil.copytree(models / "stdlib-eagle3", tmp_path / "drafter")
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 56}))
    run = ["--target", models / "stdlib-llama", "--drafter", tmp_path / "drafter", "--prompts", prompts]
    trace = tmp_path / "t.npz"
    collected = done("trace", "collect", *run, "--requests", "4", "--new-tokens", "8", "--output", trace)
    recorded = load_trace(trace)
    lengths = recorded.prompt_tokens + recorded.lengths
    said = f"{(lengths > 56).sum()} of 4 texts, of up to {lengths.max()} tokens, {{}} the drafter's 56 positions"
    assert said.format("may pass") in collected.stderr
    assert ENGINES in collected.stderr
    assert recorded.meta["drafter"]["positions"] == 56
    decoded = done("decode", *run, "--requests", "4", "--new-tokens", "8", "--tree", "2")
    assert said.format("may pass") in decoded.stderr
    asked = ["--trace", trace, "--target", models / "stdlib-llama", "--hardware", "h100", "--batch", "1"]
    priced = done("whatif", *asked, "--max-nodes", "2", "--context", "128", "--plans", tmp_path / "plans", "--verbose")
    assert "context 128: the drafter is built for 56 tokens" in priced.output
    (plan,) = (tmp_path / "plans").iterdir()
    exported = done("export", plan, "--format", "vllm", "--nearest", "chain", "--method", "eagle3", "--model", "m")
    assert said.format("pass") in exported.stderr
    few = ["--skip", "500", "--requests", "4", "--new-tokens", "4", "--blocks", "2"]
    assert "56 positions" in done("validate", *run, *few, "--plan", plan).stderr
