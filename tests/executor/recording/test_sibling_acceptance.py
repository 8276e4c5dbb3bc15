"""Acceptance before the draws, against all draws one by one and the rule's own rounds."""

import itertools

import pytest
import torch

from executor.recording.teacher_forced import in_rounds
from executor.verification.acceptance_probabilities import Siblings
from executor.verification.multi_round_rejection import rounds

VOCABULARY, WIDTH = 4, 3


def laws(seed: int, *, sparse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q, float64 (vocabulary,); sparse ones have zeros."""
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, VOCABULARY, generator=generator, dtype=torch.float64).pow(3)
    if sparse:
        p[seed % VOCABULARY], q[(seed + 1 + seed % 2) % VOCABULARY] = 0, 0
    return p / p.sum(), q / q.sum()


def by_enumeration(p: torch.Tensor, q: torch.Tensor, *, replacement: bool) -> torch.Tensor:
    """Expected shares over every sequence of draws."""
    total = torch.zeros(WIDTH, dtype=torch.float64)
    for drawn in itertools.product(range(VOCABULARY), repeat=WIDTH):
        chance, left = 1.0, q.clone()
        for token in drawn:
            chance *= float(left[token] / left.sum()) if left.sum() > 0 else 1 / VOCABULARY  # whatever comes then
            if not replacement:
                left[token] = 0
        tokens = torch.tensor(drawn)[None, None]
        siblings = Siblings(tokens + 1, tokens, torch.ones_like(tokens, dtype=torch.bool))
        shares, _ = rounds(p[None, None], q[None, None], siblings, replacement=replacement)
        total += chance * shares[0, 0]
    return total


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_rounds_with_replacement_have_a_closed_form(seed, sparse):
    p, q = laws(seed, sparse=sparse)
    torch.testing.assert_close(in_rounds(p, q, WIDTH), by_enumeration(p, q, replacement=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_rounds_without_replacement_are_met_on_average(sparse):
    """20 000 independent draws each; 5 standard errors of 24 x 2 means: false alarm below 3e-5, and seeds are fixed."""
    for seed in range(12):
        p, q = laws(seed, sparse=sparse)
        due = by_enumeration(p, q, replacement=False)
        many = (20_000, VOCABULARY)
        found = in_rounds(p.expand(many), q.expand(many), WIDTH, torch.Generator().manual_seed(seed))
        error = found.std(0) / many[0] ** 0.5
        assert ((found.mean(0) - due).abs() <= 5 * error + 1e-9).all()
        assert float((found[:, 0] - due[0]).abs().max()) < 1e-9


def test_equal_laws_keep_the_first_draw():
    p, _ = laws(0)
    for generator in (None, torch.Generator()):
        assert in_rounds(p, p, WIDTH, generator).tolist() == pytest.approx([1, 0, 0])
