"""Notes on loaded models, and on what is measured with them; `auto` as device and number type."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from treeopt.api import profile_steps
from treeopt.api.run_models import Models, kernel_notes
from treeopt.errors import UsageError


@pytest.mark.parametrize(
    ("device", "reason", "notes"),
    [
        ("cuda", "Triton is not installed", ["fused kernels are not used: Triton is not installed"]),
        ("cuda", "not all bfloat16", ["fused kernels are not used: not all bfloat16: give --dtype bfloat16"]),
        ("cuda", None, []),
        ("cpu", "they are for CUDA", []),
    ],
)
def test_a_note_says_on_cuda_why_kernels_are_not_used(device, reason, notes):
    target = SimpleNamespace(device=torch.device(device), dtype=torch.float16, fused_reason=reason)
    assert kernel_notes(target) == notes


@pytest.mark.parametrize(("graphs", "policies"), [(True, True), (True, False), (False, True)])
def test_a_profile_of_graphs_says_which_policies_it_leaves_out(monkeypatch, caplog, graphs, policies):
    runner = SimpleNamespace(graphs=graphs, target=None)
    monkeypatch.setattr(profile_steps, "open_runner", lambda *models, **settings: runner)
    monkeypatch.setattr(profile_steps, "load_tokens", Mock(side_effect=UsageError("no prompts")))
    with caplog.at_level("INFO", "treeopt"), pytest.raises(UsageError, match="no prompts"):
        profile_steps.profile("toy", "medusa:3", policies=policies)
    told = [message for message in caplog.messages if "no policy that asks the host" in message]
    assert len(told) == (graphs and policies)


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
