"""Suffix decoding: equal to Arctic's own code, and before a model; texts, recordings and replay as for other lookups.

`arctic_suffix.json` holds what `SuffixTree` of arctic-inference 0.1.1 (csrc/suffix_decoding, depth 24, factor 1, least
probability 0.1) proposes after each token of random, repetitive and real texts.
"""

import json
from pathlib import Path

import pytest
import torch

from executor.checkpoints import load_drafter
from executor.decoding.decoder import Decoder
from executor.drafters.combined.drafter import Combined
from executor.drafters.suffix.drafter import SuffixTrie
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from tests.helpers.models import generated, random_heads, random_prompts, small_target
from treeopt.errors import UsageError
from treeopt.replay.static_tree import replay_tree
from treeopt.tree import Tree

CASES = json.loads((Path(__file__).parent / "arctic_suffix.json").read_text())
LENGTHS = (40, 25, 31)


def repetitive():
    return [[*prompt, *prompt[:20]] for prompt in random_prompts(LENGTHS, seed=4)]


def test_it_proposes_what_arctic_s_own_code_does():
    steps = drafted = 0
    for case in CASES:
        trie = SuffixTrie()
        for token, due in zip(case["text"], case["drafts"], strict=True):
            trie.extend([token])
            assert trie.propose(case["most"]) == due
            steps, drafted = steps + 1, drafted + bool(due)
    assert (steps, drafted > 1500) == (2450, True)


@pytest.mark.parametrize("name", ["suffix:4", "combined"])
def test_recorded_ranks_replay_to_what_the_loop_accepts(name):
    target = small_target()
    drafter = load_drafter("suffix:4", target)
    if name == "combined":
        drafter = Combined(drafter, random_heads(heads=4))
    prompts = repetitive()
    tree = Tree.chain(3)
    decoder = Decoder(target, drafter, tree=tree, batch=3)
    found = decoder.generate(prompts, new_tokens=24)
    assert [list(text.tokens) for text in found] == [generated(target.model, prompt, 24) for prompt in prompts]
    trace = collect(target, drafter, [Prompt("")] * 3, prompts, new_tokens=24, depth=3, width=1)
    replayed = replay_tree(tree, trace)
    live = sum(len(text.tokens) for text in found) / sum(len(text.accepted) for text in found)
    assert replayed.tau == pytest.approx(live)
    assert live > 1


def test_a_combination_drafts_by_its_model_where_the_lookup_has_nothing():
    target, heads = small_target(), random_heads(heads=4)
    both = Combined(load_drafter("suffix:4", target), heads)
    text = torch.tensor(repetitive()[:1])
    features = target.features(text).features
    for k in range(3):
        forced, alone, looked = (
            list(each.teacher_forced(target, text, features, 3))[k].scores[0] for each in (both, heads, both.first)
        )
        first = next(iter(both.first.teacher_forced(target, text, features, 1))).scores[0]
        proposes = (first > -torch.inf).any(-1)
        assert 0 < int(proposes.sum()) < len(proposes)
        torch.testing.assert_close(forced, torch.where(proposes[:, None], looked, alone))


def test_names_without_meaning_are_refused(tmp_path):
    target = small_target()
    for name in ("suffix:99", "suffix:8+"):
        with pytest.raises(UsageError, match=r"must be suffix or suffix:K with K in 1\.\.24"):
            load_drafter(name, target)
    with pytest.raises(UsageError, match=r"prompt-lookup always drafts: needed is suffix"):
        load_drafter(f"prompt-lookup+{tmp_path}", target)
