"""What blocks begin behind: the target's own texts, half written in the mean; or prompts of one length."""

import numpy as np
import pytest

from executor.decoding.decoder import Decoder
from executor.profiling.configurations import Configuration
from executor.profiling.profile_settings import Measuring
from executor.profiling.timed_blocks import LoopBlocks
from executor.runners.loop_runner import LoopRunner
from tests.helpers.models import random_heads, random_prompts, small_target
from treeopt.tree import EMPTY, Tree

PROMPTS = random_prompts([5, 9, 7, 6, 8])  # mean 7
TREE = Tree.chain(2)


@pytest.fixture(scope="module")
def target():
    return small_target()


def openings(target, **settings):
    told = {"batch": (2,), "new_tokens": 24, "steps": 7, "max_depth": 2}
    return LoopBlocks(LoopRunner(target, random_heads()), PROMPTS, Measuring(**(told | settings)).ordered())


def test_blocks_go_on_with_what_the_target_writes(target):
    found = openings(target)
    written = Decoder(target).generate(PROMPTS, new_tokens=24)
    whole = {tuple(prompt): [*prompt, *text.tokens] for prompt, text in zip(PROMPTS, written, strict=True)}
    lengths = set()
    for number in range(4):
        prompts, limits = found.prompts_of(Configuration(2, None, EMPTY), number, 7)
        assert len(prompts) == len(limits) == len(PROMPTS)
        assert sorted(map(len, prompts[2:])) == sorted(
            len(p) for p in PROMPTS if not any(one[: len(p)] == p for one in prompts[:2])
        )
        for one, limit in zip(prompts[:2], limits[:2], strict=True):
            (text,) = (text for prompt, text in whole.items() if one[: len(prompt)] == list(prompt))
            assert one == text[: len(one)]
            assert len(one) + limit == len(text)
        assert limits[2:] == [24] * 3
        lengths.add(limits[0])
    assert len(lengths) == 4


def test_texts_are_half_written_in_the_mean_over_rounds(target):
    """With the steps of the block itself, the first of which warms up."""
    found = openings(target)
    assert found.spare == 24 - 8
    assert found.context == 7 + 24 / 2
    for rounds in (8, 12):
        ahead = [24 - found.prompts_of(Configuration(2, None, EMPTY), number, 7)[1][0] for number in range(rounds)]
        assert min(ahead) >= 0
        assert max(ahead) <= found.spare
        assert np.mean(ahead) + 8 / 2 == pytest.approx(24 / 2, abs=1)


def test_all_ways_of_a_round_begin_behind_the_same(target):
    found = openings(target)
    first, second = (found.prompts_of(Configuration(2, None, tree), 3, 7) for tree in (EMPTY, TREE))
    assert first == second
    assert openings(target).prompts_of(Configuration(2, None, TREE), 3, 7) == first  # as a resumed one
    assert found.prompts_of(Configuration(2, None, EMPTY), 4, 7) != first
    assert found.prompts_of(Configuration(2, None, TREE), 3, 7) == first


@pytest.mark.parametrize("settings", [{"new_tokens": 8}, {"steps": 40}, {"context": (6,)}, {"batch": (3,)}])
def test_short_texts_and_contexts_are_not_written_ahead(target, monkeypatch, settings):
    monkeypatch.setattr(Decoder, "generate", lambda *args, **words: pytest.fail("writes"))
    found = openings(target, **settings)
    assert found.spare == 0
    assert found.context == 7 + min(settings.get("new_tokens", 24), settings.get("steps", 7) + 1) / 2
    context = settings.get("context", (None,))[0]
    prompts, _ = found.prompts_of(Configuration(2, context, EMPTY), 1, 7)
    if context is None:
        assert sorted(prompts) == sorted(PROMPTS)
    else:
        assert [len(prompt) for prompt in prompts] == [6, 6]
