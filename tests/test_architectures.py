"""Every family of models verifies trees token for token as Hugging Face writes one by one, or is refused by name."""

import pytest

from tests.families import EAGER, FAMILIES, FIXED, Oracle, decode, family


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_generate_token_for_token(name):
    known = family(name)
    target = known.target()
    assert target.attention == ("eager" if name in EAGER else "sdpa" if name in FIXED else "packed")
    assert (target.attention_reason is None) == (target.attention == "packed")
    for batch, count, share in ((4, 64, 0.7), (4, 24, 1.0), (4, 5, 0.0), (1, 17, 0.8)):
        texts = known.texts[-batch:]
        found, best = decode(target, known.prompts[-batch:], Oracle(texts, count, share))
        assert found == texts
        assert best == 0 if share == 0 else best >= 4
