"""Packed weights: the same products, gradients and files as plain ones."""

import json

import pytest
import torch
from torch import nn

from executor.models import compute_as_recorded, run_provenance, weights_hash
from executor.target import packed_linears
from executor.target.packed_linears import (
    multiplies_bf16,
    pack_linears,
    pack_where_it_fits,
    packable_bytes,
    packed_choice,
    quicker_choice,
    repack,
)
from executor.target.target_model import Target
from tests.helpers.models import HIDDEN, VOCABULARY, random_prompts, small_model


@pytest.fixture(autouse=True)
def _small_layers_too(monkeypatch):
    monkeypatch.setattr("executor.target.packed_linears.SMALLEST", 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_the_same_to_rounding(dtype, rows, bias):
    """Sums of 96 products may be added in another order: eps * sqrt(96) * their size, with a margin of 4.

    A processor that does not multiply bf16 natively keeps the plain weights.
    """
    torch.manual_seed(0)
    layer = nn.Linear(96, 40, bias=bias).to(dtype).requires_grad_(False)
    features = torch.randn(2, rows, 96).to(dtype)
    plain = layer(features)
    native = dtype == torch.float32 or multiplies_bf16(torch.device("cpu"))
    assert packable_bytes(layer) == 96 * 40 * dtype.itemsize * native
    assert pack_linears(layer) == 96 * 40 * dtype.itemsize * native
    assert ("forward" in vars(layer)) == native
    tolerance = 4 * torch.finfo(dtype).eps * 96**0.5
    torch.testing.assert_close(layer(features), plain, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(layer(features.transpose(0, 1)), plain.transpose(0, 1), rtol=tolerance, atol=tolerance)


def test_gradients_flow_and_weights_are_saved_as_before():
    layer = nn.Linear(8, 8)
    before = weights_hash(layer)
    pack_linears(layer)
    assert weights_hash(layer) == before
    layer(torch.randn(3, 8)).sum().backward()
    assert layer.weight.grad is not None
    frozen = nn.Linear(8, 8).requires_grad_(False)
    pack_linears(frozen)
    features = torch.randn(3, 8, requires_grad=True)
    frozen(features).sum().backward()
    torch.testing.assert_close(features.grad, frozen.weight.sum(0).expand(3, -1))


@torch.no_grad()
def test_weights_that_change_are_used():
    layer = nn.Linear(8, 8)
    pack_linears(layer)
    features = torch.randn(3, 8)
    layer.weight *= 2
    assert torch.equal(layer(features), nn.functional.linear(features, layer.weight, layer.bias))
    pack_linears(layer)
    layer.weight = nn.Parameter(torch.zeros(8, 8))
    assert torch.equal(layer(features), layer.bias.expand(3, -1))


def timed(monkeypatch, ratios):
    """Products whose packed time over the plain one is that of their shape, with one row and with several."""

    def seconds(features, layers, copies):
        calls.append((len(features), len(layers), copies is not None))
        return 1.0 if copies is None else ratios[layers[0].out_features][len(features) > 1]

    calls = []
    monkeypatch.setattr(packed_linears, "_products_s", seconds)
    return calls


def test_layers_are_packed_where_that_is_quicker(monkeypatch):
    """Each shape is timed once, plain and packed in turn, with one row and a few."""
    model = nn.Sequential(*(nn.Linear(8, n, bias=False) for n in (6, 7, 6, 5))).requires_grad_(False)
    calls = timed(monkeypatch, {6: (0.5, 0.6), 7: (0.99, 2.0), 5: (1.5, 0.9)})
    assert quicker_choice(model, budget_s=0.0) == {(6, 8): 1, (5, 8): 2}
    assert calls[:8] == [(rows, 2, packed) for _ in range(2) for rows in (1, 8) for packed in (False, True)]
    assert len(calls) == 3 * 8
    pack_where_it_fits(model)
    assert packed_choice(model) == {(5, 8): 2, (6, 8): 1}
    assert ["forward" in vars(layer) for layer in model] == [True, False, True, True]


def test_few_rows_are_multiplied_plain(monkeypatch):
    layer, used = nn.Linear(8, 5).requires_grad_(False), []
    product = packed_linears._product
    monkeypatch.setattr(packed_linears, "_product", lambda *given: used.append(len(given[0])) or product(*given))
    pack_linears(layer, {(5, 8): 3})
    for rows in (1, 2, 3, 9):
        assert layer(torch.randn(rows, 8)).shape == (rows, 5)
    assert used == [3, 9]


def test_a_choice_is_recorded_and_made_again():
    """So the last bits are those of the recorded run."""
    target, other = Target(small_model()), Target(small_model())
    shape = (VOCABULARY, HIDDEN)
    repack(target.model, {shape: 2})
    recorded = json.loads(json.dumps(run_provenance(target, None)))
    assert recorded["packed_linears"] == {"target": [[*shape, 2]]}
    assert "packed_linears" not in run_provenance(other, None)
    pack_linears(other.model)
    compute_as_recorded(other, None, recorded)
    assert packed_choice(other.model) == {shape: 2}
    tokens = torch.tensor(random_prompts((9,)))
    assert torch.equal(target.features(tokens).logits, other.features(tokens).logits)
    for unusable in (None, {}, {"packed_linears": {"target": "all"}}, {"packed_linears": {"target": [3]}}):
        compute_as_recorded(other, None, unusable)
        assert packed_choice(other.model) == {}
