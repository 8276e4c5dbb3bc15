"""Norms and gates of rows against torch's."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from executor.kernels.few_rows_linear import BLOCK, gate, rms_norm_rows
from tests.helpers.interpreted_kernels import allowed, poison_new_memory, relative_error

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (3, 33), (2, 5, 80)], ids=str)
def test_norms_are_those_of_torch(shape, dtype, monkeypatch):
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    expected = F.rms_norm(x, shape[-1:], weight, 1e-5)
    poison_new_memory(monkeypatch)
    found = rms_norm_rows(x, weight, 1e-5)
    assert (found.shape, found.dtype) == (x.shape, dtype)
    assert relative_error(found, expected) < allowed(dtype)


def test_epsilon_is_added_to_the_mean_square():
    x, weight = torch.full((1, 12), 1e-3), torch.ones(12)
    torch.testing.assert_close(rms_norm_rows(x, weight, 3e-6), torch.full((1, 12), 0.5))
    assert rms_norm_rows(torch.zeros(1, 12), weight, 1e-6).eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [1, 45, BLOCK, BLOCK + 3])
def test_gates_are_those_of_torch(inner, dtype, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(3, 2 * inner).to(dtype)
    expected = F.silu(x[:, :inner]) * x[:, inner:]
    poison_new_memory(monkeypatch)
    found = gate(x)
    assert (found.shape, found.dtype) == ((3, inner), dtype)
    assert relative_error(found, expected) < allowed(dtype)


def test_large_gates_do_not_overflow():
    x = torch.tensor([[-200.0, 200.0, 2.0, 3.0]])
    with np.errstate(over="ignore"):  # exp(200) is infinite, and its reciprocal zero
        torch.testing.assert_close(gate(x), torch.tensor([[0.0, 600.0]]))
