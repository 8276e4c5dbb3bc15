"""Notes on loaded models."""

from types import SimpleNamespace

import pytest
import torch

from treeopt.api.run_models import kernel_notes


@pytest.mark.parametrize(
    ("device", "reason", "notes"),
    [
        ("cuda", "Triton is not installed", ["fused kernels are not used: Triton is not installed"]),
        ("cuda", None, []),
        ("cpu", "they are for CUDA", []),
    ],
)
def test_a_note_says_on_cuda_why_kernels_are_not_used(device, reason, notes):
    assert kernel_notes(SimpleNamespace(device=torch.device(device), fused_reason=reason)) == notes
