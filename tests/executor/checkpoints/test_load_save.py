import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.checkpoints import load_drafter, save_drafter
from executor.drafters.medusa.checkpoint import MEDUSA_FILE
from tests.helpers.models import HIDDEN, VOCABULARY, random_heads, small_target
from treeopt.errors import ExecutorError


@pytest.fixture(scope="module")
def target():
    return small_target()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_round_trip(tmp_path, target, own, layers):
    heads = random_heads(heads=3, own=own, layers=layers)
    save_drafter(tmp_path, heads, dtype="float32", meta={"target": "tiny"})
    found = load_drafter(tmp_path, target)
    assert found.max_depth == 3
    for name, value in heads.state_dict().items():
        assert torch.equal(found.state_dict()[name], value)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["version"] == ("1" if own else "2")
    keys = set(load_file(tmp_path / MEDUSA_FILE))
    assert {"0.0.linear.weight", "0.0.linear.bias"} <= keys  # the reference layout
    assert (f"0.{layers}.weight" in keys) == own


def test_tensors_decide_not_config(tmp_path, target):
    save_drafter(tmp_path, random_heads(heads=4), dtype="float32", meta={})
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2}')
    assert load_drafter(tmp_path, target).max_depth == 4


def good_tensors() -> dict[str, torch.Tensor]:
    tensors = {}
    for k in range(2):
        tensors[f"{k}.0.linear.weight"] = torch.zeros(HIDDEN, HIDDEN)
        tensors[f"{k}.0.linear.bias"] = torch.zeros(HIDDEN)
        tensors[f"{k}.1.weight"] = torch.zeros(VOCABULARY, HIDDEN)
    return tensors


def drop(key):
    return lambda tensors: tensors.pop(key)


def put(key, *shape):
    return lambda tensors: tensors.update({key: torch.zeros(*shape)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("1.0.linear.bias"), "1 missing: 1.0.linear.bias \\(32,\\)"),
        (drop("0.1.weight"), "1 missing: 0.1.weight \\(61, 32\\)"),
        (put("0.0.linear.weight", 32, 31), "0.0.linear.weight must be \\(32, 32\\), found \\(32, 31\\)"),
        (put("1.1.weight", 60, 32), "1.1.weight must be \\(61, 32\\), found \\(60, 32\\)"),
        (put("1.2.weight", 61, 32), "1 unknown: 1.2.weight \\(61, 32\\)"),
        (put("fc.weight", 3, 3), "1 unknown: fc.weight \\(3, 3\\)"),
        (lambda tensors: tensors.clear(), "not Medusa heads"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, target, change, message):
    tensors = good_tensors()
    change(tensors)
    save_file(tensors, tmp_path / MEDUSA_FILE)
    with pytest.raises(ExecutorError, match=message):
        load_drafter(tmp_path, target)


def test_unreadable_files(tmp_path, target):
    with pytest.raises(ExecutorError, match="holds no safetensors"):
        load_drafter(tmp_path, target)
    (tmp_path / MEDUSA_FILE).write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ExecutorError, match="not a readable safetensors file"):
        load_drafter(tmp_path, target)
    save_file(good_tensors(), tmp_path / MEDUSA_FILE)
    os.truncate(tmp_path / MEDUSA_FILE, 400)
    with pytest.raises(ExecutorError, match="not a readable safetensors file"):
        load_drafter(tmp_path, target)
