"""`treeopt trace collect`: what it records and refuses; texts beyond a drafter's positions, up to the export."""

import json
import os
import shutil

import numpy as np

from executor.drafters.medusa.drafter import MEDUSA_FILE
from tests.helpers.command_line import HEADS, collect, done
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace


def test_collect_records_what_was_asked_for(made, tiny, tmp_path):
    trace = load_trace(made / "trace.npz")
    assert (trace.requests, trace.anchors, trace.depth, trace.width) == (8, 48, HEADS, 4)
    assert trace.domain_names == ("letters",)
    assert trace.meta["target"]["name"] == "target"
    assert trace.meta["drafter"]["heads"] == HEADS
    words = ("--depth", "2", "--requests", "3", "--skip", "2", "--temperature", "0.7", "--dtype", "float64")
    assert collect(tiny, tmp_path / "trace.npz", *words).exit_code == 0
    other = load_trace(tmp_path / "trace.npz")
    assert (other.requests, other.depth, other.meta["temperature"]) == (3, 2, 0.7)
    assert other.meta["target"]["dtype"] == "float64"
    assert os.listdir(tmp_path) == ["trace.npz"]


def test_collect_repeats_itself_whatever_the_batch(made, tiny, tmp_path):
    again = tmp_path / "trace.npz"
    assert collect(tiny, again, "--batch", "3").exit_code == 0
    first, second = load_trace(made / "trace.npz"), load_trace(again)
    np.testing.assert_array_equal(first.rank, second.rank)
    assert first.meta["text_sha256"] == second.meta["text_sha256"]


def test_a_drafter_that_was_made_for_another_target_is_warned_of(tiny, tmp_path):
    """By name, which is all that it says of it: random weights of the same shapes, or a target that lies below it."""
    shutil.copytree(tiny / "target", tmp_path / "other")
    shutil.copytree(tiny / "drafter", tmp_path / "drafter")
    shutil.copytree(tiny / "target", tmp_path / "drafter" / "own")
    for target, warned in (("other", True), ("drafter/own", False)):
        for drafter in (tmp_path / "drafter", tmp_path / "drafter" / MEDUSA_FILE):
            result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / target, drafter=drafter)
            assert result.exit_code == 0, result.stderr
            lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
            assert lines == [f"Warning: {drafter} was made for the target target, this one is other."] * warned
    assert "Warning" not in collect(tiny, tmp_path / "trace.npz").stderr


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
