"""A language model as the drafter: its cached trees equal what it says without a cache, and change no text."""

from itertools import product

import pytest
import torch
from torch import Tensor

from executor.decoding.decoder import Decoder
from executor.decoding.tree_growth import DynamicGrowth, StaticGrowth
from executor.drafters.base.drafter import Admitted
from executor.drafters.language_model.drafter import LanguageModel, LanguageModelState
from executor.target.kv_cache import TreeCache
from executor.target.target_model import Target
from tests.helpers.drafters import compare_drafts
from tests.helpers.models import VOCABULARY, continued, generated, noisy, random_prompts, small_model, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError
from treeopt.policies import DynamicTree
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import EAGLE, published_trees

NEW = 24
SHAPES: dict[str, Tree | DynamicTree] = {
    "chain": Tree.chain(4),
    "one": Tree.chain(1),
    "gaps": Tree.from_paths([(2, 1, 0), (0, 2), (1,)]),
    "eagle": published_trees()[EAGLE],
    "dynamic": DynamicTree(nodes=12, depth=4, beam=3, width=4),
    "stopping": DynamicTree(nodes=12, depth=4, beam=3, width=4, min_probability=0.02),
}


def delay(shape: str) -> int:
    """Return the delay that a shape is tried with every day."""
    return 1 + list(SHAPES).index(shape) % 2


def drafter(seed: int = 1, kind: str = "llama") -> LanguageModel:
    return LanguageModel(small_target(kind, seed=seed))


def near() -> LanguageModel:
    return LanguageModel(Target(noisy(small_model()), name="near"))


@pytest.fixture
def references() -> tuple[list[list[int]], list[list[int]]]:
    return continued((7, 2, 19, 1, 12, 5), NEW)


@pytest.mark.parametrize(
    ("shape", "batch", "late"),
    slow_unless(lambda shape, batch, late: batch == 4 and late == delay(shape), product(SHAPES, [1, 4], [0, 1, 2])),
)
def test_equals_generate_token_for_token(references, shape, batch, late):
    prompts, texts = references
    decoder = Decoder(small_target(), near(), tree=SHAPES[shape], batch=batch, late=late)
    found = decoder.generate(prompts, new_tokens=NEW)
    assert [list(g.tokens) for g in found] == texts
    assert sum(len(text) for text in texts) / sum(len(g.accepted) for g in found) > 1.3  # and drafts were kept


def test_a_copy_of_the_target_is_always_right(references):
    prompts, _ = references
    for shape in ("chain", "eagle"):
        tree = SHAPES[shape]
        found = Decoder(small_target(), drafter(0), tree=tree, batch=4).generate(prompts, new_tokens=NEW)
        assert {a for g in found for a in g.accepted[:-1]} == {tree.depth}


@pytest.mark.parametrize(
    ("shape", "late"), slow_unless(lambda shape, late: late == delay(shape) - 1, product(SHAPES, [0, 1]))
)
def test_drafted_trees_equal_an_uncached_recursion(references, monkeypatch, shape, late):
    """Every node's token is what the model, reading the node's whole text afresh, ranks there."""
    compare_trees(references[0][:2], monkeypatch, near(), SHAPES[shape], late)


def compare_trees(
    prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, lm: LanguageModel, tree: Tree | DynamicTree, late: int
) -> None:
    def agree(growth: object, text: list[int], paths: dict[int, tuple[int, ...]]) -> None:
        for node, path in paths.items():
            read = torch.tensor([[*text, *path[:-1]]])
            rank = lm.target.features(read).logits[0, -1].argsort(descending=True).tolist().index(path[-1])
            if isinstance(growth, StaticGrowth):
                assert rank == growth.tree.ranks[node - 1]
            else:
                assert isinstance(growth, DynamicGrowth)
                assert rank < growth.policy.children

    decoder = Decoder(small_target(), lm, tree=tree, batch=2, late=late)
    assert compare_drafts(monkeypatch, decoder, prompts, 16, agree) >= 20


