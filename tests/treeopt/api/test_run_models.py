"""Notes on loaded models."""

from types import SimpleNamespace

import pytest
import torch

from treeopt.api.run_models import kernel_notes


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
