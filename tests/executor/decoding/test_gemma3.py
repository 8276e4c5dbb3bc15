"""Gemma 3 270M in the loop: windows of 512 tokens, two rotary bases, 262,144 tokens; below `.engines/models`."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import treeopt
from tests.helpers.engine_setups import ENGINES
from tests.helpers.models import generated
from treeopt.storage.user_files import shipped

FOLDER, NEW, LENGTHS = ENGINES / "models" / "gemma3-270m", 24, (600, 1000, 1500)


@pytest.mark.engines
@pytest.mark.parametrize("tree", [treeopt.Tree.chain(3), treeopt.Tree.from_paths([[0], [1], [0, 0], [1, 0]])])
def test_texts_beyond_the_windows_are_those_of_generate(tree):
    """Three prompts in flight, in fp32, drafted by prompt lookup; the folder is written by `real_models`."""
    if not FOLDER.exists():
        pytest.skip("needs Gemma 3 270M: python -m tests.benchmarks.real_models gemma3-270m")
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    lines = shipped("prompts/stdlib.jsonl").read_text("utf-8").splitlines()
    ids = tokenizer("".join(json.loads(line)["text"] for line in lines)[:9000]).input_ids
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    expected = [generated(model, ids[:length], NEW) for length in LENGTHS]
    texts = [tokenizer.decode(ids[:length], skip_special_tokens=True) for length in LENGTHS]
    how = {"tree": tree, "new_tokens": NEW, "dtype": "float32", "batch": len(texts)}
    record = treeopt.decode(target=FOLDER, drafter="prompt-lookup", texts=texts, **how)
    found = sorted(record["requests"], key=lambda request: request["request"])
    assert [request["prompt_tokens"] for request in found] == list(LENGTHS)
    assert [request["tokens"] for request in found] == expected
    assert sum(map(sum, (request["accepted"] for request in found))) > NEW / 2
