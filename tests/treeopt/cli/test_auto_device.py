"""`auto` as device and number type: chosen by the machine, and files record what was used."""

from pathlib import Path

import pytest
import torch

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
