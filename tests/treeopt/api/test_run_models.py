"""Notes on loaded models, and on what is measured with them."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from treeopt.api import profile_steps
from treeopt.api.run_models import kernel_notes
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
