"""Prompt lookup and n-gram counts: equal to slow ones in plain Python, in trees and along texts, and lossless."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from executor.checkpoints import load_drafter, save_drafter
from executor.decoding.cuda_graphs import Graphs
from executor.decoding.decoder import Decoder
from executor.decoding.tree_growth import DynamicGrowth, StaticGrowth
from executor.drafters.base.drafter import Committed
from executor.drafters.ngram.drafter import NGRAM_FILE, NGram
from executor.drafters.prompt_lookup.drafter import RANK_STEP, RATIO, PromptLookup, match_scores
from executor.models import weights_hash
from executor.target.tokenizer import load_tokenizer
from executor.train.count_ngrams import main
from executor.verification.acceptance_rules import Greedy
from tests.executor.decoding.test_cuda_graphs import Recorder
from tests.helpers.drafters import admitted, compare_drafts
from tests.helpers.models import VOCABULARY, generated, random_prompts, small_model, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.policies import DynamicTree
from treeopt.storage.user_files import shipped
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import EAGLE, published_trees

NEW = 24
SHAPES: dict[str, Tree | DynamicTree] = {
    "chain": Tree.chain(4),
    "gaps": Tree.from_paths([(2, 1, 0), (0, 2), (1,)]),
    "eagle": published_trees()[EAGLE],
    "dynamic": DynamicTree(nodes=12, depth=4, beam=3, width=4),
    "stopping": DynamicTree(nodes=12, depth=4, beam=3, width=4, min_probability=0.05),
}
DRAFTERS = ("prompt-lookup", "prompt-lookup:1", "ngram", "bigram", "unigram")
Text = Sequence[int]
Scores = Callable[[Text, Text], list[float]]  # of each token, given the committed text and a path


# --- in plain Python


def lookup_scores(text: Text, path: Text, longest: int, vocabulary: int) -> list[float]:
    context = [*text, *path]
    found = [-math.log(vocabulary) - RANK_STEP * token for token in range(vocabulary)]
    for i, token in enumerate(text):
        matched = 0
        while matched < min(longest, i, len(context)) and text[i - 1 - matched] == context[-1 - matched]:
            matched += 1
        found[token] = max(found[token], matched * math.log(RATIO) + math.log(1 + i / len(text)))
    return found


def lookup_order(text: Text, path: Text, longest: int, vocabulary: int) -> list[int]:
    """Tokens, best first, without a score: longer, later, then those that are not in the text."""
    context, order = [*text, *path], []
    for length in range(longest, -1, -1):
        tail = context[len(context) - length :]
        for i in range(len(text) - 1, length - 1, -1):
            if length <= len(context) and list(text[i - length : i]) == tail and text[i] not in order:
                order.append(text[i])
    return order + [token for token in range(vocabulary) if token not in order]


def counted(texts: Sequence[Text], context: Text, order: int, vocabulary: int) -> list[Fraction]:
    """q(. | context), exactly."""
    q = [Fraction(1, vocabulary)] * vocabulary
    for k in range(1, order + 1):
        history = list(context[len(context) - (k - 1) :])
        if len(history) < k - 1:
            break
        after = Counter(
            text[i + k - 1] for text in texts for i in range(len(text) - k + 1) if list(text[i : i + k - 1]) == history
        )
        if after:
            q = [(after[x] + len(after) * q[x]) / (after.total() + len(after)) for x in range(vocabulary)]
    return q


def counted_scores(texts: Sequence[Text], context: Text, order: int, vocabulary: int) -> list[float]:
    return [math.log(q) - RANK_STEP * x for x, q in enumerate(counted(texts, context, order, vocabulary))]


texts_of = st.lists(st.integers(0, 3), min_size=1, max_size=14)


@settings(max_examples=60)
@given(text=texts_of, path=st.lists(st.integers(0, 4), max_size=4), longest=st.integers(1, 4))
def test_lookup_equals_the_slow_one(text, path, longest):
    """Vocabulary 6, of which 4 and 5 are in no text."""
    context = [-1] * longest + text + path
    scores = match_scores(
        torch.tensor([[*text, 0, 0]]), torch.tensor([[len(text)]]), torch.tensor([[context[-longest:]]]), 6
    )[0, 0]
    torch.testing.assert_close(scores, torch.tensor(lookup_scores(text, path, longest, 6)), atol=1e-5, rtol=0)
    assert Greedy().candidates(scores, 6).tolist() == lookup_order(text, path, longest, 6)
    assert float(scores.softmax(0).sum()) == pytest.approx(1, abs=1e-6)


@settings(max_examples=60)
@given(texts=st.lists(texts_of, min_size=1, max_size=3), context=texts_of, order=st.integers(1, 4))
def test_counts_equal_the_slow_ones(texts, context, order):
    drafter = NGram.count(texts, order=order, vocabulary=6)
    asked = torch.tensor([-1] * order + context)[-(order - 1) :] if order > 1 else torch.zeros(0, dtype=torch.long)
    q = drafter(asked[None, None])[0, 0]
    due = counted(texts, context, order, 6)
    assert sum(due) == 1
    torch.testing.assert_close(q, torch.tensor([float(x) for x in due]), atol=1e-6, rtol=1e-5)
    assert float(drafter.scores(asked).softmax(0).sum()) == pytest.approx(1, abs=1e-6)
    tables = drafter.tables()
    for k in range(2, order + 1):
        whole = Counter(tuple(text[i : i + k]) for text in texts for i in range(len(text) - k + 1))
        assert {
            tuple(g): int(c) for g, c in zip(tables[f"grams.{k}"].tolist(), tables[f"counts.{k}"], strict=True)
        } == (whole)


def test_equal_counts_are_ranked_by_id():
    scores = NGram.count([[5, 1, 5, 3, 5, 2]], order=2, vocabulary=4096).scores(torch.tensor([5]))
    assert Greedy().candidates(scores, 40).tolist() == [1, 2, 3, 5, 0, 4, *range(6, 40)]
    lookup = match_scores(torch.tensor([[7]]), torch.tensor([[1]]), torch.tensor([[[7]]]), 200_000)[0, 0]
    assert Greedy().candidates(lookup, 40).tolist() == [7, *range(7), *range(8, 40)]
    assert len(lookup.unique()) == 200_000


# --- in the loop


@pytest.fixture(scope="module")
def references():
    """Prompts, some with repeated parts, what the target writes after them, and texts of its own to count."""
    prompts = random_prompts((7, 2, 19, 1, 12, 5), seed=3)
    prompts[2] = prompts[2][:6] * 3
    texts = [generated(small_model(), p, NEW) for p in prompts]
    learnt = [generated(small_model(), p, NEW) for p in random_prompts((3,) * 20, seed=5)]
    return prompts, texts, [[*p[-2:], *t] for p, t in zip(prompts[:3], texts[:3], strict=True)] + learnt


def drafter_of(name: str, learnt: Sequence[Text]) -> NGram | PromptLookup:
    if name in ("ngram", "bigram", "unigram"):
        return NGram.count(learnt, order={"ngram": 3, "bigram": 2, "unigram": 1}[name], vocabulary=VOCABULARY)
    found = load_drafter(name, small_target())
    assert isinstance(found, PromptLookup)
    return found


def scores_of(drafter: NGram | PromptLookup, learnt: Sequence[Text]) -> Scores:
    if isinstance(drafter, NGram):
        return lambda text, path: counted_scores(learnt, [*text, *path], drafter.order, VOCABULARY)
    return lambda text, path: lookup_scores(text, path, drafter.longest, VOCABULARY)


# Each drafter in a static and a dynamic tree, each shape with two drafters.
DAILY = {(name, list(SHAPES)[place]) for number, name in enumerate(DRAFTERS) for place in (number % 3, 3 + number % 2)}


@pytest.mark.parametrize(
    ("shape", "name", "late"),
    slow_unless(lambda shape, name, late: late == 1 and (name, shape) in DAILY, product(SHAPES, DRAFTERS, [0, 1])),
)
def test_drafted_trees_equal_the_slow_ones(references, monkeypatch, shape, name, late):
    """Three ragged requests in two rows, so that one is replaced; every tree of every step."""
    prompts, _, learnt = references
    drafter = drafter_of(name, learnt)
    slow = scores_of(drafter, learnt)

    def agree(growth: object, text: Text, paths: dict[int, tuple[int, ...]]) -> None:
        if not isinstance(growth, StaticGrowth):
            assert isinstance(growth, DynamicGrowth)
            assert set(paths.values()) == _most_probable(slow, text, growth.policy)
            return
        for node, path in paths.items():
            scores = slow(text, path[:-1])
            due = sorted(range(VOCABULARY), key=lambda x: -scores[x])[growth.tree.ranks[node - 1]]
            assert path[-1] == due or scores[path[-1]] == pytest.approx(scores[due], abs=2e-6)
        assert len(set(paths.values())) == len(paths)

    decoder = Decoder(small_target(), drafter, tree=SHAPES[shape], batch=2, late=late)
    assert compare_drafts(monkeypatch, decoder, [prompts[0], prompts[2], prompts[3]], 8, agree) >= 12


def _most_probable(slow: Scores, text: Text, policy: DynamicTree) -> set[tuple[int, ...]]:
    pool: dict[tuple[int, ...], float] = {}
    beam = {(): 0.0}
    for _ in range(policy.depth):
        level = {}
        for path, value in beam.items():
            scores = slow(text, path)
            total = math.log(sum(map(math.exp, scores)))
            for token in sorted(range(VOCABULARY), key=lambda x: -scores[x])[: policy.children]:
                level[*path, token] = value + scores[token] - total
        pool |= level
        beam = dict(sorted(level.items(), key=lambda item: -item[1])[: policy.beam])
    best = sorted(pool.items(), key=lambda item: -item[1])[: policy.nodes]
    return {path for path, value in best if not policy.min_probability or value >= math.log(policy.min_probability)}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_teacher_forced_pass_is_drafting_step_by_step(references, name):
    """Row t of depth k: text up to x_{t+1} is committed, x_{t+2} ... x_{t+k} are drafted; scores are the same bits."""
    _, texts, learnt = references
    drafter, target = drafter_of(name, learnt), small_target()
    tokens = torch.tensor([text[:20] for text in texts[:3]])
    features = torch.zeros(3, 20, 32)
    whole = [forced.scores for forced in drafter.teacher_forced(target, tokens, features, 4)]
    for t in range(0, 20 - 5, 3):
        state = drafter.begin(target, 3, 4, 40, 48)
        first = max(t, 1)  # the last of these tokens is committed by a step, where there is one
        drafter.admit(state, admitted(tokens, features, [first + 1] * 3))
        more = torch.full((3,), t + 1 - first)
        place = torch.zeros(3, 2, dtype=torch.long)
        new = Committed(tokens[:, first + 1 : first + 3], features[:, :2], place, more, True)
        drafter.extend(state, new, view=24, all_fed=False)
        for k in range(4):
            scores = drafter.level(state, tokens[:, t + 1 + k, None], torch.zeros(1, 1, dtype=torch.long))
            assert torch.equal(scores[:, 0], whole[k][:, t])


@pytest.mark.parametrize("name", DRAFTERS[:3:2])
def test_steps_can_be_replayed_from_graphs(references, monkeypatch, name):
    prompts, texts, learnt = references
    monkeypatch.setattr("executor.decoding.decoder.Graphs", lambda rows: Graphs(rows, Recorder(rows)))
    for shape in ("eagle", "dynamic"):
        decoder = Decoder(small_target(), drafter_of(name, learnt), tree=SHAPES[shape], batch=2, late=1)
        decoder.bucket, decoder.graphs = 32, True
        assert [list(g.tokens) for g in decoder.generate(prompts, new_tokens=NEW)] == texts


# --- on disk


@pytest.fixture(scope="module")
def target():
    return small_target()


@pytest.mark.parametrize("order", [1, 4])
def test_round_trip(tmp_path, target, references, order):
    drafter = NGram.count(references[2], order=order, vocabulary=VOCABULARY)
    save_drafter(tmp_path, drafter, dtype="float32", meta={"corpus": "tiny"})
    found = load_drafter(tmp_path, target)
    assert isinstance(found, NGram)
    assert found.order == order
    for name, table in drafter.tables().items():
        assert torch.equal(found.tables()[name], table)
    assert weights_hash(found) == weights_hash(drafter)
    told = json.loads((tmp_path / "config.json").read_text())["treeopt_drafter"]
    assert told == {"kind": "ngram", "order": order, "vocabulary": VOCABULARY, "corpus": "tiny"}
    assert set(load_file(tmp_path / NGRAM_FILE)) == set(drafter.tables())


def test_what_differs_has_another_hash():
    one, other = (NGram.count([[1, 2, x]], order=2, vocabulary=5) for x in (1, 3))
    assert weights_hash(one) != weights_hash(other)
    assert weights_hash(PromptLookup(3)) != weights_hash(PromptLookup(4))


def test_a_failed_save_leaves_what_was_there(tmp_path, target, monkeypatch):
    old, new = (NGram.count([[1, 2, x]], order=2, vocabulary=VOCABULARY) for x in (1, 3))
    save_drafter(tmp_path, old, dtype="float32", meta={})

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("executor.checkpoints.tensors.write_tensors.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_drafter(tmp_path, new, dtype="float32", meta={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", NGRAM_FILE]
    assert weights_hash(load_drafter(tmp_path, target)) == weights_hash(old)


def test_counting_text_files(tmp_path, capsys):
    """By the shipped target's tokenizer; texts end with its end token, and none reaches into the next."""
    folder = shipped("models/stdlib-llama")
    (tmp_path / "a.py").write_text("import os\n")
    (tmp_path / "b.jsonl").write_text('{"text": "def f():"}\n{"text": "pass"}\n')
    words = [str(folder), str(tmp_path / "a.py"), str(tmp_path / "b.jsonl"), str(tmp_path / "out"), "--order", "2"]
    assert main(words) == 0
    assert "order 2" in capsys.readouterr().err
    tokenizer = load_tokenizer(folder, vocabulary=4096)
    texts = [[*ids, 0] for ids in tokenizer(["import os\n", "def f():", "pass"])["input_ids"]]
    due = NGram.count(texts, order=2, vocabulary=4096).tables()
    found = load_file(tmp_path / "out" / NGRAM_FILE)
    assert all(torch.equal(found[name], table) for name, table in due.items())
    told = json.loads((tmp_path / "out" / "config.json").read_text())["treeopt_drafter"]
    assert (told["target"], told["texts"], told["tokens"]) == ("stdlib-llama", 3, sum(map(len, texts)))
