import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.decoding.decoder import Decoder
from executor.drafters.language_model.drafter import LanguageModel
from tests.helpers.models import CONFIGS, Told, continued, random_heads, random_prompts, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError, UsageError
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import EAGLE, MEDUSA, published_trees

TREES = {
    "plain": EMPTY,
    "chain": Tree.chain(4),
    "star": Tree.from_paths([(r,) for r in range(9)]),
    "gaps": Tree.from_paths([(3, 1, 0), (0, 2), (1,)]),
    "medusa": published_trees()[MEDUSA],
    "eagle": published_trees()[EAGLE],
}
NEW = 24


@pytest.fixture(scope="module")
def references() -> dict[str, tuple[list[list[int]], list[list[int]]]]:
    """Prompts of ragged length, and what `generate` writes after each, by architecture."""
    return {kind: continued((7, 2, 19, 1, 12, 5), NEW, kind) for kind in CONFIGS}


@pytest.mark.parametrize("kind", CONFIGS)
def test_references_are_worth_comparing_with(references, kind):
    # A model that repeats one token would hide a wrong cache.
    assert len({t for text in references[kind][1] for t in text}) >= 16


@pytest.mark.parametrize(
    ("kind", "tree", "batch"),
    slow_unless(
        lambda kind, tree, batch: batch == 4 and tree in {"medusa", "chain"}, itertools.product(CONFIGS, TREES, [1, 4])
    ),
)
def test_equals_generate_token_for_token(references, kind, tree, batch):
    prompts, texts = references[kind]
    decoder = Decoder(small_target(kind), random_heads(), tree=TREES[tree], batch=batch)
    found = decoder.generate(prompts, new_tokens=NEW)
    assert [list(g.tokens) for g in found] == texts


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_good_drafts_are_kept_and_change_nothing(references, kind, share, rank):
    """Accepted branches are where a missing compaction of the cache would show."""
    prompts, texts = references[kind]
    tree = published_trees()[EAGLE] if rank == 0 else Tree.from_paths([(2, 2, 2, 2), (2, 0), (0, 2), (1,)])
    decoder = Decoder(small_target(kind), Told(texts, share, rank), tree=tree, batch=len(prompts))
    found = decoder.generate(prompts, new_tokens=NEW)
    assert [list(g.tokens) for g in found] == texts
    steps = sum(len(g.accepted) for g in found)
    tau = len(prompts) * NEW / steps
    assert tau > (tree.depth if share == 1 else 1.8)
    if share == 1:
        assert {a for g in found for a in g.accepted[:-1]} == {tree.depth}


def test_no_requests_is_no_work():
    assert Decoder(small_target(), batch=2).generate([], new_tokens=4) == []


@settings(max_examples=15, deadline=None)
@given(stop=st.integers(0, 60), new=st.integers(1, 20), share=st.sampled_from([0.5, 1.0]))
def test_ends_are_exact(references, stop, new, share):
    """A stop token or the limit inside an accepted branch cuts text and accepted counts alike."""
    prompts, texts = references["llama"]
    due = []
    for text in texts:
        cut = text[:new]
        due.append(cut[: cut.index(stop) + 1] if stop in cut else cut)
    decoder = Decoder(small_target(), Told(texts, share), tree=TREES["chain"], batch=len(prompts))
    found = decoder.generate(prompts, new_tokens=new, stop=[stop])
    assert [list(g.tokens) for g in found] == due
    for g in found:
        committed = [a + 1 for a in g.accepted[:-1]]
        last = len(g.tokens) - sum(committed)
        assert last >= 1
        assert g.accepted[-1] in (last - 1, last)


def test_a_request_beyond_the_context_is_refused_before_any_work():
    target = small_target()
    with pytest.raises(ExecutorError, match="532 tokens exceed the model's context of 512"):
        Decoder(target).generate([[1], [1] * 500], new_tokens=32)
    assert target.cache is None


def test_two_decoders_on_one_target_are_noticed():
    target, prompts = small_target(), random_prompts((4, 6))
    first = Decoder(target, batch=2).steps(prompts, new_tokens=8)
    next(first)
    second = Decoder(target, batch=2).steps(prompts, new_tokens=8)
    with pytest.raises(ExecutorError, match="another decoder took the target's cache"):
        next(first)
    third = Decoder(target, batch=2).steps(prompts, new_tokens=8)
    with pytest.raises(ExecutorError, match="another decoder took the target's cache"):
        next(second)
    next(third)


@pytest.mark.parametrize("token", [-1, 61])
def test_tokens_outside_the_vocabulary_are_refused(token):
    with pytest.raises(UsageError, match="prompt 1 holds tokens outside the vocabulary of 61"):
        Decoder(small_target()).generate([[1], [2, token]], new_tokens=4)


def test_memory_is_refused_for_both_caches_together(monkeypatch):
    lm = LanguageModel(small_target(seed=1))
    target = small_target()
    decoder = Decoder(target, lm, tree=Tree.chain(2))
    needed = decoder._cache_bytes(decoder._checked_lengths([[1, 2]], 8)[1])
    monkeypatch.setattr("executor.decoding.decoder.free_bytes", lambda device: needed - 1)
    with pytest.raises(ExecutorError, match="GiB free"):
        decoder.steps([[1, 2]], new_tokens=8)
    assert target.cache is None
    assert lm.target.cache is None
    monkeypatch.setattr("executor.decoding.decoder.free_bytes", lambda device: needed)
    assert len(list(decoder.steps([[1, 2]], new_tokens=8))) >= 3
