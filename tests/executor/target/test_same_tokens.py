"""A language model as drafter must have the target's tokens: compared one by one."""

import json
import shutil
from pathlib import Path

import pytest

from executor.target.tokenizer import check_same_tokens
from treeopt.errors import ExecutorError

TARGET = Path("data/models/stdlib-llama")
VOCABULARY = 4096


def drafter(folder: Path, change=None) -> Path:
    """A copy of the target's tokenizer, changed."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        if (TARGET / name).is_file():
            shutil.copy(TARGET / name, folder / name)
    if change is not None:
        held = json.loads((folder / "tokenizer.json").read_text())
        change(held)
        (folder / "tokenizer.json").write_text(json.dumps(held))
    return folder


def swapped(held):
    vocabulary = held["model"]["vocab"]
    one, other = sorted(vocabulary, key=vocabulary.get)[1000:1002]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def renamed(held):
    vocabulary = held["model"]["vocab"]
    token = max(vocabulary, key=vocabulary.get)
    vocabulary["another"] = vocabulary.pop(token)
    held["model"]["merges"] = []


def more(held):
    size = 1 + max(held["model"]["vocab"].values())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    held["added_tokens"].append(plain | {"id": size + 9, "content": "<pad>", "special": True})


@pytest.mark.parametrize("change", [swapped, renamed])
def test_other_tokens_are_refused_with_examples(tmp_path, change):
    with pytest.raises(ExecutorError) as caught:
        check_same_tokens(TARGET, drafter(tmp_path, change), VOCABULARY)
    message = str(caught.value)
    assert "its tokenizer is not the target's" in message
    assert "--assume-same-tokens" in message
    assert "\n" not in message


@pytest.mark.parametrize("change", [None, more])
def test_the_same_tokens_and_padding_are_taken(tmp_path, change):
    assert check_same_tokens(TARGET, drafter(tmp_path, change), VOCABULARY) == []


def test_special_tokens_that_differ_are_a_warning(tmp_path):
    def change(held):
        (token, *_) = held["added_tokens"]
        vocabulary, old = held["model"]["vocab"], token["content"]
        token["content"] = "<renamed>"
        if old in vocabulary:
            vocabulary["<renamed>"] = vocabulary.pop(old)
        held["post_processor"] = None

    (line,) = check_same_tokens(TARGET, drafter(tmp_path, change), VOCABULARY)
    assert "1 special tokens differ from the target's" in line
    assert "<renamed>" in line


def test_without_a_tokenizer_the_tokens_are_assumed(tmp_path):
    (line,) = check_same_tokens(TARGET, tmp_path, VOCABULARY)
    assert "are not compared, and taken to be the same" in line
