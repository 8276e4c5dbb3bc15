"""The pipeline against Hugging Face's, draws against the weights they are drawn from."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from executor.verification.temperature_top_k_top_p import Warp, draws, pick


def hugging_face(warp: Warp, logits: torch.Tensor) -> torch.Tensor:
    flat = logits.reshape(-1, logits.shape[-1])
    scores = TemperatureLogitsWarper(float(warp.temperature))(None, flat)
    if warp.top_k is not None:
        scores = TopKLogitsWarper(warp.top_k)(None, scores)
    if warp.top_p < 1:
        scores = TopPLogitsWarper(warp.top_p)(None, scores)
    return scores.log_softmax(-1).view_as(logits)


@settings(max_examples=60)
@given(
    temperature=st.floats(0.05, 5),
    top_k=st.none() | st.integers(1, 40),
    top_p=st.floats(0.01, 1),
    ties=st.booleans(),
    double=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_warps_as_hugging_face_does(temperature, top_k, top_p, ties, double, seed):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 30, generator=rng, dtype=torch.float64 if double else torch.float32) * 3
    if ties:
        logits = logits.round()
    warp = Warp(temperature, top_k, top_p)
    found = warp.log_probabilities(logits)
    assert found.dtype == logits.dtype
    torch.testing.assert_close(found, hugging_face(warp, logits), rtol=1e-6, atol=1e-6)
    assert torch.equal(found.isinf(), hugging_face(warp, logits).isinf())


def test_half_precision_is_warped_in_float32():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    warp = Warp(0.7, 20, 0.9)
    assert torch.equal(warp.log_probabilities(logits), warp.log_probabilities(logits.float()))


@pytest.mark.parametrize("vocabulary", [1, 3, 17, 257])
def test_pick_inverts_the_cumulated_weights(vocabulary):
    """On a grid of uniforms every token gets its share to within one grid point: the law is exact."""
    rng = torch.Generator().manual_seed(vocabulary)
    weights = torch.rand(3, vocabulary, generator=rng, dtype=torch.float64)
    weights[:, 1::3] = 0
    points = 20_000
    grid = ((torch.arange(points, dtype=torch.float64) + 0.5) / points).expand(3, points)
    tokens = pick(weights, grid)
    counts = torch.stack([torch.bincount(row, minlength=vocabulary) for row in tokens])
    due = weights / weights.sum(-1, keepdim=True) * points
    assert (counts - due).abs().max() <= 1 + 1e-9
    assert counts[weights == 0].sum() == 0
    slow = (weights.cumsum(-1)[0] / weights[0].sum() <= grid[0, :, None]).sum(-1)
    assert torch.equal(tokens[0], slow)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pick_never_takes_a_token_without_weight(dtype):
    """At both ends of the uniforms, with weights of 20 orders of magnitude."""
    rng = torch.Generator().manual_seed(0)
    weights = 10 ** (-20 * torch.rand(2000, 70, generator=rng, dtype=dtype))
    weights[torch.rand(weights.shape, generator=rng) < 0.7] = 0
    weights[:, 3] = 1e-9
    ends = torch.tensor([0.0, 2.0**-53, 0.5, 1 - 2.0**-24, 1 - 2.0**-53], dtype=torch.float64).expand(2000, 5)
    assert (weights.gather(-1, pick(weights, ends)) > 0).all()


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_have_the_law_of_drawing_in_turn(replacement):
    """Chi-square of ordered pairs of 6 tokens; false-alarm probability 1e-4, seed fixed; the other law is noticed."""
    q = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1, 0.0], dtype=torch.float64)
    drawn = draws(q.expand(60_000, 6), 2, torch.Generator().manual_seed(3), replacement=replacement)
    counts = torch.bincount(drawn[:, 0] * 6 + drawn[:, 1], minlength=36).double()
    put_back = torch.outer(q, q)
    kept_out = put_back / (1 - q)[:, None]
    kept_out.fill_diagonal_(0)
    laws = {True: put_back.flatten(), False: kept_out.flatten()}
    law = laws[replacement]
    assert counts[law == 0].sum() == 0
    assert chisquare(counts[law > 0], 60_000 * law[law > 0]).pvalue > 1e-4
    both = (law > 0) & (laws[not replacement] > 0)
    share = laws[not replacement][both]
    assert chisquare(counts[both], counts[both].sum() * share / share.sum()).pvalue < 1e-9
