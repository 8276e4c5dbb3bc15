"""`auto` as device and number type: chosen by the machine, and files record what was used."""

import json
from pathlib import Path

import pytest
import torch

from tests.helpers.command_line import done
from treeopt.api.run_models import Models


@pytest.mark.parametrize(
    ("cuda", "given", "due"),
    [
        (False, {}, ("cpu", "float32")),
        (True, {}, ("cuda", "saved")),
        (True, {"random_weights": True}, ("cuda", "bfloat16")),
        (True, {"device": "cpu"}, ("cpu", "float32")),
        (True, {"dtype": "float16"}, ("cuda", "float16")),
        (False, {"dtype": "saved"}, ("cpu", "saved")),
        (False, {"device": "cuda:1"}, ("cuda:1", "saved")),
    ],
)
def test_the_machine_decides(monkeypatch, cuda, given, due):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    models = Models(target=Path("target"), **given).resolved()
    assert (models.device, models.dtype) == due


def test_a_short_name_means_random_weights(tmp_path):
    words = ("--drafter", "medusa:3", "--prompt-tokens", "8", "--batch", "1", "--max-nodes", "4", "--rounds", "2")
    more = ("--steps", "2", "--new-tokens", "12", "--output", tmp_path / "p.json")
    done("profile", "--target", "TOY", *words, *more)
    meta = json.loads((tmp_path / "p.json").read_text())["meta"]
    assert meta["target"]["name"] == "random-toy"