@pytest.mark.parametrize(
    ("shape", "late"), slow_unless(lambda _, late: late == 1, product(["chain", "eagle", "stopping"], [0, 1, 2]))
)
@pytest.mark.slow
def test_trees_of_a_row_s_next_request_equal_the_recursion_too(references, monkeypatch, shape, late):
    """Rows begin anew beside running ones: six requests, two rows."""
    compare_trees(references[0], monkeypatch, near(), SHAPES[shape], late)


@pytest.mark.parametrize(
    ("shape", "broken"),
    slow_unless(
        lambda shape, broken: (shape == "eagle") == (broken in ("compaction", "mask")),
        product(["eagle", "dynamic"], ["compaction", "leaf", "mask", "refill"]),
    ),
)
def test_the_comparison_of_trees_notices_a_broken_drafter(references, monkeypatch, shape, broken):
    """Such faults change no text (drafts are only proposals), so nothing else would notice them."""
    lm = near()
    if broken == "compaction":
        compact = TreeCache.compact
        monkeypatch.setattr(
            TreeCache, "compact", lambda self, *where: None if self is lm.target.cache else compact(self, *where)
        )
    elif broken == "leaf":  # a kept leaf is never fed
        monkeypatch.setattr(
            lm, "extend", lambda *args, view, all_fed: LanguageModel.extend(lm, *args, view=view, all_fed=True)
        )
    elif broken == "refill":  # a row's next request begins where the last one stood
        begin = LanguageModel.admit

        def joining(state: LanguageModelState, admitted: Admitted) -> None:
            before = state.lengths[admitted.rows]
            begin(lm, state, admitted)
            state.lengths[admitted.rows] = torch.where(before > 0, before, state.lengths[admitted.rows])

        monkeypatch.setattr(lm, "admit", joining)
    else:  # siblings see each other
        feed = lm._feed
        monkeypatch.setattr(lm, "_feed", lambda t, n, d, seen, *rest: feed(t, n, d, torch.ones_like(seen), *rest))
    with pytest.raises(AssertionError):
        compare_trees(references[0][: 2 if broken != "refill" else 6], monkeypatch, lm, SHAPES[shape], 0)


@pytest.mark.parametrize("tokens", [40, 80])
def test_other_vocabularies_are_bridged(tokens):
    """Ids that the draft model lacks are never proposed, ids that the target lacks never reach it."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from tests.helpers.models import SMALL

    torch.manual_seed(3)
    config = LlamaConfig(**(SMALL | {"vocab_size": tokens}), num_key_value_heads=2)
    lm = LanguageModel(Target(AutoModelForCausalLM.from_config(config)))
    prompts = random_prompts((5, 9), seed=4)
    texts = [generated(small_model(), p, NEW) for p in prompts]
    found = Decoder(small_target(), lm, tree=Tree.full(3, 2), batch=2).generate(prompts, new_tokens=NEW)
    assert [list(g.tokens) for g in found] == texts


def test_teacher_forced_scores_are_the_model_s_own_guesses():
    lm, tokens = drafter(), torch.tensor(random_prompts((20, 20), seed=2))
    features = torch.zeros(2, 20, 32)
    plain: Tensor = lm.target.features(tokens).logits
    for k, forced in enumerate(lm.teacher_forced(small_target(), tokens, features, 3), 1):
        assert forced.scores.shape == (2, 20, VOCABULARY)
        torch.testing.assert_close(forced.scores[:, : 20 - k], plain[:, k:])


def test_two_decoders_with_one_drafter_are_noticed(references):
    lm = near()
    first, second = (Decoder(small_target(), lm, tree=Tree.chain(2)).steps([[1, 2]], new_tokens=8) for _ in range(2))
    next(second)
    with pytest.raises(ExecutorError, match="another decoder took the drafter's cache"):
        next(first)
