"""`auto` as device and number type: chosen by the machine, and files record what was used."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.command_line import collect, done
from treeopt.api.run_models import Models
from treeopt.traces.trace import load_trace


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


def test_a_cpu_machine_gives_what_cpu_and_float32_give(tiny, tmp_path):
    assert collect(tiny, tmp_path / "auto.npz").exit_code == 0
    assert collect(tiny, tmp_path / "named.npz", "--device", "cpu", "--dtype", "float32").exit_code == 0
    auto, named = (load_trace(tmp_path / f"{name}.npz") for name in ("auto", "named"))
    assert np.array_equal(auto.rank, named.rank)
    assert auto.meta["target"]["dtype"] == named.meta["target"]["dtype"] == "float32"
    assert auto.meta["device"] == named.meta["device"]
    assert str(auto.meta["device"]).startswith("cpu")


def test_doctor_names_the_device_that_it_tried():
    auto, named = (json.loads(done("doctor", *words, "--json").stdout) for words in ((), ("--device", "cpu")))
    assert auto["device"]["name"] == named["device"]["name"]
    assert auto["sound"]


def test_a_short_name_means_random_weights(tmp_path):
    words = ("--drafter", "medusa:3", "--prompt-tokens", "8", "--batch", "1", "--max-nodes", "4", "--rounds", "2")
    more = ("--steps", "2", "--new-tokens", "12", "--output", tmp_path / "p.json")
    done("profile", "--target", "TOY", *words, *more)
    meta = json.loads((tmp_path / "p.json").read_text())["meta"]
    assert meta["target"]["name"] == "random-toy"
