"""Rotary positions against transformers', and what is written to the cache."""

import pytest
import torch
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from executor.kernels.rotary_store import Nodes, Rotation, rotate_and_store
from tests.helpers.interpreted_kernels import allowed, poison_new_memory, relative_error

EPS = 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "head norms"])
@pytest.mark.parametrize("one_for_all", [True, False], ids=["one position for all", "own positions"])
@pytest.mark.parametrize(("heads", "shared", "width"), [(2, 1, 16), (1, 1, 80)])
def test_queries_are_returned_and_keys_and_values_written(
    heads, shared, width, one_for_all, normed, dtype, monkeypatch
):
    torch.manual_seed(width)
    batch, tokens, capacity = 2, 3, 12
    projected = torch.randn(batch, tokens, (heads + 2 * shared) * width).to(dtype)
    lengths, first = torch.tensor([3, capacity - 4]), 2
    depths = torch.randint(1, 4, (1 if one_for_all else batch, tokens))
    rotation = Rotation(torch.rand(width // 2), 1.25, limit=10)
    angles = (lengths[:, None] + depths).clamp(max=9)[..., None] * rotation.frequencies
    cos, sin = (torch.cat(2 * [1.25 * turned(angles)], -1).to(dtype) for turned in (torch.cos, torch.sin))
    slots = lengths[:, None] + first + torch.arange(tokens)
    inside = slots < capacity
    stores = [torch.randn(2, batch, shared, capacity, width).to(dtype) for _ in range(2)]
    weights = [torch.rand(width).to(dtype) + 0.5 for _ in range(2)]

    split = projected.double().view(batch, tokens, -1, width).transpose(1, 2)
    q, k, v = split.split([heads, shared, shared], 1)
    if normed:
        q, k = (F.rms_norm(x, (width,), w.double(), EPS) for x, w in zip((q, k), weights, strict=True))
    q, k = apply_rotary_pos_emb(q, k, cos.double(), sin.double())
    expected = [store.clone() for store in stores]
    for row in range(batch):
        for store, new in zip(expected, (k, v), strict=True):
            store[1, row, :, slots[row][inside[row]]] = new[row][:, inside[row]].to(dtype)

    poison_new_memory(monkeypatch)
    nodes, norms = Nodes(lengths, depths, first), (*weights, EPS) if normed else None
    found = rotate_and_store(projected, rotation, nodes, *(s[1] for s in stores), norms)
    assert (found.shape, found.dtype) == ((batch, tokens, heads, width), dtype)
    assert relative_error(found, q.transpose(1, 2)) < allowed(dtype)
    written = torch.zeros(2, batch, shared, capacity, dtype=torch.bool)
    for row in range(batch):
        written[1, row, :, slots[row][inside[row]]] = True
    for store, wanted in zip(stores, expected, strict=True):
        assert store[~written].equal(wanted[~written])
        assert relative_error(store[written], wanted[written]) < allowed(dtype)
    assert stores[1].equal(expected[1])  # values are copied, bit by bit
