"""Targets with recurrent layers in the decoding loop: chains equal `generate`; trees, drafts and graphs are refused."""

import pytest

import treeopt
from executor.decoding.decoder import Decoder
from executor.drafters.language_model.drafter import LanguageModel
from tests.helpers.fake_cuda import fake_cuda, moved_target
from tests.helpers.model_families import NEW, VOCABULARY, family
from tests.helpers.models import Told
from treeopt.errors import ExecutorError, UsageError
from treeopt.tree import EMPTY, Tree

TREE = Tree.from_paths([(0,), (1,)])


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch):
    monkeypatch.setattr("tests.helpers.models.VOCABULARY", VOCABULARY)


def test_the_loop_equals_generate_in_one_memory():
    """Rows of one memory are used again; kept prompts are computed again."""
    known = family("qwen3_next")
    target = known.target()
    with target.keeping_prompts():
        for batch, tree, share in ((4, EMPTY, 1), (4, Tree.chain(4), 0.7), (1, Tree.chain(3), 0.5)):
            prompts, texts = known.prompts[:batch], known.texts[:batch]
            drafter = Told(texts, share) if tree.nodes else None
            found = Decoder(target, drafter, tree=tree, batch=batch).generate(prompts, new_tokens=NEW)
            assert [list(text.tokens) for text in found] == texts


def test_more_requests_than_rows():
    known = family("lfm2")
    found = Decoder(known.target(), batch=2).generate(known.prompts, new_tokens=NEW)
    assert [list(text.tokens) for text in found] == known.texts


def test_trees_are_refused_before_weights_are_read(tmp_path):
    family("qwen3_next").model.config.save_pretrained(tmp_path)  # no weights beside it
    with pytest.raises(ExecutorError, match=r"qwen3_next models cannot verify trees: .*: give a chain"):
        treeopt.decode(target=tmp_path, drafter="prompt-lookup", tree=TREE, texts=["a"])


def test_what_states_do_not_allow_is_refused():
    target = family("qwen3_next").target()
    with pytest.raises(ExecutorError, match="cannot verify trees"):
        Decoder(target, Told([]), tree=TREE)
    with pytest.raises(ExecutorError, match="qwen3_next models cannot draft"):
        LanguageModel(target)
    with pytest.raises(ExecutorError, match="recurrent layers are not compiled"):
        target.compile()
    with fake_cuda(target), pytest.raises(UsageError, match="qwen3_next models compute states again"):
        Decoder(moved_target(target), graphs=True)


def test_the_states_are_part_of_the_cache_s_size():
    target = family("lfm2").target()
    needed = target.cache_bytes(3, 40)
    target.allocate(3, 40)
    assert needed == sum(store.numel() * store.element_size() for store in target.cache.stores)
    assert target.cache_bytes(3, 80) < 2 * needed  # states do not grow with the text
